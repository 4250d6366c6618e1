from types import SimpleNamespace
from typing import Any

import pytest

from bridge_data import WorkerConfig
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.datamodule.parallel import groups
from bridge_data.datamodule.parallel.groups import groups_of, on_this_rank
from bridge_data.datamodule.sharing import balancing_of


def test_without_a_cost_or_other_ranks_nothing_is_balanced() -> None:
    schedule = BatchSchedule(8, 1)
    assert balancing_of(None, schedule, 4, WorkerConfig(0, 2, 0)) is None
    assert balancing_of(lambda batch: 1.0, schedule, 8, WorkerConfig(0, 1, 0)) is None


def test_one_micro_batch_a_step_leaves_nothing_to_exchange() -> None:
    with pytest.warns(UserWarning, match="a rank takes one micro-batch per step"):
        assert balancing_of(lambda batch: 1.0, BatchSchedule(2, 1), 1, WorkerConfig(0, 2, 0)) is None


def test_steps_of_a_ramp_grow() -> None:
    schedule = BatchSchedule(8, 1, [2, 2, 12])
    balancing = balancing_of(lambda batch: 1.0, schedule, 4, WorkerConfig(0, 2, 0))
    assert balancing is not None
    assert balancing.max_step_size == 4
    assert [balancing.step_size(first) for first in (0, 100)] == [1, 4]


def group(rank: int, size: int) -> Any:
    return SimpleNamespace(rank=lambda: rank, size=lambda: size)


def test_the_rank_is_that_of_the_pure_data_parallel_group() -> None:
    collection: Any = SimpleNamespace(dp=group(1, 2), dp_cp=group(3, 4), cp=group(1, 2))
    config = on_this_rank(WorkerConfig(0, 1, 3, seed_offset=5, num_lanes=8), collection)
    assert (config.rank, config.world_size, config.num_workers) == (1, 2, 3)
    assert (config.seed_offset, config.num_lanes) == (5, 8)
    assert config.data_parallel_group is collection.dp


@pytest.mark.parametrize("collection", [None, SimpleNamespace(), SimpleNamespace(dp=None)])
def test_without_that_group_it_is_the_default(collection: Any) -> None:
    config = on_this_rank(WorkerConfig(0, 1, 2), collection)
    assert (config.rank, config.world_size, config.num_workers) == (0, 1, 2)


def test_a_collection_of_its_own_is_not_mixed_with_the_groups_of_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    megatron = SimpleNamespace(dp=group(1, 2), pp=group(1, 2), cp=None, tp=group(0, 2))
    monkeypatch.setattr(groups, "has_megatron_groups", lambda: True)
    monkeypatch.setattr(
        "megatron.core.process_groups_config.ProcessGroupCollection.use_mpu_process_groups", lambda names: megatron
    )
    own = group(3, 8)
    assert groups_of(SimpleNamespace(dp=own)) == (own, None, None, None)
    assert groups_of(SimpleNamespace(dp=megatron.dp)) == groups_of() == (megatron.dp, megatron.pp, None, megatron.tp)
    assert groups_of(SimpleNamespace(tp=own)) == (megatron.dp, megatron.pp, None, own)
