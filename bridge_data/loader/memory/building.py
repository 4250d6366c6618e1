"""Batches are built where they are sent: in a worker, collated tensors lie in a slot of shared memory from the start.

Enters: the shapes that collating asks for; then the parts of a batch. Leaves: tensors in a slot; then the message of
the batch, which says where in the slot its parts are, uncopied. Guarantee: a slot goes to the trainer only when nothing
in the worker looks at it any more. Where a hook keeps a tensor, or the batch is not in one slot, it is copied.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import math
import mmap
import pickle
import threading
import weakref
from collections.abc import Sequence

import numpy as np

from bridge_data.later import torch
from bridge_data.loader.memory.slots import MAX_INLINE_BYTES, Placed, SlotWriter, aligned

_MAX_KEPT = 8
"""So often may something in the worker keep what was built in a slot, and with it the whole slot; then no more is."""

_MAX_SITES = 4
"""So many slots may be built in at once: samples that wait in a buffer, each in another one, would keep them all."""

_ROOM_FOR_REST_BYTES = 1 << 16


@dataclasses.dataclass(slots=True)
class _Site:
    """A slot that is built in: where its memory is, and up to where it is used."""

    slot: int
    address: int
    num_bytes: int
    owner: weakref.ref[ctypes.Array[ctypes.c_ubyte]]
    end: int = 0

    def place_of(self, view: memoryview) -> tuple[int, int] | None:
        """Where in the slot this memory is, if it is there."""
        if not view:
            return None
        start = int(np.frombuffer(view, np.uint8).__array_interface__["data"][0]) - self.address
        return (start, start + len(view)) if start >= 0 and start + len(view) <= self.end else None


class Builder:
    """Gives out the memory of one worker's slots, and sends them."""

    def __init__(self, slots: SlotWriter) -> None:
        self._slots = slots
        self._sites: dict[int, _Site] = {}
        self._open: _Site | None = None
        self._left: collections.deque[int] = collections.deque()
        """Slots at which nothing looks any more: finalizers append here, in whatever thread."""
        self._batch_bytes = 0
        self._num_kept = 0
        self._thread = threading.get_ident()

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """A tensor in a slot, with any contents; None if it had better be elsewhere."""
        count = math.prod(shape)
        num_bytes = count * dtype.itemsize
        if num_bytes < MAX_INLINE_BYTES or self._num_kept >= _MAX_KEPT or threading.get_ident() != self._thread:
            return None
        site, owner = self._open, None if self._open is None else self._open.owner()
        if site is None or owner is None or aligned(site.end) + num_bytes > site.num_bytes:
            self._collect()
            if len(self._sites) >= _MAX_SITES:
                return None
            site, owner = self._begin(max(self._batch_bytes, num_bytes + _ROOM_FOR_REST_BYTES))
        start = aligned(site.end)
        site.end = start + num_bytes
        # A part of all: what lies one after the other has one storage.
        return torch.frombuffer(owner, dtype=torch.uint8)[start : site.end].view(dtype).reshape(tuple(shape))

    def _begin(self, num_bytes: int) -> tuple[_Site, ctypes.Array[ctypes.c_ubyte]]:
        slot = self._slots.take(num_bytes)
        memory = self._slots.maps[slot]
        owner = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
        weakref.finalize(owner, self._left.append, slot).atexit = False
        self._open = self._sites[slot] = _Site(slot, ctypes.addressof(owner), len(memory), weakref.ref(owner))
        return self._open, owner

    def place(self, parts: list[pickle.PickleBuffer]) -> Placed:
        """What to send so that the `parts` of a batch arrive. They are taken out of the list: the caller must not hold
        on to them, nor to the batch."""
        site = self._site_of(parts) if self._sites else None
        if site is None:
            self._expect(sum(len(part.raw()) for part in parts))
            return self._slots.place(parts)
        places, size = _places_in(site, parts)
        memory, extent = self._slots.maps[site.slot], max(end for _, end in places)
        self._expect(min(extent, 2 * size))
        if extent > min(len(memory), 2 * size):  # more was built than is sent: what is kept of it would keep all
            return self._slots.place(parts)
        _write_rest(memory, site.end, places, parts)
        parts.clear()  # and with them, if all is well, the last that looks at the slot
        self._collect()
        if site.slot not in self._sites:
            self._slots.claim(site.slot)
            return self._slots.sent(site.slot, places)
        self._num_kept += 1
        self._open = None
        with memoryview(memory) as view:
            return self._slots.place([pickle.PickleBuffer(view[start:end]) for start, end in places])

    def _expect(self, num_bytes: int) -> None:
        """Batches will be about as large as this one, or as those before it; one that was far larger is forgotten."""
        self._batch_bytes = max(self._batch_bytes - self._batch_bytes // 4, num_bytes + _ROOM_FOR_REST_BYTES)

    def _site_of(self, parts: list[pickle.PickleBuffer]) -> _Site | None:
        """Where the largest part is."""
        self._collect()
        largest = max((part.raw() for part in parts), key=len)
        return next((site for site in self._sites.values() if site.place_of(largest)), None)

    def _collect(self) -> None:
        while self._left:
            slot = self._left.popleft()
            del self._sites[slot]
            self._slots.free([slot])


def _places_in(site: _Site, parts: Sequence[pickle.PickleBuffer]) -> tuple[list[tuple[int, int]], int]:
    """Where the parts are in the slot or, those that are elsewhere, will be, after all that is there; their size."""
    places, end, size = [], site.end, 0
    for part in parts:
        view = part.raw()
        place = site.place_of(view)
        if place is None:
            start = aligned(end)
            place = start, start + len(view)
            end = place[1]
        places.append(place)
        size += len(view)
    return places, size


def _write_rest(
    memory: mmap.mmap, used: int, places: Sequence[tuple[int, int]], parts: Sequence[pickle.PickleBuffer]
) -> None:
    """Copy the parts that were not built in the slot, of which so much is used, to it."""
    for (start, end), part in zip(places, parts, strict=True):
        if start >= used:
            memory[start:end] = part.raw()
