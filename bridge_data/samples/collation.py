"""Collation: a list of samples becomes one batch, field by field.

Reads a list of samples, or of batches. Returns one object of the same type: tensors are stacked and zero-padded at the
end of each dimension, everything else is kept in lists. Every value is kept unchanged. Raises `ValueError` for values
that cannot be combined, whatever their order.

Provenance is never padded or stacked: keys, restore keys and subflavors become lists, sources one flat tuple.
`with_tensors` turns the numpy arrays and numbers of a finished batch into tensors.

Large tensors are built in the memory of the current `Arena`, if there is one.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, KeysView, Sequence
from typing import Any

from bridge_data.later import is_tensor, is_tensor_class, torch, torch_itself
from bridge_data.later import numpy as np
from bridge_data.samples.arena import current_arena

PROVENANCE = ("__key__", "__restore_key__", "__subflavors__", "__sources__")
"""The fields that say where a sample comes from."""

_LARGE_BYTES = 1 << 20
"""From this size on, only the padding of a tensor is zeroed: faster than zeroing all of it and writing it again."""


def _allocated(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """Memory of the current arena for a tensor of `shape` that is otherwise like another one."""
    arena = current_arena()
    if arena is None or like.layout is not torch.strided or like.device.type != "cpu":
        return None
    return arena.allocate(shape, like.dtype)


def uninitialized(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor to be filled, in the current arena if it can be: for hooks that make a large tensor of a batch."""
    arena = current_arena()
    allocated = None if arena is None else arena.allocate(shape, dtype)
    return torch.empty(shape, dtype=dtype, device="cpu") if allocated is None else allocated


def _to_fill(like: torch.Tensor, shape: Sequence[int]) -> tuple[torch.Tensor, bool]:
    """A tensor of `shape`, otherwise like another one, to be filled; and whether it is zeroed already."""
    allocated = _allocated(like, shape)
    if like.itemsize * math.prod(shape) < _LARGE_BYTES:
        return (like.new_zeros(shape) if allocated is None else allocated.zero_()), True
    return (like.new_empty(shape) if allocated is None else allocated), False


