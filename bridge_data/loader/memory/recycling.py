"""Memory of large tensors, used again: fresh pages cost as much as a fourth of decoding what comes into them.

Enters: the shapes that collating asks for, in the process that hands batches out. Leaves: tensors. Guarantee: memory is
used again only when the last tensor, view or array over it has died. It is for one thread at a time.
"""

from __future__ import annotations

import collections
import ctypes
import math
import mmap
import weakref
from collections.abc import Sequence

from bridge_data.later import torch
from bridge_data.loader.workers import process

_MIN_BYTES = 1 << 17
_ALIGNMENT = 64
_GRAIN_BYTES = 1 << 18
_MAX_SPARE = 4


class Recycler:
    """Gives out memory, and takes it back by itself. Several tensors may lie in one piece, which is as large as the
    largest that was ever asked for."""

    def __init__(self) -> None:
        self._spare: collections.deque[mmap.mmap] = collections.deque(maxlen=_MAX_SPARE)
        self._piece_bytes = 0
        self._open: weakref.ref[ctypes.Array[ctypes.c_ubyte]] | None = None
        self._end = 0
        process.have_freed_memory_kept()  # that of the images of a batch

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """A tensor with any contents; None if it is small."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes < _MIN_BYTES:
            return None
        self._piece_bytes = max(self._piece_bytes, num_bytes)
        owner, start = None if self._open is None else self._open(), -(-self._end // _ALIGNMENT) * _ALIGNMENT
        if owner is None or start + num_bytes > len(owner):
            owner, start = self._begin(), 0
        self._end = end = start + num_bytes
        # A part of all: what lies one after the other has one storage.
        return torch.frombuffer(owner, dtype=torch.uint8)[start:end].view(dtype).reshape(tuple(shape))

    def _begin(self) -> ctypes.Array[ctypes.c_ubyte]:
        memory = self._fitting(self._piece_bytes)
        owner = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
        # Appending is all that is safe in whatever thread the last view dies; what is too much falls out at the end.
        weakref.finalize(owner, self._spare.append, memory).atexit = False
        self._open = weakref.ref(owner)
        return owner

    def _fitting(self, num_bytes: int) -> mmap.mmap:
        for _ in range(len(self._spare)):
            memory = self._spare.popleft()
            if len(memory) >= num_bytes:
                return memory  # a smaller one is of no use any more
        size = -(-(num_bytes + num_bytes // 4) // _GRAIN_BYTES) * _GRAIN_BYTES
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
