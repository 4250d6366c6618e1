"""Collating: many values become one, field by field.

Enters: a list of samples, or of batches. Leaves: one object of their form: tensors in one tensor, zero-padded at the
end of each dimension, everything else in lists. Guarantee: no value is changed and none left out; what does not go
together is an error that says so, whichever of the values comes first.

Provenance is collected and not computed with: keys and the like are in lists, sources in one flat tuple.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import operator
import threading
from collections.abc import Callable, Iterator, KeysView, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from bridge_data.later import is_tensor, torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PROVENANCE = ("__key__", "__restore_key__", "__subflavors__", "__sources__")
"""The fields that say where a sample comes from."""


Allocate: TypeAlias = "Callable[[Sequence[int], torch.dtype], torch.Tensor | None]"


class _Thread(threading.local):
    """What a thread that collates knows: of several, each builds in memory of its own."""

    allocate: Allocate | None = None
    rooms: _Rooms | None = None
    rooms_at = 0
    """The address of the memory that was given for what is stacked next."""
    size: tuple[int, int, int] | None = None
    """That of the last image."""


_thread = _Thread()

_LARGE_BYTES = 1 << 20
"""Tensors from this size on get zeros only where no value comes: that is quicker than to write all of it twice."""


def build_in(allocate: Allocate | None) -> None:
    """Have tensors that are collated be built in memory that `allocate` gives for a shape and dtype, if it gives any.

    For threads that send batches on: there a tensor need not be copied once more. None: in memory of their own.
    """
    _thread.allocate, _thread.rooms = allocate, None


@contextlib.contextmanager
def in_one_place(count: int) -> Iterator[None]:
    """Meanwhile `room_for` gives memory: `count` values are made that are stacked next, as they are and in this order,
    and nothing else is done to them."""
    _thread.rooms, _thread.rooms_at = _Rooms(count) if _thread.allocate is not None else None, 0
    try:
        yield
    finally:
        _thread.rooms = None


def room_for(size: tuple[int, int, int]) -> tuple[NDArray[np.uint8], torch.Tensor] | None:
    """Memory for the pixels (H, W, C) of an image that is stacked next, as they are decoded and as they are stacked
    (C, H, W); None if there had better be none."""
    return None if _thread.rooms is None else _thread.rooms.next(size)


class _Rooms:
    """Memory for images that are stacked next, one after the other, so that to stack them is no work. There is some as
    long as all are of one size, that of the last image before them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._left: Iterator[tuple[NDArray[np.uint8], torch.Tensor]] | None = None

    def next(self, size: tuple[int, int, int]) -> tuple[NDArray[np.uint8], torch.Tensor] | None:
        """The memory of the next image."""
        if size != _thread.size:
            _thread.size, self._left = size, iter(())
        elif self._left is None:
            self._left = self._begin(size)
        return next(self._left, None)

    def _begin(self, size: tuple[int, int, int]) -> Iterator[tuple[NDArray[np.uint8], torch.Tensor]]:
        block = None if _thread.allocate is None else _thread.allocate((self._count, *size), torch.uint8)
        if block is None:
            return iter(())
        _thread.rooms_at = block.data_ptr()
        return zip(block.numpy(), block.permute(0, 3, 1, 2), strict=True)


def _as_they_lie(batch: list[torch.Tensor]) -> torch.Tensor | None:
    """The stack of images that were given memory one after the other; of those of others None: they are copied, as
    others may go on to use them."""
    first = batch[0]
    if not _thread.rooms_at or first.data_ptr() != _thread.rooms_at:
        return None
    start, size, shape, stride = _thread.rooms_at, first.nbytes, first.shape, first.stride()
    for number, value in enumerate(batch):
        if value.data_ptr() != start + number * size or value.shape != shape or value.stride() != stride:
            return None
    _thread.rooms_at = 0
    return first.as_strided((len(batch), *shape), (size, *stride))


