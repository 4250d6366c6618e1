"""Running lanes: in the trainer's process without workers, and in each worker.

Reads a data set and a state. Returns the items of a lane in their order: batches, each with the lane's state after it,
and the end of the lane. Raises what the lane raises.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bridge_data.lanes.lane import Lane
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import MakerWrapper, Watch
from bridge_data.lanes.produced import Produced
from bridge_data.order.state import LoaderState
from bridge_data.samples.arena import Arena


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """The lane has no more batches; these samples were skipped after its last one."""

    lane: int
    skipped: dict[str, int]


class LaneRunner:
    """Runs lanes of one dataset in this process; opens each at its position in `state` on first use. What fails is not
    used again: see `LanePool`.

    Batches are built in `arena`, of samples made inside these `wrappers`.
    """

    def __init__(
        self,
        dataset: LaneDataset,
        state: LoaderState,
        arena: Arena,
        watch: Watch | None = None,
        wrappers: Sequence[MakerWrapper] = (),
    ) -> None:
        self._dataset, self._state, self._watch, self._arena = dataset, state, watch, arena
        self._wrappers = wrappers
        self._lanes: dict[int, Lane] = {}

    def take(self, lane: int) -> Produced[Any] | Ended:
        """The next item of `lane`. Raises what the lane raises."""
        run = self.lane(lane)
        try:
            with self._arena.active():
                return run.next()
        except StopIteration:
            return Ended(lane, run.take_skipped())

    def lane(self, lane: int) -> Lane:
        """Lane number `lane`."""
        if lane not in self._lanes:
            opened = self._dataset.lane(lane, self._state, watch=self._watch, wrappers=self._wrappers)
            self._lanes[lane] = opened
        return self._lanes[lane]
