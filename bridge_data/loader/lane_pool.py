"""Who runs the lanes of a rank: the protocol `LanePool`, and this process as one, for loaders without workers.

A loader has one pool for its whole life (see `pools`). The others are `workers.worker_pool`, and that of the
plug-in for `workers=RayWorkers(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.produced import Produced
from bridge_data.loader.lane_runner import Ended, LaneRunner
from bridge_data.order.state import LoaderState
from bridge_data.samples.arena import PrivateArena

Pin: TypeAlias = Callable[[Any], Any]
"""Returns a batch in page-locked memory."""


class LanePool(Protocol):
    """Runs the lanes of a rank. One thread uses it at a time, but for `interrupt`.

    From `begin` on, `take` returns the items of each lane in their order. A process that dies or hangs is replaced, and
    so is what starts processes; no item is lost, and none comes twice. If a call raises anything (an error of a lane,
    Ctrl-C), items may be lost, so the next call must be `begin`.
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

    def take(self, lane: int) -> Produced[Any] | Ended:
        """The next item of `lane`, whose turn it must be. Raises what the lane raised."""

    def interrupt(self) -> None:
        """Have a `take` that waits in another thread raise `Interrupted`, and any later one that would wait, until
        `begin`."""

    def close(self) -> None:
        """End all processes. Batches that were handed out stay valid."""


class Interrupted(Exception):
    """`LanePool.interrupt` ended a `take`, whose item comes again after `begin`."""


class InProcessPool:
    """Runs lanes in the thread that takes their items, and pins batches there: their hooks must not run while the
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

    def take(self, lane: int) -> Produced[Any] | Ended:
        item = self._runner.take(lane)
        if self._pin is not None and isinstance(item, Produced):
            item.batch = self._pin(item.batch)
        return item

    def interrupt(self) -> None:
        """Nothing: `take` waits for nobody."""

    def close(self) -> None:
        """Nothing: there are no processes."""
