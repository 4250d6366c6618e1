"""Data sets: a path, or samples in memory, and the settings of a run become a `LaneDataset` for training or validation.

Reads a path and the settings of a run. Returns one `LaneDataset`, or one for each source; or the single samples of a
plan (`samples_of`). Errors in the settings or the
metadata are raised here, before the first sample is read.
"""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, Unpack

from bridge_data.decode import SampleDecoder
from bridge_data.errors import ConfigError
from bridge_data.extensions import Feature
from bridge_data.ignored import OF_DATA
from bridge_data.keywords import DatasetKeywords, TrainingKeywords
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import Batching
from bridge_data.limits import DEFAULT_LIMITS
from bridge_data.options import check_integer, takes_options
from bridge_data.order.plan_order import ShuffleSettings
from bridge_data.plan import Plan, Source
from bridge_data.plan.blending import in_unit
from bridge_data.plan.factories import BaseCoreDatasetFactory
from bridge_data.plan.in_memory import in_memory
from bridge_data.plan.opening import Data, DatasetLoaderInterface, load_dataset
from bridge_data.run_options import PACKINGS, DatasetOptions, TrainingOptions
from bridge_data.samples import CrudeSample
from bridge_data.task import (
    Cooker,
    DefaultTaskEncoder,
    TaskEncoder,
    check_hook_names,
    fields_in_words,
    first_parts,
    with_decoding,
)
from bridge_data.topology import WorkerConfig

logger = logging.getLogger("bridge_data")

Encoder: TypeAlias = TaskEncoder[Any, Any, Any, Any]


_COST_CHECKS = Feature[Callable[[LaneDataset], LaneDataset]]("cost_checks")
"""The data set that compares the costs by which its weights count with those of some samples."""


@takes_options(TrainingOptions, OF_DATA)
def get_train_dataset(
    path: Data,
    *,
    worker_config: WorkerConfig,
    batch_size: int | None,
    shuffle_buffer_size: int | None,
    max_samples_per_sequence: int | None,
    task_encoder: Encoder | None = None,
    **options: Unpack[TrainingKeywords],
) -> LaneDataset:
    """The training data at `path`: a folder of tars, a JSONL or Parquet file, a folder of Parquet files or saved by
    `datasets`, or a metadataset YAML; samples in memory, as a list or another map-style data set, or a dict of
    these by split part (see `InMemoryDataset`); or a plan, a factory or a loader from `load_dataset`.

    >>> from bridge_data import InMemoryDataset, TextSample, WorkerConfig
    >>> dataset = get_train_dataset(
    ...     InMemoryDataset([TextSample(__key__=str(number), text="a") for number in range(100)]),
    ...     worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
    ...     batch_size=4,
    ...     shuffle_buffer_size=100,
    ...     max_samples_per_sequence=None,
    ... )

    Args:
        task_encoder: the user's hooks; a `DefaultTaskEncoder` if None.
        batch_size, shuffle_buffer_size, max_samples_per_sequence, **options: `TrainingOptions` explains them all.

    Raises:
        ConfigError: for wrong settings.
        DatasetError: if the data cannot be opened.
    """
    chosen = TrainingOptions(
        batch_size=batch_size,
        shuffle_buffer_size=shuffle_buffer_size,
        max_samples_per_sequence=max_samples_per_sequence,
        **options,
    )
    return training_data(path, chosen, worker_config, task_encoder)


@takes_options(DatasetOptions, OF_DATA)
def get_val_dataset(
    path: Data,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    limit: int | None = None,
    task_encoder: Encoder | None = None,
    **options: Unpack[DatasetKeywords],
) -> LaneDataset:
    """The validation data at `path`: every sample once, in the order of the data.

    >>> from bridge_data import TextSample, WorkerConfig, get_loader
    >>> dataset = get_val_dataset(
    ...     {"val": [TextSample(__key__=str(number), text="a") for number in range(10)]},
    ...     worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
    ...     batch_size=4,
    ... )
    >>> [len(batch.text) for batch in get_loader(dataset)]
    [4, 4, 2]

    Args:
        limit: micro-batches of the whole job after which it ends; None for all.
        **options: `DatasetOptions`.

    The other arguments and the errors are those of `get_train_dataset`.
    """
    chosen = DatasetOptions(batch_size=batch_size, **options)
    return validation_data(path, chosen, worker_config, task_encoder, split_part=split_part, limit=limit)


