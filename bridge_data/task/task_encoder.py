"""Task encoders: the user's part of the pipeline, as hooks that are called in a fixed order.

    crude sample ─ cook_crude_sample ─▶ sample ─ encode_sample ───────────────────────────────▶ encoded sample
                                               └ preencode_sample ─ (packing) ─ postencode_sample ┘
    encoded samples ─ select_samples_to_pack ─ pack_selected_samples ─▶ encoded sample
    encoded samples ─ batch_group_criterion ─ batch ─ encode_batch ─▶ batch

Any hook may raise `SkipSample`. Those that make samples or batches may be generators, which make several or none: but
`pack_selected_samples` makes one sample of a pack.
"""

import dataclasses
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

from bridge_data import current
from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError
from bridge_data.later import torch
from bridge_data.samples import CrudeSample
from bridge_data.samples.collation import generic_batch
from bridge_data.task.cooking import Cooker, cook
from bridge_data.task.mapping import as_type, batch_as
from bridge_data.task.stores import CachePool, FileStore

P = ParamSpec("P")
R = TypeVar("R")

_ATTRIBUTE = "__bridge_data_declared__"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a hook says of itself: whether the random generators must be seeded around it, and how many failures in a
    row are left out (None: as many as the encoder says)."""

    seeded: bool = True
    failure_tolerance: float | None = None


@overload
def stateless(fn: Callable[P, R]) -> Callable[P, R]: ...
@overload
def stateless(
    fn: None = None, *, restore_seeds: bool = False, failure_tolerance: float | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def stateless(
    fn: Callable[..., Any] | None = None, *, restore_seeds: bool = False, failure_tolerance: float | None = None
) -> Callable[..., Any]:
    """Declare that a hook's result depends on its arguments alone.

    Plain `@stateless` says that the hook draws no random numbers, and spares the seeding of Python's, numpy's and
    torch's generators around it. With `restore_seeds=True`, as without the decorator, the generators are seeded from
    the sample, so that the same sample is augmented alike on any rank, worker or resume.

    `failure_tolerance` is how many failures of this hook in a row are left out; one more stops the run. So with 0 the
    first one does, and `math.inf` is no limit. None: the encoder's `__default_failure_tolerance__`.

    Raises:
        ConfigError: for a negative tolerance.
    """
    if failure_tolerance is not None:
        check_tolerance("stateless(failure_tolerance", failure_tolerance)

    def declare(hook: Callable[..., Any]) -> Callable[..., Any]:
        setattr(hook, _ATTRIBUTE, Declared(seeded=restore_seeds, failure_tolerance=failure_tolerance))
        return hook

    return declare if fn is None else declare(fn)


def check_tolerance(name: str, tolerance: Any) -> None:
    """See that a tolerance is a number of failures.

    Raises:
        ConfigError: naming the setting, if it is not.
    """
    if not isinstance(tolerance, (int, float)) or not tolerance >= 0:
        raise ConfigError(
            f"{name}={tolerance!r}): expected a number of failures in a row that are left out: 0 or more (0: the first "
            "one stops the run; math.inf: none does)"
        )


def declared(hook: Callable[..., Any]) -> Declared:
    """What `hook` declared; without `@stateless`, that it may draw random numbers."""
    return getattr(hook, _ATTRIBUTE, None) or Declared()


_DATA = (
    "say what is read, and with which weights, in the metadataset; leave samples out by SkipSample in a hook; map them "
    "once more by an AugmentTaskEncoder around this one; tell data sets apart by the sample's __subflavors__"
)
_ENCODE = (
    "override encode_sample, or preencode_sample and postencode_sample: they may raise SkipSample, and yield several "
    "samples of one. What is to be done before or after another encoder's goes into an AugmentTaskEncoder around it"
)

BUILDERS = {
    "build_train_datasets": _DATA,
    "build_val_datasets": _DATA,
    "build_encode_sample": _ENCODE,
    "build_cook_crude_sample": "give cookers, or override cook_crude_sample",
    "build_batch": "override batch, encode_batch, batch_group_criterion, or the hooks of packing",
    "_load_dataset": _DATA,
}
"""Methods that Energon's users override and that nothing calls here, with what to do instead.

In Energon they build a chain of data set objects. Here the pipeline is fixed, and hooks are its parts: a class that
overrides such a method is refused when it is defined, rather than used without it.
"""


def _refuse_builders(encoder: type) -> None:
    """Raise a ConfigError if a class of the user, or one of its mixins, overrides one of Energon's builders."""
    for name, instead in BUILDERS.items():
        if hasattr(encoder, name):
            raise ConfigError(
                f"{encoder.__module__}.{encoder.__qualname__} overrides {name}, which is never called here. "
                f"Instead: {instead}"
            )


