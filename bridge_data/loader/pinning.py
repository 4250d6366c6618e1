"""Pinning: batches of workers are copied to page-locked memory in a thread, while the trainer is busy with its step.

Enters: the worker pool and the turns of its lanes. Leaves: the pool's items in the same order, batches pinned.
Guarantee: at most one batch is ahead of the trainer; the position is not moved here, so a state counts what the trainer
got; an error comes in place of its batch.

Without workers, batches are pinned in the trainer's thread as they are handed out: their hooks must not run
concurrently with the trainer's own code.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from bridge_data import samples
from bridge_data.lanes.produced import Produced
from bridge_data.later import torch
from bridge_data.loader.lane_runner import Ended, OutOfStep
from bridge_data.loader.position import Turns

if TYPE_CHECKING:
    from bridge_data.loader.workers.worker_pool import WorkerPool
    from bridge_data.plugins.ray.ray_workers import RayPool

Pin: TypeAlias = Callable[[Any], Any]
"""Returns a batch in page-locked memory."""


def can_pin() -> bool:
    """Whether there is a GPU to pin memory for."""
    return torch.cuda.is_available()


def pinned(batch: Any) -> Any:
    """The batch, copied to page-locked memory; torch reuses that of freed batches."""
    return batch.pin_memory() if hasattr(batch, "pin_memory") else samples.pin(batch)


class PinningThread:
    """Takes the items of `pool` by the `turns`, and pins them by `pin`, from `begin` on. No one else may use the pool
    until `stop`."""

    def __init__(self, pool: WorkerPool | RayPool, turns: Turns, pin: Pin) -> None:
        self._pool, self._turns, self._pin = pool, turns, pin
        self._changed = threading.Condition()
        self._next: tuple[int, Produced[Any] | Ended | BaseException] | None = None
        self._begun = self._stopped = False
        is_on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._device = torch.cuda.current_device() if is_on_gpu else None
        self._thread = threading.Thread(target=self._run, name="bridge_data pinning", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # an interrupt while it starts: it must not wait for ever
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            raise

    def begin(self) -> None:
        """Let the thread use the pool: its owner knows it by now, whatever interrupted the start."""
        with self._changed:
            self._begun = True
            self._changed.notify_all()

    def take(self, lane: int) -> Produced[Any] | Ended:
        """The next item of `lane`, whose turn it must be. Raises what the pool or pinning raised, and then ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._next is not None)
            assert self._next is not None
            of_lane, item = self._next
            self._next = None
            self._changed.notify_all()
        if isinstance(item, BaseException):
            raise item
        if of_lane != lane:
            raise OutOfStep
        return item

    def stop(self) -> None:
        """End the thread. What it has prefetched is dropped; the pool must start again."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._pool.interrupt()
        if threading.current_thread() is not self._thread:  # which may collect the garbage that a loader has become
            self._thread.join()

    def _run(self) -> None:
        if self._device is not None:
            torch.cuda.set_device(self._device)
            torch.set_num_threads(1)  # for the copy in this thread; the trainer has its own
        lane = -1
        try:
            while self._turns and self._wait_until_wanted():
                lane = self._turns.lane
                self._put(lane, self._made(lane))
        except BaseException as error:
            self._put(lane, error)

    def _made(self, lane: int) -> Produced[Any] | Ended:
        item = self._pool.take(lane)
        if isinstance(item, Ended):
            self._turns.end_lane()
            return item
        self._turns.advance()
        return dataclasses.replace(item, batch=self._pin(item.batch))

    def _wait_until_wanted(self) -> bool:
        """Wait until the trainer has taken the previous item; False if the thread must end."""
        with self._changed:
            self._changed.wait_for(lambda: (self._begun and self._next is None) or self._stopped)
            return not self._stopped

    def _put(self, lane: int, item: Produced[Any] | Ended | BaseException) -> None:
        with self._changed:
            self._next = lane, item
            self._changed.notify_all()