def _given(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """Memory to build a tensor of `shape` in that is else like another one."""
    if _thread.allocate is None or like.layout is not torch.strided or like.device.type != "cpu":
        return None
    return _thread.allocate(shape, like.dtype)


def _room(like: torch.Tensor, shape: Sequence[int]) -> tuple[torch.Tensor, bool]:
    """A tensor of `shape`, else like another one, to be filled; and whether zeros are in it already."""
    given = _given(like, shape)
    if like.itemsize * math.prod(shape) < _LARGE_BYTES:
        return (like.new_zeros(shape) if given is None else given.zero_()), True
    return (like.new_empty(shape) if given is None else given), False


def _stack_equal(batch: list[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of one shape and dtype."""
    odd = (type(one) is not torch.Tensor or one.requires_grad or one.layout is not torch.strided for one in batch)
    if any(odd):
        return torch.stack(batch)
    first = batch[0]
    stacked = _given(first, (len(batch), *first.shape))
    if first.nbytes * len(batch) < _LARGE_BYTES:
        return torch.stack(batch, out=stacked)
    if stacked is None:
        stacked = first.new_empty((len(batch), *first.shape))
    for room, value in zip(*_to_copy(stacked, batch), strict=True):
        room[...] = value
    return stacked


def _to_copy(room: torch.Tensor, values: list[torch.Tensor]) -> tuple[Any, list[Any]]:
    """Both as they had better be copied: where they are plain bytes, by numpy, in one thread. Torch starts more, which
    go on to burn the time of cores that decode."""
    if not all(map(_is_plain, (room, *values))):
        return room, values
    return room.view(torch.uint8).numpy(), [value.detach().view(torch.uint8).numpy() for value in values]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor are the bytes that lie there one after the other."""
    odd = tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.device.type != "cpu"
    if odd or tensor.ndim == 0 or tensor.layout is not torch.strided:
        return False
    return tensor.is_contiguous() and tensor.stride(-1) == 1  # which is any number, if the dimension has one value


def _are_views_of_pixels(batch: list[torch.Tensor]) -> bool:
    """Whether these are images (C, H, W) whose memory is (H, W, C), as decoders write them."""
    return all(value.ndim == 3 and not value.is_contiguous() for value in batch) and all(
        value.permute(1, 2, 0).is_contiguous() for value in batch
    )


def _are_equal(batch: list[torch.Tensor]) -> bool:
    first = batch[0]
    return all(value.shape == first.shape and value.dtype == first.dtype for value in batch)


def batch_stack(batch: list[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of one shape along a new first dimension; images as in `batch_pad_stack`."""
    if _are_equal(batch):
        return batch_pad_stack(batch)
    _check_dtypes(batch)
    return torch.stack(batch)


def _check_dtypes(tensors: Sequence[torch.Tensor]) -> None:
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"tensors of {names} cannot be in one; make them one dtype in the task encoder")


def batch_pad_stack(batch: list[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of any sizes along a new first dimension, zero-padded at the end of each dimension.

    Images (C, H, W) that are views of (H, W, C) make a batch (N, C, H, W) that is one of (N, H, W, C): in torch's words
    `channels_last`. To put the channels apart would cost as much as a fourth of decoding them.
    """
    lying = _as_they_lie(batch)
    if lying is not None:
        return lying
    if _are_views_of_pixels(batch):
        return batch_pad_stack([value.permute(1, 2, 0) for value in batch]).permute(0, 3, 1, 2)
    if _are_equal(batch):
        return _stack_equal(batch)
    _check_dtypes(batch)
    stacked, is_zero = _room(batch[0], (len(batch), *_largest(batch, 0)))
    rooms, values = (stacked, batch) if is_zero else _to_copy(stacked, batch)
    for room, value in zip(rooms, values, strict=True):
        _fill(room, value, is_zero)
    return stacked


def _fill(room: Any, value: Any, is_zero: bool) -> None:
    """Write `value` at the beginning of `room`, and zeros after it in each dimension, if they are not there. Both are
    tensors, or both are arrays."""
    before = [slice(0, size) for size in value.shape]
    room[tuple(before)] = value
    for dimension, size in enumerate(() if is_zero else value.shape):
        if size < room.shape[dimension]:
            room[(*before[:dimension], slice(size, None))] = 0


def batch_list(batch: list[Any]) -> list[Any]:
    """Keep the values as a list."""
    return batch


def concat_pad(batch: list[torch.Tensor]) -> torch.Tensor:
    """Join tensors along their first dimension, zero-padded at the end of the others."""
    _check_dtypes(batch)
    joined, is_zero = _room(batch[0], (sum(len(value) for value in batch), *_largest(batch, 1)))
    start = 0
    for value in batch:
        _fill(joined[start : start + len(value)], value, is_zero)
        start += len(value)
    return joined


def _largest(tensors: Sequence[torch.Tensor], first_dimension: int) -> list[int]:
    """The largest size of each dimension from `first_dimension` on."""
    if len({tensor.ndim for tensor in tensors}) > 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors[:4])
        raise ValueError(f"tensors of different numbers of dimensions cannot be in one: {shapes}; list them instead")
    return [max(sizes) for sizes in list(zip(*(tensor.shape for tensor in tensors), strict=True))[first_dimension:]]


def collate(values: list[Any]) -> Any:
    """Tensors padded and stacked, everything else as a list.

    Raises:
        ValueError: if some are tensors and others not: what comes of them would depend on which is first.
    """
    if len(kinds := set(map(type, values))) > 1 and len(set(map(is_tensor, values))) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(
            f"{sum(map(is_tensor, values))} of {len(values)} values are tensors, the others are not ({names}). Give "
            "every sample a tensor (an empty one where there is none), or override batch of the task encoder."
        )
    return batch_pad_stack(values) if is_tensor(values[0]) else values


def generic_batch(batch: list[Any]) -> Any:
    """`collate` for samples of any form: it descends into dicts, dataclasses and named tuples, field by field.

    A class with `from_samples` (as a `Batch` has) makes its batch itself.
    """
    first = batch[0]
    if hasattr(type(first), "from_samples"):
        return type(first).from_samples(batch)
    columns = columns_of(batch)
    if columns is None:
        return collate(batch)
    fields = {name: collected(name, column, generic_batch) for name, column in columns.items()}
    return fields if isinstance(first, dict) else type(first)(**fields)


def generic_concat(batch: list[Any]) -> Any:
    """One batch out of several of one form: tensors joined along their first dimension, padded in the others.

    What is no tensor becomes a list with an entry for each batch; but provenance stays one entry for each sample.
    """
    first = batch[0]
    columns = columns_of(batch)
    if columns is None:
        return concat_pad(batch) if is_tensor(first) else batch
    fields = {
        name: _joined(name, column) if name in PROVENANCE else generic_concat(column)
        for name, column in columns.items()
    }
    return fields if isinstance(first, dict) else type(first)(**fields)


def columns_of(values: Sequence[Any]) -> dict[str, list[Any]] | None:
    """The values of each field, in all of them; None if the first has no named fields.

    Raises:
        ValueError: if a field is in some of them only.
    """
    first = values[0]
    names = _field_names(first)
    if names is None:
        return None
    if isinstance(first, dict):
        _check_names(names, [value for value in values if not isinstance(value, dict) or value.keys() != names])
        return {key: list(map(operator.itemgetter(key), values)) for key in names}
    others = {type(value): value for value in values}
    if len(others) > 1:
        _check_names(names, [value for value in others.values() if _field_names(value) != names])
    return {name: list(map(operator.attrgetter(name), values)) for name in names}


def _field_names(value: Any) -> KeysView[str] | None:
    if isinstance(value, dict):
        return value.keys()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dict.fromkeys(field.name for field in dataclasses.fields(value)).keys()
    return dict.fromkeys(value._fields).keys() if isinstance(value, tuple) and hasattr(value, "_fields") else None


def _check_names(names: KeysView[str], others: Sequence[Any]) -> None:
    for other in others:
        uneven = sorted(map(str, names ^ (_field_names(other) or set())))
        what = f"only some have {', '.join(uneven)}" if uneven else f"some are of the type {type(other).__name__}"
        raise ValueError(
            f"of the values to be batched, {what}: give all the same fields, or override batch of the task encoder"
        )


def collected(name: str, column: list[Any], fn: Callable[[list[Any]], Any]) -> Any:
    """The values of a field in one: by `fn`, but for provenance.

    Raises:
        ValueError: that of `fn`, with the name of the field.
    """
    if name == "__sources__":
        return flat_sources(column)
    if name in PROVENANCE:
        return column
    try:
        return fn(column)
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise ValueError(f"field {name!r}: {error}") from error


def flat_sources(column: Sequence[Sequence[Any] | None]) -> tuple[Any, ...] | None:
    """The sources of all samples in one tuple; None if there are none."""
    return tuple(itertools.chain.from_iterable(filter(None, column))) or None


def _joined(name: str, column: list[Any]) -> Any:
    """The provenance of several batches as that of one."""
    if name == "__sources__":
        return flat_sources(column)
    if all(isinstance(entries, list) for entries in column):
        return [entry for entries in column for entry in entries]
    return column