@takes_options(DatasetOptions, OF_DATA)
def get_val_datasets(
    path: Data,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    limit: int | None = None,
    task_encoder: Encoder | None = None,
    **options: Unpack[DatasetKeywords],
) -> list[tuple[LaneDataset, Source]]:
    """The validation data at `path`, one data set per source: `(data set, source)` for all that have samples, in the
    order of the plan. `source.name`, `source.path` and `source.subflavors` identify them.

    Args:
        limit: micro-batches of the whole job after which each of them ends; None for all.
        **options: `DatasetOptions`.

    The other arguments and the errors are those of `get_train_dataset`.
    """
    chosen = DatasetOptions(batch_size=batch_size, **options)
    return validation_sources(path, chosen, worker_config, task_encoder, split_part=split_part, limit=limit)


def training_data(
    path: Data, options: TrainingOptions, worker_config: WorkerConfig, task_encoder: Encoder | None
) -> LaneDataset:
    """`get_train_dataset` with its options in one."""
    encoder = _encoder(task_encoder, options)
    plan = training_plan(path, options)
    dataset = LaneDataset(
        in_unit(plan, options.weight_unit),
        shuffle=options.shuffle,
        batching=_batching(options),
        task_encoder=encoder,
        worker_config=worker_config,
        virtual_epoch_length=options.virtual_epoch_length,
    )
    _tell_repeated(plan, worker_config)
    return _featured(dataset, options)


def training_plan(path: Data, options: TrainingOptions) -> Plan:
    """The data that `training_data` draws from."""
    return _plan(path, options.split_part, options, training=True)


def validation_data(
    path: Data,
    options: DatasetOptions,
    worker_config: WorkerConfig,
    task_encoder: Encoder | None,
    *,
    split_part: str = "val",
    limit: int | None = None,
) -> LaneDataset:
    """`get_val_dataset` with its options in one."""
    batching, encoder = _batching(options, limit), _encoder(task_encoder, options)
    plan = _plan(path, split_part, options, training=False)
    dataset = LaneDataset(plan, shuffle=None, batching=batching, task_encoder=encoder, worker_config=worker_config)
    _tell_repeated(plan, worker_config)
    return _featured(dataset, options)


def validation_sources(
    path: Data,
    options: DatasetOptions,
    worker_config: WorkerConfig,
    task_encoder: Encoder | None,
    *,
    split_part: str = "val",
    limit: int | None = None,
) -> list[tuple[LaneDataset, Source]]:
    """`get_val_datasets` with its options in one."""
    batching, encoder = _batching(options, limit), _encoder(task_encoder, options)

    def of_source(source: Source) -> LaneDataset:
        plan = Plan(source, (source,), None)
        made = LaneDataset(plan, shuffle=None, batching=batching, task_encoder=encoder, worker_config=worker_config)
        return _featured(made, options)

    return [(of_source(source), source) for source in _plan(path, split_part, options, training=False).sources]


def samples_of(plan: Plan, worker_config: WorkerConfig | None = None) -> LaneDataset:
    """The single samples of a plan: in the order of the data, or endlessly shuffled if it is for training; by the
    worker config of the plan, else by the one given, else in this process."""
    shuffle = None if plan.weights is None else ShuffleSettings(shuffle_buffer_size=None, max_samples_per_sequence=None)
    return LaneDataset(
        plan,
        shuffle=shuffle,
        batching=Batching(batch_size=None),
        task_encoder=DefaultTaskEncoder(),
        worker_config=plan.worker_config or worker_config or WorkerConfig.default_worker_config(num_workers=0),
    )


_OTHERS = (str, os.PathLike, Plan, BaseCoreDatasetFactory, DatasetLoaderInterface)
"""Types that are never samples in memory."""


def _plan(data: Data, split_part: str, options: DatasetOptions, *, training: bool) -> Plan:
    """The plan of `data`. A plan and a factory have their own split part."""
    fingerprint = options.fingerprint
    found = None if isinstance(data, _OTHERS) else in_memory(data, split_part, fingerprint, training=training)
    if found is not None:
        data = found
    elif fingerprint is not None:
        raise ConfigError(f"fingerprint={fingerprint!r}: is only for samples in memory: leave it out")
    if isinstance(data, (BaseCoreDatasetFactory, DatasetLoaderInterface, Plan)):
        for name in ("dataset_config", "split_config", "field_map", "where", "columns", "limits"):
            if (value := getattr(options, name)) is not None:
                raise ConfigError(f"{name}={value!r}: is for a path, but got a {type(data).__name__}: set it there")
    if not isinstance(split_part, str):
        raise ConfigError(f"split_part={split_part!r}: expected the name of a part, such as 'train'")
    plan = _opened(data, split_part, options, training=training)
    if options.verify_digests:
        plan = dataclasses.replace(plan, sources=tuple(source.verified() for source in plan.sources))
    wanted = options.sample_type
    if wanted is not None and not isinstance(wanted, type):
        raise ConfigError(f"sample_type={wanted!r}: expected a class")
    for source in plan.sources:
        if wanted is not None and not issubclass(source.sample_class, wanted):
            raise _class_mismatch(source, wanted)
    return plan


