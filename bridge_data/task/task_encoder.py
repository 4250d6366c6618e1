"""Task encoders: the user's part of the pipeline, as hooks that are called in a fixed order; and `@stateless`.

    crude sample ─ cook_crude_sample ─▶ sample ─ encode_sample ───────────────────────────────▶ encoded sample
                                               └ preencode_sample ─ (packing) ─ postencode_sample ┘
    encoded samples ─ select_samples_to_pack ─ pack_selected_samples ─▶ encoded sample
    encoded samples ─ batch_group_criterion ─ batch ─ encode_batch ─▶ batch

Any hook may raise `SkipSample`. A hook that returns a sample or batch may be a generator, which yields several or none;
only `pack_selected_samples` must return one sample.
"""

import copy
import dataclasses
import logging
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError
from bridge_data.later import torch
from bridge_data.plan import Source
from bridge_data.running_hook import current_batch_index, current_cache, current_sample_index
from bridge_data.samples import CrudeSample, required_fields
from bridge_data.samples.collation import collected, columns_of, generic_batch
from bridge_data.task.cooking import Cooker, cook
from bridge_data.task.stores import CachePool, FileStore

logger = logging.getLogger("bridge_data")

P = ParamSpec("P")
R = TypeVar("R")

HOOKS = (
    "cook_crude_sample",
    "encode_sample",
    "preencode_sample",
    "postencode_sample",
    "select_samples_to_pack",
    "pack_selected_samples",
    "batch_group_criterion",
    "batch",
    "encode_batch",
)
"""The hooks by which batches are made. The position of a hook is part of its random seed: append only."""

MAPPED_TYPES = {"encode_sample": "_encoded_sample_type", "encode_batch": "_batch_type"}
"""Hooks of `DefaultTaskEncoder` that do nothing unless this attribute is a type to map their argument to."""