def _stack_equal(batch: list[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of one shape and dtype."""
    for one in batch:
        if type(one) is not torch.Tensor or one.requires_grad or one.layout is not torch.strided:
            return torch.stack(batch)
    first = batch[0]
    stacked = _allocated(first, (len(batch), *first.shape))
    if first.nbytes * len(batch) < _LARGE_BYTES:
        made: torch.Tensor = torch_itself().stack(batch, out=stacked)
        return made
    if stacked is None:
        stacked = first.new_empty((len(batch), *first.shape))
    for target, value in zip(*_to_copy(stacked, batch), strict=True):
        target[...] = value
    return stacked


def _to_copy(target: torch.Tensor, values: list[torch.Tensor]) -> tuple[Any, list[Any]]:
    """Target and values as arrays if they are plain bytes: numpy copies in one thread. Torch starts several, which then
    spin on cores that other workers need."""
    if not all(map(_is_contiguous, (target, *values))):
        return target, values
    return target.view(torch.uint8).numpy(), [value.detach().view(torch.uint8).numpy() for value in values]


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor are bytes in memory, without a conjugate, negative or quantized view."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    return not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _is_contiguous(tensor: torch.Tensor) -> bool:
    # The stride of a dimension of size 1 is arbitrary.
    return is_plain(tensor) and tensor.ndim > 0 and tensor.is_contiguous() and tensor.stride(-1) == 1


def _are_views_of_pixels(batch: list[torch.Tensor]) -> bool:
    """Whether these are images (C, H, W) with memory order (H, W, C), as decoders write them."""
    return all(value.ndim == 3 and not value.is_contiguous() for value in batch) and all(
        value.permute(1, 2, 0).is_contiguous() for value in batch
    )


def _are_equal(batch: list[torch.Tensor]) -> bool:
    return len({(value.shape, value.dtype) for value in batch}) == 1


def batch_stack(batch: list[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of one shape along a new first dimension; images as in `batch_pad_stack`.

    >>> batch_stack([torch.tensor([1, 2]), torch.tensor([3, 4])])
    tensor([[1, 2],
            [3, 4]])
    """
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

    Images (C, H, W) that are views of (H, W, C) become a batch (N, C, H, W) in torch's `channels_last` memory format:
    separating the channels would cost a fourth of the time that decoding takes.

    >>> batch_pad_stack([torch.tensor([1, 2, 3]), torch.tensor([4])])
    tensor([[1, 2, 3],
            [4, 0, 0]])
    """
    arena = current_arena()
    stacked = None if arena is None else arena.take_stack(batch)
    if stacked is not None:
        return stacked
    if _are_views_of_pixels(batch):
        return batch_pad_stack([value.permute(1, 2, 0) for value in batch]).permute(0, 3, 1, 2)
    if _are_equal(batch):
        return _stack_equal(batch)
    _check_dtypes(batch)
    stacked, is_zero = _to_fill(batch[0], (len(batch), *_largest(batch, 0)))
    targets, values = (stacked, batch) if is_zero else _to_copy(stacked, batch)
    for target, value in zip(targets, values, strict=True):
        _fill(target, value, is_zero)
    return stacked


def _fill(target: Any, value: Any, is_zero: bool) -> None:
    """Copy `value` to the beginning of `target`, and zero the rest unless it is zero already. Both are tensors, or both
    are arrays."""
    before = [slice(0, size) for size in value.shape]
    target[tuple(before)] = value
    for dimension, size in enumerate(() if is_zero else value.shape):
        if size < target.shape[dimension]:
            target[(*before[:dimension], slice(size, None))] = 0


def batch_list(batch: list[Any]) -> list[Any]:
    """Keep the values as a list."""
    return batch


def concat_pad(batch: list[torch.Tensor]) -> torch.Tensor:
    """Join tensors along their first dimension, zero-padded at the end of the others.

    >>> concat_pad([torch.tensor([[1, 2, 3]]), torch.tensor([[4]])])
    tensor([[1, 2, 3],
            [4, 0, 0]])
    """
    _check_dtypes(batch)
    joined, is_zero = _to_fill(batch[0], (sum(len(value) for value in batch), *_largest(batch, 1)))
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
        ValueError: if only some are tensors: the result would depend on which comes first.
    """
    kinds = set(map(type, values))
    are_tensors = set(map(is_tensor_class, kinds))
    if len(are_tensors) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        num_tensors = sum(map(is_tensor_class, map(type, values)))
        raise ValueError(
            f"{num_tensors} of {len(values)} values are tensors, the others are not ({names}). Give "
            "every sample a tensor (an empty one if there is none), or override batch of the task encoder."
        )
    return batch_pad_stack(values) if True in are_tensors else values


def generic_batch(batch: list[Any]) -> Any:
    """`collate` for samples of any form: it descends into dicts, dataclasses and named tuples, field by field.

    A class with `from_samples` (as a `Batch` has) makes its batch itself.

    >>> generic_batch([{"tokens": torch.tensor([1, 2]), "name": "a"}, {"tokens": torch.tensor([3]), "name": "b"}])
    {'tokens': tensor([[1, 2],
            [3, 0]]), 'name': ['a', 'b']}
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

    Other values become a list with an entry for each batch; provenance keeps an entry for each sample.

    >>> generic_concat([{"tokens": torch.tensor([[1, 2]])}, {"tokens": torch.tensor([[3]])}])
    {'tokens': tensor([[1, 2],
            [3, 0]])}
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
    """The values of each field in all objects; None if the first has no named fields."""
    first = values[0]
    if isinstance(first, dict):
        keys = first.keys()
        _check_names(keys, [value for value in values if not isinstance(value, dict) or value.keys() != keys])
        return {key: list(map(operator.itemgetter(key), values)) for key in keys}
    names = _names_of_class(first.__class__)
    if names is None:
        return None
    others = {type(value): value for value in values}
    if len(others) > 1:
        _check_names(names, [value for value in others.values() if _field_names(value) != names])
    return {name: list(map(operator.attrgetter(name), values)) for name in names}


def _field_names(value: Any) -> KeysView[str] | None:
    return value.keys() if isinstance(value, dict) else _names_of_class(value.__class__)


@functools.lru_cache(maxsize=256)  # asked for every batch
def _names_of_class(kind: type) -> KeysView[str] | None:
    if dataclasses.is_dataclass(kind):
        return {field.name: None for field in dataclasses.fields(kind)}.keys()
    return dict.fromkeys(kind._fields).keys() if issubclass(kind, tuple) and hasattr(kind, "_fields") else None


def _check_names(names: KeysView[str], others: Sequence[Any]) -> None:
    for other in others:
        uneven = sorted(map(str, names ^ (_field_names(other) or set())))
        what = f"only some have {', '.join(uneven)}" if uneven else f"some are of the type {type(other).__name__}"
        raise ValueError(
            f"of the values to be batched, {what}: give all the same fields, or override batch of the task encoder"
        )


def collected(name: str, column: list[Any], fn: Callable[[list[Any]], Any]) -> Any:
    """The values of a field combined: by `fn`, except provenance."""
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
    """The combined provenance of several batches."""
    if name == "__sources__":
        return flat_sources(column)
    if all(isinstance(entries, list) for entries in column):
        return [entry for entries in column for entry in entries]
    return column


def with_tensors(value: Any) -> Any:
    """`value` with each array and number of numpy in it as a tensor, which shares the memory where it can.

    It descends into dicts, lists and tuples, and copies those that change. Objects of classes, dataclasses too, stay as
    they are, and so do arrays of text, objects, times and records. Torch's DataLoader, and with it Energon, does the
    same to batches, but for tuples, which it makes lists.
    """
    kind = type(value)
    if kind.__module__ == "numpy":  # not by `isinstance`, which would import it
        return _tensor_of(value) if hasattr(value, "dtype") and value.dtype.kind in "biufc" else value
    if isinstance(value, dict):
        changed = {
            name: new
            for name, old in value.items()
            if type(old) not in _NEVER_CHANGED and name not in PROVENANCE and (new := with_tensors(old)) is not old
        }
        if not changed:
            return value
        copied = copy.copy(value)
        copied.update(changed)
        return copied
    if not isinstance(value, (list, tuple)) or _NEVER_CHANGED.issuperset(map(type, value)):
        return value
    values = [with_tensors(one) for one in value]
    if all(new is old for new, old in zip(values, value, strict=True)):
        return value
    if kind is list or kind is tuple:
        return values if kind is list else tuple(values)
    make: Callable[..., Any] = kind
    try:
        return make(*values) if hasattr(kind, "_fields") else make(values)
    except TypeError:  # a class of the user that is made in another way
        return value


_NEVER_CHANGED = frozenset({str, int, float, bool, bytes, type(None)})
"""Types of values without numpy: a long list of them is left alone after one look at its types."""


def _tensor_of(value: Any) -> Any:
    # torch takes neither foreign byte orders nor negative strides, and warns of memory that it must not write to
    try:
        if not isinstance(value, np.ndarray):
            return torch.as_tensor(value)
        array = np.require(value, value.dtype.newbyteorder("="), "W")
        is_odd = any(stride < 0 or stride % array.itemsize for stride in array.strides)
        return torch.as_tensor(array.copy() if is_odd else array)
    except TypeError:  # a number that torch does not have, such as float128
        return value
