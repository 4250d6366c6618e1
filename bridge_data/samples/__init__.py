"""Samples and batches: plain dataclasses that carry where they came from.

A `Sample` is one element as the data set yields it; a `Batch` is what the model gets. Both keep four fields of
provenance under dunder names, as the Energon format's users know them, so that any batch can be traced to its shards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar, cast, dataclass_transform

from bridge_data.later import is_tensor, torch
from bridge_data.samples.collation import PROVENANCE, collate, collected, flat_sources

T = TypeVar("T")


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """`@dataclass(slots=True, kw_only=True)`: the form in which samples and batches are usually declared."""
    return dataclasses.dataclass(slots=True, kw_only=True)(cls)


@dataclasses.dataclass(slots=True, kw_only=True, unsafe_hash=True)
class SourceInfo:
    """Where a sample was read: data set path, running index in it, shard file, and the shard's members used.

    It is not to be changed; it is not frozen because that makes each one twice as dear.
    """

    dataset_path: str
    index: int | str
    shard_name: str
    file_names: tuple[str, ...]


def map_tensors(value: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with `fn` applied to each tensor inside dicts, dataclasses, named tuples, lists and tuples."""
    if is_tensor(value):
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

    `__key__` is `shard/basename`; `__restore_key__` is `(source, epoch, index, part)`, of a pack that of its members:
    enough to build it again (see `restore_keys`).
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

    @classmethod
    def from_joined(cls, *args: Sample | None, **kwargs: Sample | None) -> Self:
        """A sample of this class out of joined ones: all their fields, those of a later one before those of an earlier
        one; None gives none. Key and sub-flavors are the first one's, the sources those of all.

        A `joiner` of a metadataset may override it, to take what it wants from the members of the join. It gets them by
        position if `join` is a list, by name if it is a mapping. It must not draw random numbers.

        Raises:
            TypeError: if they are given by name, or their fields are not those of this class.
        """
        if kwargs or not args or args[0] is None:
            raise TypeError(
                f"{cls.__name__}.from_joined: expected samples by position, the first one there, got "
                f"{', '.join([*(type(sample).__name__ for sample in args), *kwargs]) or 'none'}; write `join` as a "
                f"list, or override from_joined in {cls.__name__}"
            )
        values = {name: getattr(args[0], name) for name in PROVENANCE}
        values["__sources__"] = flat_sources([sample.__sources__ for sample in args if sample is not None])
        for sample in args:
            if sample is not None:
                fields = (field.name for field in dataclasses.fields(sample) if field.init)
                values |= {name: getattr(sample, name) for name in fields if name not in PROVENANCE}
        return cls(**values)


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

        Raises:
            ValueError: if a field is in some of the samples only, or what is in it does not go together.
        """
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            name = field.name
            if name in kwargs:
                values[name] = kwargs[name]
                continue
            column = [getattr(sample, name) for sample in samples if hasattr(sample, name)]
            if 0 < len(column) < len(samples):
                raise ValueError(f"field {name!r}: only {len(column)} of {len(samples)} samples have it")
            if column:
                values[name] = collected(name, column, collate)
        return cls(**values)


def _extend(cls: type[T], src: Any, kwargs: dict[str, Any]) -> T:
    if not issubclass(cls, type(src)):
        raise TypeError(f"{cls.__name__}.extend: got a {type(src).__name__}, which {cls.__name__} does not derive from")
    return cls(**{f.name: getattr(src, f.name) for f in dataclasses.fields(src) if f.init} | kwargs)


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


@edataclass
class ImageClassificationSample(Sample):
    """An image with the number of its class, or the name of that, or both."""

    image: torch.Tensor
    label: int | None = None
    label_name: str | None = None


@edataclass
class MultiChoiceVQASample(Sample):
    """A question (`context`) about an image, with the answers to choose from and the number of the right one."""

    image: torch.Tensor
    context: str
    choices: list[str] | None = None
    correct_choice_idx: int = 0


@edataclass
class OCRSample(Sample):
    """An image of text. Of the blocks, lines, words and characters in it, `boxes` are float (N, 4 or 5), which are
    x, y, width, height and maybe the confidence, `text` says what stands in each, `block_classes` are int (N,) or
    names."""

    image: torch.Tensor
    text: str
    block_boxes: torch.Tensor | None = None
    block_classes: torch.Tensor | list[str] | None = None
    block_text: list[str] | None = None
    lines_boxes: torch.Tensor | None = None
    lines_text: list[str] | None = None
    words_boxes: torch.Tensor | None = None
    words_text: list[str] | None = None
    chars_boxes: torch.Tensor | None = None
    chars_text: list[str] | None = None


@edataclass
class VQAOCRSample(Sample):
    """A question (`context`) about an image of `text`; the answers are as in `VQASample`, the words as in
    `OCRSample`."""

    image: torch.Tensor
    context: str
    text: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None
    words_boxes: torch.Tensor | None = None
    words_text: list[str] | None = None


@edataclass
class VidQASample(Sample):
    """A question (`context`) about a video, an `AVDecoder` as decoded by default, with its possible answers and their
    weights, where known."""

    video: Any
    context: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None


@edataclass
class InterleavedSample(Sample):
    """A document: texts and images as they follow each other."""

    sequence: list[torch.Tensor | str]


@edataclass
class SimilarityInterleavedSample(Sample):
    """A document whose images are not placed in its texts: how similar they are is in `similarity_matrix`, float
    (images, texts), or which text is matched with each image in `matched_text_indices`. `audio` and `video` are clips
    and frames of it."""

    images: list[torch.Tensor]
    texts: list[str]
    audio: list[torch.Tensor] | None = None
    video: list[torch.Tensor] | None = None
    similarity_matrix: torch.Tensor | None = None
    matched_text_indices: list[int] | None = None
