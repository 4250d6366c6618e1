"""Running lanes, in this process or in a worker.

Enters: a `LaneDataset` and the states of lanes. Leaves: the batches of the lanes asked for, each with its lane's state
after it.
"""

import dataclasses
from typing import Any, Generic, TypeVar

from bridge_data.lanes.lane import Lane
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.work import Watch
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.samples.arena import Arena

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Produced(Generic[T]):
    """A batch, the lane's state after it, and the samples left out on the way to it."""

    lane: int
    batch: T
    state: LaneState
    skipped: dict[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """The lane has no more batches; these samples were left out after its last one."""

    lane: int
    skipped: dict[str, int]


class LaneRunner:
    """Runs lanes of one dataset in this process, each opened where `state` has it when it is first wanted.

    Batches are built in `arena`.
    """

    def __init__(self, dataset: LaneDataset, state: LoaderState, arena: Arena, watch: Watch | None = None) -> None:
        self._dataset, self._state, self._watch, self._arena = dataset, state, watch, arena
        self._lanes: dict[int, Lane] = {}

    def take(self, lane: int) -> Produced[Any] | Ended:
        """The next item of `lane`. After an exception the runner is spent: make another from the last states."""
        if lane not in self._lanes:
            self._lanes[lane] = self._dataset.lane(lane, self._state, self._watch)
        run = self._lanes[lane]
        try:
            with self._arena.active():
                item = run.next()
        except StopIteration:
            return Ended(lane, run.take_skipped())
        return Produced(lane, item.batch, item.state, item.skipped)
