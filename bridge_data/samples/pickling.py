"""Objects as bytes, with tensors and arrays as buffers of their own.

Reads any object that pickle can pickle by reference. Returns its pickle and the buffers, which are not copied on
arrival: dense CPU tensors of any dtype and shape, and numpy arrays, come back equal, as views of the buffers that they
are decoded from.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from bridge_data.later import is_tensor, torch
from bridge_data.samples import Batch, Sample, SourceInfo
from bridge_data.samples.collation import is_plain

ByName: TypeAlias = Mapping[type, tuple[Callable[[str], type], tuple[str]]]
"""Classes that cannot be imported where the bytes are read: how to find each there, a function and its argument."""


class ReferencePickler(pickle.Pickler):
    """Pickles by reference, which is fast and enough for most objects."""

    def __init__(self, file: io.BytesIO, classes: ByName, **options: Any) -> None:
        super().__init__(file, protocol=5, **options)
        self._classes = classes

    def reducer_override(self, obj: Any) -> Any:
        return reduce_object(obj, self._classes)


def pieces_by_reference(value: Any) -> list[pickle.PickleBuffer]:
    """`value` in pieces, for another process that runs the same script."""
    return pieces_of(value, ReferencePickler, {})


def pieces_of(value: Any, pickler: Callable[..., pickle.Pickler], classes: ByName) -> list[pickle.PickleBuffer]:
    """`value` in pieces: its pickle first, then the memory of each tensor and array."""
    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickler(stream, classes, buffer_callback=buffers.append).dump(value)
    return [pickle.PickleBuffer(stream.getbuffer()), *buffers]


_MAPPED_BYTES, _MAX_MAPPED = 1 << 18, 64
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def writable_content(descriptor: int) -> mmap.mmap | bytearray:
    """All of a file, as private memory to decode from: mapped, if it is large and not too many files are, as each takes
    a descriptor."""
    num_bytes = os.fstat(descriptor).st_size
    if num_bytes >= _MAPPED_BYTES and len(_mapped) < _MAX_MAPPED:
        memory = mmap.mmap(descriptor, num_bytes, access=mmap.ACCESS_COPY)
        _mapped.add(memory)
        return memory
    content = bytearray(num_bytes)
    os.preadv(descriptor, [content], 0)
    return content


def from_pieces(pieces: Iterable[Any]) -> Any:
    """The object of these pieces. Its tensors and arrays are views of them."""
    first, *buffers = pieces
    return pickle.loads(first, buffers=buffers)


def _reduce_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.numel() == 0:
        return _empty_tensor, (tensor.dtype, tuple(tensor.shape), tensor.requires_grad)
    base, order = tensor.detach(), None
    if not base.is_contiguous():  # sent in memory order, and permuted back on arrival
        order = sorted(range(base.ndim), key=base.stride, reverse=True)
        base = base.permute(order)
    values = base.contiguous().as_strided((base.numel(),), (1,))  # a dimension of size 1 may have any stride
    memory = values.view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(memory.data), tensor.dtype, tuple(base.shape), tensor.requires_grad, order)


def _tensor(
    memory: Any, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool, order: list[int] | None
) -> torch.Tensor:
    tensor = torch.frombuffer(memory, dtype=dtype).reshape(shape)
    if order is not None:
        tensor = tensor.permute([order.index(dimension) for dimension in range(len(order))])
    return tensor.requires_grad_(requires_grad)


def _empty_tensor(dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, requires_grad=requires_grad)


def reduce_object(obj: Any, classes: ByName) -> Any:
    """The result of `reducer_override` for an object."""
    kind = type(obj)
    if is_tensor(obj) and kind is torch.Tensor:
        return _reduce_tensor(obj) if is_plain(obj) else NotImplemented
    if kind is np.ndarray:
        if obj.flags.forc or obj.dtype.hasobject:
            return NotImplemented
        return np.ascontiguousarray(obj).__reduce_ex__(5)
    if kind is _Columns:
        return _sources, obj.columns
    if isinstance(obj, type):
        return classes.get(obj, NotImplemented)
    by_attributes = kind in classes and not hasattr(kind, "__setstate__")
    with_sources = isinstance(obj, (Sample, Batch)) and obj.__sources__
    if not (by_attributes or with_sources):
        return NotImplemented
    reduced = obj.__reduce_ex__(5)
    if with_sources:
        reduced = _with_source_columns(reduced)
    return _reduce_to_attributes(reduced) if by_attributes else reduced


class _Columns:
    """The sources of a batch as columns: pickling a few lists is faster than pickling many objects."""

    def __init__(self, sources: tuple[SourceInfo, ...]) -> None:
        self.columns = (
            [source.dataset_path for source in sources],
            [source.index for source in sources],
            [source.shard_name for source in sources],
            [source.file_names for source in sources],
        )


def _sources(
    dataset_paths: list[str], indexes: list[int | str], shard_names: list[str], file_names: list[tuple[str, ...]]
) -> tuple[SourceInfo, ...]:
    sources = []
    for path, index, shard, names in zip(dataset_paths, indexes, shard_names, file_names, strict=True):
        source = object.__new__(SourceInfo)  # three times as fast as the constructor
        source.dataset_path, source.index, source.shard_name, source.file_names = path, index, shard, names
        sources.append(source)
    return tuple(sources)


def _with_source_columns(reduced: Any) -> Any:
    """`reduced` with the sources in the object's state as columns, if that state is a dict."""
    if isinstance(reduced, str) or len(reduced) < 3:
        return reduced
    state = reduced[2]
    parts = [_with_columns(part) for part in (state if isinstance(state, tuple) else (state,))]
    return *reduced[:2], tuple(parts) if isinstance(state, tuple) else parts[0], *reduced[3:]


def _with_columns(part: Any) -> Any:
    sources = part.get("__sources__") if isinstance(part, dict) else None
    if type(sources) is not tuple or any(type(source) is not SourceInfo for source in sources):
        return part
    return {**part, "__sources__": _Columns(sources)}


def _reduce_to_attributes(reduced: Any) -> Any:
    """`reduced` with its state set attribute by attribute: a class pickled by value loses its `__slots__`, so instances
    in the worker have a `__dict__` and those in the trainer have slots."""
    if isinstance(reduced, str) or len(reduced) < 3 or reduced[2] is None:
        return reduced
    return *reduced, *(None,) * (5 - len(reduced)), _set_attributes


def _set_attributes(obj: Any, state: Any) -> None:
    for part in state if isinstance(state, tuple) else (state,):
        for name, value in (part or {}).items():
            object.__setattr__(obj, name, value)