T_sample = TypeVar("T_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")


class TaskEncoder(Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """The hooks, each doing nothing. Override what your task needs; a hook left alone costs nothing.

    `decoder` turns the bytes of a sample's parts into objects (None: they stay bytes); `cookers` serve crude data;
    `__default_failure_tolerance__` is how many samples in a row each hook may fail on, before the run stops (see
    `stateless`).

    Raises:
        ConfigError: when a class is defined that overrides what Energon calls and this package does not.
    """

    __default_failure_tolerance__: float = 100

    decoder: SampleDecoder | None = SampleDecoder()
    cookers: Sequence[Cooker[Any]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _refuse_builders(cls)

    @property
    def current_sample_index(self) -> int:
        """The number of the sample that a hook is working on; of a pack or batch, of its first one.

        No two samples have the same, nor a sample in two epochs; the parts that a generator makes of one share it. It
        is the same on any rank, in any worker and after any resume (see `current.Numbering`).

        Raises:
            ConfigError: outside hooks.
        """
        return current.current_sample_index()

    @property
    def current_batch_index(self) -> int:
        """The number of the micro-batch that is being made, among those of all ranks; for `batch` and `encode_batch`.
        The parts that a generator makes of one have the number of the first.

        With n micro-batches a step, of all ranks together, `current_batch_index // n` is the number of the step: the
        same on all ranks.

        Raises:
            ConfigError: outside those two hooks.
        """
        return current.current_batch_index()

    @property
    def cache(self) -> CachePool:
        """The cache pool that the loader was made with; a `NoCachePool` if it was made without.

        Raises:
            ConfigError: outside hooks.
        """
        pool: CachePool = current.current_cache()
        return pool

    @stateless
    def cook_crude_sample(
        self,
        sample: T_sample | CrudeSample,
        cooker: Cooker[T_sample] | None = None,
        aux: Mapping[str, FileStore[Any]] | None = None,
    ) -> T_sample:
        """Turn a crude sample into a typed one; by default by `cooker`, which is the first of `cookers` that takes it.

        `aux` are the file stores of its auxiliary data. An override may take the sample alone.
        """
        return cook(cooker, self.cookers, sample, aux) if isinstance(sample, CrudeSample) else sample

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

    def _batch(
        self,
        samples: list[T_encoded_sample],
        result_type: type,
        actions: Mapping[str, Callable[[list[Any]], Any]] | None = None,
        default_action: Callable[[list[Any]], Any] = generic_batch,
    ) -> Any:
        """For a `batch` of yours: the samples as `result_type`, by field, each by its own action or the default one.

        Raises:
            ConfigError: if the samples have no named fields, or others than `result_type`.
        """
        return batch_as(samples, result_type, actions or {}, default_action)

    def batch_cost(self, batch: T_batch) -> float:
        """How much work a batch is, 0 or more, in a unit of your choice; for the DataModule's `balance=True`.

        It is asked once a batch on the rank that reads it, not in a worker.
        """
        raise NotImplementedError

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
        changes |= {name: empty for name, empty in (("__key__", []), ("__restore_key__", ())) if name in fields}
        emptied: Any = {**value, **changes} if isinstance(value, dict) else dataclasses.replace(value, **changes)
        return emptied


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """A task encoder that can map samples and batches by field name to types of yours.

    A type may be a dataclass, a named tuple or `dict`; its fields must be among those of what comes in.
    """

    _encoded_sample_type: type | None = None
    _raw_batch_type: type | None = None
    _batch_type: type | None = None

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

    def maps(self, hook: str) -> bool:
        """Whether a hook of this class maps what it gets to a type."""
        target = {"encode_sample": "_encoded_sample_type", "encode_batch": "_batch_type"}.get(hook)
        return target is not None and getattr(self, target) is not None

    @stateless
    def encode_sample(self, sample: T_sample) -> T_encoded_sample | Generator[T_encoded_sample, None, None]:
        """The sample as `encoded_sample_type`."""
        return as_type(sample, self._encoded_sample_type)

    @stateless
    def batch(self, samples: list[T_encoded_sample]) -> T_raw_batch:
        """Collate a micro-batch as `raw_batch_type`."""
        return generic_batch(samples) if self._raw_batch_type is None else self._batch(samples, self._raw_batch_type)

    @stateless
    def encode_batch(self, batch: T_raw_batch) -> T_batch | Generator[T_batch, None, None]:
        """The batch as `batch_type`."""
        return as_type(batch, self._batch_type)
