"""Packing buffers, and packing hooks that return what no run can use."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import ConfigError, DefaultTaskEncoder, FatalSampleError, TextSample, WorkerConfig, get_train_dataset
from bridge_data.lanes.lane import Lane
from tests.properties.jobs import Encoder


def opened(data: Path, encoder: Any, **settings: Any) -> Lane:
    """The only lane of a run with packing buffers of 12 samples."""
    dataset = get_train_dataset(
        data,
        task_encoder=encoder,
        batch_size=1,
        packing_buffer_size=12,
        shuffle_buffer_size=20,
        max_samples_per_sequence=10,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=1),
        **settings,
    )
    return dataset.lane(0, dataset.new_state())


class Picky(Encoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return []


class Liar(Encoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [[samples[0], samples[0]]]


class Wasteful(Encoder):
    """Takes only half of each buffer; what it leaves comes back."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[: len(samples) // 2 + 1]]


def test_a_packer_that_forms_no_pack_is_an_error_and_not_a_loop(data: Path) -> None:
    with pytest.raises(FatalSampleError, match=r"Picky formed no pack out of a full buffer of 12"):
        opened(data, Picky()).next()


def test_at_the_end_what_no_packer_wants_goes_alone(data: Path) -> None:
    lane, keys = opened(data, Wasteful(), repeat=False), []
    with pytest.raises(StopIteration):
        while True:
            keys += [key for unit in lane.next().batch for key in unit]
    assert len(keys) == len(set(keys)) == 390


def test_a_packer_must_return_what_it_was_given(data: Path) -> None:
    with pytest.raises(FatalSampleError, match="returned a sample twice"):
        opened(data, Liar()).next()


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
        (5, "returned an object of type int"),
        ([5], "returned an object of type list"),
        ([["another"]], "or one that is not among the samples"),
    ],
)
def test_a_selection_that_is_no_packs_of_its_samples_is_fatal(data: Path, selected: Any, says: str) -> None:
    with pytest.raises(FatalSampleError, match=says):
        opened(data, Packing(selected)).next()


class ManyOfOne(Packing):
    def pack_selected_samples(self, samples: list[TextSample]) -> Iterator[TextSample]:
        yield from samples


def test_several_samples_of_one_pack_are_refused(data: Path) -> None:
    with pytest.raises(ConfigError, match="pack_selected_samples of ManyOfOne made 2 samples of one pack"):
        opened(data, ManyOfOne()).next()
