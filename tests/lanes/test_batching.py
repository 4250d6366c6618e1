"""Groups that no run can use. More is in `tests/task/test_grouping.py`."""

from pathlib import Path
from typing import Any

import pytest

from bridge_data import ConfigError, DefaultTaskEncoder, TextSample, WorkerConfig, get_train_dataset
from bridge_data.lanes.lane import Lane
from tests.prepared import write_texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("data") / "a", 40)


def first_lane(folder: Path, encoder: Any) -> Lane:
    settings: dict[str, Any] = {
        "batch_size": 2,
        "shuffle_buffer_size": 20,
        "max_samples_per_sequence": 10,
        "worker_config": WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=1),
    }
    dataset = get_train_dataset(folder, task_encoder=encoder, **settings)
    return dataset.lane(0, dataset.new_state())


class KeyedByObject(DefaultTaskEncoder[Any, Any, Any, Any]):
    def batch_group_criterion(self, sample: TextSample) -> Any:
        return object(), None


def test_a_group_key_that_differs_between_processes_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"returned the key <object object at 0x.*cannot be saved; return numbers"):
        first_lane(folder, KeyedByObject()).next()
