from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset, merge_states
from bridge_data.order import SampleRef
from tests.prepared import write_blend, write_texts
from tests.properties.jobs import Encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "a", 120)
    write_texts(folder / "b", 60)
    write_blend(folder / "blend.yaml", {"a": 3, "b": 1})
    return folder


def train(path: Path, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "worker_config": WorkerConfig(0, 1, 0, num_lanes=4),
        "batch_size": 4,
        "shuffle_buffer_size": 20,
        "max_samples_per_sequence": 10,
    }
    return get_train_dataset(path, **(settings | changes))


def test_a_sample_is_described_by_its_key_also_where_the_data_is_gone(tmp_path: Path) -> None:
    made = train(write_texts(tmp_path / "d", 120))
    assert made.describe(SampleRef(0, 2, 55)) == "data-0001.tar/000055 of d/train (epoch 2, index 55)"
    (tmp_path / "d" / "data-0001.tar").unlink()
    assert made.describe(SampleRef(0, 2, 55)) == "data-0001.tar of d/train (epoch 2, index 55)"


def test_a_dataset_travels_without_what_it_has_opened(folder: Path) -> None:
    made = train(folder / "blend.yaml", task_encoder=Encoder())
    small = len(cloudpickle.dumps(made))
    first = made.lane(1, made.new_state()).next()
    assert len(cloudpickle.dumps(made)) <= small * 1.1
    copy = cloudpickle.loads(cloudpickle.dumps(made))
    assert copy.lane(1, copy.new_state()).next() == first


def test_ranks_near_the_end_of_finite_data_can_be_merged_and_dealt_anew(folder: Path) -> None:
    def loaders(world_size: int, num_lanes: int) -> list[Any]:
        return [
            get_savable_loader(
                train(
                    folder / "b",
                    worker_config=WorkerConfig(rank, world_size, 0, num_lanes=num_lanes),
                    repeat=False,
                    batch_size=3,
                    task_encoder=Encoder(),
                )
            )
            for rank in range(world_size)
        ]

    whole = loaders(2, 4)
    streams = [iter(loader) for loader in whole]
    emitted: list[Any] = []
    for _ in range(9):
        emitted += [key for stream in streams for unit in next(stream, []) for key in unit]
        saved = merge_states([loader.save_state_rank() for loader in whole])
        rest = loaders(3, 3)
        for loader in rest:
            loader.restore_state_rank(saved)
        after = [key for loader in rest for batch in loader for unit in batch for key in unit]
        assert len(emitted + after) == len(set(emitted + after)) == 60
