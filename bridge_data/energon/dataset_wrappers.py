"""Energon's wrappers of a data set.

`MapDataset`, `FilterDataset` and `BatchDataset` take a data set, or a plan, whose samples come one by one, and a
function of the user. Each is a data set like it, whose task encoder is an `AugmentTaskEncoder` around the one before,
with the function after its last hook. So order, states, workers, seeds, restored samples, counted skips and failures
are those of any data set.

`LimitDataset` and `RepeatDataset` change how long a pass over a data set is.
"""

import functools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from bridge_data.errors import ConfigError, SkipSample
from bridge_data.lanes.datasets import samples_of
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.options import check_flag, check_integer, check_number
from bridge_data.plan import Plan
from bridge_data.running_hook import active_hook
from bridge_data.task import AugmentTaskEncoder, TaskEncoder, hook_of, is_overridden
from bridge_data.task.hooks import Hooks, may_yield
from bridge_data.task.task_encoder import declared, stateless
from bridge_data.topology import WorkerConfig

_TOLERANCE = 100
"""Energon's default number of failures in a row."""

_MAX_DENOMINATOR = 10**6
"""Maximum denominator of the fraction that the float `repeats` stands for."""


class MapDataset(LaneDataset):
    """`dataset` with `map_fn(sample)` in place of each sample, or of each batch if it has a batch size.

    `map_fn` may raise `SkipSample`, or yield several. More than `failure_tolerance` failures in a row stop the run (0:
    no limit). It is seeded like a hook, unless it is marked plain `@stateless`. `stateless_map_fn` and `map_fn_config`
    have no effect; `worker_config` is for a plan without one.

    Raises:
        ConfigError: if `dataset` is not a data set.
    """

    def __init__(
        self,
        dataset: LaneDataset | Plan,
        map_fn: Callable[[Any], Any],
        *,
        stateless_map_fn: bool = False,
        map_fn_config: Any = None,
        failure_tolerance: int = _TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        inner = _dataset_in("MapDataset", dataset, worker_config)
        encoder = _followed(inner, _callable("MapDataset: map_fn", map_fn), failure_tolerance)
        vars(self).update(vars(inner.changed(task_encoder=encoder)))
        self.check_hooks()


class FilterDataset(LaneDataset):
    """`dataset` without the samples, or the batches if it has a batch size, for which `filter_fn(sample)` is false.
    They are counted as skipped. `filter_fn_config` has no effect; `worker_config` is for a plan without one.

    Raises:
        ConfigError: if `dataset` is not a data set.
    """

    def __init__(
        self,
        dataset: LaneDataset | Plan,
        *,
        filter_fn: Callable[[Any], bool],
        filter_fn_config: Any = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        inner = _dataset_in("FilterDataset", dataset, worker_config)
        kept = functools.partial(_kept, _callable("FilterDataset: filter_fn", filter_fn))
        functools.update_wrapper(kept, filter_fn)
        encoder = _followed(inner, kept, inner.task_encoder.__default_failure_tolerance__)
        vars(self).update(vars(inner.changed(task_encoder=encoder)))
        self.check_hooks()


class BatchDataset(LaneDataset):
    """Batches of `batch_size` samples of `dataset`, each made by `batcher(samples)`; as in Energon, the task encoder's
    `batch` and `encode_batch` are not called.

    `batcher` may raise `SkipSample`, or yield several. More than `failure_tolerance` failures in a row stop the run (0:
    no limit). `drop_last` drops a last batch that is not full. `batcher_stateless` and `batcher_config` have no effect;
    `worker_config` is for a plan without one.

    Raises:
        ConfigError: if `dataset` is not a data set, has batches already, or an end of its own.
    """

    def __init__(
        self,
        dataset: LaneDataset | Plan,
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        *,
        batcher_stateless: bool = False,
        batcher_config: Any = None,
        drop_last: bool = False,
        failure_tolerance: int = _TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        inner = _dataset_in("BatchDataset", dataset, worker_config)
        check_integer("BatchDataset: batch_size", batch_size, 1)
        check_flag("BatchDataset: drop_last", drop_last)
        if inner.batching.batch_size is not None or inner.batcher().groups:
            raise ConfigError(
                f"BatchDataset(batch_size={batch_size}): the data set has batches of {inner.batching.batch_size} "
                "already: make it with batch_size=None, or leave BatchDataset out"
            )
        if inner.virtual_epoch_length or inner.repeats != 1 or inner.batching.max_micro_batches is not None:
            raise ConfigError(
                f"BatchDataset(batch_size={batch_size}): the data set is limited or repeated, in samples: wrap the "
                "batches instead, as in LimitDataset(BatchDataset(...), length)"
            )
        encoder = AugmentTaskEncoder(inner.task_encoder)
        _set_hook(encoder, "batch", functools.partial(_callable("BatchDataset: batcher", batcher)), failure_tolerance)
        if is_overridden(inner.task_encoder, "encode_batch"):
            encoder.encode_batch = _unchanged  # type: ignore[method-assign]
        vars(self).update(vars(inner.batched(int(batch_size), drop_last=drop_last, task_encoder=encoder)))
        self.check_hooks()


def LimitDataset(
    dataset: LaneDataset, length: int, *, reset_after_epoch: bool = False, worker_config: Any = None
) -> LaneDataset:
    """`dataset` with passes that end after the first `length` batches of this rank.

    As in Energon 7.4.1, each pass begins with the first batch. `reset_after_epoch` and `worker_config` have no effect.

    Raises:
        ConfigError: if `length` is not positive, or `dataset` is not a data set.
    """
    _checked("LimitDataset", dataset)
    check_integer("LimitDataset: length", length, 1)
    length = min(length, dataset.virtual_epoch_length or length)
    return dataset.changed(virtual_epoch_length=length, begins_anew=True)


def RepeatDataset(
    dataset: LaneDataset, *, repeats: float | None = None, restart: bool = True, worker_config: Any = None
) -> LaneDataset:
    """`dataset` with passes that repeat all batches `repeats` times, consecutively; without end if None.

    If `repeats` is not whole, the job takes that fraction of the micro-batches of the last repetition, rounded down,
    on any number of ranks; `repeats` is read as a fraction with a denominator of at most a million. Samples that hooks
    skip are counted as if they were kept. Endless training data is unchanged. `worker_config` has no effect.

    Raises:
        ConfigError: if `repeats` is not positive, with `restart=False`, or for a `LimitDataset`.
    """
    _checked("RepeatDataset", dataset)
    check_number("RepeatDataset: repeats", repeats, "a positive number (of passes)", or_none=True)
    if repeats == math.inf:
        raise ConfigError("RepeatDataset: repeats=inf: leave it out to repeat without end")
    if not restart and repeats is not None:
        raise ConfigError("RepeatDataset(restart=False): every pass starts from the beginning; iterate once instead")
    if dataset.begins_anew:
        raise ConfigError(
            "RepeatDataset of a LimitDataset: limit the repeated data set instead, or use get_val_dataset(limit=...)"
        )
    exact = None if repeats is None else Fraction(repeats).limit_denominator(_MAX_DENOMINATOR)
    if exact is None:
        return dataset.changed(virtual_epoch_length=0, repeats=math.inf)
    if dataset.virtual_epoch_length:
        return dataset.changed(virtual_epoch_length=math.floor(dataset.virtual_epoch_length * exact))
    return dataset.changed(repeats=dataset.repeats * exact)


def _dataset_in(name: str, dataset: Any, worker_config: WorkerConfig | None) -> LaneDataset:
    if isinstance(dataset, Plan):
        return samples_of(dataset, worker_config)
    return _checked(name, dataset)


def _checked(name: str, dataset: Any) -> LaneDataset:
    if not isinstance(dataset, LaneDataset):
        raise ConfigError(
            f"{name}({dataset!r}): expected a data set, such as get_train_dataset(...) or get_val_dataset(...) makes"
        )
    return dataset


def _callable(name: str, given: Any) -> Any:
    if not callable(given):
        raise ConfigError(f"{name}={given!r}: expected a function")
    return given


def _followed(
    dataset: LaneDataset, then: Callable[[Any], Any], tolerance: float
) -> AugmentTaskEncoder[Any, Any, Any, Any]:
    """The encoder of `dataset` with `then` after its last hook."""
    encoder, batcher = dataset.task_encoder, dataset.batcher()
    if dataset.batching.batch_size is not None or batcher.groups:
        last = "encode_batch"
    elif batcher.is_packing:
        last = "pack_selected_samples"
    else:
        preencodes = is_overridden(encoder, "preencode_sample") or is_overridden(encoder, "postencode_sample")
        last = "postencode_sample" if preencodes else "encode_sample"
    first = hook_of(encoder, last)
    chained = _chained_parts if may_yield(first) or may_yield(then) else _chained
    outer = AugmentTaskEncoder(encoder)
    _set_hook(outer, last, functools.partial(chained, last, first, then), tolerance, seeded=declared(then).seeded)
    return outer


def _set_hook(
    encoder: TaskEncoder[Any, Any, Any, Any],
    name: str,
    hook: functools.partial[Any],
    tolerance: float,
    *,
    seeded: bool = True,
) -> None:
    setattr(encoder, name, stateless(restore_seeds=seeded, failure_tolerance=tolerance)(hook))


def _chained(hook: str, first: Callable[[Any], Any], then: Callable[[Any], Any], value: Any) -> Any:
    made = first(value)
    return _of_each(hook, made, then) if hasattr(made, "__next__") else then(made)


def _chained_parts(hook: str, first: Callable[[Any], Any], then: Callable[[Any], Any], value: Any) -> Iterator[Any]:
    """As `_chained`, where the annotation says that there may be several results."""
    made = _chained(hook, first, then, value)
    return made if hasattr(made, "__next__") else iter((made,))


def _of_each(hook: str, outputs: Iterator[Any], then: Callable[[Any], Any]) -> Iterator[Any]:
    skips, has_any = [], False
    for output in outputs:
        try:
            made = then(output)
        except SkipSample as skip:  # of this output alone
            skips.append(skip)
            continue
        has_any = True
        yield from made if hasattr(made, "__next__") else (made,)
    hooks = active_hook.get()
    assert isinstance(hooks, Hooks)
    for one in skips if has_any else skips[:-1]:
        hooks.count_skip(hook, 1, str(one))
    if skips and not has_any:
        raise skips[-1]  # `run` counts it


def _kept(filter_fn: Callable[[Any], bool], sample: Any) -> Any:
    if not filter_fn(sample):
        raise SkipSample("filter_fn of FilterDataset is false for it")
    return sample


@stateless
def _unchanged(batch: Any) -> Any:
    return batch
