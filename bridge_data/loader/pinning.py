"""Pinning: batches of workers are copied to page-locked memory in a thread, while the trainer is busy with its step.

`PinningPool` is a `LanePool` around one: its results are the pool's, with batches pinned by a thread, at most one of
them ahead of the trainer. An error comes in place of its batch.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

from bridge_data import samples
from bridge_data.later import torch
from bridge_data.loader.lane_pool import Ended, LanePool, LaneResult, LaneSchedule, Pin
from bridge_data.order.state import LoaderState


def can_pin() -> bool:
    """Whether there is a GPU to pin memory for."""
    return torch.cuda.is_available()


def pinned(batch: Any) -> Any:
    """The batch, copied to page-locked memory; torch reuses that of freed batches."""
    return batch.pin_memory() if hasattr(batch, "pin_memory") else samples.pin(batch)


class PinningPool:
    """The results of `pool`, whose batches a thread pins by `pin`; `pool` belongs to the thread while that runs."""

    def __init__(self, pool: LanePool, pin: Pin) -> None:
        self._pool, self._pin = pool, pin
        self._thread: _PinningThread | None = None

    @property
    def num_restarts(self) -> int:
        return self._pool.num_restarts

    def processes(self) -> list[int]:
        return self._pool.processes()

    def wait_ready(self, timeout_s: float) -> bool:
        return self._thread is not None or self._pool.wait_ready(timeout_s)

    def begin(self, lanes: Sequence[int], state: LoaderState) -> None:
        self._stop()
        self._pool.begin(lanes, state)
        self._thread = _PinningThread(self._pool, LaneSchedule(state, lanes), self._pin)
        self._thread.begin()

    def take(self, lane: int) -> LaneResult:
        assert self._thread is not None
        try:
            return self._thread.take(lane)
        except Exception:
            self._stop()  # it has ended
            raise

    def interrupt(self) -> None:
        self._pool.interrupt()

    def close(self) -> None:
        self._stop()
        self._pool.close()

    def _stop(self) -> None:
        if self._thread is not None:
            self._thread.stop()
            self._thread = None  # not before: if waiting for its end is interrupted, the next call waits again


class _PinningThread:
    """Takes the results of `pool` by the `schedule`, and pins them by `pin`, from `begin` on. No one else may use the
    pool until `stop`."""

    def __init__(self, pool: LanePool, schedule: LaneSchedule, pin: Pin) -> None:
        self._pool, self._schedule, self._pin = pool, schedule, pin
        self._changed = threading.Condition()
        self._next: tuple[int, LaneResult | BaseException] | None = None
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

    def take(self, lane: int) -> LaneResult:
        """The next result of `lane`, whose turn it must be. Raises what the pool or pinning raised, and then ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._next is not None)
            assert self._next is not None
            of_lane, result = self._next
            self._next = None
            self._changed.notify_all()
        if isinstance(result, BaseException):
            try:
                raise result
            finally:
                del result  # as it refers to this frame
        assert of_lane == lane
        return result

    def stop(self) -> None:
        """End the thread. What it has prefetched is dropped; the pool must start again."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._pool.interrupt()
        if threading.current_thread() is not self._thread:  # which may collect the garbage that a loader has become
            self._thread.join()
        self._next = None  # an error refers to this thread by its frames, and to buffers of workers

    def _run(self) -> None:
        if self._device is not None:
            torch.cuda.set_device(self._device)
            torch.set_num_threads(1)  # for the copy in this thread; the trainer has its own
        lane = -1
        try:
            while self._schedule and self._wait_until_wanted():
                lane = self._schedule.lane
                self._put(lane, self._made(lane))
        except BaseException as error:
            self._put(lane, error)

    def _made(self, lane: int) -> LaneResult:
        result = self._pool.take(lane)
        if isinstance(result, Ended):
            self._schedule.end_lane()
            return result
        self._schedule.advance()
        return dataclasses.replace(result, batch=self._pin(result.batch))

    def _wait_until_wanted(self) -> bool:
        """Wait until the trainer has taken the previous result; False if the thread must end."""
        with self._changed:
            self._changed.wait_for(lambda: (self._begun and self._next is None) or self._stopped)
            return not self._stopped

    def _put(self, lane: int, result: LaneResult | BaseException) -> None:
        with self._changed:
            self._next = lane, result
            self._changed.notify_all()
