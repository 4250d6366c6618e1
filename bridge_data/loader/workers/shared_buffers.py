"""Memory for batches: buffers of shared memory, and the arena that batches are collated in.

Reads, in a worker, the pieces of a batch. Returns, in the trainer, views of the same memory. Promises that a buffer is
mapped only once, and returns to its worker when the last tensor, view or array over it dies; no one waits for that, and
no mapping is closed while in use. The memory that the trainer holds is bounded, in bytes and in buffers; beyond that it
gets private copies.

A worker collates in a buffer, and the message of the batch says where in it the pieces are, uncopied. The buffer goes
to the trainer only when nothing in the worker refers to it any more: if a hook keeps a tensor, or the batch is not in
one buffer, the batch is copied. Without workers, the trainer collates in recycled memory of its own.
"""

from __future__ import annotations

import collections
import mmap
import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from bridge_data.loader.workers.messages import Body
from bridge_data.samples.arena import Arena, ArenaBuffer, Memory, aligned, opened, rounded_up, watched

MAX_INLINE_BYTES = 1 << 15
"""Batches up to this size are sent inside their message."""

Placed: TypeAlias = tuple[Body, list[memoryview | bytes], list[int]]
"""The body of a batch message, the bytes to send with it, and the descriptors to send and then close."""


class SharedBuffers:
    """The buffers of one worker, on the worker's side. It keeps at most `num_spare` free buffers in the long run."""

    def __init__(self, num_spare: int) -> None:
        self.num_spare = num_spare
        self.maps: dict[int, mmap.mmap] = {}
        self._new: dict[int, int] = {}
        """The descriptors of buffers that the trainer has not mapped yet."""
        self._free: list[int] = []
        self._retired: list[int] = []
        self._num_made = 0

    def free(self, numbers: Sequence[int]) -> None:
        """Make these buffers available for writing."""
        self._free += [number for number in numbers if number in self.maps]

    def place(self, pieces: Sequence[pickle.PickleBuffer]) -> Placed:
        """Copy the pieces to a buffer, or inline them; returns what to send."""
        views = [piece.raw() for piece in pieces]
        ranges, size = layout(map(len, views))
        if size <= MAX_INLINE_BYTES:
            return Body(ranges), list(padded(views, ranges)), []
        number = self.take(size)
        memory = self.maps[number]
        for (start, end), view in zip(ranges, views, strict=True):
            memory[start:end] = view
        return self.sent(number, ranges)

    def take(self, size: int) -> int:
        """A free buffer of at least `size` bytes, now in use."""
        if len(self._free) > self.num_spare:  # the trainer has released many batches at once
            self._retire(self._free[0])
        fitting = [number for number in self._free if len(self.maps[number]) >= size]
        if fitting:
            number = min(fitting, key=lambda number: len(self.maps[number]))
            self._free.remove(number)
            return number
        if self._free:  # all too small: retire one, so that the number of buffers stays bounded
            self._retire(self._free[0])
        return self._make(rounded_up(size))

    def claim(self, number: int) -> None:
        """Mark a free buffer as in use."""
        self._free.remove(number)

    def sent(self, number: int, ranges: list[tuple[int, int]]) -> Placed:
        """What `place` returns for pieces that are in this buffer, which is the trainer's from now on."""
        descriptor = self._new.pop(number, None)
        retired, self._retired = self._retired, []
        capacity = 0 if descriptor is None else len(self.maps[number])
        return Body(ranges, number, capacity, retired), [], [] if descriptor is None else [descriptor]

    def _make(self, capacity: int) -> int:
        number = self._num_made
        self._num_made += 1
        self._new[number] = os.memfd_create("bridge_data", os.MFD_CLOEXEC)
        os.ftruncate(self._new[number], capacity)
        self.maps[number] = mmap.mmap(self._new[number], capacity)
        return number

    def _retire(self, number: int) -> None:
        self._free.remove(number)
        del self.maps[number]
        if (descriptor := self._new.pop(number, None)) is None:
            self._retired.append(number)
        else:
            os.close(descriptor)


