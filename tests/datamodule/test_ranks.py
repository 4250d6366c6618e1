from types import SimpleNamespace
from typing import Any

import pytest

from bridge_data.datamodule.ranks import build_worker_config


def group(rank: int, size: int) -> Any:
    return SimpleNamespace(rank=lambda: rank, size=lambda: size)


def test_the_rank_is_that_of_the_pure_data_parallel_group() -> None:
    collection: Any = SimpleNamespace(dp=group(1, 2), dp_cp=group(3, 4), cp=group(1, 2))
    config = build_worker_config(collection, 3, seed_offset=5, num_lanes=8)
    assert (config.rank, config.world_size, config.num_workers) == (1, 2, 3)
    assert (config.seed_offset, config.num_lanes) == (5, 8)
    assert config.data_parallel_group is collection.dp


@pytest.mark.parametrize("collection", [None, SimpleNamespace(), SimpleNamespace(dp=None)])
def test_without_that_group_it_is_the_default(collection: Any) -> None:
    config = build_worker_config(collection, 2)
    assert (config.rank, config.world_size, config.num_workers) == (0, 1, 2)
