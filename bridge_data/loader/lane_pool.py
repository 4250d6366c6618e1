"""Lanes of a rank: whose turn it is, and who runs them.

Reads a data set, a state and some of its lanes. Returns their results in the order of turns: batches, and the end of
each lane, each with the lane's state after it. Raises what a lane raises. Promises that the order depends on the lanes
alone: micro-batch number n of lane l is that of index `n * num_lanes + l`.

A loader has one `LanePool` for its whole life: this process, worker processes (`workers.worker_pool`), or one of a
plug-in; `even_ends` may open another for one batch. Wherever lanes run, a `LaneRunner` runs them.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from bridge_data.lanes.lane import Lane, Produced
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import Watch
from bridge_data.lanes.maker_wrappers import MakerWrapper
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.samples.arena import Arena, PrivateArena

Pin: TypeAlias = Callable[[Any], Any]
"""Returns a batch in page-locked memory; None, in place of the batch of a skipped micro-batch, as it is."""


class LaneSchedule:
    """Whose turn it is among some lanes after `state`: that of the lane whose next micro-batch is the first."""

    def __init__(self, state: LoaderState, lanes: Iterable[int]) -> None:
        self._num_lanes = state.num_lanes
        self._next = [(index, lane) for lane, index in state.next_indexes(lanes).items()]
        heapq.heapify(self._next)

    def __bool__(self) -> bool:
        return bool(self._next)

    @property
    def index(self) -> int:
        """The micro-batch that is next."""
        return self._next[0][0]

    @property
    def lane(self) -> int:
        """The lane whose turn it is."""
        return self._next[0][1]

    @property
    def lanes(self) -> list[int]:
        """The lanes that have not ended, by their next micro-batches."""
        return [lane for _, lane in sorted(self._next)]

    def following(self, count: int) -> list[int]:
        """The lanes of the next `count` turns, if no lane ends."""
        return [*itertools.islice(itertools.cycle(self.lanes), count)]

    def advance(self) -> None:
        """Note that the lane whose turn it is has made its micro-batch."""
        index, lane = self._next[0]
        heapq.heapreplace(self._next, (index + self._num_lanes, lane))

    def end_lane(self) -> None:
        """Note that the lane whose turn it is has no more batches."""
        heapq.heappop(self._next)


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """The lane has no more batches: the samples skipped after its last one, and its state after these."""

    lane: int
    state: LaneState
    skipped: dict[str, int]


LaneResult: TypeAlias = Produced[Any] | Ended
"""What a lane gives at its turn."""


class LaneRunner:
    """Runs lanes of one data set in this process: the trainer's, or a worker; opens each at its position in `state` on
    first use. What fails is not used again: see `LanePool`.

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

    def take(self, lane: int) -> LaneResult:
        """The next result of `lane`; of a micro-batch that is skipped, without the batch. Raises what the lane
        raises."""
        opened, state = self.lane(lane), self._state
        try:
            with self._arena.active():
                result = opened.next()
        except StopIteration:
            return Ended(lane, opened.state(), opened.take_skipped())
        if state.skips is not None and (result.state["micro_batches"] - 1) * state.num_lanes + lane in state.skips:
            result.batch = None  # no rank gets it, so it does not travel
        return result

    def lane(self, lane: int) -> Lane:
        """Lane number `lane`."""
        if lane not in self._lanes:
            opened = self._dataset.lane(lane, self._state, watch=self._watch, wrappers=self._wrappers)
            self._lanes[lane] = opened
        return self._lanes[lane]


class LanePool(Protocol):
    """Runs the lanes of a rank. One thread uses it at a time, but for `interrupt`.

    From `begin` on, `take` returns the results of each lane in their order. A process that dies or hangs is replaced,
    and so is what starts processes; no result is lost, and none comes twice. If a call raises anything (an error of a
    lane, Ctrl-C), results may be lost, so the next call must be `begin`.
    """

    @property
    def num_restarts(self) -> int:
        """How often a process was replaced."""

    def processes(self) -> list[int]:
        """The ids of the running processes on this machine."""

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the workers have loaded the data set; False if that takes longer, or there are none.

        Raises:
            WorkerError: if a worker cannot load it.
        """

    def begin(self, lanes: Sequence[int], state: LoaderState) -> None:
        """Drop what was made ahead, and run these lanes of `state` from there on; `lanes` are in the order of their
        turns.

        Raises:
            WorkerError: if no worker can run any more.
        """

    def take(self, lane: int) -> LaneResult:
        """The next result of `lane`, whose turn it must be. Raises what the lane raised."""

    def interrupt(self) -> None:
        """Have a `take` that waits in another thread raise `Interrupted`, and any later one that would wait, until
        `begin`."""

    def close(self) -> None:
        """End all processes. Batches that were handed out stay valid."""


class Interrupted(Exception):
    """`LanePool.interrupt` ended a `take`, whose result comes again after `begin`."""


class InProcessPool:
    """Runs lanes in the thread that takes their results, and pins batches there: their hooks must not run while the
    trainer's own code does."""

    num_restarts = 0

    def __init__(self, dataset: LaneDataset, pin: Pin | None = None) -> None:
        self._dataset, self._pin, self._arena = dataset, pin, PrivateArena()

    def processes(self) -> list[int]:
        return []

    def wait_ready(self, timeout_s: float) -> bool:
        return False

    def begin(self, lanes: Sequence[int], state: LoaderState) -> None:
        self._runner = LaneRunner(self._dataset, state, self._arena)

    def take(self, lane: int) -> LaneResult:
        result = self._runner.take(lane)
        if self._pin is not None and isinstance(result, Produced):
            result.batch = self._pin(result.batch)
        return result

    def interrupt(self) -> None:
        """Nothing: `take` waits for nobody."""

    def close(self) -> None:
        """Nothing: there are no processes."""