MAX_HELD_BUFFERS = 256
"""Each uses a file descriptor in the trainer and one in a worker; the usual limit of a process is 1,024."""


class BufferQuota:
    """Counts the buffers and bytes that the trainer holds, over all workers of a loader."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes, self._num_buffers = max_bytes, 0, 0
        self.released: collections.deque[int] = collections.deque()

    def admits(self, num_bytes: int) -> bool:
        """Whether another buffer of `num_bytes` is within the bounds; if so, it counts until it is in `released`."""
        while self.released:
            self._num_bytes -= self.released.popleft()
            self._num_buffers -= 1
        if self._num_bytes + num_bytes > self._max_bytes or self._num_buffers >= MAX_HELD_BUFFERS:
            return False
        self._num_bytes += num_bytes
        self._num_buffers += 1
        return True


class MappedBuffers:
    """The buffers of one worker, on the trainer's side."""

    def __init__(self, quota: BufferQuota) -> None:
        self._quota = quota
        self.maps: dict[int, mmap.mmap] = {}
        self.released: collections.deque[int] = collections.deque()

    def note(self, body: Body, descriptors: list[int]) -> None:
        """Map the buffer that came with `body`, if any, and unmap those that it retires."""
        for number in body.retired:
            self.maps.pop(number, None)
        for descriptor in descriptors:
            try:
                self.maps[body.buffer] = mmap.mmap(descriptor, body.new_capacity_bytes)
            finally:
                os.close(descriptor)

    def open(self, body: Body, payload: memoryview) -> list[Any]:
        """The pieces of `body`; its buffer is not written while anything refers to them."""
        if body.buffer < 0:
            # Tensors need aligned, writable memory; a pickle alone is read without a copy.
            view = memoryview(bytearray(payload)) if len(body.ranges) > 1 else payload
            return [view[start:end] for start, end in body.ranges]
        memory = self.maps[body.buffer]
        if self._quota.admits(len(memory)):
            owner = watched(memory, _release, body.buffer, self.released, len(memory), self._quota.released)
            view = memoryview(owner).cast("B")
            return [view[start:end] for start, end in body.ranges]
        self.released.append(body.buffer)
        whole = memoryview(memory)
        return [bytearray(whole[start:end]) for start, end in body.ranges]

    def discard(self, body: Body) -> None:
        """Release the buffer without reading it."""
        if body.buffer >= 0:
            self.released.append(body.buffer)

    def take_released(self) -> list[int]:
        """The buffers released since the last call."""
        return [self.released.popleft() for _ in range(len(self.released))]


def _release(number: int, numbers: collections.deque[int], num_bytes: int, held: collections.deque[int]) -> None:
    """Runs in the thread in which the last view dies, where only appending to a deque is safe."""
    numbers.append(number)
    held.append(num_bytes)


def layout(lengths: Iterable[int]) -> tuple[list[tuple[int, int]], int]:
    """Start and end of consecutive, aligned pieces of these lengths; and the end of the last one."""
    ranges, end = [], 0
    for length in lengths:
        start = aligned(end)
        end = start + length
        ranges.append((start, end))
    return ranges, end


def padded(views: Sequence[memoryview], ranges: Sequence[tuple[int, int]]) -> Iterator[memoryview | bytes]:
    """The bytes of the pieces, with padding up to the start of each."""
    position = 0
    for view, (start, end) in zip(views, ranges, strict=True):
        if start > position:
            yield bytes(start - position)
        yield view
        position = end


_MAX_TENSORS_KEPT = 8
"""A `SharedArena` stops allocating after this many batches of which a hook kept a tensor: each costs a buffer."""

_MAX_OPEN = 4
"""Maximum number of buffers open for writing: samples that wait to be packed, each in its own, would keep all of
them."""

_REST_BYTES = 1 << 16
"""Space for the pieces of a batch that are not built in the buffer: its pickle and small tensors."""


