"""Task encoders: the user's part of the pipeline, as hooks that are called in a fixed order.

    crude sample ─ cook_crude_sample ─▶ sample ─ encode_sample ───────────────────────────────▶ encoded sample
                                               └ preencode_sample ─ (packing) ─ postencode_sample ┘
    encoded samples ─ select_samples_to_pack ─ pack_selected_samples ─▶ encoded sample
    encoded samples ─ batch_group_criterion ─ batch ─ encode_batch ─▶ batch

Any hook may raise `SkipSample`; `encode_sample`, `preencode_sample` and `encode_batch` may be generators.
"""

import dataclasses
from collections.abc import Generator, Hashable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch

from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError
from bridge_data.samples import CrudeSample, generic_batch
from bridge_data.task.cooking import Cooker, choose_cooker
from bridge_data.task.stateless import stateless

T_sample = TypeVar("T_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")


class TaskEncoder(Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """The hooks, each doing nothing. Override what your task needs; a hook left alone costs nothing.

    `decoder` turns the bytes of a sample's parts into objects (None: they stay bytes); `cookers` serve crude data.
    """

    decoder: ClassVar[SampleDecoder | None] = SampleDecoder()
    cookers: Sequence[Cooker] = ()

    @stateless
    def cook_crude_sample(self, sample: T_sample | CrudeSample) -> T_sample:
        """Turn a crude sample into a typed one; by default by the first of `cookers` that takes it."""
        return choose_cooker(self.cookers, sample).cook(sample) if isinstance(sample, CrudeSample) else sample

    @stateless
    def encode_sample(self, sample: T_sample) -> T_encoded_sample | Generator[T_encoded_sample, None, None]:
        """Transform one sample: augment, tokenize. Exclusive with `preencode_sample` and `postencode_sample`."""
        return sample  # type: ignore[return-value]

    @stateless
    def preencode_sample(self, sample: T_sample) -> T_sample | Generator[T_sample, None, None]:
        """The part of the encoding that packing needs to choose: lengths, tokens."""
        return sample

    @stateless
    def postencode_sample(self, sample: T_sample) -> T_encoded_sample:
        """The rest of the encoding, once the sample has a place in a pack: images, augmentation."""
        return sample  # type: ignore[return-value]

    def select_samples_to_pack(self, samples: list[T_sample]) -> list[list[T_sample]]:
        """Choose which of the buffered samples form packs. Samples in no pack come again in the next buffer."""
        raise NotImplementedError

    def pack_selected_samples(self, samples: list[T_encoded_sample]) -> T_encoded_sample:
        """Make one packed sample of the samples of a pack."""
        raise NotImplementedError

    @stateless
    def batch_group_criterion(self, sample: T_encoded_sample) -> tuple[Hashable, int | None]:
        """(key of the bucket that the sample is batched in, batch size of that bucket or None for the default)."""
        return None, None

    @stateless
    def batch(self, samples: list[T_encoded_sample]) -> T_raw_batch:
        """Collate a micro-batch: tensors zero-padded and stacked, everything else in lists."""
        return generic_batch(samples)

    @stateless
    def encode_batch(self, batch: T_raw_batch) -> T_batch | Generator[T_batch, None, None]:
        """Transform a whole micro-batch: tokenize, build masks."""
        return batch  # type: ignore[return-value]

    def empty_batch(self, batch: T_batch) -> T_batch:
        """A batch of the form of `batch` that counts for nothing, for a rank whose finite data ended before others'.

        By default a copy without keys whose `loss_mask` is zero, of a dataclass or dict that has one.

        Raises:
            ConfigError: if it has none.
        """
        fields = batch if isinstance(batch, dict) else getattr(batch, "__dataclass_fields__", {})
        if "loss_mask" not in fields:
            raise ConfigError(
                f"this rank has no batch left and others have, so an empty one is needed; but a {type(batch).__name__} "
                f"has no loss_mask to be zeroed. Override empty_batch in {type(self).__name__}, or let the loader end "
                'each rank by itself (ends="uneven")'
            )
        value: Any = batch
        loss_mask = value["loss_mask"] if isinstance(value, dict) else value.loss_mask
        changes: dict[str, Any] = {"loss_mask": torch.zeros_like(loss_mask)}
        if "__key__" in fields:
            changes["__key__"] = []
        emptied: Any = {**value, **changes} if isinstance(value, dict) else dataclasses.replace(value, **changes)
        return emptied


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """A task encoder that can map samples and batches by field name to types of yours.

    A type may be a dataclass, a named tuple or `dict`; its fields must be among those of what comes in.
    """

    def __init__(
        self,
        *,
        encoded_sample_type: type | None = None,
        raw_batch_type: type | None = None,
        batch_type: type | None = None,
    ) -> None:
        self._encoded_sample_type = encoded_sample_type
        self._raw_batch_type = raw_batch_type
        self._batch_type = batch_type

    @stateless
    def encode_sample(self, sample: T_sample) -> T_encoded_sample | Generator[T_encoded_sample, None, None]:
        """The sample as `encoded_sample_type`."""
        return _as_type(sample, self._encoded_sample_type)

    @stateless
    def batch(self, samples: list[T_encoded_sample]) -> T_raw_batch:
        """Collate a micro-batch as `raw_batch_type`."""
        target = self._raw_batch_type
        if target is not None and hasattr(target, "from_samples"):
            return target.from_samples(samples)
        return _as_type(generic_batch(samples), target)

    @stateless
    def encode_batch(self, batch: T_raw_batch) -> T_batch | Generator[T_batch, None, None]:
        """The batch as `batch_type`."""
        return _as_type(batch, self._batch_type)


def _as_type(value: Any, target: type | None) -> Any:
    """`value` with its fields as an object of `target`; itself if it already is one, or `target` is None."""
    if target is None or isinstance(value, target):
        return value
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "_asdict"):
        fields = value._asdict()
    elif isinstance(value, dict):
        fields = value
    else:
        raise TypeError(f"cannot turn a {type(value).__name__} into {target.__name__}: it has no named fields")
    return dict(fields) if target is dict else target(**fields)


def is_overridden(encoder: TaskEncoder[Any, Any, Any, Any], hook: str) -> bool:
    """Whether the user's encoder does something of its own in `hook`."""
    ours = (getattr(TaskEncoder, hook), getattr(DefaultTaskEncoder, hook))
    return getattr(type(encoder), hook) not in ours or hook in vars(encoder)
