"""Data sets: a path, or samples in memory, and the settings of a run become a `LaneDataset` for training or validation.

Enters: a path and the settings of a run. Leaves: one `LaneDataset`, or one for each source. Guarantee: errors in the
settings or the metadata are raised here, before the first sample is read.

`LimitDataset` and `RepeatDataset` do what Energon's wrappers do: they change how long a pass over a data set is.
"""

import copy
import dataclasses
import math
import os
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import Any, TypedDict, Unpack

from bridge_data.dataset_loaders import Data, DatasetLoaderInterface, load_dataset
from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError, ErrorHandler
from bridge_data.lanes.batching import Batching
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.options import check_flag, check_integer, check_number, takes_options, warn_ignored
from bridge_data.order.plan_order import Shuffle
from bridge_data.plan import Plan, Source
from bridge_data.plan.factories import BaseCoreDatasetFactory
from bridge_data.plan.in_memory import in_memory
from bridge_data.plan.source import EpochsPerShuffle
from bridge_data.task import Cooker, DefaultTaskEncoder, TaskEncoder, check_hook_names, with_decoding
from bridge_data.topology import WorkerConfig

_MAX_DENOMINATOR = 10**6
"""Maximum denominator of the fraction that the float `repeats` stands for."""


class DatasetOptions(TypedDict, total=False):
    """Options of `get_train_dataset`, `get_val_dataset` and `get_val_datasets`, besides the parameters of Energon."""

    dataset_config: str | None
    """The file in the `.nv-meta` of `path` to read instead of `dataset.yaml`."""
    split_config: str | None
    """The file in the `.nv-meta` of `path` to read instead of `split.yaml`."""
    trusted_modules: Collection[str]
    """Your modules (and their submodules) from which YAML files may name classes and functions. None by default."""
    trust_dataset_code: bool
    """Whether to run Python files next to the data (`sample_loader.py`) that a dataset.yaml names. False by default."""
    fingerprint: str | None
    """A name for samples in memory, checked when a state is restored; None: made of their number, first and last."""
    verify_digests: bool
    """Whether to check all parts read, except auxiliary data, by digests (`bridge-data prepare --digest`)."""
    limits: Limits | None
    """Size limits of samples and of files that describe data (None: `Limits()`); decoders have their own limits."""
    auto_decode: bool | None
    """False: the parts of a sample stay bytes. This and the next three are for encoders without their own `decoder`."""
    image_decode: str | None
    """`SampleDecoder(image_decode=...)`; better set in the encoder's `decoder`."""
    av_decode: str | None
    """`SampleDecoder(av_decode=...)`; better set in the encoder's `decoder`."""
    video_decode_audio: bool | None
    """`SampleDecoder(video_decode_audio=...)`; better set in the encoder's `decoder`."""
    ignore_decoder_errors: bool | None
    """No effect: see `bridge_data.options`."""
    handler: ErrorHandler | None
    """No effect: see `bridge_data.options`."""
    parallel_shard_iters: int | None
    """No effect: see `bridge_data.options`."""
    sample_type: type[Any] | None
    """The class that the samples of all data sets must have."""
    field_map: Mapping[str, str] | None
    """Which column gives each field of `sample_type`, for Parquet files and data sets of Hugging Face."""
    where: str | None
    """A predicate that chooses samples, such as `"txt.bytes < 4000"`: see docs/where.md."""
    columns: str | os.PathLike[str] | None
    """A Parquet file with columns of your own for `where`."""


DATASET_DEFAULTS = DatasetOptions(trusted_modules=(), trust_dataset_code=False, verify_digests=False)
"""The defaults; those of the other options are None."""


