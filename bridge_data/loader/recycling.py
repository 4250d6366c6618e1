"""Memory of large tensors, used again: fresh pages cost as much as a fourth of decoding what comes into them.

Enters: the shapes that collating asks for, in the process that hands batches out. Leaves: tensors. Guarantee: memory is
used again only when the last tensor, view or array over it has died.
"""

import collections
import ctypes
import math
import mmap
import weakref
from collections.abc import Sequence

import torch

from bridge_data.loader import process

_MIN_BYTES = 1 << 20
_GRAIN_BYTES = 1 << 18
_MAX_SPARE = 4


class Recycler:
    """Gives out memory, and takes it back by itself. Any thread may use it."""

    def __init__(self) -> None:
        self._spare: collections.deque[mmap.mmap] = collections.deque(maxlen=_MAX_SPARE)
        process.have_freed_memory_kept()  # that of the images of a batch

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """A tensor with any contents; None if it is small."""
        count = math.prod(shape)
        num_bytes = count * dtype.itemsize
        if num_bytes < _MIN_BYTES:
            return None
        memory = self._fitting(num_bytes)
        owner = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
        # Appending is all that is safe in whatever thread the last view dies; what is too much falls out at the end.
        weakref.finalize(owner, self._spare.append, memory).atexit = False
        return torch.frombuffer(owner, dtype=dtype, count=count).reshape(tuple(shape))

    def _fitting(self, num_bytes: int) -> mmap.mmap:
        for _ in range(len(self._spare)):
            try:
                memory = self._spare.popleft()
            except IndexError:
                break
            if num_bytes <= len(memory) <= 4 * num_bytes:
                return memory
            self._spare.append(memory)
        size = -(-(num_bytes + num_bytes // 4) // _GRAIN_BYTES) * _GRAIN_BYTES
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
