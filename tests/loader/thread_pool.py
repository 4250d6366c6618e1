"""A pool of another package: the lanes of a rank run in a thread of the trainer's process, some items ahead of it."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

from bridge_data.lanes.lane import Produced
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.lane_pool import Ended, Interrupted, LaneRunner
from bridge_data.options import check_integer
from bridge_data.order.state import LoaderState
from bridge_data.run_options import LoaderConfig
from bridge_data.samples.arena import PrivateArena


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadWorkers:
    """The options of the pool."""

    num_ahead: int = 2
    """Items that each lane is ahead."""

    def __post_init__(self) -> None:
        check_integer("ThreadWorkers: num_ahead", self.num_ahead, 1)

    def open_pool(self, dataset: LaneDataset, config: LoaderConfig) -> ThreadPool:
        return ThreadPool(dataset, self.num_ahead)


class ThreadPool:
    """A `LanePool` of one thread."""

    num_restarts = 0

    def __init__(self, dataset: LaneDataset, num_ahead: int) -> None:
        self._dataset, self._num_ahead = dataset, num_ahead
        self._thread = ThreadPoolExecutor(1, "tests thread pool")
        self._items: dict[int, collections.deque[Future[Produced[Any] | Ended]]] = {}

    def processes(self) -> list[int]:
        return []

    def wait_ready(self, timeout_s: float) -> bool:
        return False

    def begin(self, lanes: Sequence[int], state: LoaderState) -> None:
        self.interrupt()
        self._runner = LaneRunner(self._dataset, state, PrivateArena())
        self._items = {lane: collections.deque() for lane in lanes}
        for _ in range(self._num_ahead):
            for lane in lanes:
                self._ask(lane)

    def _ask(self, lane: int) -> None:
        self._items[lane].append(self._thread.submit(self._runner.take, lane))

    def take(self, lane: int) -> Produced[Any] | Ended:
        try:
            item = self._items[lane].popleft().result()
        except CancelledError:
            raise Interrupted from None
        if isinstance(item, Produced):
            self._ask(lane)
        return item

    def interrupt(self) -> None:
        for items in self._items.values():
            for item in items:
                item.cancel()

    def close(self) -> None:
        self._items = {}
        self._thread.shutdown(cancel_futures=True)
