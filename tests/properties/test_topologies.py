import pytest

from tests.ranks import run_job


@pytest.mark.long
@pytest.mark.parametrize("examples", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_global_batches_are_equal_for_any_number_of_ranks_and_workers(examples: int) -> None:
    status, output = run_job("tests.properties.topologies", str(examples), timeout_s=280)
    assert status == 0, output[-8_000:]
    assert output.count("equal in 12 topologies") >= examples
