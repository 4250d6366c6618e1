"""Collating: many values become one, field by field.

Enters: a list of samples, or of batches. Leaves: one object of their form: tensors in one tensor, zero-padded at the
end of each dimension, everything else in lists. Guarantee: the dtype of a tensor is that of the first one.

Provenance is collected and not computed with: keys and the like are in lists, sources in one flat tuple.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

PROVENANCE = ("__key__", "__restore_key__", "__subflavors__", "__sources__")
"""The fields that say where a sample comes from."""


def batch_stack(batch: list[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of one shape along a new first dimension."""
    return torch.stack(batch)


def batch_pad_stack(batch: list[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of any sizes along a new first dimension, zero-padded at the end of each dimension."""
    first = batch[0]
    if all(value.shape == first.shape and value.dtype == first.dtype for value in batch):
        return torch.stack(batch)
    stacked = first.new_zeros((len(batch), *_largest(batch, 0)))
    for row, value in zip(stacked, batch, strict=True):
        row[tuple(slice(0, size) for size in value.shape)] = value
    return stacked


def batch_list(batch: list[Any]) -> list[Any]:
    """Keep the values as a list."""
    return batch


def concat_pad(batch: list[torch.Tensor]) -> torch.Tensor:
    """Join tensors along their first dimension, zero-padded at the end of the others."""
    first = batch[0]
    joined = first.new_zeros((sum(len(value) for value in batch), *_largest(batch, 1)))
    start = 0
    for value in batch:
        rows = joined[start : start + len(value)]
        rows[tuple(slice(0, size) for size in value.shape)] = value
        start += len(value)
    return joined


def _largest(tensors: Sequence[torch.Tensor], first_dimension: int) -> list[int]:
    """The largest size of each dimension from `first_dimension` on."""
    if len({tensor.ndim for tensor in tensors}) > 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors[:4])
        raise ValueError(f"tensors of different numbers of dimensions cannot be in one: {shapes}; list them instead")
    return [max(sizes) for sizes in list(zip(*(tensor.shape for tensor in tensors), strict=True))[first_dimension:]]


def collate(values: list[Any]) -> Any:
    """Tensors padded and stacked, everything else as a list."""
    return batch_pad_stack(values) if isinstance(values[0], torch.Tensor) else values


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
        return concat_pad(batch) if isinstance(first, torch.Tensor) else batch
    fields = {
        name: _joined(name, column) if name in PROVENANCE else generic_concat(column)
        for name, column in columns.items()
    }
    return fields if isinstance(first, dict) else type(first)(**fields)


def columns_of(values: Sequence[Any]) -> dict[str, list[Any]] | None:
    """The values of each field of the first of `values`, in all of them; None if it has no named fields."""
    first = values[0]
    if isinstance(first, dict):
        return {key: [value[key] for value in values] for key in first}
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in dataclasses.fields(first)]
    elif isinstance(first, tuple) and hasattr(first, "_fields"):
        names = list(first._fields)
    else:
        return None
    return {name: [getattr(value, name) for value in values] for name in names}


def collected(name: str, column: list[Any], fn: Callable[[list[Any]], Any]) -> Any:
    """The values of a field in one: by `fn`, but for provenance."""
    if name == "__sources__":
        return flat_sources(column)
    return column if name in PROVENANCE else fn(column)


def flat_sources(column: Sequence[Sequence[Any] | None]) -> tuple[Any, ...] | None:
    """The sources of all samples in one tuple; None if there are none."""
    return tuple(source for sources in column for source in sources or ()) or None


def _joined(name: str, column: list[Any]) -> Any:
    """The provenance of several batches as that of one."""
    if name == "__sources__":
        return flat_sources(column)
    if all(isinstance(entries, list) for entries in column):
        return [entry for entries in column for entry in entries]
    return column
