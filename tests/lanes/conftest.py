from pathlib import Path
from typing import Any

import pytest

from bridge_data import WorkerConfig, get_train_dataset
from bridge_data.lanes.lane import Lane
from tests.prepared import write_blend, write_texts


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A blend of 300 and 90 texts, 3 to 1."""
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "a", 300)
    write_texts(folder / "b", 90)
    return write_blend(folder / "blend.yaml", {"a": 3, "b": 1})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 texts."""
    return write_texts(tmp_path_factory.mktemp("data") / "a", 40)


def first_lane(folder: Path, encoder: Any) -> Lane:
    """The only lane of a run over `folder`, at its beginning."""
    settings: dict[str, Any] = {
        "batch_size": 2,
        "shuffle_buffer_size": 20,
        "max_samples_per_sequence": 10,
        "worker_config": WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=1),
    }
    dataset = get_train_dataset(folder, task_encoder=encoder, **settings)
    return dataset.lane(0, dataset.new_state())
