from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge_data.datamodule import BatchSchedule
from bridge_data.errors import ConfigError
from tests.datamodule.parts import draw, make_module


@st.composite
def schedules(draw: st.DrawFn) -> BatchSchedule:
    micro, increment = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    start, num_increments = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    ramp = (start * micro, increment * micro, draw(st.integers(1, 400)))
    return BatchSchedule((start + num_increments * increment) * micro, micro, ramp)


@pytest.fixture(scope="module")
def calculator() -> Any:
    """Megatron's class for ramps."""
    from megatron.core import num_microbatches_calculator

    if not hasattr(num_microbatches_calculator, "RampupBatchsizeNumMicroBatchesCalculator"):
        pytest.skip("this megatron-core has step schedules in place of ramps; 0.16 is compared with")
    return num_microbatches_calculator.RampupBatchsizeNumMicroBatchesCalculator


@given(schedule=schedules(), places=st.lists(st.integers(0, 500), max_size=20))
def test_sizes_are_those_of_megatron_after_any_number_of_samples(
    calculator: Any, schedule: BatchSchedule, places: list[int]
) -> None:
    start, increment, num_samples = schedule.rampup_batch_size or ()
    megatron = calculator(
        schedule.global_batch_size, schedule.micro_batch_size, 1, False, 1, start, increment, num_samples
    )
    for consumed in [0, num_samples, *places]:
        megatron.update(consumed, consistency_check=True)
        assert schedule.size_after(consumed) == megatron.get_current_global_batch_size()
        assert schedule.num_micro_batches(consumed, 1) == megatron.get()


@given(schedules())
@example(BatchSchedule(8, 2))
def test_the_step_is_the_number_of_batches_that_so_many_samples_made(schedule: BatchSchedule) -> None:
    consumed = 0
    for step in range(60):
        size = schedule.size_after(consumed)
        assert schedule.step_after(consumed) == step
        assert schedule.step_after(consumed + size - 1) == step
        consumed += size
    assert BatchSchedule(8, 2).step_after(8 * 10**12 + 7) == 10**12, "without a ramp all steps are alike"


def test_ranks_need_only_share_the_steps_still_to_come() -> None:
    schedule = BatchSchedule(8, 1, (2, 2, 12))
    schedule.check(0, 2)
    with pytest.raises(
        ConfigError, match=r"global_batch_size=2 of rampup_batch_size, after 0 samples, is not a mult.* 4"
    ):
        schedule.check(0, 4)
    with pytest.raises(
        ConfigError, match=r"global_batch_size=6 of rampup_batch_size, after 8 samples, is not a multiple"
    ):
        schedule.check(4, 4)
    schedule.check(14, 4)
    with pytest.raises(ConfigError, match="global_batch_size=8 is not a multiple"):
        schedule.check(14, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1), "global_batch_size=0: expected at least 1"),
        ((4, 0), "micro_batch_size=0: expected at least 1"),
        ((5, 2), "expected a multiple of micro_batch_size=2"),
        ((8, 1, (2, 2)), r"rampup_batch_size=\[2, 2\]: expected \[first global batch size, increment"),
        ((8, 1, (2, 0, 12)), "all positive"),
        ((8, 1, (8, 2, 12)), "goes from 8 in steps of 2, which never reach global_batch_size=8"),
        ((8, 1, (2, 4, 12)), "the difference must be a multiple of the increment"),
        ((8, 2, (3, 5, 12)), "its first size 3 is not a multiple of micro_batch_size=2"),
        ((8, 2, (4, 1, 12)), "its increment 1 is not a multiple of micro_batch_size=2"),
    ],
)
def test_a_wrong_schedule_is_a_config_error(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BatchSchedule(*arguments)


@pytest.mark.parametrize("ramp", [None, (2, 2, 12)])
def test_the_data_module_knows_the_step_it_begins_with(path: Path, ramp: Sequence[int] | None) -> None:
    options = {"global_batch_size": 8, "num_lanes": 4, "rampup_batch_size": ramp}
    module = make_module(path, **options)
    consumed = 0
    for step in range(7):
        again = make_module(path, **options)
        again.load_state_dict(module.state_dict())
        assert (again.init_global_step, again.init_consumed_samples) == (step, consumed)
        again.train_dataloader()
        assert (again.init_global_step, again.init_consumed_samples) == (step, consumed)
        draw(module.train_dataloader(), module.batch_schedule.size_after(consumed))
        consumed += module.batch_schedule.size_after(consumed)
