import pytest

from bridge_data import WorkerConfig
from bridge_data.datamodule.balancing import balancing_of
from bridge_data.datamodule.batch_schedule import BatchSchedule


def test_without_a_cost_or_other_ranks_nothing_is_balanced() -> None:
    schedule = BatchSchedule(8, 1)
    assert balancing_of(None, schedule, 4, WorkerConfig(0, 2, 0)) is None
    assert balancing_of(lambda batch: 1.0, schedule, 8, WorkerConfig(0, 1, 0)) is None


def test_one_micro_batch_a_step_leaves_nothing_to_exchange() -> None:
    with pytest.warns(UserWarning, match="a rank takes one micro-batch for a step"):
        assert balancing_of(lambda batch: 1.0, BatchSchedule(2, 1), 1, WorkerConfig(0, 2, 0)) is None


def test_steps_of_a_ramp_grow() -> None:
    schedule = BatchSchedule(8, 1, [2, 2, 12])
    balancing = balancing_of(lambda batch: 1.0, schedule, 4, WorkerConfig(0, 2, 0))
    assert balancing is not None
    assert balancing.max_step_size == 4
    assert [balancing.step_size(first) for first in (0, 100)] == [1, 4]
