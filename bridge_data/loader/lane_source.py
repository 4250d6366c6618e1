"""What runs the lanes of a rank: workers once they are ready; this process until then, or if there are none.

Enters: the lane whose turn it is, and the position. Leaves: its next item, pinned if asked for. Guarantee: the items
are those of the position, whoever makes them; if workers or their server are lost, or taking an item was interrupted,
all starts again from the position.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any

from bridge_data.child_process import give_back_freed_memory
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.produced import Produced
from bridge_data.loader.lane_runner import Ended, LaneRunner, OutOfStep, ServerLost
from bridge_data.loader.metrics import Processes
from bridge_data.loader.pinning import Pin, PinningPool
from bridge_data.loader.position import Position
from bridge_data.run_options import LoaderConfig
from bridge_data.samples.arena import PrivateArena

if TYPE_CHECKING:
    from bridge_data.loader.workers.slots import Kept
    from bridge_data.loader.workers.worker_pool import Restarts, WorkerPool

logger = logging.getLogger("bridge_data")

_SLOW_START_S = 60.0


class LaneSource:
    """Runs lanes of `dataset`; `start` starts workers, if it has some.

    It is suspended from `take` to `resume`, while the caller notes what it got: if that is interrupted, the next `take`
    starts again from the position. `suspend` has the same effect.
    """

    def __init__(self, dataset: LaneDataset, config: LoaderConfig, pin: Pin | None) -> None:
        self._dataset, self._config, self._pin = dataset, config, pin
        ranks = dataset.worker_config
        self._num_workers = min(ranks.num_workers, len(ranks.lanes))
        self._restarts: Restarts | None = None
        self._kept: Kept | None = None
        self.pool: WorkerPool | PinningPool | None = None
        self._arena = PrivateArena()
        self.current: LaneRunner | WorkerPool | PinningPool | None = None
        self._suspended: LaneRunner | WorkerPool | PinningPool | None = None

    def start(self) -> None:
        """Start the workers.

        Raises:
            WorkerError: if they cannot be started.
        """
        if not self._num_workers:
            return
        # Imported here: without workers none of it is needed.
        from bridge_data.loader.workers.slots import Kept
        from bridge_data.loader.workers.worker_pool import Restarts, WorkerPool

        self._slow_at = time.monotonic() + _SLOW_START_S
        self._restarts = self._restarts or Restarts(self._config)
        self._kept = self._kept or Kept(self._config.max_shared_bytes)
        pool = WorkerPool(self._dataset, self._num_workers, self._config, self._restarts, self._kept)
        self.pool = pool if self._pin is None else PinningPool(pool, self._pin)

    def take(self, lane: int, position: Position) -> Produced[Any] | Ended:
        """The next item of `lane`, whose turn it is at `position`. Suspends. Raises what the lane raised."""
        while True:
            self.suspend()
            try:
                current = self._at(position)
                item = current.take(lane)
            except OutOfStep:
                self._suspended = None
                continue
            except ServerLost as error:
                self._restart(error)
                continue
            if self._pin is not None and isinstance(current, LaneRunner) and isinstance(item, Produced):
                item.batch = self._pin(item.batch)
            self._suspended = current
            return item

    def suspend(self) -> None:
        """Begin a step that `resume` ends."""
        self._suspended, self.current = self.current, None

    def resume(self) -> None:
        """What was taken is noted: the next item follows it."""
        self.current = self._suspended

    def _at(self, position: Position) -> LaneRunner | WorkerPool | PinningPool:
        """What runs the lanes now: what did before, or a new runner or the pool, which start at `position`."""
        pool, before = self.pool, self._suspended
        self._suspended = None
        if pool is not None and before is not pool:
            if pool.ready():
                pool.begin(position.lanes(), position.state)
                self._arena = PrivateArena()  # no batch is made in this process any more
                give_back_freed_memory()
                return pool
            if time.monotonic() > self._slow_at:
                logger.warning("workers are not ready after %.0f s; the trainer makes batches itself", _SLOW_START_S)
                self._slow_at = math.inf
        return before or LaneRunner(self._dataset, position.state, self._arena)

    def _restart(self, error: ServerLost) -> None:
        """Start a new server with new workers, if another restart is allowed."""
        if self._restarts is not None and (fatal := self._restarts.spend(str(error))):
            raise fatal
        self.close()
        self.start()

    def processes(self) -> Processes:
        """The running processes."""
        num_restarts = 0 if self._restarts is None else self._restarts.num_in_all
        return Processes([] if self.pool is None else self.pool.processes(), num_restarts)

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait for the workers; whether they can take over now."""
        try:
            return self.pool is not None and self.pool.wait_ready(timeout_s)
        except ServerLost as error:
            self._restart(error)
            return self.wait_ready(timeout_s)

    def close(self) -> None:
        """End all worker processes."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()
