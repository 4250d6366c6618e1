"""Pages of memory that a worker and the trainer share, and the server of workers and the trainer.

The worker writes there what it is working on, and the trainer can read that even after the worker was killed. The
trainer writes how many batches the worker may produce, so that taking a batch needs no message. A worker that waits
notes it there, and the trainer wakes it with a message. These two writes can race, so the trainer checks again before
it waits for the worker. The server writes which module it imports: of messages, some would wait for a loader that is
closed.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable

from bridge_data.order import SampleRef

_LAYOUT = struct.Struct("qqqqqq")  # progress, lane, source, epoch, index, output
_NONE = -1
_NO_SAMPLE = (_NONE,) * 4
_SOON_S = 1e-4
_MAX_NAME = 256


class _Word:
    """A number on a page, as an attribute of it."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, page: WatchPage, owner: object) -> int:
        return page.words[self._place]

    def __set__(self, page: WatchPage, number: int) -> None:
        page.words[self._place] = number


class ImportPage:
    """A page shared by the server and the trainer, with the name of the module that is imported."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)

    @staticmethod
    def make() -> tuple[ImportPage, int]:
        """A page and its descriptor, to be sent to the server and closed."""
        descriptor = _new_page()
        return ImportPage(descriptor), descriptor

    def write(self, module: str) -> None:
        """This module is imported from now on; "" for none."""
        self._memory[:_MAX_NAME] = module.encode()[:_MAX_NAME].ljust(_MAX_NAME, b"\0")

    def read(self) -> str:
        """What was written last."""
        return self._memory[:_MAX_NAME].rstrip(b"\0").decode(errors="replace")


def _new_page() -> int:
    descriptor = os.memfd_create("bridge_data", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, mmap.PAGESIZE)
    return descriptor


class WatchPage:
    """A page shared by a worker, who says what it works on, and the trainer, who says how far ahead it may be."""

    progress = _Word(0)
    """Changes with each step of the worker."""
    allowed = _Word(8)  # from here on each is in a cache line of its own
    """How many batches the worker may produce, counted from `Begin`, by the trainer."""
    waits = _Word(16)
    """Whether the worker waits for a message."""
    produced = _Word(24)
    """How many batches the worker has sent since `Begin`."""
    process = _Word(32)
    """The process of the worker; 0 until it has started."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        self.words = memoryview(self._memory).cast("q")
        self._progress, self.lane = self.progress, _NONE

    @staticmethod
    def make() -> tuple[WatchPage, int]:
        """A page and its descriptor, to be sent to the worker and closed."""
        descriptor = _new_page()
        page = WatchPage(descriptor)
        page.leave()
        return page, descriptor

    def enter(self, lane: int) -> None:
        """Work on a batch of `lane` starts."""
        self._write(lane, _NO_SAMPLE)

    def watch(self, ref: SampleRef) -> None:
        """Work on a sample starts."""
        self._write(self.lane, ref)

    def leave(self) -> None:
        """The batch is done."""
        self._write(_NONE, _NO_SAMPLE)

    def _write(self, lane: int, sample: tuple[int, ...]) -> None:
        self._progress, self.lane = self._progress + 1, lane
        _LAYOUT.pack_into(self._memory, 0, self._progress, lane, *sample)

    def contents(self) -> bytes:
        """What the worker says it works on, for a page on another machine."""
        return bytes(self._memory[: _LAYOUT.size])

    def update(self, contents: bytes) -> None:
        """Take over the `contents` of a page on another machine."""
        self._memory[: _LAYOUT.size] = contents

    def on_sample(self) -> bool:
        _, lane, source, *_ = _LAYOUT.unpack_from(self._memory)
        return bool(lane != _NONE and source != _NONE)

    def describe(self, name: Callable[[SampleRef], str] = str) -> str:
        """The lane and sample the worker is on, in words; `name` says what a sample is called."""
        _, lane, source, epoch, index, output = _LAYOUT.unpack_from(self._memory)
        if lane == _NONE:
            return "between two batches"
        if source == _NONE:
            return f"in lane {lane}, on no sample yet"
        return f"in lane {lane}, on sample {name(SampleRef(source, epoch, index, output))}"


def spin_briefly(has_come: Callable[[], bool]) -> bool:
    """Poll for a tenth of a millisecond, yielding the core to others; return whether it came. Sleeping and waking takes
    as long, at least on a virtual machine."""
    end = time.perf_counter() + _SOON_S
    while not has_come():
        if time.perf_counter() > end:
            return False
        os.sched_yield()
    return True
