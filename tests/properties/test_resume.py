import pytest

from tests.ranks import run_job


@pytest.mark.slow
@pytest.mark.parametrize("how", ["together", "each"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.timeout(900)
def test_a_run_resumed_after_any_step_equals_the_uninterrupted_one(num_workers: int, how: str) -> None:
    status, output = run_job("tests.properties.resume_everywhere", str(num_workers), how, timeout_s=850)
    assert status == 0, output[-8_000:]
    assert "78 resumes equal" in output
