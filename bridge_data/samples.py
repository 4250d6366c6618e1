"""Samples and batches: plain dataclasses that carry where they came from.

A `Sample` is one element as the data set yields it; a `Batch` is what the model gets. Both keep four fields of
provenance under dunder names, as the Energon format's users know them, so that any batch can be traced to its shards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar, cast, dataclass_transform

import torch

T = TypeVar("T")


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """`@dataclass(slots=True, kw_only=True)`: the form in which samples and batches are usually declared."""
    return dataclasses.dataclass(slots=True, kw_only=True)(cls)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """Where a sample was read: data set path, running index in it, shard file, and the shard's members used."""

    dataset_path: str
    index: int | str
    shard_name: str
    file_names: tuple[str, ...]


def map_tensors(value: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with `fn` applied to each tensor inside dicts, dataclasses, named tuples, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, dict):
        mapped = {key: map_tensors(item, fn) for key, item in value.items()}
        return mapped if type(value) is dict else _refill_dict(value, mapped)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if isinstance(value, SourceInfo):
            return value
        changes = {f.name: map_tensors(getattr(value, f.name), fn) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **changes)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, fn) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, fn) for item in value)
    return value


def _refill_dict(original: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """A dict of the original's own class (a `BatchEncoding`, an `OrderedDict`) with new items."""
    copy = original.copy()
    copy.update(items)
    return copy


def pin(value: Any) -> Any:
    """Copy every tensor of `value` to page-locked memory; call it in the training process, never in a worker."""
    return map_tensors(value, lambda tensor: tensor.pin_memory())


class _TensorFields:
    """Moves all tensors of a dataclass at once."""

    __slots__: ClassVar[tuple[str, ...]] = ()

    def pin_memory(self) -> Self:
        """A copy with every tensor in page-locked memory, so that `to(..., non_blocking=True)` overlaps."""
        return cast(Self, pin(self))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """A copy with every tensor on `device`; with `non_blocking`, tensors should be pinned first."""
        return cast(Self, map_tensors(self, lambda tensor: tensor.to(device, non_blocking=non_blocking)))


@edataclass
class Sample(_TensorFields):
    """One element of a data set. Derive a dataclass from it and add your fields.

    `__key__` is `shard/basename`; `__restore_key__` is `(source, epoch, index, part)`: enough to build it again.
    """

    __key__: str
    __restore_key__: tuple[str | int | tuple[Any, ...], ...] = ()
    __subflavors__: dict[str, Any] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def derive_from(cls, base_sample: Sample, **kwargs: Any) -> Self:
        """A sample of this class with the provenance of `base_sample` and the fields of `kwargs`."""
        return cls(**{name: getattr(base_sample, name) for name in PROVENANCE if name not in kwargs}, **kwargs)

    @classmethod
    def extend(cls, src: Sample, **kwargs: Any) -> Self:
        """A sample of this class, which derives from `src`'s, with all fields of `src` and those of `kwargs`."""
        return _extend(cls, src, kwargs)


@edataclass
class Batch(_TensorFields):
    """What `TaskEncoder.batch` and `encode_batch` return. Derive a dataclass from it and add your fields."""

    __key__: list[str]
    __restore_key__: Sequence[Any] = ()
    __subflavors__: list[dict[str, Any] | None] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def derive_from(cls, base_batch: Batch, **kwargs: Any) -> Self:
        """A batch of this class with the provenance of `base_batch` and the fields of `kwargs`."""
        return cls(**{name: getattr(base_batch, name) for name in PROVENANCE if name not in kwargs}, **kwargs)

    @classmethod
    def extend(cls, src: Batch, **kwargs: Any) -> Self:
        """A batch of this class, which derives from `src`'s, with all fields of `src` and those of `kwargs`."""
        return _extend(cls, src, kwargs)

    @classmethod
    def from_samples(cls, samples: Sequence[Sample], **kwargs: Any) -> Self:
        """Collect `samples` field by field: tensors are zero-padded and stacked, all else becomes a list.

        Fields given in `kwargs` are taken from there. Provenance is collected from every sample.
        """
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            name = field.name
            if name in kwargs:
                values[name] = kwargs[name]
            elif name == "__sources__":
                values[name] = tuple(s for sample in samples for s in sample.__sources__ or ()) or None
            elif name == "__subflavors__":
                values[name] = [sample.__subflavors__ for sample in samples]
            elif name in PROVENANCE or all(hasattr(sample, name) for sample in samples):
                values[name] = collate([getattr(sample, name) for sample in samples])
        return cls(**values)


PROVENANCE = ("__key__", "__restore_key__", "__subflavors__", "__sources__")


def _extend(cls: type[T], src: Any, kwargs: dict[str, Any]) -> T:
    if not issubclass(cls, type(src)):
        raise TypeError(f"{cls.__name__}.extend: got a {type(src).__name__}, which {cls.__name__} does not derive from")
    return cls(**{f.name: getattr(src, f.name) for f in dataclasses.fields(src) if f.init} | kwargs)


def batch_stack(values: list[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of one shape along a new first dimension."""
    return torch.stack(values)


def batch_pad_stack(values: list[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of any sizes along a new first dimension, zero-padded at the end of each dimension."""
    first = values[0]
    if all(value.shape == first.shape for value in values):
        return torch.stack(values)
    sizes = [max(dims) for dims in zip(*(value.shape for value in values), strict=True)]
    stacked = first.new_zeros((len(values), *sizes))
    for row, value in zip(stacked, values, strict=True):
        row[tuple(slice(0, size) for size in value.shape)] = value
    return stacked


def batch_list(values: list[Any]) -> list[Any]:
    """Keep the values as a list."""
    return values


def collate(values: list[Any]) -> Any:
    """Tensors padded and stacked, everything else as a list."""
    return batch_pad_stack(values) if isinstance(values[0], torch.Tensor) else values


def generic_batch(values: list[Any]) -> Any:
    """`collate` that also descends into dicts, dataclasses and named tuples, field by field."""
    first = values[0]
    if isinstance(first, dict):
        columns = {key: [value[key] for value in values] for key in first}
        return {key: column if key in PROVENANCE else generic_batch(column) for key, column in columns.items()}
    if hasattr(type(first), "from_samples"):
        return type(first).from_samples(values)
    if dataclasses.is_dataclass(first) and not isinstance(first, (type, SourceInfo)):
        names = [field.name for field in dataclasses.fields(first)]
    elif isinstance(first, tuple) and hasattr(first, "_fields"):
        names = list(first._fields)
    else:
        return collate(values)
    columns = {name: [getattr(value, name) for value in values] for name in names}
    return type(first)(**{n: column if n in PROVENANCE else generic_batch(column) for n, column in columns.items()})


class CrudeSample(dict[str, Any]):
    """A sample as the shard holds it: `{part name: decoded content}` with the provenance under its dunder keys.
    A cooker turns it into a `Sample`."""


@edataclass
class TextSample(Sample):
    """Plain text."""

    text: str


@edataclass
class ImageSample(Sample):
    """An image, float32 (C, H, W) in 0..1 as decoded by default."""

    image: torch.Tensor


@edataclass
class CaptioningSample(Sample):
    """An image, float32 (C, H, W) in 0..1 as decoded by default, with its caption."""

    image: torch.Tensor
    caption: str


@edataclass
class VQASample(Sample):
    """A question (`context`) about an image, with its possible answers and their weights, where known."""

    image: torch.Tensor
    context: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None
