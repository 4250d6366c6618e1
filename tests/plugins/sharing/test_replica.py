from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from bridge_data import ConfigError, DatasetError, WorkerError, storage
from bridge_data.plugins.sharing.replica import Replica, ReplicaLoader, join_replica
from tests.datamodule.parts import draw, make_module, write_numbers


@pytest.fixture
def alone(tmp_path: Any) -> Any:
    """A job of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_without_a_distributed_run_groups_or_a_way_that_there_is_nothing_is_shared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"torch\.distributed is not initialised"):
        join_replica(SimpleNamespace())
    with pytest.raises(ConfigError, match=r"share='scatter'.*'replicate', 'broadcast'"):
        make_module(tmp_path, share="scatter")


def test_a_rank_alone_reads_for_itself(alone: None, path: Path, expected: list[list[int]]) -> None:
    with pytest.raises(ConfigError, match="pass pg_collection"):
        join_replica()
    module = make_module(path, pg_collection=SimpleNamespace(dp=dist.group.WORLD), share="broadcast")
    loader = module.train_dataloader()
    assert draw(loader, 3) == expected[:3]
    state = loader.save_state()
    assert draw(loader, 3) == expected[3:6]
    loader.restore_state(state)
    assert draw(loader, 3) == expected[3:6]
    loader.close()


def test_errors_of_the_reader_come_with_the_next_batch(alone: None, tmp_path: Any) -> None:
    data = write_numbers(tmp_path / "data")
    module = make_module(data, pg_collection=SimpleNamespace(dp=dist.group.WORLD), share="broadcast")
    loader = module.train_dataloader()
    draw(loader, 1)
    for shard in data.glob("*.tar"):
        shard.write_bytes(b"")
    storage.close_files()
    with pytest.raises(DatasetError, match=r"data-\d+\.tar"):
        draw(loader, 50)
    loader.close()


def test_a_failed_broadcast_is_told_and_the_workers_of_the_reader_end(tmp_path: Any) -> None:
    own = make_module(write_numbers(tmp_path / "data"), num_workers=1).train_dataloader().dataloader
    assert own.wait_for_workers()
    replica = Replica(reader=0, members=SimpleNamespace(size=lambda: 2), readers=None)  # no group to broadcast in
    shared = ReplicaLoader(own.dataset, replica, own, own.config)
    with pytest.raises(WorkerError, match="rank 0"):
        next(iter(shared))
    shared.close()
    with pytest.raises(WorkerError, match="closed"):
        next(iter(own))
