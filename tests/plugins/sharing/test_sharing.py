from types import SimpleNamespace
from typing import Any

import pytest

from bridge_data import WorkerConfig
from bridge_data.datamodule.parallel import groups
from bridge_data.datamodule.parallel.groups import groups_of, on_this_rank


def group(rank: int, size: int) -> Any:
    return SimpleNamespace(rank=lambda: rank, size=lambda: size)


@pytest.mark.parametrize(
    ("collection", "rank_and_size"),
    [
        (SimpleNamespace(dp=group(1, 2), dp_cp=group(3, 4), cp=group(1, 2)), (1, 2)),
        *((none, (0, 1)) for none in (None, SimpleNamespace(), SimpleNamespace(dp=None))),
    ],
)
def test_the_rank_is_that_of_the_pure_data_parallel_group(collection: Any, rank_and_size: tuple[int, int]) -> None:
    config = on_this_rank(WorkerConfig(0, 1, 3, seed_offset=5, num_lanes=8), collection)
    assert (config.rank, config.world_size) == rank_and_size
    assert (config.num_workers, config.seed_offset, config.num_lanes) == (3, 5, 8)
    assert config.data_parallel_group is getattr(collection, "dp", None)


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
