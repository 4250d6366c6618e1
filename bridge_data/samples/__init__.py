"""Samples and batches: dataclasses that carry their provenance.

A `Sample` is one element of a data set; a `Batch` is what the model gets. Both have four provenance fields under
Energon's dunder names, so that any batch can be traced to its shards, and any sample be restored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar, cast, dataclass_transform

from bridge_data.later import is_tensor, torch
from bridge_data.samples.collation import PROVENANCE, collate, collected, flat_sources

T = TypeVar("T")


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """`@dataclass(slots=True, kw_only=True)`, for samples and batches.

    >>> @edataclass
    ... class Document(Sample):
    ...     text: str
    >>> Document(__key__="shard-0.tar/7", text="a").text
    'a'
    """
    return dataclasses.dataclass(slots=True, kw_only=True)(cls)


@dataclasses.dataclass(slots=True, kw_only=True, unsafe_hash=True)
class SourceInfo:
    """Where a sample was read from. Treat it as immutable; frozen dataclasses are twice as slow to construct."""

    dataset_path: str
    index: int | str
    """Index of the sample in the data set."""
    shard_name: str
    file_names: tuple[str, ...]
    """Members of the shard that were read."""


def provenance_of(sample: Any, name: str) -> Any:
    """The provenance `name`, such as `__key__`, of a sample or a dict; None if it has none."""
    return sample.get(name) if isinstance(sample, dict) else getattr(sample, name, None)


def required_fields(cls: type[Any]) -> list[str]:
    """The names of the fields without which a dataclass cannot be made."""
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.init and f.default is missing and f.default_factory is missing]


def map_tensors(value: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply `fn` to every tensor in nested dicts, dataclasses, named tuples, lists and tuples."""
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
    """A dict of the same class (a `BatchEncoding`, an `OrderedDict`) with new items."""
    copy = original.copy()
    copy.update(items)
    return copy


def pin(value: Any) -> Any:
    """Copy every tensor of `value` to page-locked memory. Only for the training process, not for workers."""
    return map_tensors(value, lambda tensor: tensor.pin_memory())


class _Extensible:
    """What samples and batches have in common."""

    __slots__: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def extend(cls, src: Any, **kwargs: Any) -> Self:
        """An object of this class, a subclass of `src`'s class, with all fields of `src`, and `kwargs` as fields."""
        if not issubclass(cls, type(src)):
            name = cls.__name__
            raise TypeError(f"{name}.extend: got a {type(src).__name__}, which {name} does not derive from")
        return cls(**{f.name: getattr(src, f.name) for f in dataclasses.fields(src) if f.init} | kwargs)

    def pin_memory(self) -> Self:
        """A copy with all tensors in page-locked memory, so that `to(..., non_blocking=True)` is asynchronous."""
        return cast(Self, pin(self))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """A copy with all tensors on `device`; pin them first to use `non_blocking`."""
        return cast(Self, map_tensors(self, lambda tensor: tensor.to(device, non_blocking=non_blocking)))


