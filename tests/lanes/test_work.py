"""Hooks that contradict each other."""

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


class Twofold(DefaultTaskEncoder[Any, Any, Any, Any]):
    def encode_sample(self, sample: TextSample) -> TextSample:
        return sample

    def preencode_sample(self, sample: TextSample) -> TextSample:
        return sample


def test_encoding_in_one_go_and_in_two_is_refused_before_any_sample(folder: Path) -> None:
    with pytest.raises(ConfigError, match="Twofold overrides encode_sample and also preencode_sample"):
        first_lane(folder, Twofold())
