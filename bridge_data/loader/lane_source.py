"""What runs the lanes of a rank: its workers, or this process if it has none.

Enters: the lane whose turn it is, and the position. Leaves: its next item, pinned if asked for. Guarantee: the items
are those of the position, whoever makes them; if workers or their server are lost, or taking an item was interrupted,
all starts again from the position.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from bridge_data.errors import WorkerError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.produced import Produced
from bridge_data.loader import pinning
from bridge_data.loader.lane_runner import Ended, LaneRunner, OutOfStep, ServerLost
from bridge_data.loader.position import Position, Turns
from bridge_data.run_options import LoaderConfig, RayWorkers
from bridge_data.samples.arena import PrivateArena

if TYPE_CHECKING:
    from bridge_data.loader.workers.slots import HeldSlots
    from bridge_data.loader.workers.worker_pool import Restarts, WorkerPool
    from bridge_data.plugins.ray.ray_workers import RayPool


class LaneSource:
    """Runs lanes of `dataset`; `start` starts workers, if it has some. The first `take` waits for them.

    What runs the lanes (a `LaneRunner`, or a pool) has its own place in them, which must be that of the position. So
    it is `current` only between steps: `take` suspends it, the caller notes what it got, and `resume` makes it current
    again. If anything in between is interrupted or fails, it is forgotten, and the next `take` starts from the
    position. A caller that moves the position, or notes a part of a step by itself, calls `suspend` before.

    Batches of workers are pinned by a thread, to which the pool belongs while it runs; all others as they are taken.
    """

    def __init__(self, dataset: LaneDataset, config: LoaderConfig, pin: pinning.Pin | None) -> None:
        self._dataset, self._config, self._pin = dataset, config, pin
        ranks = dataset.worker_config
        self._num_workers = min(ranks.num_workers, len(ranks.lanes))
        self._remote = config.workers if isinstance(config.workers, RayWorkers) else None
        self._has_workers = bool(self._num_workers or (self._remote and self._remote.num_actors))
        self._restarts: Restarts | None = None
        self._held: HeldSlots | None = None
        self.pool: WorkerPool | RayPool | None = None
        self.pinning_thread: pinning.PinningThread | None = None
        self._arena = PrivateArena()
        self.current: LaneRunner | WorkerPool | RayPool | None = None
        self._suspended: LaneRunner | WorkerPool | RayPool | None = None

    def start(self) -> None:
        """Start the workers.

        Raises:
            WorkerError: if they cannot be started.
        """
        if not self._has_workers:
            return
        # Imported here: without workers none of it is needed.
        from bridge_data.loader.workers.slots import HeldSlots
        from bridge_data.loader.workers.worker_pool import Restarts, WorkerPool

        self._restarts = self._restarts or Restarts(self._config)
        if self._remote is not None:
            from bridge_data.plugins.ray.ray_workers import ray_pool

            self.pool = ray_pool(self._dataset, self._remote, self._config, self._restarts)
        if self.pool is not None:
            return
        if not self._num_workers:
            raise WorkerError(
                "there is no Ray cluster, and with num_workers=0 no worker starts on this machine instead"
            )
        self._held = self._held or HeldSlots(self._config.max_shared_bytes)
        self.pool = WorkerPool(self._dataset, self._num_workers, self._config, self._restarts, self._held)

    def take(self, lane: int, position: Position) -> Produced[Any] | Ended:
        """The next item of `lane`, whose turn it is at `position`. Suspends. Raises what the lane raised."""
        while True:
            self.suspend()
            try:
                current = self._at(position)
                item = self._taken(lane, current)
            except OutOfStep:
                self._suspended = None
                continue
            except ServerLost as error:
                self._restart(error)
                continue
            self._suspended = current
            return item

    def _taken(self, lane: int, current: LaneRunner | WorkerPool | RayPool) -> Produced[Any] | Ended:
        """The next item of `lane`, pinned."""
        if self.pinning_thread is not None:
            try:
                return self.pinning_thread.take(lane)
            except Exception:
                self._stop_pinning()
                raise
        item = current.take(lane)
        if self._pin is not None and isinstance(item, Produced):
            item.batch = self._pin(item.batch)
        return item

    def suspend(self) -> None:
        """Begin a step that `resume` ends."""
        self._suspended, self.current = self.current, None

    def resume(self) -> None:
        """What was taken is noted: the next item follows it."""
        self.current = self._suspended

    def _at(self, position: Position) -> LaneRunner | WorkerPool | RayPool:
        """What runs the lanes now: what did before, or workers or a new runner, which start at `position`."""
        before, self._suspended = self._suspended, None
        if before is not None:
            return before
        if not self._has_workers:
            return LaneRunner(self._dataset, position.state, self._arena)
        if self.pool is None:
            self.start()
        assert self.pool is not None
        self._begin(self.pool, position)
        return self.pool

    def _begin(self, pool: WorkerPool | RayPool, position: Position) -> None:
        """Have the workers start at `position`."""
        self._stop_pinning()
        lanes = position.lanes()
        pool.begin(lanes, position.state)
        if self._pin is not None:
            self.pinning_thread = pinning.PinningThread(pool, Turns(position.state, lanes), self._pin)
            self.pinning_thread.begin()

    def _stop_pinning(self) -> None:
        if self.pinning_thread is not None:
            self.pinning_thread.stop()
            self.pinning_thread = None  # not before: if waiting for its end is interrupted, the next call waits again

    def _restart(self, error: ServerLost) -> None:
        """End what is left of the workers, if another restart is allowed: the next step starts new ones."""
        if self._restarts is not None and (fatal := self._restarts.spend(str(error))):
            raise fatal
        self.close()

    def processes(self) -> list[int]:
        """The ids of the running processes."""
        return [] if self.pool is None else self.pool.processes()

    @property
    def num_restarts(self) -> int:
        """How often a process was replaced."""
        return 0 if self._restarts is None else self._restarts.num_in_all

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait for the workers; whether they are ready now."""
        try:
            if self._has_workers and self.pool is None:
                self.start()
            return self.pool is not None and (self.pinning_thread is not None or self.pool.wait_ready(timeout_s))
        except ServerLost as error:
            self._restart(error)
            return self.wait_ready(timeout_s)

    def close(self) -> None:
        """End the thread and all worker processes."""
        self._stop_pinning()
        self.current = self._suspended = None
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()


def first_of_job(dataset: LaneDataset, config: LoaderConfig) -> Any | None:
    """The first batch of the job, whichever rank it is for; None if it has none. Workers of its own make it, if
    `dataset` has some."""
    state = dataset.new_state()
    every_lane = dataclasses.replace(state, lanes={lane: {} for lane in range(state.num_lanes)})
    position, lanes = Position(dataset.worker_config, every_lane), LaneSource(dataset, config, None)
    lanes.start()
    with contextlib.closing(lanes):
        while (lane := position.turn()) is not None:
            item = lanes.take(lane, position)
            if isinstance(item, Produced):
                return item.batch
            position.end_lane()
            lanes.resume()
    return None
