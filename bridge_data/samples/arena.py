"""Arenas: the memory in which batches are built.

An `Arena` is large buffers of this process, from which tensors are allocated, so that sending a batch to another one
needs no copy, and memory is used again once nothing refers to it. Returns uninitialized tensors, or None where torch
should allocate as usual.

An arena is used only inside `with arena.active()`, by the thread and process that entered it. Users call collate
functions without an argument for the arena. So the active one is in a context variable, which only `Arena.active` sets
and `current_arena` reads.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import ctypes
import dataclasses
import math
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from bridge_data.later import numpy as np
from bridge_data.later import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

Memory: TypeAlias = ctypes.Array[ctypes.c_ubyte]
"""The bytes of a buffer. It lives as long as any tensor, view or array over it."""

_ALIGNMENT = 64
_GRAIN_BYTES = 1 << 18

_MAX_SPARE = 4
"""Free buffers that a `PrivateArena` keeps."""

_LARGEST_ADAPTED_TO = (32 << 20) - (1 << 16)
"""glibc's DEFAULT_MMAP_THRESHOLD_MAX is 32 MiB, what it adds to a block included."""

_active: ContextVar[Arena | None] = ContextVar("bridge_data_arena", default=None)


@dataclasses.dataclass(slots=True)
class ArenaBuffer:
    """A buffer that tensors are allocated from, front to back; `end` is the offset of its first unused byte."""

    memory: weakref.ref[Memory]
    address: int
    num_bytes: int
    end: int = 0


class Arena(abc.ABC):
    """Allocates tensors from large buffers. A subclass says where the buffers come from and when they are reused.

    Tensors smaller than `min_bytes` are left to torch.
    """

    min_bytes: int

    def __init__(self) -> None:
        self._buffer: ArenaBuffer | None = None
        self.owner: tuple[int, int] | None = None
        """Process and thread that may allocate."""
        self.num_images = 0
        """How many of the next images are stacked unchanged; 0 outside `images`."""
        self._images: Iterator[tuple[NDArray[np.uint8], torch.Tensor]] | None = None
        self._image_size: tuple[int, int, int] | None = None
        self._stack_address = 0

    @abc.abstractmethod
    def open_buffer(self, num_bytes: int) -> tuple[ArenaBuffer, Memory] | None:
        """A new buffer of at least `num_bytes`, with its memory; None if the tensor should be allocated by torch."""

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Build what this thread collates in this arena. Nests: on exit the previous arena is active again."""
        token, owner = _active.set(self), self.owner
        self.owner = os.getpid(), threading.get_ident()
        try:
            yield
        finally:
            self.owner = owner
            _active.reset(token)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """An uninitialized tensor in a buffer of this arena; None if it should be allocated by torch."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes < self.min_bytes:
            return None
        buffer = self._buffer
        memory = None if buffer is None else buffer.memory()
        if buffer is None or memory is None or aligned(buffer.end) + num_bytes > buffer.num_bytes:
            opened = self.open_buffer(num_bytes)
            if opened is None:
                return None
            buffer, memory = opened
            self._buffer = buffer
        start = aligned(buffer.end)
        buffer.end = start + num_bytes
        # A slice of the whole buffer, so that tensors that are neighbours in memory share one storage.
        return torch.frombuffer(memory, dtype=torch.uint8)[start : buffer.end].view(dtype).reshape(tuple(shape))

    @contextlib.contextmanager
    def images(self, count: int) -> Iterator[None]:
        """Allocate one contiguous tensor for the next `count` images: `image_buffer` returns slices of it, so
        `take_stack` needs no copy. Use it only if nothing else can have kept one of these images."""
        before = self.num_images, self._images
        self.num_images, self._images, self._stack_address = count, None, 0
        try:
            yield
        finally:
            self.num_images, self._images = before

    def image_buffer(self, size: tuple[int, int, int]) -> tuple[NDArray[np.uint8], torch.Tensor] | None:
        """Memory for the next image (H, W, C): the array to decode into, and the tensor (C, H, W) that is stacked.

        None outside `images`, or if the image differs in size from the previous one.
        """
        if not self.num_images:
            return None
        if size != self._image_size:
            self._image_size, self._images = size, iter(())
        elif self._images is None:
            self._images = self._image_slices(size)
        return next(self._images, None)

    def _image_slices(self, size: tuple[int, int, int]) -> Iterator[tuple[NDArray[np.uint8], torch.Tensor]]:
        stack = self.allocate((self.num_images, *size), torch.uint8)
        if stack is None:
            return iter(())
        self._stack_address = stack.data_ptr()
        return zip(stack.numpy(), stack.permute(0, 3, 1, 2), strict=True)

    def take_stack(self, images: list[torch.Tensor]) -> torch.Tensor | None:
        """The stack in which all these images were decoded (see `image_buffer`), without a copy; None for any other
        tensors. Only the first call returns it: a second stack of the same images is a copy.
        """
        first = images[0]
        if not self._stack_address or first.data_ptr() != self._stack_address:
            return None
        start, size, shape, stride = self._stack_address, first.nbytes, first.shape, first.stride()
        for number, image in enumerate(images):
            if image.data_ptr() != start + number * size or image.shape != shape or image.stride() != stride:
                return None
        self._stack_address = 0
        return first.as_strided((len(images), *shape), (size, *stride))


