"""Packing hooks that return what no run can use."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import ConfigError, DefaultTaskEncoder, FatalSampleError, TextSample, WorkerConfig, get_train_dataset
from bridge_data.lanes.lane import Lane
from tests.prepared import write_texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("data") / "a", 40)


def first_lane(folder: Path, encoder: Any) -> Lane:
    settings: dict[str, Any] = {
        "batch_size": 2,
        "packing_buffer_size": 4,
        "shuffle_buffer_size": 20,
        "max_samples_per_sequence": 10,
        "worker_config": WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=1),
    }
    dataset = get_train_dataset(folder, task_encoder=encoder, **settings)
    return dataset.lane(0, dataset.new_state())


class Packing(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Packs of two; `selected` is returned instead, if given."""

    def __init__(self, selected: Any = None) -> None:
        super().__init__()
        self.selected = selected

    def select_samples_to_pack(self, samples: list[TextSample]) -> Any:
        return [samples[:2], samples[2:]] if self.selected is None else self.selected

    def pack_selected_samples(self, samples: list[TextSample]) -> Any:
        return samples[0]


@pytest.mark.parametrize(
    ("selected", "says"),
    [
        (5, "returned no list of packs, but one of type int"),
        ([5], "returned no list of packs, but one of type list"),
        ([["another"]], "or one that is not among the samples"),
    ],
)
def test_a_selection_that_is_no_packs_of_its_samples_is_fatal(folder: Path, selected: Any, says: str) -> None:
    with pytest.raises(FatalSampleError, match=says):
        first_lane(folder, Packing(selected)).next()


class ManyOfOne(Packing):
    def pack_selected_samples(self, samples: list[TextSample]) -> Iterator[TextSample]:
        yield from samples


def test_several_samples_of_one_pack_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="pack_selected_samples of ManyOfOne made 2 samples of one pack"):
        first_lane(folder, ManyOfOne()).next()
