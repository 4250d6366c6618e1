import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest

from bridge_data import get_savable_loader, get_train_dataset
from bridge_data.errors import ConfigError
from bridge_data.topology import WorkerConfig
from tests.prepared import write_texts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 2, "world_size": 2, "num_workers": 0}, "rank < world_size"),
        ({"rank": -1, "world_size": 2, "num_workers": 0}, "rank < world_size"),
        ({"rank": 0, "world_size": 0, "num_workers": 0}, "world_size=0"),
        ({"rank": 0, "world_size": 1, "num_workers": -1}, "num_workers=-1"),
        ({"rank": 0, "world_size": 3, "num_workers": 0, "num_lanes": 4}, "multiple of world_size"),
        ({"rank": 0, "world_size": 3, "num_workers": 0, "num_lanes": -3}, "multiple of world_size"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkerConfig(**arguments)


def test_the_ranks_share_the_lanes() -> None:
    configs = [WorkerConfig(rank=rank, world_size=3, num_workers=2) for rank in range(3)]
    assert [config.num_lanes for config in configs] == [24, 24, 24]
    assert sorted(lane for config in configs for lane in config.lanes) == list(range(24))


@pytest.mark.parametrize(("num_workers", "expected"), [(0, 8), (1, 8), (3, 8), (8, 8), (9, 16), (16, 16), (17, 24)])
def test_a_rank_has_eight_lanes_or_for_more_workers_the_next_multiple_of_eight(num_workers: int, expected: int) -> None:
    assert WorkerConfig(rank=0, world_size=1, num_workers=num_workers).num_lanes == expected
    assert WorkerConfig(rank=1, world_size=3, num_workers=num_workers).num_lanes == 3 * expected


def test_more_lanes_for_more_workers_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        WorkerConfig(rank=0, world_size=1, num_workers=41)
        WorkerConfig(rank=0, world_size=1, num_workers=41, num_lanes=64)
        WorkerConfig(rank=0, world_size=1, num_workers=8)
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "num_workers=41: each rank has 48 lanes"
    ]


def test_outside_a_distributed_run_the_default_is_one_rank() -> None:
    config = WorkerConfig.default_worker_config()
    assert (config.rank, config.world_size, config.num_workers, config.num_lanes) == (0, 1, 4, 8)
    assert config.global_rank() == 0


def test_a_config_travels_without_its_process_group() -> None:
    config = WorkerConfig(rank=1, world_size=2, num_workers=0, data_parallel_group=object(), num_lanes=8)  # type: ignore[arg-type]
    copy = pickle.loads(pickle.dumps(config))
    assert copy.data_parallel_group is None
    assert (copy.rank, copy.world_size, copy.num_lanes) == (1, 2, 8)


@pytest.mark.parametrize("name", ["rank_worker_id", "global_worker_id", "worker_seed"])
def test_what_would_tie_samples_to_a_worker_is_not_there_and_says_why(name: str) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    assert not hasattr(config, name)
    with pytest.raises(AttributeError, match=f"WorkerConfig has no {name}: .*current_sample_index"):
        getattr(config, name)


def test_outside_hooks_no_configuration_is_active() -> None:
    assert WorkerConfig.active_worker_config is None
    with pytest.raises(ConfigError, match="only while a hook"):
        _ = WorkerConfig(rank=0, world_size=1, num_workers=0).active_worker_sample_index


@pytest.mark.processes
def test_the_sequence_of_batches_is_the_same_with_0_1_2_and_3_workers_by_default(tmp_path: Path) -> None:
    data = write_texts(tmp_path / "data", 200)

    def batches(num_workers: int) -> list[Any]:
        config = WorkerConfig.default_worker_config(num_workers=num_workers)
        dataset = get_train_dataset(
            data, worker_config=config, batch_size=3, shuffle_buffer_size=100, max_samples_per_sequence=100
        )
        with get_savable_loader(dataset) as loader:
            assert loader.wait_for_workers() == (num_workers > 0)
            return [(batch.__key__, batch.text) for batch in itertools.islice(loader, 150)]

    expected = batches(0)
    assert len(expected) == 150
    assert [batches(num_workers) == expected for num_workers in (1, 2, 3)] == [True, True, True]


def test_what_may_be_held_is_no_negative_number() -> None:
    with pytest.raises(ConfigError, match=r"max_open_bytes=-1\): expected 0 or more"):
        WorkerConfig(rank=0, world_size=1, num_workers=0, max_open_bytes=-1)