@contextlib.contextmanager
def no_arena() -> Iterator[None]:
    """Build in no arena what this thread makes."""
    token = _active.set(None)
    try:
        yield
    finally:
        _active.reset(token)


def current_arena() -> Arena | None:
    """The arena in which this thread of this process builds batches; None if there is none. Forked children and threads
    of hooks have inherited the variable, and none entered `active`."""
    arena = _active.get()
    return arena if arena is not None and arena.owner == (os.getpid(), threading.get_ident()) else None


def aligned(offset: int) -> int:
    """The first offset from `offset` on at which a tensor may start."""
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def opened(memory: Memory) -> tuple[ArenaBuffer, Memory]:
    """A buffer that spans all of `memory`, with its memory."""
    return ArenaBuffer(weakref.ref(memory), ctypes.addressof(memory), len(memory)), memory


def watched(memory: mmap.mmap, released: Callable[..., object], *arguments: Any) -> Memory:
    """The bytes of `memory`; `released(*arguments)` is called when the last tensor, view or array over them dies."""
    # The array is watched and not a memoryview of it: numpy and slices hold a reference to the array only.
    owner = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
    weakref.finalize(owner, released, *arguments).atexit = False
    return owner


def rounded_up(size: int) -> int:
    """A quarter more than `size`, so that the next, slightly larger batch fits; untouched pages cost nothing."""
    return -(-(size + size // 4) // _GRAIN_BYTES) * _GRAIN_BYTES


class PrivateArena(Arena):
    """Recycles the memory of batches made in the trainer's process: fresh pages cost up to a fourth of the time that
    decoding into them takes. Each buffer is as large as the largest tensor so far."""

    min_bytes = 1 << 17

    def __init__(self) -> None:
        super().__init__()
        self._spare: collections.deque[mmap.mmap] = collections.deque(maxlen=_MAX_SPARE)
        self._buffer_bytes = 0
        _have_freed_memory_kept()  # for the images of a batch

    def open_buffer(self, num_bytes: int) -> tuple[ArenaBuffer, Memory]:
        self._buffer_bytes = max(self._buffer_bytes, num_bytes)
        memory = self._recycled(self._buffer_bytes)
        if memory is None:
            size = rounded_up(self._buffer_bytes)
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # The last view may die in any thread, where appending to a deque is safe; beyond `maxlen` the oldest is freed.
        return opened(watched(memory, self._spare.append, memory))

    def _recycled(self, num_bytes: int) -> mmap.mmap | None:
        """A free buffer that is large enough. Smaller ones are freed: they will not be needed again."""
        for _ in range(len(self._spare)):
            memory = self._spare.popleft()
            if len(memory) >= num_bytes:
                return memory
        return None


def _have_freed_memory_kept() -> None:
    """Make glibc adapt to large blocks, as it does when the first one is freed: from then on it keeps about 60 MB of
    freed memory. Unlike mallopt, this changes no setting for other code."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.free(libc.malloc(_LARGEST_ADAPTED_TO))