@takes_options(DatasetOptions, DATASET_DEFAULTS)
def get_train_dataset(
    path: Data,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    shuffle_buffer_size: int | None,
    max_samples_per_sequence: int | None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: EpochsPerShuffle = 1,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    repeat: bool = True,
    **options: Unpack[DatasetOptions],
) -> LaneDataset:
    """The training data at `path`: a folder of tars, a JSONL or Parquet file, a folder of Parquet files or saved by
    `datasets`, or a metadataset YAML; samples in memory, as a list or another map-style data set, or a dict of
    these by split part (see `InMemoryDataset`); or a plan, a factory or a loader from `load_dataset`.

    Args:
        split_part: the part of the split, `train` by default.
        batch_size: samples (with packing: packs) per micro-batch; None for single samples.
        batch_drop_last: drop a last batch that is not full, if the data ends.
        packing_buffer_size: samples among which `select_samples_to_pack` chooses; None for no packing.
        shuffle_buffer_size: the minimum number of samples that are fully mixed, 1,024 or more (fewer only if a lane has
            fewer per epoch). There is no buffer: the order itself is shuffled.
        max_samples_per_sequence: samples per chunk. A chunk is consecutive samples of a shard, read by one lane; None
            for whole shards. If `shuffle_buffer_size` is None, too, samples within a chunk stay in order.
        virtual_epoch_length: batches of this rank after which one iteration ends, 0 for never.
        shuffle_over_epochs_multiplier: the number of epochs that are shuffled together, times the value that a
            metadataset sets for each data set; -1 to draw with replacement, None for the order of the data.
        task_encoder: the user's hooks; a `DefaultTaskEncoder` if None.
        repeat: repeat forever; else one epoch.
        **options: `DatasetOptions`.

    Raises:
        ConfigError: for wrong settings. DatasetError: if the data cannot be opened.
    """
    batching = _batching(batch_size, batch_drop_last, packing_buffer_size)
    encoder = _encoder(task_encoder, options)
    return LaneDataset(
        _plan(path, split_part, options, training=True),
        shuffle=Shuffle(
            shuffle_buffer_size=shuffle_buffer_size,
            max_samples_per_sequence=max_samples_per_sequence,
            epochs_per_shuffle=shuffle_over_epochs_multiplier,
            repeat=repeat,
        ),
        batching=batching,
        task_encoder=encoder,
        worker_config=worker_config,
        virtual_epoch_length=virtual_epoch_length,
    )


@takes_options(DatasetOptions, DATASET_DEFAULTS)
def get_val_dataset(
    path: Data,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    **options: Unpack[DatasetOptions],
) -> LaneDataset:
    """The validation data at `path`: every sample once, in the order of the data.

    Args:
        limit: micro-batches of the whole job after which it ends; None for all.

    The other arguments and the errors are those of `get_train_dataset`.
    """
    batching = _batching(batch_size, batch_drop_last, packing_buffer_size, limit)
    encoder = _encoder(task_encoder, options)
    plan = _plan(path, split_part, options, training=False)
    return LaneDataset(plan, shuffle=None, batching=batching, task_encoder=encoder, worker_config=worker_config)


@takes_options(DatasetOptions, DATASET_DEFAULTS)
def get_val_datasets(
    path: Data,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    **options: Unpack[DatasetOptions],
) -> list[tuple[LaneDataset, Source]]:
    """The validation data at `path`, one data set per source: `(data set, source)` for all that have samples, in the
    order of the plan. `source.name`, `source.path` and `source.subflavors` identify them.

    Args:
        limit: micro-batches of the whole job after which each of them ends; None for all.

    The other arguments and the errors are those of `get_train_dataset`.
    """
    batching = _batching(batch_size, batch_drop_last, packing_buffer_size, limit)
    encoder = _encoder(task_encoder, options)

    def of_source(source: Source) -> LaneDataset:
        plan = Plan(source, (source,), None)
        return LaneDataset(plan, shuffle=None, batching=batching, task_encoder=encoder, worker_config=worker_config)

    return [(of_source(source), source) for source in _plan(path, split_part, options, training=False).sources]


_OTHERS = (str, os.PathLike, Plan, BaseCoreDatasetFactory, DatasetLoaderInterface)
"""Types that are never samples in memory."""


def _plan(data: Data, split_part: str, options: DatasetOptions, *, training: bool) -> Plan:
    """The plan of `data`. A plan and a factory have their own split part."""
    fingerprint = options["fingerprint"]
    found = None if isinstance(data, _OTHERS) else in_memory(data, split_part, fingerprint, training=training)
    if found is not None:
        data = found
    elif fingerprint is not None:
        raise ConfigError(f"fingerprint={fingerprint!r}: is only for samples in memory: leave it out")
    if isinstance(data, (BaseCoreDatasetFactory, DatasetLoaderInterface, Plan)):
        for name in ("dataset_config", "split_config", "field_map", "where", "columns"):
            if (value := options[name]) is not None:
                raise ConfigError(f"{name}={value!r}: is for a path, but got a {type(data).__name__}: set it there")
    if not isinstance(split_part, str):
        raise ConfigError(f"split_part={split_part!r}: expected the name of a part, such as 'train'")
    plan = _opened(data, split_part, options, training=training)
    if options["verify_digests"]:
        sources = [dataclasses.replace(source, records=source.records.verified()) for source in plan.sources]
        plan = Plan(plan.tree, tuple(sources), plan.weights)
    wanted = options["sample_type"]
    if wanted is not None and not isinstance(wanted, type):
        raise ConfigError(f"sample_type={wanted!r}: expected a class")
    for source in plan.sources:
        if wanted is not None and not issubclass(source.sample_class, wanted):
            from bridge_data.task import class_mismatch  # here: for messages only

            raise class_mismatch(source, wanted)
    return plan


