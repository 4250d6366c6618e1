"""The two arenas: slots of shared memory in a worker, recycled private memory in the trainer.

Enters: the sizes that collating asks for; in a worker, also the parts of a batch. Leaves: buffers to build in; in a
worker, the message of the batch, which says where in a slot its parts are, uncopied. Guarantee: a buffer is used again,
or a slot goes to the trainer, only when nothing in this process refers to it any more. If a hook keeps a tensor, or the
batch is not in one slot, the batch is copied.
"""

from __future__ import annotations

import collections
import ctypes
import mmap
import pickle
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bridge_data.loader.memory.slots import MAX_INLINE_BYTES, Placed, SlotWriter, rounded_up, watched
from bridge_data.loader.workers import process
from bridge_data.samples.arena import Arena, ArenaBuffer, aligned

if TYPE_CHECKING:
    from bridge_data.samples.arena import Memory

_MAX_SPARE = 4
"""Free buffers that a `PrivateArena` keeps."""

_MAX_KEPT = 8
"""A `SlotArena` stops allocating after this many batches of which a hook kept a tensor: each of them costs a slot."""

_MAX_OPEN = 4
"""Slots that may be built in at the same time: samples that wait in a buffer, each in a slot of its own, would keep all
of them."""

_REST_BYTES = 1 << 16
"""Space for the parts of a batch that are not built in the slot: its pickle and small tensors."""


class PrivateArena(Arena):
    """Recycles the memory of batches made in the trainer's process: fresh pages cost up to a fourth of the time that
    decoding into them takes. Each buffer is as large as the largest tensor so far."""

    min_bytes = 1 << 17

    def __init__(self) -> None:
        super().__init__()
        self._spare: collections.deque[mmap.mmap] = collections.deque(maxlen=_MAX_SPARE)
        self._buffer_bytes = 0
        process.have_freed_memory_kept()  # that of the images of a batch

    def open_buffer(self, num_bytes: int) -> tuple[ArenaBuffer, Memory]:
        """A recycled buffer, or a new one."""
        self._buffer_bytes = max(self._buffer_bytes, num_bytes)
        memory = self._recycled(self._buffer_bytes)
        if memory is None:
            size = rounded_up(self._buffer_bytes)
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # The last view may die in any thread, where appending to a deque is safe; beyond `maxlen` the oldest is freed.
        return _opened(watched(memory, self._spare.append, memory))

    def _recycled(self, num_bytes: int) -> mmap.mmap | None:
        """A free buffer that is large enough. Smaller ones are freed: they will not be needed again."""
        for _ in range(len(self._spare)):
            memory = self._spare.popleft()
            if len(memory) >= num_bytes:
                return memory
        return None


class SlotArena(Arena):
    """Builds a worker's batches in the slots in which they are sent."""

    min_bytes = MAX_INLINE_BYTES

    def __init__(self, slots: SlotWriter) -> None:
        super().__init__()
        self._slots = slots
        self._open: dict[int, ArenaBuffer] = {}
        """The slots that tensors of this process may be in."""
        self._unused: collections.deque[int] = collections.deque()
        """Slots that nothing refers to any more: finalizers append here, in any thread."""
        self._batch_bytes = 0
        self._num_kept = 0

    def open_buffer(self, num_bytes: int) -> tuple[ArenaBuffer, Memory] | None:
        """A free slot; None if hooks keep too many of them."""
        self._collect()
        if self._num_kept >= _MAX_KEPT or len(self._open) >= _MAX_OPEN:
            return None
        slot = self._slots.take(max(self._batch_bytes, num_bytes + _REST_BYTES))
        buffer, memory = _opened(watched(self._slots.maps[slot], self._unused.append, slot))
        self._open[slot] = buffer
        return buffer, memory

    def place(self, parts: list[pickle.PickleBuffer]) -> Placed:
        """What to send so that the `parts` of a batch arrive. The list is emptied: the caller must hold no other
        reference to the parts or to the batch."""
        slot = self._slot_of(parts) if self._open else None
        if slot is None:
            self._expect(sum(len(part.raw()) for part in parts))
            return self._slots.place(parts)
        memory, used = self._slots.maps[slot], self._open[slot].end
        ranges, size = _ranges_in(self._open[slot], parts)
        extent = max(end for _, end in ranges)
        self._expect(min(extent, 2 * size))
        if extent > min(len(memory), 2 * size):  # much more was built than is sent: the trainer would keep all of it
            return self._slots.place(parts)
        _copy_rest(memory, used, ranges, parts)
        parts.clear()  # these should be the last references to the slot
        self._collect()
        if slot not in self._open:
            self._slots.claim(slot)
            return self._slots.sent(slot, ranges)
        self._num_kept += 1
        self._buffer = None
        with memoryview(memory) as view:
            return self._slots.place([pickle.PickleBuffer(view[start:end]) for start, end in ranges])

    def _expect(self, num_bytes: int) -> None:
        """Make slots for batches as large as this one, or as the recent ones: a single larger batch is forgotten."""
        self._batch_bytes = max(self._batch_bytes - self._batch_bytes // 4, num_bytes + _REST_BYTES)

    def _slot_of(self, parts: list[pickle.PickleBuffer]) -> int | None:
        """The slot that the largest part was built in."""
        self._collect()
        largest = max((part.raw() for part in parts), key=len)
        return next((slot for slot, buffer in self._open.items() if _range_in(buffer, largest)), None)

    def _collect(self) -> None:
        while self._unused:
            slot = self._unused.popleft()
            del self._open[slot]
            self._slots.free([slot])


def _opened(memory: Memory) -> tuple[ArenaBuffer, Memory]:
    return ArenaBuffer(weakref.ref(memory), ctypes.addressof(memory), len(memory)), memory


def _range_in(buffer: ArenaBuffer, view: memoryview) -> tuple[int, int] | None:
    """Start and end of this memory in the buffer; None if it is somewhere else."""
    if not view:
        return None
    start = int(np.frombuffer(view, np.uint8).__array_interface__["data"][0]) - buffer.address
    return (start, start + len(view)) if start >= 0 and start + len(view) <= buffer.end else None


def _ranges_in(buffer: ArenaBuffer, parts: Sequence[pickle.PickleBuffer]) -> tuple[list[tuple[int, int]], int]:
    """Start and end of each part in the buffer, behind its used bytes for those that have to be copied; their size."""
    ranges, end, size = [], buffer.end, 0
    for part in parts:
        view = part.raw()
        found = _range_in(buffer, view)
        if found is None:
            start = aligned(end)
            found = start, start + len(view)
            end = found[1]
        ranges.append(found)
        size += len(view)
    return ranges, size


def _copy_rest(
    memory: mmap.mmap, used: int, ranges: Sequence[tuple[int, int]], parts: Sequence[pickle.PickleBuffer]
) -> None:
    """Copy the parts that were not built in the slot behind its `used` bytes."""
    for (start, end), part in zip(ranges, parts, strict=True):
        if start >= used:
            memory[start:end] = part.raw()
