"""Packing buffers, and packing hooks that return what no run can use."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge_data import FatalSampleError
from bridge_data.lanes.lane import Lane
from tests.prepared import train_dataset
from tests.properties.jobs import Encoder


def opened(data: Path, encoder: Any, **settings: Any) -> Lane:
    """The only lane of a run with packing buffers of 12 samples."""
    dataset = train_dataset(data, num_lanes=1, task_encoder=encoder, batch_size=1, packing_buffer_size=12, **settings)
    return dataset.lane(0, dataset.new_state())


class Wasteful(Encoder):
    """Takes only half of each buffer; what it leaves comes back."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[: len(samples) // 2 + 1]]


def test_at_the_end_what_no_packer_wants_goes_alone(data: Path) -> None:
    lane, keys = opened(data, Wasteful(), repeat=False), []
    with pytest.raises(StopIteration):
        while True:
            keys += [key for unit in lane.next().batch for key in unit]
    assert len(keys) == len(set(keys)) == 390


def test_what_waits_is_in_the_states_of_many_batches_the_same_object(data: Path) -> None:
    """So it is encoded once, and sent once by a worker."""
    lane = opened(data, Encoder(capacity=4))
    states = [lane.next().state["pending"] for _ in range(40)]
    kept = [(before, after) for before, after in itertools.pairwise(states) if before["base"] is after["base"]]
    assert len(kept) > 20
    for before, after in kept:
        assert after.get("carried") is before.get("carried")
        assert [*map(id, after.get("packs", ()))] == [*map(id, before["packs"])][1:]
    assert any("carried" in before for before, _ in kept)


class Selecting(Encoder):
    """Packs what `selected` makes of the samples."""

    def __init__(self, selected: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self.selected = selected

    def select_samples_to_pack(self, samples: list[Any]) -> Any:
        return self.selected(samples)


@pytest.mark.parametrize(
    ("selected", "says"),
    [
        (lambda samples: [], "Selecting formed no pack out of a full buffer of 12"),
        (lambda samples: [[samples[0], samples[0]]], "returned a sample twice"),
        (lambda samples: 5, "returned an object of type int"),
        (lambda samples: [5], "returned an object of type list"),
        (lambda samples: [["another"]], "or one that is not among the samples"),
    ],
)
def test_a_selection_that_is_no_packs_of_its_samples_is_fatal(data: Path, selected: Any, says: str) -> None:
    with pytest.raises(FatalSampleError, match=says):
        opened(data, Selecting(selected)).next()
