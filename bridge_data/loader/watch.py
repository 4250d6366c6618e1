"""What a worker is working on, where the trainer can read it after the worker was killed."""

import mmap
import os
import struct
from collections.abc import Callable

from bridge_data.order import SampleRef

_LAYOUT = struct.Struct("qqqqqq")  # progress, lane, source, epoch, index, part
_NONE = -1
_NO_SAMPLE = (_NONE,) * 4


class WatchPage:
    """A page shared by a worker, who writes it, and the trainer, who reads it."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)
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
        self._write(*ref)

    def leave(self) -> None:
        """The batch is done."""
        self._lane = _NONE
        self._write(*_NO_SAMPLE)

    def _write(self, source: int, epoch: int, index: int, part: int) -> None:
        self._progress += 1
        _LAYOUT.pack_into(self._memory, 0, self._progress, self._lane, source, epoch, index, part)

    def progress(self) -> int:
        """A number that changes with each step of the worker."""
        progress: int = _LAYOUT.unpack_from(self._memory)[0]
        return progress

    def on_sample(self) -> bool:
        """Whether the worker is on a sample."""
        _, lane, source, *_ = _LAYOUT.unpack_from(self._memory)
        return lane != _NONE and source != _NONE

    def describe(self, name: Callable[[SampleRef], str] = str) -> str:
        """The lane and sample the worker is on, in words; `name` says what a sample is called."""
        _, lane, source, epoch, index, part = _LAYOUT.unpack_from(self._memory)
        if lane == _NONE:
            return "between two batches"
        if source == _NONE:
            return f"in lane {lane}, on no sample yet"
        return f"in lane {lane}, on sample {name(SampleRef(source, epoch, index, part))}"