_SEEDED = "__bridge_data_seeded__"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a hook declares: whether the random generators are seeded before it, and how many consecutive failures are
    tolerated (None: as many as the encoder sets)."""

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
    """Declare that a hook's result depends on its arguments only.

    Plain `@stateless` says that the hook draws no random numbers: Python's, numpy's and torch's generators are not
    seeded before it, which saves time. With `restore_seeds=True`, as without the decorator, they are seeded from the
    sample, so that its augmentation is the same on any rank, worker or resume.

    `failure_tolerance` is how many failures of this hook in a row are tolerated; one more stops the run (0, as in
    Energon, or `math.inf`: no limit; None: the encoder's `__default_failure_tolerance__`). For the first failure to
    stop the run, `WorkerConfig(global_error_handler=reraise_exception)`.

    >>> class Encoder(DefaultTaskEncoder):
    ...     @stateless(failure_tolerance=10)
    ...     def encode_sample(self, sample):
    ...         return {"length": len(sample.text)}

    Raises:
        ConfigError: for a negative tolerance.
    """
    if failure_tolerance is not None:
        check_tolerance("stateless(failure_tolerance", failure_tolerance)

    def declare(hook: Callable[..., Any]) -> Callable[..., Any]:
        setattr(hook, _SEEDED, restore_seeds)
        setattr(hook, "__stateless__", True)  # noqa: B010  # this mark and the next are Energon's
        if failure_tolerance is not None:
            setattr(hook, "__failure_tolerance__", failure_tolerance)  # noqa: B010
        elif hasattr(hook, "__failure_tolerance__"):  # that of a function which it wraps
            setattr(hook, "__failure_tolerance__", None)  # noqa: B010
        return hook

    return declare if fn is None else declare(fn)


_TOGETHER = "__bridge_data_together__"


def together(by: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare that the method `by` does what a stateless hook does, for many samples together, in less time.

    It gets an iterable of the samples that come next, each of which is decoded when it is asked for, and returns a
    function to call in place of the hook, for each of them once or more. It raises nothing: what is wrong with a sample
    is raised by that function. It is not used where a subclass overrides the hook, or a sample may become several.
    """

    def declare(hook: Callable[P, R]) -> Callable[P, R]:
        setattr(hook, _TOGETHER, by)
        return hook

    return declare


def together_with(hook: Callable[..., Any]) -> Callable[[Iterable[Any]], Callable[[Any], Any]] | None:
    """The method that does what `hook`, a bound method, does for many samples; None if none was declared."""
    by = getattr(hook, _TOGETHER, None)
    return None if by is None else getattr(hook.__self__, by)  # type: ignore[attr-defined]


def check_tolerance(name: str, tolerance: Any) -> None:
    """Raise a ConfigError that names the setting, unless a tolerance is a number of failures."""
    if not isinstance(tolerance, (int, float)) or not tolerance >= 0:
        raise ConfigError(
            f"{name}={tolerance!r}): expected a number of consecutive failures to skip: 1 or more, or 0 for no limit"
        )


def declared(hook: Callable[..., Any]) -> Declared:
    """What `hook` declared; a hook without `@stateless` may draw random numbers."""
    return Declared(seeded=getattr(hook, _SEEDED, True), failure_tolerance=getattr(hook, "__failure_tolerance__", None))


def get_stateless(fn: Callable[..., Any]) -> bool:
    """Whether `@stateless` was put on a function."""
    return bool(getattr(fn, "__stateless__", False))


_DATA = (
    "set data sets and weights in the metadataset; skip samples by SkipSample in a hook; map them "
    "again by an AugmentTaskEncoder around this one; distinguish data sets by the sample's __subflavors__"
)
_ENCODE = (
    "override encode_sample, or preencode_sample and postencode_sample: they may raise SkipSample, and yield several "
    "samples of one. To work before or after another encoder's hooks, put an AugmentTaskEncoder around it"
)

BUILDERS = {
    "build_train_datasets": _DATA,
    "build_val_datasets": _DATA,
    "build_encode_sample": _ENCODE,
    "build_cook_crude_sample": "set cookers, or override cook_crude_sample",
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
    """The hooks; by default each does nothing. Override those that your task needs; the others cost nothing.

    `decoder` decodes the parts of samples (None: they stay bytes); `cookers` turn crude data into samples;
    `costs_version` names what its hooks and `costs` count, for measured costs: change it when they count otherwise;
    `splits_samples` says that hooks make several samples of some, if they are neither generators nor annotated so;
    `__default_failure_tolerance__` is how many failures in a row of each hook are tolerated (see `stateless`).

    >>> from bridge_data import SkipSample
    >>> class Encoder(DefaultTaskEncoder):
    ...     @stateless
    ...     def encode_sample(self, sample):
    ...         if not sample.text:
    ...             raise SkipSample("it is empty")
    ...         return {"tokens": torch.tensor(list(sample.text.encode()))}

    Raises:
        ConfigError: when a class is defined that overrides a method that only Energon calls.
    """

    __default_failure_tolerance__: float = 100

    decoder: SampleDecoder | None = SampleDecoder()
    cookers: Sequence[Cooker[Any]] = ()
    costs_version: str | None = None
    splits_samples: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _refuse_builders(cls)

    @property
    def current_sample_index(self) -> int:
        """The number of the sample that the current hook works on; of a pack or batch, of its first sample.

        It is unique for each sample and epoch; outputs that a generator yields share it. It is the same on any rank, in
        any worker and after any resume (see `Numbering` in `order/plan_order.py`).

        Raises:
            ConfigError: outside hooks.
        """
        return current_sample_index()

    @property
    def current_batch_index(self) -> int:
        """The number of the current micro-batch among those of all ranks: in `batch` and `encode_batch`, and in hooks
        of samples that are neither packed nor grouped nor made by generators. Outputs that a generator yields have the
        number of the first.

        With n micro-batches a step, of all ranks together, `current_batch_index // n` is the number of the step on all
        ranks.

        Raises:
            ConfigError: in other hooks, and outside hooks.
        """
        return current_batch_index()

    @property
    def most_packs(self) -> int | None:
        """The most packs in a micro-batch; None: any number. With more, a run is refused before it starts."""
        return None

    @property
    def cache(self) -> CachePool:
        """The cache pool of the loader; a `NoCachePool` if it has none.

        Raises:
            ConfigError: outside hooks.
        """
        pool: CachePool = current_cache()
        return pool

    @stateless
    def cook_crude_sample(
        self,
        sample: T_sample | CrudeSample,
        cooker: Cooker[T_sample] | None = None,
        aux: Mapping[str, FileStore[Any]] | None = None,
    ) -> T_sample:
        """Turn a crude sample into a typed one; by default with `cooker`, the first of `cookers` that takes it.

        `aux` are the file stores of its auxiliary data. An override may take only the sample.
        """
        return cook(cooker, self.cookers, sample, aux) if isinstance(sample, CrudeSample) else sample

    @stateless
    def encode_sample(self, sample: T_sample) -> T_encoded_sample | Generator[T_encoded_sample, None, None]:
        """Transform one sample: augment, tokenize. Exclusive with `preencode_sample` and `postencode_sample`."""
        return sample  # type: ignore[return-value]

    @stateless
    def preencode_sample(self, sample: T_sample) -> T_sample | Generator[T_sample, None, None]:
        """The part of the encoding that packing needs: lengths, tokens."""
        return sample

    @stateless
    def postencode_sample(self, sample: T_sample) -> T_encoded_sample:
        """The rest of the encoding, once the pack of the sample is chosen: images, augmentation."""
        return sample  # type: ignore[return-value]

    def select_samples_to_pack(self, samples: list[T_sample]) -> list[list[T_sample]]:
        """Choose the samples of each pack from the packing buffer. Samples in no pack stay in the buffer."""
        raise NotImplementedError

    def pack_selected_samples(self, samples: list[T_encoded_sample]) -> T_encoded_sample:
        """Turn the samples of a pack into one sample."""
        raise NotImplementedError

    @stateless
    def batch_group_criterion(self, sample: T_encoded_sample) -> tuple[Hashable, int | None]:
        """(key of the sample's bucket, batch size of that bucket or None for the default)."""
        return None, None

    @stateless
    def batch(self, samples: list[T_encoded_sample]) -> T_raw_batch:
        """Collate a micro-batch: zero-pad and stack tensors, put everything else into lists."""
        batch: Any = generic_batch(samples)
        return cast(T_raw_batch, batch)

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
        """For your own `batch`: collate the samples as `result_type`, each field by its action or the default one.

        Raises:
            ConfigError: if the samples have no named fields, or not those of `result_type`.
        """
        return batch_as(samples, result_type, actions or {}, default_action)

    def batch_cost(self, batch: T_batch) -> float:
        """The cost of a batch, 0 or more, in any unit; for the DataModule's `balance=True`.

        It is called once for each batch, on the rank that reads it, not in a worker.
        """
        raise NotImplementedError

    def costs(self, sample: Any) -> Mapping[str, int]:
        """What an encoded sample costs, for `bridge-data prepare --costs`: whole numbers, 0 or more, by any names.

        `sample` is from `preencode_sample`, or `encode_sample`, as a pack would get it. By default its `tokens`, as
        `Packing` counts them.

        Raises:
            ConfigError: if it has no tokens; override this method then.
        """
        from bridge_data.task.samples_key import count_tokens  # here: few runs know costs

        return {"tokens": count_tokens(sample, getattr(self.select_samples_to_pack, "length", None))}

    def costs_key(self, source: Source | None = None) -> str:
        """16 hex digits by which measured costs (of `source`) are found: of settings and of `costs_version`, not of
        code; see `samples_key`."""
        from bridge_data.task.samples_key import costs_key  # here: few runs know costs

        return costs_key(self, source)

    def empty_batch(self, batch: T_batch) -> T_batch:
        """A batch like `batch` without loss, for a rank whose finite data ended before that of others.

        By default a copy of a dataclass or dict with its `loss_mask` zeroed, and without keys.

        Raises:
            ConfigError: if there is no `loss_mask`.
        """
        fields = batch if isinstance(batch, dict) else getattr(batch, "__dataclass_fields__", {})
        if "loss_mask" not in fields:
            raise ConfigError(
                f"a {type(batch).__name__} has no loss_mask to zero. Override empty_batch in "
                f'{type(self).__name__}, or let the loader end each rank by itself (ends="uneven")'
            )
        value: Any = batch
        loss_mask = value["loss_mask"] if isinstance(value, dict) else value.loss_mask
        changes: dict[str, Any] = {"loss_mask": torch.zeros_like(loss_mask)}
        changes |= {name: empty for name, empty in (("__key__", []), ("__restore_key__", ())) if name in fields}
        emptied: Any = {**value, **changes} if isinstance(value, dict) else dataclasses.replace(value, **changes)
        return cast(T_batch, emptied)


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """A task encoder that can map samples and batches by field name to your own types.

    A type may be a dataclass, a named tuple or `dict`, with the fields of the sample or batch.

    >>> from bridge_data import TextSample
    >>> DefaultTaskEncoder(encoded_sample_type=dict).encode_sample(TextSample(__key__="1", text="a"))["text"]
    'a'
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

    @stateless
    def encode_sample(self, sample: T_sample) -> T_encoded_sample | Generator[T_encoded_sample, None, None]:
        """The sample as `encoded_sample_type`."""
        return cast(T_encoded_sample, as_type(sample, self._encoded_sample_type))

    @stateless
    def batch(self, samples: list[T_encoded_sample]) -> T_raw_batch:
        """Collate a micro-batch as `raw_batch_type`."""
        type_ = self._raw_batch_type
        return cast(T_raw_batch, generic_batch(samples) if type_ is None else self._batch(samples, type_))

    @stateless
    def encode_batch(self, batch: T_raw_batch) -> T_batch | Generator[T_batch, None, None]:
        """The batch as `batch_type`."""
        return cast(T_batch, as_type(batch, self._batch_type))


def with_decoding(
    encoder: TaskEncoder[Any, Any, Any, Any], auto_decode: bool | None, **settings: Any
) -> TaskEncoder[Any, Any, Any, Any]:
    """The encoder with the decoding options of `get_train_dataset`: itself, or a copy that decodes with `settings` of
    `SampleDecoder` (None: not set), or not at all. A ConfigError if the encoder has its own decoder."""
    asked = {name: value for name, value in settings.items() if value is not None}
    if auto_decode is not False and not asked:
        return encoder
    if encoder.decoder is not TaskEncoder.decoder:
        names = ", ".join(asked) or "auto_decode"
        raise ConfigError(
            f"{names}: {type(encoder).__name__} has its own decoder, which conflicts with it; "
            "leave the argument out, and set `decoder` in the task encoder"
        )
    if auto_decode is False and asked:
        logger.warning("%s: no effect with auto_decode=False, which decodes nothing", ", ".join(asked))
    changed = copy.copy(encoder)
    changed.decoder = None if auto_decode is False else SampleDecoder(**asked)
    return changed


def as_type(value: Any, target: type | None) -> Any:
    """`value` as an object of `target`, field by field; unchanged if it is one, or `target` is None."""
    if target is None or isinstance(value, target):
        return value
    columns = columns_of([value])
    if columns is None:
        raise ConfigError(f"cannot turn a {type(value).__name__} into {target.__name__}: it has no named fields")
    return _made(target, {name: column[0] for name, column in columns.items()}, type(value))


def batch_as(
    samples: Sequence[Any],
    target: type,
    actions: Mapping[str, Callable[[list[Any]], Any]],
    default_action: Callable[[list[Any]], Any] = generic_batch,
) -> Any:
    """Collate the samples to one object of `target`, field by field: by the field's action, or the default one.

    A dataclass with `from_samples` (such as a `Batch`) makes its batch itself.
    """
    if dataclasses.is_dataclass(target) and hasattr(target, "from_samples"):
        return target.from_samples(samples)
    columns = columns_of(samples)
    if columns is None:
        raise ConfigError(f"cannot batch {type(samples[0]).__name__} by field: it has no named fields; override batch")
    fields = {
        name: actions[name](column) if name in actions else collected(name, column, default_action)
        for name, column in columns.items()
    }
    return _made(target, fields, type(samples[0]))


def _made(target: type, fields: dict[str, Any], origin: type) -> Any:
    if issubclass(target, dict):
        return fields if target is dict else target(fields)
    known, needed = _fields_of(target)
    extra, missing = [name for name in fields if name not in known], [name for name in needed if name not in fields]
    if extra or missing:
        raise ConfigError(
            f"cannot turn the fields of {origin.__name__} into {target.__name__}: "
            + "; ".join(
                f"{target.__name__} {what} {', '.join(names)}"
                for what, names in (("has no", extra), ("also needs", missing))
                if names
            )
            + ". Give both the same fields, or override the hook"
        )
    return target(**fields)


def _fields_of(target: type) -> tuple[Sequence[str], list[str]]:
    """The names of a type's fields, and of the required ones."""
    if dataclasses.is_dataclass(target):
        return [field.name for field in dataclasses.fields(target) if field.init], required_fields(target)
    if issubclass(target, tuple) and hasattr(target, "_fields"):
        defaults: dict[str, Any] = getattr(target, "_field_defaults", {})
        return target._fields, [name for name in target._fields if name not in defaults]
    raise ConfigError(f"fields cannot be mapped to {target.__name__}: use a dataclass, NamedTuple or dict")