def _class_mismatch(source: Source, wanted: type[Any]) -> ConfigError:
    """The error where samples of `source` are not of the class that was asked for."""
    said = f"{source.path}: has {source.sample_class.__name__}, not sample_type={wanted.__name__}"
    if not (issubclass(source.sample_class, CrudeSample) and source.values):
        return ConfigError(said)
    return ConfigError(
        f"{said}, as there is no field_map, without which rows stay crude: give one beside sample_type, which says "
        f"which column gives each field. The fields of a row: {fields_in_words(first_parts(source))}"
    )


def _tell_repeated(plan: Plan, worker_config: WorkerConfig) -> None:
    """Log, on the first rank and once, what several branches of the blend read."""
    if worker_config.rank == 0:
        for repeated in plan.repeated:
            _tell_once(str(repeated))


@functools.lru_cache(maxsize=1024)
def _tell_once(text: str) -> None:
    logger.warning("%s", text)


def _opened(data: Data, split_part: str, options: DatasetOptions, *, training: bool) -> Plan:
    if isinstance(data, BaseCoreDatasetFactory):
        data = data.build()
    if isinstance(data, Plan):
        if training and data.weights is None:
            raise ConfigError(f"this plan is for validation, and has no weights; make one with training=True:\n{data}")
        return data if training else Plan(data.tree, data.sources, None)
    if not isinstance(data, DatasetLoaderInterface):
        path: Any = data  # or something else, which is refused
        field_map, kind = options.field_map, options.sample_type
        if field_map is not None and not (isinstance(field_map, Mapping) and isinstance(kind, type)):
            raise ConfigError(f"field_map={field_map!r}: expected a dict of fields and columns, and a sample_type")
        data = load_dataset(
            path,
            dataset_config=options.dataset_config,
            split_config=options.split_config,
            trusted_modules=options.trusted_modules,
            trust_dataset_code=options.trust_dataset_code,
            limits=options.limits or DEFAULT_LIMITS,
            where=options.where,
            columns=options.columns,
            sample_type=None if field_map is None else kind,
            field_map=field_map,
        )
    return data.get_datasets(training=training, split_part=split_part)


def _encoder(given: Any, options: DatasetOptions) -> Encoder:
    if given is not None and not isinstance(given, TaskEncoder):
        hint = "; pass an instance of the class, with ()" if isinstance(given, type) else ""
        raise ConfigError(f"task_encoder={given!r}: expected a TaskEncoder{hint}")
    if given is not None:
        _check_attributes(given)
        check_hook_names(given)
        _check_packs(given, options)
    return with_decoding(
        DefaultTaskEncoder() if given is None else given,
        options.auto_decode,
        image_decode=options.image_decode,
        av_decode=options.av_decode,
        video_decode_audio=options.video_decode_audio,
    )


def _check_packs(encoder: Encoder, options: DatasetOptions) -> None:
    """Check that a micro-batch has no more packs than the encoder can batch."""
    size, most = options.batch_size or 1, encoder.most_packs
    if options.packing_buffer_size is not None and most is not None and size > most:
        raise ConfigError(
            f"micro_batch_size={size} with packing (packing_buffer_size={options.packing_buffer_size}): "
            f"{type(encoder).__name__} puts all packs of a micro-batch in one row, which would be longer than its "
            f"seq_length. Set micro_batch_size={most}, and a longer seq_length for more samples in a row"
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


def _batching(options: DatasetOptions, limit: int | None = None) -> Batching:
    check_integer("limit", limit, 1, or_none=True)
    return Batching(
        batch_size=options.batch_size,
        drop_last=options.batch_drop_last,
        packing_buffer_size=options.packing_buffer_size,
        max_micro_batches=limit,
    )


def _featured(dataset: LaneDataset, options: DatasetOptions) -> LaneDataset:
    """`dataset` with what plug-ins add for its options."""
    if dataset.order.rule is not None:  # the weights count a cost
        needed_by = f"weight_unit: {dataset.plan.weight_unit}"
        dataset = _COST_CHECKS.get(needed_by)(dataset)
    if options.packing != "online":
        dataset = PACKINGS.get(options.packing, needed_by=f"packing={options.packing!r}")(dataset)
    return dataset
