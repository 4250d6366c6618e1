import pytest

from tests.ranks import run_job


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_workers", "how", "every"),
    [
        (2, "together", 7),
        *(
            pytest.param(num_workers, how, 1, marks=pytest.mark.slow)
            for num_workers in (0, 2)
            for how in ("together", "each")
        ),
    ],
)
@pytest.mark.timeout(900)
def test_a_run_resumed_after_any_step_equals_the_uninterrupted_one(num_workers: int, how: str, every: int) -> None:
    arguments = str(num_workers), how, str(every)
    status, output = run_job("tests.properties.resume_everywhere", *arguments, timeout_s=850)
    assert status == 0, output[-8_000:]
    assert f"{2 * len(range(1, 40, every))} resumes equal" in output
