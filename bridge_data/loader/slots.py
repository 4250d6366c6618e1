"""Shared memory for batches: anonymous, mapped once, written again only when nothing looks at it any more.

Enters, in a worker: the parts of a batch. Leaves, in the trainer: views of the same memory. Guarantee: a slot goes
back to its worker when the last tensor, view or array over it has died; nobody waits for that, and nobody closes a
map under a view. What the trainer keeps is bounded in bytes: beyond the bound it gets a private copy.
"""

import collections
import ctypes
import mmap
import os
import pickle
import weakref
from typing import Any

from bridge_data.loader.messages import Body

_MAX_INLINE_BYTES = 1 << 15
_ALIGNMENT = 64
_GRAIN_BYTES = 1 << 18


class SlotWriter:
    """The slots of one worker, at the worker's end. No more than `num_spare` stay when they are free for long."""

    def __init__(self, num_spare: int = 4) -> None:
        self.num_spare = num_spare
        self._maps: dict[int, mmap.mmap] = {}
        self._free: list[int] = []
        self._num_made = 0

    def free(self, slots: list[int]) -> None:
        """These may be written again."""
        self._free += [slot for slot in slots if slot in self._maps]

    def place(self, parts: list[pickle.PickleBuffer]) -> tuple[Body, list[int]]:
        """The message body that carries `parts`, and the descriptors to send (and then close) with it."""
        views = [part.raw() for part in parts]
        lengths = [view.nbytes for view in views]
        starts, size = _layout(lengths)
        if size <= _MAX_INLINE_BYTES:
            return Body(parts=list(parts)), []
        retired = self._surplus()
        fitting = [slot for slot in self._free if len(self._maps[slot]) >= size]
        descriptors, capacity = [], 0
        if fitting:
            slot = min(fitting, key=lambda slot: len(self._maps[slot]))
            self._free.remove(slot)
        else:
            if self._free:  # all too small: the new one takes the place of one, so that their number stays bounded
                retired.append(self._free.pop(0))
            slot, capacity = self._num_made, _capacity(size)
            descriptors = [self._make(slot, capacity)]
        for other in retired:
            del self._maps[other]
        for start, view in zip(starts, views, strict=True):
            self._maps[slot][start : start + view.nbytes] = view
        return Body(lengths=lengths, slot=slot, new_capacity_bytes=capacity, retired=retired), descriptors

    def _surplus(self) -> list[int]:
        """A slot to do without: so memory comes back when the trainer lets go of many batches that it kept."""
        return [self._free.pop(0)] if len(self._free) > self.num_spare else []

    def _make(self, slot: int, capacity: int) -> int:
        descriptor = os.memfd_create("bridge_data", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, capacity)
        self._maps[slot] = mmap.mmap(descriptor, capacity)
        self._num_made += 1
        return descriptor


class Kept:
    """Bytes of slots that the trainer has not let go of, over all workers of a loader."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self.released: collections.deque[int] = collections.deque()

    def admits(self, num_bytes: int) -> bool:
        """Whether so many more stay within the bound; if so, they are counted until they are in `released`."""
        while self.released:
            self._num_bytes -= self.released.popleft()
        if self._num_bytes + num_bytes > self._max_bytes:
            return False
        self._num_bytes += num_bytes
        return True


class SlotReader:
    """The slots of one worker, at the trainer's end."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._maps: dict[int, mmap.mmap] = {}
        self._released: collections.deque[int] = collections.deque()

    def note(self, body: Body, descriptors: list[int]) -> None:
        """Map the slot that came with `body`, if one did, and forget those it retires."""
        for slot in body.retired:
            self._maps.pop(slot, None)
        for descriptor in descriptors:
            try:
                self._maps[body.slot] = mmap.mmap(descriptor, body.new_capacity_bytes)
            finally:
                os.close(descriptor)

    def open(self, body: Body) -> list[Any]:
        """The parts of `body`; they and what is made of them keep its slot from being written."""
        if body.parts is not None:
            return body.parts
        memory = self._maps[body.slot]
        starts, size = _layout(body.lengths)
        if self._kept.admits(len(memory)):
            # Not the memoryview but its exporter is watched: numpy and slices hold on to that one only.
            owner = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
            finalizer = weakref.finalize(owner, _release, body.slot, self._released, len(memory), self._kept.released)
            finalizer.atexit = False
            view = memoryview(owner).cast("B")
        else:
            view = memoryview(bytearray(memoryview(memory)[:size]))
            self._released.append(body.slot)
        return [view[start : start + length] for start, length in zip(starts, body.lengths, strict=True)]

    def discard(self, body: Body) -> None:
        """Give the slot back unread."""
        if body.parts is None:
            self._released.append(body.slot)

    def take_released(self) -> list[int]:
        """The slots that nothing looks at any more, each once."""
        return [self._released.popleft() for _ in range(len(self._released))]


def _release(slot: int, slots: collections.deque[int], num_bytes: int, kept: collections.deque[int]) -> None:
    """Runs wherever the last view dies, in any thread: appending to a deque is all that is safe there."""
    slots.append(slot)
    kept.append(num_bytes)


def _layout(lengths: list[int]) -> tuple[list[int], int]:
    """Where parts of these lengths start, and where the last one ends."""
    starts, end = [], 0
    for length in lengths:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        starts.append(start)
        end = start + length
    return starts, end


def _capacity(size: int) -> int:
    """A quarter more than asked for, so that the next, slightly larger batch fits; untouched pages cost nothing."""
    return -(-(size + size // 4) // _GRAIN_BYTES) * _GRAIN_BYTES
