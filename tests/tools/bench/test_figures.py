import pytest

from bridge_data.task import STAGES
from bridge_data.tools.bench import Figures
from bridge_data.tools.bench.clock import BETWEEN, LANE, Key
from bridge_data.tools.bench.figures import RECEIVE, SEND, stage_of

FIGURES = Figures(
    num_samples=200,
    num_batches=10,
    seconds=4.0,
    cpu_s=1.0,
    num_skipped=1,
    sample_bytes=30.0,
    first_batch_s=0.1,
    workers_ready_s=0.2,
    save_s=0.001,
    state_bytes=500,
    restore_s=0.3,
)


def test_rates() -> None:
    assert (FIGURES.samples_per_s, FIGURES.batches_per_s, FIGURES.cpu_s_per_1000) == (50, 2.5, 5)
    document = FIGURES.to_dict()
    assert (document["bytes_per_s"], document["cpu_s_per_1000_samples"], document["num_samples"]) == (1500, 5, 200)


@pytest.mark.parametrize("what", [*STAGES, "read", SEND, RECEIVE, LANE.what, *(f"seed {hook}" for hook in STAGES)])
def test_everything_that_is_clocked_has_a_stage(what: str) -> None:
    assert stage_of(Key(what))


def test_time_between_batches_is_no_stage_by_itself() -> None:
    with pytest.raises(KeyError):
        stage_of(BETWEEN)