def _provenance(cls: type, base: Any, expected: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of provenance of `base` that are not `given`."""
    try:
        return {name: getattr(base, name) for name in PROVENANCE if name not in given}
    except AttributeError:
        fix = "pass the one that this one is made from"
        if isinstance(base, dict):
            fix = f"for a crude sample write {cls.__name__}(**basic_sample_keys(sample), ...)"
        kind = type(base).__name__
        raise TypeError(f"{cls.__name__}.derive_from: expected {expected}, got {kind}; {fix}") from None


@edataclass
class Sample(_Extensible):
    """One element of a data set. Derive a dataclass from it and add your fields.

    `__key__` is `shard/basename`. `__restore_key__` is `(source, epoch, index, output)`, or for a pack those of its
    members: enough to build the sample again (see `Key` in `lanes/maker.py`).

    >>> @edataclass
    ... class Tokens(Sample):
    ...     tokens: torch.Tensor
    >>> text = TextSample(__key__="shard-0.tar/7", text="abc")
    >>> Tokens.derive_from(text, tokens=torch.tensor([97, 98, 99])).__key__
    'shard-0.tar/7'
    """

    __key__: str
    __restore_key__: tuple[str | int | tuple[Any, ...], ...] = ()
    __subflavors__: dict[str, Any] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def derive_from(cls, base_sample: Sample, **kwargs: Any) -> Self:
        """A sample of this class with the provenance of `base_sample`, and `kwargs` as fields.

        Raises:
            TypeError: if `base_sample` is not a sample, so it has none.
        """
        return cls(**_provenance(cls, base_sample, "a sample", kwargs), **kwargs)

    @classmethod
    def from_joined(cls, *args: Sample | None, **kwargs: Sample | None) -> Self:
        """Combine the samples of a join: all fields, where later samples override earlier ones; None is skipped.

        Key and subflavors are the first sample's, `__sources__` those of all. Override it to write your own `joiner`:
        it gets the samples by position if `join` is a list in the metadataset, by name if it is a mapping. It must not
        draw random numbers.

        >>> @edataclass
        ... class Spoken(Sample):
        ...     text: str
        ...     language: str
        >>> @edataclass
        ... class Language(Sample):
        ...     language: str
        >>> Spoken.from_joined(TextSample(__key__="1", text="oui"), Language(__key__="1", language="fr")).language
        'fr'

        Raises:
            TypeError: if samples are given by name, or their fields do not match this class.
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
class Batch(_Extensible):
    """The result of `TaskEncoder.batch` and `encode_batch`. Derive a dataclass from it and add your fields."""

    __key__: list[str]
    __restore_key__: Sequence[Any] = ()
    __subflavors__: list[dict[str, Any] | None] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def derive_from(cls, base_batch: Batch, **kwargs: Any) -> Self:
        """A batch of this class with the provenance of `base_batch`, and `kwargs` as fields.

        Raises:
            TypeError: if `base_batch` is not a batch, so it has none.
        """
        return cls(**_provenance(cls, base_batch, "a batch", kwargs), **kwargs)

    @classmethod
    def from_samples(cls, samples: Sequence[Sample], **kwargs: Any) -> Self:
        """Collate `samples` field by field: tensors are zero-padded and stacked, everything else becomes a list.

        `kwargs` override fields. Provenance is collected from all samples.

        >>> @edataclass
        ... class TextBatch(Batch):
        ...     text: list[str]
        >>> TextBatch.from_samples([TextSample(__key__="1", text="a"), TextSample(__key__="2", text="b")]).text
        ['a', 'b']

        Raises:
            ValueError: if only some of the samples have a field, or its values cannot be collated.
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


class CrudeSample(dict[str, Any]):
    """An uncooked sample: `{part name: decoded content}`, with provenance under its dunder keys.

    >>> CrudeSample({"__key__": "shard-0.tar/7", "txt": "a"})["txt"]
    'a'
    """


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
    """A question (`context`) about an image, with possible answers and their weights; or one answer, a text."""

    image: torch.Tensor
    context: str
    answers: list[str] | str | None = None
    answer_weights: torch.Tensor | None = None


@edataclass
class ImageClassificationSample(Sample):
    """An image with the index of its class, its name, or both."""

    image: torch.Tensor
    label: int | None = None
    label_name: str | None = None


@edataclass
class MultiChoiceVQASample(Sample):
    """A question (`context`) about an image, with the answers to choose from and the index of the correct one."""

    image: torch.Tensor
    context: str
    choices: list[str] | None = None
    correct_choice_idx: int = 0


@edataclass
class OCRSample(Sample):
    """An image of text, with its blocks, lines, words and characters.

    `*_boxes` are float (N, 4 or 5): x, y, width, height, and maybe the confidence. `*_text` is the text in each box.
    `block_classes` are int (N,) or names.
    """

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
    """A question (`context`) about an image of `text`; answers as in `VQASample`, words as in `OCRSample`."""

    image: torch.Tensor
    context: str
    text: str
    answers: list[str] | str | None = None
    answer_weights: torch.Tensor | None = None
    words_boxes: torch.Tensor | None = None
    words_text: list[str] | None = None


@edataclass
class VidQASample(Sample):
    """A question (`context`) about a video (by default an `AVDecoder`); answers as in `VQASample`."""

    video: Any
    context: str
    answers: list[str] | str | None = None
    answer_weights: torch.Tensor | None = None


@edataclass
class InterleavedSample(Sample):
    """A document: texts and images in reading order."""

    sequence: list[torch.Tensor | str]


@edataclass
class SimilarityInterleavedSample(Sample):
    """A document whose images have no position among its texts.

    `similarity_matrix` is float (images, texts); `matched_text_indices` has the best text of each image. `audio` and
    `video` are clips and frames of the document.
    """

    images: list[torch.Tensor]
    texts: list[str]
    audio: list[torch.Tensor] | None = None
    video: list[torch.Tensor] | None = None
    similarity_matrix: torch.Tensor | None = None
    matched_text_indices: list[int] | None = None
