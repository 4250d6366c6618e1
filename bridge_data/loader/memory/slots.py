"""Shared memory for batches: anonymous, mapped once, written again only when nothing looks at it any more.

Enters, in a worker: the parts of a batch. Leaves, in the trainer: views of the same memory. Guarantee: a slot goes
back to its worker when the last tensor, view or array over it has died; nobody waits for that, and nobody closes a
map under a view. What the trainer keeps is bounded, in bytes and in slots: beyond that it gets private copies.
"""

from __future__ import annotations

import collections
import ctypes
import mmap
import os
import pickle
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from bridge_data.loader.workers.messages import Body
from bridge_data.samples.arena import aligned

MAX_INLINE_BYTES = 1 << 15
"""A batch that is not larger goes with its message."""

Placed: TypeAlias = tuple[Body, list[memoryview | bytes], list[int]]
"""The body of the message that carries a batch, the bytes that go with it, and the descriptors, to be closed then."""

_GRAIN_BYTES = 1 << 18


class SlotWriter:
    """The slots of one worker, at the worker's end. No more than `num_spare` stay when they are free for long."""

    def __init__(self, num_spare: int = 4) -> None:
        self.num_spare = num_spare
        self.maps: dict[int, mmap.mmap] = {}
        self._new: dict[int, int] = {}
        """The descriptors of slots of which the trainer has not heard."""
        self._free: list[int] = []
        self._retired: list[int] = []
        self._num_made = 0

    def free(self, slots: Sequence[int]) -> None:
        """These may be written again."""
        self._free += [slot for slot in slots if slot in self.maps]

    def place(self, parts: Sequence[pickle.PickleBuffer]) -> Placed:
        """What to send so that `parts` arrive."""
        views = [part.raw() for part in parts]
        places, size = _layout(map(len, views))
        if size <= MAX_INLINE_BYTES:
            return Body(places), list(_padded(views, places)), []
        slot = self.take(size)
        memory = self.maps[slot]
        for (start, end), view in zip(places, views, strict=True):
            memory[start:end] = view
        return self.sent(slot, places)

    def take(self, size: int) -> int:
        """A slot with room for `size` bytes, which is not free any more."""
        if len(self._free) > self.num_spare:  # memory comes back when the trainer lets go of many batches it kept
            self._retire(self._free[0])
        fitting = [slot for slot in self._free if len(self.maps[slot]) >= size]
        if fitting:
            slot = min(fitting, key=lambda slot: len(self.maps[slot]))
            self._free.remove(slot)
            return slot
        if self._free:  # all too small: the new one takes the place of one, so that their number stays bounded
            self._retire(self._free[0])
        return self._make(rounded_up(size))

    def claim(self, slot: int) -> None:
        """This one is not free any more."""
        self._free.remove(slot)

    def sent(self, slot: int, places: list[tuple[int, int]]) -> Placed:
        """What `place` returns, of parts that are in `slot`, which is the trainer's from now on."""
        descriptor = self._new.pop(slot, None)
        retired, self._retired = self._retired, []
        capacity = 0 if descriptor is None else len(self.maps[slot])
        return Body(places, slot, capacity, retired), [], [] if descriptor is None else [descriptor]

    def _make(self, capacity: int) -> int:
        slot = self._num_made
        self._num_made += 1
        self._new[slot] = os.memfd_create("bridge_data", os.MFD_CLOEXEC)
        os.ftruncate(self._new[slot], capacity)
        self.maps[slot] = mmap.mmap(self._new[slot], capacity)
        return slot

    def _retire(self, slot: int) -> None:
        self._free.remove(slot)
        del self.maps[slot]
        if (descriptor := self._new.pop(slot, None)) is None:
            self._retired.append(slot)
        else:
            os.close(descriptor)


MAX_KEPT_SLOTS = 256
"""Each is a file descriptor in the trainer and one in a worker, of which a process may have 1,024."""


class Kept:
    """Slots that the trainer has not let go of, over all workers of a loader, and their bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes, self._num_slots = max_bytes, 0, 0
        self.released: collections.deque[int] = collections.deque()

    def admits(self, num_bytes: int) -> bool:
        """Whether a slot of so many more stays within the bounds; if so, it is counted until it is in `released`."""
        while self.released:
            self._num_bytes -= self.released.popleft()
            self._num_slots -= 1
        if self._num_bytes + num_bytes > self._max_bytes or self._num_slots >= MAX_KEPT_SLOTS:
            return False
        self._num_bytes += num_bytes
        self._num_slots += 1
        return True


class SlotReader:
    """The slots of one worker, at the trainer's end."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._maps: dict[int, mmap.mmap] = {}
        self.released: collections.deque[int] = collections.deque()

    def note(self, body: Body, descriptors: list[int]) -> None:
        """Map the slot that came with `body`, if one did, and forget those it retires."""
        for slot in body.retired:
            self._maps.pop(slot, None)
        for descriptor in descriptors:
            try:
                self._maps[body.slot] = mmap.mmap(descriptor, body.new_capacity_bytes)
            finally:
                os.close(descriptor)

    def open(self, body: Body, payload: memoryview) -> list[Any]:
        """The parts of `body`; they and what is made of them keep its slot from being written."""
        if body.slot < 0:
            # Tensors want memory that is aligned and can be written; a pickle alone is read where it is.
            view = memoryview(bytearray(payload)) if len(body.places) > 1 else payload
            return [view[start:end] for start, end in body.places]
        memory = self._maps[body.slot]
        if self._kept.admits(len(memory)):
            owner = watched(memory, _release, body.slot, self.released, len(memory), self._kept.released)
            view = memoryview(owner).cast("B")
            return [view[start:end] for start, end in body.places]
        self.released.append(body.slot)
        whole = memoryview(memory)
        return [bytearray(whole[start:end]) for start, end in body.places]

    def discard(self, body: Body) -> None:
        """Give the slot back unread."""
        if body.slot >= 0:
            self.released.append(body.slot)

    def take_released(self) -> list[int]:
        """The slots that nothing looks at any more, each once."""
        return [self.released.popleft() for _ in range(len(self.released))]


def _release(slot: int, slots: collections.deque[int], num_bytes: int, kept: collections.deque[int]) -> None:
    """Runs wherever the last view dies, in any thread: appending to a deque is all that is safe there."""
    slots.append(slot)
    kept.append(num_bytes)


def watched(memory: mmap.mmap, released: Callable[..., object], *arguments: Any) -> ctypes.Array[ctypes.c_ubyte]:
    """The bytes of `memory`; `released(*arguments)` is called when the last tensor, view or array over them dies."""
    # The array is watched and not a memoryview of it: numpy and slices hold a reference to the array only.
    owner = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
    weakref.finalize(owner, released, *arguments).atexit = False
    return owner


def _layout(lengths: Iterable[int]) -> tuple[list[tuple[int, int]], int]:
    """Where parts of these lengths start and end, one after the other, and where the last one ends."""
    places, end = [], 0
    for length in lengths:
        start = aligned(end)
        end = start + length
        places.append((start, end))
    return places, end


def _padded(views: Sequence[memoryview], places: Sequence[tuple[int, int]]) -> Iterator[memoryview | bytes]:
    """The bytes of the parts, each in its place."""
    position = 0
    for view, (start, end) in zip(views, places, strict=True):
        if start > position:
            yield bytes(start - position)
        yield view
        position = end


def rounded_up(size: int) -> int:
    """A quarter more than `size`, so that the next, slightly larger batch fits; untouched pages cost nothing."""
    return -(-(size + size // 4) // _GRAIN_BYTES) * _GRAIN_BYTES