class SharedArena(Arena):
    """Builds a worker's batches in the buffers in which they are sent."""

    min_bytes = MAX_INLINE_BYTES

    def __init__(self, buffers: SharedBuffers) -> None:
        super().__init__()
        self._buffers = buffers
        self._open: dict[int, ArenaBuffer] = {}
        """The buffers that tensors of this process may be in."""
        self._unused: collections.deque[int] = collections.deque()
        """Slots that nothing refers to any more: finalizers append here, in any thread."""
        self._batch_bytes = 0
        self._num_kept = 0

    def open_buffer(self, num_bytes: int) -> tuple[ArenaBuffer, Memory] | None:
        """A free buffer; None if hooks keep too many of them."""
        self._collect()
        if self._num_kept >= _MAX_TENSORS_KEPT or len(self._open) >= _MAX_OPEN:
            return None
        number = self._buffers.take(max(self._batch_bytes, num_bytes + _REST_BYTES))
        buffer, memory = opened(watched(self._buffers.maps[number], self._unused.append, number))
        self._open[number] = buffer
        return buffer, memory

    def place(self, pieces: list[pickle.PickleBuffer]) -> Placed:
        """What to send so that the `pieces` of a batch arrive. The list is emptied: the caller must hold no other
        reference to the pieces or to the batch."""
        number = self._buffer_of(pieces) if self._open else None
        if number is None:
            self._expect(sum(len(piece.raw()) for piece in pieces))
            return self._buffers.place(pieces)
        memory, used = self._buffers.maps[number], self._open[number].end
        ranges, size = _ranges_in(self._open[number], pieces)
        extent = max(end for _, end in ranges)
        self._expect(min(extent, 2 * size))
        if extent > min(len(memory), 2 * size):  # much more was built than sent: the trainer would keep all of it
            return self._buffers.place(pieces)
        _copy_rest(memory, used, ranges, pieces)
        pieces.clear()  # these should be the last references to the buffer
        self._collect()
        if number not in self._open:
            self._buffers.claim(number)
            return self._buffers.sent(number, ranges)
        self._num_kept += 1
        self._buffer = None
        with memoryview(memory) as view:
            return self._buffers.place([pickle.PickleBuffer(view[start:end]) for start, end in ranges])

    def _expect(self, num_bytes: int) -> None:
        """Size new buffers for batches like this one or the recent ones: a single larger batch is forgotten."""
        self._batch_bytes = max(self._batch_bytes - self._batch_bytes // 4, num_bytes + _REST_BYTES)

    def _buffer_of(self, pieces: list[pickle.PickleBuffer]) -> int | None:
        """The buffer that the largest piece was built in."""
        self._collect()
        largest = max((piece.raw() for piece in pieces), key=len)
        return next((number for number, buffer in self._open.items() if _range_in(buffer, largest)), None)

    def _collect(self) -> None:
        while self._unused:
            number = self._unused.popleft()
            del self._open[number]
            self._buffers.free([number])


def _range_in(buffer: ArenaBuffer, view: memoryview) -> tuple[int, int] | None:
    """Start and end of this memory in the buffer; None if it is somewhere else."""
    if not view:
        return None
    start = int(np.frombuffer(view, np.uint8).__array_interface__["data"][0]) - buffer.address
    return (start, start + len(view)) if start >= 0 and start + len(view) <= buffer.end else None


def _ranges_in(buffer: ArenaBuffer, pieces: Sequence[pickle.PickleBuffer]) -> tuple[list[tuple[int, int]], int]:
    """Start and end of each piece in the buffer, after its used bytes for those that must be copied; their size."""
    ranges, end, size = [], buffer.end, 0
    for piece in pieces:
        view = piece.raw()
        found = _range_in(buffer, view)
        if found is None:
            start = aligned(end)
            found = start, start + len(view)
            end = found[1]
        ranges.append(found)
        size += len(view)
    return ranges, size


def _copy_rest(
    memory: mmap.mmap, used: int, ranges: Sequence[tuple[int, int]], pieces: Sequence[pickle.PickleBuffer]
) -> None:
    """Copy the pieces that were not built in the buffer after its `used` bytes."""
    for (start, end), piece in zip(ranges, pieces, strict=True):
        if start >= used:
            memory[start:end] = piece.raw()
