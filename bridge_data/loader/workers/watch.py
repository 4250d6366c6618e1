"""A page of memory that a worker shares with the trainer.

The worker writes what it is working on, and the trainer can read that even after the worker was killed. The trainer
writes how many batches the worker may produce, so that taking a batch needs no message. Guarantee: a worker that waits
says so here, and the trainer wakes it with a message. The two can miss each other for a moment, so the trainer checks
again before it waits for the worker.
"""

import mmap
import os
import struct
import time
from collections.abc import Callable

from bridge_data.order import SampleRef

_LAYOUT = struct.Struct("qqqqqq")  # progress, lane, source, epoch, index, part
_NONE = -1
_NO_SAMPLE = (_NONE,) * 4
_ALLOWED, _WAITS = 8, 16  # numbers of words, each in a cache line of its own
_SOON_S = 1e-4


class WatchPage:
    """A page shared by a worker, who writes it, and the trainer, who reads it."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        self._words = memoryview(self._memory).cast("q")
        self._progress, self._lane = self.progress(), _NONE

    @staticmethod
    def make() -> tuple["WatchPage", int]:
        """A page and its descriptor, to be sent to the worker and closed."""
        descriptor = os.memfd_create("bridge_data", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        page = WatchPage(descriptor)
        page.leave()
        return page, descriptor

    def enter(self, lane: int) -> None:
        """Work on a batch of `lane` begins."""
        self._lane = lane
        self._write(*_NO_SAMPLE)

    def watch(self, ref: SampleRef) -> None:
        """Work on a sample begins."""
        self._progress += 1
        _LAYOUT.pack_into(self._memory, 0, self._progress, self._lane, *ref)

    def leave(self) -> None:
        """The batch is done."""
        self._lane = _NONE
        self._write(*_NO_SAMPLE)

    def _write(self, source: int, epoch: int, index: int, part: int) -> None:
        self._progress += 1
        _LAYOUT.pack_into(self._memory, 0, self._progress, self._lane, source, epoch, index, part)

    def progress(self) -> int:
        """A number that changes with each step of the worker."""
        return self._words[0]

    def allow(self, num_batches: int) -> None:
        """Let the worker produce this many batches, counted from `Begin`."""
        self._words[_ALLOWED] = num_batches

    def allowed(self) -> int:
        """How many batches the worker may produce, counted from `Begin`."""
        return self._words[_ALLOWED]

    def wait(self, waits: bool) -> None:
        """Note that the worker waits for a message, or has stopped doing so."""
        self._words[_WAITS] = waits

    def waits(self) -> bool:
        """Whether the worker waits for a message."""
        return bool(self._words[_WAITS])

    def on_sample(self) -> bool:
        """Whether the worker is on a sample."""
        _, lane, source, *_ = _LAYOUT.unpack_from(self._memory)
        return bool(lane != _NONE and source != _NONE)

    def describe(self, name: Callable[[SampleRef], str] = str) -> str:
        """The lane and sample the worker is on, in words; `name` says what a sample is called."""
        _, lane, source, epoch, index, part = _LAYOUT.unpack_from(self._memory)
        if lane == _NONE:
            return "between two batches"
        if source == _NONE:
            return f"in lane {lane}, on no sample yet"
        return f"in lane {lane}, on sample {name(SampleRef(source, epoch, index, part))}"


def comes_soon(has_come: Callable[[], bool]) -> bool:
    """Poll for a tenth of a millisecond, yielding the core to others; whether it came. Sleeping and waking takes as
    long, at least on a virtual machine."""
    end = time.perf_counter() + _SOON_S
    while not has_come():
        if time.perf_counter() > end:
            return False
        os.sched_yield()
    return True