def _opened(data: Data, split_part: str, options: DatasetOptions, *, training: bool) -> Plan:
    if isinstance(data, BaseCoreDatasetFactory):
        data = data.build()
    if isinstance(data, Plan):
        if training and data.weights is None:
            raise ConfigError(f"this plan is for validation, and has no weights; make one with training=True:\n{data}")
        return data if training else Plan(data.tree, data.sources, None)
    if not isinstance(data, DatasetLoaderInterface):
        path: Any = data  # or something else, which is refused
        field_map, kind = options["field_map"], options["sample_type"]
        if field_map is not None and not (isinstance(field_map, Mapping) and isinstance(kind, type)):
            raise ConfigError(f"field_map={field_map!r}: expected a dict of fields and columns, and a sample_type")
        data = load_dataset(
            path,
            dataset_config=options["dataset_config"],
            split_config=options["split_config"],
            trusted_modules=options["trusted_modules"],
            trust_dataset_code=options["trust_dataset_code"],
            limits=options["limits"] or DEFAULT_LIMITS,
            where=options["where"],
            columns=options["columns"],
            sample_type=None if field_map is None else kind,
            field_map=field_map,
        )
    return data.get_datasets(training=training, split_part=split_part)


def _encoder(given: Any, options: DatasetOptions) -> TaskEncoder[Any, Any, Any, Any]:
    if given is not None and not isinstance(given, TaskEncoder):
        hint = "; pass an instance of the class, with ()" if isinstance(given, type) else ""
        raise ConfigError(f"task_encoder={given!r}: expected a TaskEncoder{hint}")
    if given is not None:
        _check_attributes(given)
        check_hook_names(given)
    warn_ignored(
        ignore_decoder_errors=options["ignore_decoder_errors"],
        handler=options["handler"],
        parallel_shard_iters=options["parallel_shard_iters"],
    )
    return with_decoding(
        DefaultTaskEncoder() if given is None else given,
        options["auto_decode"],
        image_decode=options["image_decode"],
        av_decode=options["av_decode"],
        video_decode_audio=options["video_decode_audio"],
    )


def _check_attributes(encoder: TaskEncoder[Any, Any, Any, Any]) -> None:
    """Check the types of `decoder` and `cookers`."""
    owner, decoder = type(encoder).__name__, encoder.decoder
    cookers: Any = encoder.cookers
    if decoder is not None and not isinstance(decoder, SampleDecoder):
        raise ConfigError(f"{owner}: decoder={decoder!r}: expected a SampleDecoder, such as SampleDecoder(), or None")
    if isinstance(cookers, (str, Cooker)) or not isinstance(cookers, Iterable):
        raise ConfigError(f"{owner}: cookers={cookers!r}: expected a list of Cooker")
    for cooker in cookers:
        if not isinstance(cooker, Cooker):
            name = getattr(cooker, "__name__", "cook")
            raise ConfigError(f"{owner}: cookers: {cooker!r} is not a Cooker: write Cooker({name})")


def _batching(
    batch_size: int | None, drop_last: bool, packing_buffer_size: int | None, limit: int | None = None
) -> Batching:
    for name, value in (("batch_size", batch_size), ("packing_buffer_size", packing_buffer_size), ("limit", limit)):
        check_integer(name, value, 1, or_none=True)
    check_flag("batch_drop_last", drop_last)
    return Batching(
        batch_size=batch_size, drop_last=drop_last, packing_buffer_size=packing_buffer_size, max_micro_batches=limit
    )


def LimitDataset(
    dataset: LaneDataset, length: int, *, reset_after_epoch: bool = False, worker_config: Any = None
) -> LaneDataset:
    """`dataset` with passes that end after the first `length` batches of this rank.

    As in Energon 7.4.1, each pass begins with the first batch. `reset_after_epoch` and `worker_config` have no effect.

    Raises:
        ConfigError: if `length` is not positive, or `dataset` is not a data set.
    """
    _check_dataset("LimitDataset", dataset)
    check_integer("LimitDataset: length", length, 1)
    limited = copy.copy(dataset)
    limited.virtual_epoch_length = min(length, dataset.virtual_epoch_length or length)
    limited.begins_anew = True
    return limited


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
    _check_dataset("RepeatDataset", dataset)
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
    repeated = copy.copy(dataset)
    if dataset.virtual_epoch_length:
        repeated.virtual_epoch_length = 0 if exact is None else math.floor(dataset.virtual_epoch_length * exact)
    if exact is None or not dataset.virtual_epoch_length:
        repeated.repeats = math.inf if exact is None else dataset.repeats * exact
    return repeated


def _check_dataset(name: str, dataset: Any) -> None:
    if not isinstance(dataset, LaneDataset):
        raise ConfigError(f"{name}({dataset!r}): expected a data set, such as get_val_dataset(...) makes")
