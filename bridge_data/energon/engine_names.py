"""Names of Energon 7.4.1 that programs import, although its engine is not here.

What works without the engine, such as `SystemRng`, is implemented here. Every other name is a class that may be
imported, derived from, compared with and written in annotations. Calling it, or a class derived from it, raises a
`ConfigError` that says what to use instead.
"""

import abc
import dataclasses
import enum
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.later import is_tensor, numpy, torch
from bridge_data.samples import edataclass, pin

STAND_INS = {
    "": (
        "BlendDataset ConcatDataset EpochizeDataset GcDataset GroupBatchDataset IterMapDataset LogSampleDataset "
        "MixBatchDataset PackingDataset ShuffleBufferDataset WatchdogDataset"
    ),
    "av.av_decoder": "AVIndexMode",
    "av.av_init": "av_open initialize_av_container",
    "av.av_reader": "AVProbeIndexEntry AVProbeIndex AVReader AVReaderByFrames AVReaderByPts",
    "bracecollapse": "collapse",
    "cache.base": "FileStoreWrapper",
    "cache.file_cache_pool": "CacheFileLazy",
    "cli.main": "print_version",
    "dataset_config": "load_config",
    "deprecation": "warn_deprecated deprecated",
    "epathlib.rclone_config": (
        "ConfigEntry find_executable_path get_rclone_config_path read_rclone_config_at_path read_rclone_config"
    ),
    "errors": "ErrorContext handle_restore_errors",
    "eyaml": "load_yaml_json load_yaml",
    "flavors": "WebdatasetMeta",
    "flavors.base_dataset": "State add_sample_restore_key set_sample_restore_key legacy_handler",
    "flavors.jsonl.ijsonl": (
        "IJsonlSamplePointer IJsonlIndexReader IJsonlIndexWriter CacheEntry CachedIJsonlOffsetReader IJsonlFile"
    ),
    "flavors.jsonl.ijsonl_reader": "IJsonlReader",
    "flavors.jsonl.jsonl_prepare": "JsonlPreparator",
    "flavors.webdataset": "WebdatasetMeta VideoData",
    "flavors.webdataset.aggregator_pool": "BaseAggregator AggregatorPool",
    "flavors.webdataset.field_access": "split_field_access FieldAccessError field_access",
    "flavors.webdataset.indexing": (
        "DuplicateSampleKeyError SqliteIndexWriter JoinIndexWriter SqliteIndexReader JoinIndexReader"
    ),
    "flavors.webdataset.itar": (
        "ITarSamplePointer ITarRawSamplePartPointer TarIndexReader TarIndexWriter SubFileReader "
        "get_itar_byte_offset CacheEntry CachedItarOffsetReader ITarFile open_itar"
    ),
    "flavors.webdataset.itar_reader": "ITarReader JoinIndexFileITarReader ShardInfosITarReader SqliteITarEntryReader",
    "flavors.webdataset.metadata": (
        "EnergonDatasetType WebdatasetMeta get_info_shard_files get_dataset_info check_dataset_info_present "
        "get_dataset_type"
    ),
    "flavors.webdataset.prepare": (
        "IndexAggregatable IndexSample IndexSamplePart IndexMediaMetadata IndexShardInfo SqliteIndexWriterAggregator"
    ),
    "flavors.webdataset.sample_decoder": "GuessingHandlerWrapper",
    "flavors.webdataset.sample_loader": "RawSampleData SliceState WebdatasetSampleLoaderDataset",
    "flavors.webdataset.sharder": "Sharder",
    "flavors.webdataset.structs": "FilteredSample DatasetSubset",
    "flavors.webdataset.tar_patcher": (
        "TarPatcherError TarScanResult DatasetScanResult split_ustar_path pax_parse update_header TarPatcher cli "
        "run_dataset run_file"
    ),
    "flavors.webdataset.thread_local_sqlite": "ThreadLocalStorage ThreadLocalSqlite main",
    "fork_hook": (
        "WeakCallbacks before_fork_hook after_in_parent_fork_hook after_in_child_fork_hook ForkMixin DataclassForkMixin"
    ),
    "local_copy": "ensure_local_copy",
    "media": "MediaMetadataBase MediaMetadataType deserialize_media_metadata serialize_media_metadata",
    "media.extractor": "SourceData",
    "media.metadata": "MediaMetadataType MediaMetadataBase serialize_media_metadata deserialize_media_metadata",
    "metadataset.join_dataset_loader": (
        "filter_samples_with_excludes join_multiple_indices JoinedDatasetInfo JoinedDatasetMetaInfo JoinDatasetLoader"
    ),
    "metadataset.loader": "MockJsonParser",
    "metadataset.loader_interface": "LoadedDataset LoadedDatasetList",
    "metadataset.metadataset": "DatasetReference MetadatasetBlender",
    "metadataset.metadataset_v2": (
        "AuxDatasetReference AuxFilesystemReference Subset SubsetRatioMixin DatasetReference JoinDatasetReference "
        "MetadatasetJoin BlendWeightMixin BlendDatasetReference BlendJoinDatasetReference MetadatasetBlend "
        "BlendRepetitionsMixin BlendEpochizedDatasetReference BlendEpochizedJoinDatasetReference "
        "MetadatasetBlendEpochized"
    ),
    "module_loader": "ModuleLoader",
    "retry_stream": "RetryReadStream",
    "rng": "WorkerRng",
    "sample_utils": "default_get_batch_keys format_sample_compact",
    "savable": "Savable",
    "savable_loader": (
        "SimpleSavableDatasetWrapper SavableDatasetState SavableCheckpoint SavableDatasetCheckpoint "
        "SavableDatasetWrapper SavableDataLoaderState"
    ),
    "source_info": "add_source_info",
    "state": "FlexState",
    "task_encoder.base": "FeatureBatcher get_failure_tolerance",
    "task_encoder.cooking": "get_cooker_need_cache get_cooker_need_primary",
    "tools.analyze_debug": (
        "YieldBatchLogLine SampleLoaderYieldLogLine AutosizingHeatmapWriter command LoaderInitLogLine "
        "LoaderIterLogLine LoaderYieldLogLine LoaderStopLogLine LoaderLines LoaderInfo LoaderLogIter"
    ),
    "tools.checkpoint": "natural_sort_key detect_and_replicate_pattern RankStateIterable",
    "tools.info": "fmt split_fmt fmt_size",
    "tools.lint": "check_index",
    "tools.mount": "EnergonFS",
    "tools.prepare": "type_str printify_json",
    "tools.preview": "to_str pprint",
    "transforms": (
        "TransformMapper ResizeMapper RandomResizedCropMapper CenterCropMapper RandomCropMapper "
        "RandomHorizontalFlipMapper RandomVerticalFlipMapper RandomRotationMapper RandomPerspectiveMapper "
        "MergeTransform CustomTransform"
    ),
    "transforms.common": "Sampling",
    "transforms.custom": "CustomTransform",
    "transforms.mappers": (
        "TransformMapper ResizeMapper RandomResizedCropMapper RandomHorizontalFlipMapper RandomVerticalFlipMapper "
        "RandomRotationMapper RandomCropMapper RandomPerspectiveMapper CenterCropMapper"
    ),
    "transforms.merge": "MergeTransform",
    "typed_converter": "JsonValueError JsonParser to_json_object",
    "watchdog": "Watchdog repr_short",
    "wrappers": (
        "BlendDataset ConcatDataset EpochizeDataset GcDataset GroupBatchDataset IterMapDataset LogSampleDataset "
        "MixBatchDataset ShuffleBufferDataset PackingDataset"
    ),
    "wrappers.base": "BaseWrapperDataset SampleIndex get_sample_restore_key",
    "wrappers.blend_dataset": "BlendDataset",
    "wrappers.buffer": "SavableSampleBuffer",
    "wrappers.concat_dataset": "ConcatDataset",
    "wrappers.epochize_dataset": "EpochizeDataset",
    "wrappers.gc_dataset": "GcFreezeError gc_init_worker GcDataset",
    "wrappers.group_batch_dataset": "Bucket GroupBatchDataset",
    "wrappers.iter_map_dataset": "IterMapDataset",
    "wrappers.log_sample_dataset": "LogSampleDataset",
    "wrappers.mix_batch_dataset": "MixBatchDataset",
    "wrappers.packing_dataset": "PackingDataset",
    "wrappers.shuffle_buffer_dataset": "ShuffleBufferDataset",
    "wrappers.watchdog_dataset": "WatchdogDataset",
}
"""The classes and functions that stand-ins are made for, by the path of Energon's module; `VideoData` is of earlier
releases."""


class _StandIn(abc.ABCMeta):
    """The class of stand-ins: `message` says what to use instead."""

    message: str

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise ConfigError(cls.message)

    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(name if name.startswith("__") else f"{cls.message} [looked up: {name}]")

    def __getitem__(cls, item: Any) -> Any:
        return cls


def has_stand_in(path: str, name: str) -> bool:
    """Whether there is a stand-in for a name of the module `path`."""
    return name in STAND_INS.get(path, "").split()


def stand_in(path: str, name: str, message_of: Callable[[str, str], str]) -> Any:
    """The stand-in for `name` of the module `path`, the same for a package and its module that defines it.

    `message_of` makes the message of its error from path and name."""
    below = (one for one in STAND_INS if not path or f"{one}.".startswith(f"{path}."))
    home = max((one for one in below if has_stand_in(one, name)), key=len)
    return _made(home, name, message_of(home, name))


@functools.cache
def _made(path: str, name: str, message: str) -> Any:
    is_error = name.endswith(("Error", "Exception"))  # which a program may name in `except`
    content = {"message": message, "__module__": f"{__package__}.{path}", "__doc__": message}
    return _StandIn(name, (Exception,) if is_error else (), content)


class DatasetBlendMode(enum.Enum):
    """How a blend counts: by weights, or by repetitions in an epoch."""

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


@edataclass
class ShardInfo:
    """A shard: its name in the data set, its path, and its number of samples."""

    name: str
    path: Any
    count: int


@edataclass
class WebdatasetInfo:
    """What `.nv-meta/.info.json` holds: samples by shard, and the version of Energon that wrote it."""

    shard_counts: dict[str, int]
    energon_version: str | None = None


@edataclass
class WebdatasetSplits:
    """What `.nv-meta/split.yaml` holds: shards by split part, and what is left out."""

    split_parts: dict[str, list[str]]
    exclude: list[str] = dataclasses.field(default_factory=list)


class PinMemoryMixin:
    """`pin_memory` for a dataclass: a copy with all tensors in page-locked memory. The classes of samples have it."""

    def pin_memory(self) -> Any:
        """The copy."""
        return pin(self)


class ExtendableDataclassMixin:
    """`extend` for a dataclass: an object of a derived class, of one of its base. The classes of samples have it."""

    @classmethod
    def extend(cls, src: Any, **kwargs: Any) -> Any:
        """An object of this class with the fields of `src`, and `kwargs` as fields."""
        return cls(**{field.name: getattr(src, field.name) for field in dataclasses.fields(src) if field.init} | kwargs)


@dataclasses.dataclass(frozen=True, slots=True)
class SystemRngState:
    """The states of the global random generators of torch, numpy and Python."""

    torch: Any
    numpy: Any
    random: Any


class SystemRng:
    """The global random generators of torch, numpy and Python. A loader seeds them before each hook, by the sample."""

    @staticmethod
    def seed(seed: int) -> None:
        """Seed all three."""
        import random

        torch.manual_seed(seed)
        numpy.random.seed(seed)
        random.seed(seed)

    @staticmethod
    def save_state() -> SystemRngState:
        """Their states."""
        import random

        return SystemRngState(torch.get_rng_state(), numpy.random.get_state(), random.getstate())

    @staticmethod
    def restore_state(state: SystemRngState) -> None:
        """Set their states."""
        import random

        torch.set_rng_state(state.torch)
        numpy.random.set_state(state.numpy)
        random.setstate(state.random)

    @staticmethod
    def get_seed_from_args(*args: Any) -> int:
        """A seed that depends on the texts of `args`: the first four bytes of the SHA-1 of them, joined by bars."""
        text = "|".join(map(str, args))
        return int.from_bytes(hashlib.sha1(text.encode(), usedforsecurity=False).digest()[:4], "big")

    @staticmethod
    def seed_args(*args: Any) -> None:
        """Seed all three by `get_seed_from_args`."""
        SystemRng.seed(SystemRng.get_seed_from_args(*args))


def format_sample_detailed(sample: Any, indent: str = "") -> str:
    """A sample as YAML, with the shape, type and range of arrays and tensors, and the size of bytes."""
    import textwrap

    import yaml

    text = yaml.safe_dump(_plain(sample), sort_keys=False, allow_unicode=True, width=120)
    return textwrap.indent(text, indent).removesuffix("...\n")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return f"{len(value):,} bytes, {value[:16]!r}{' ...' if len(value) > 16 else ''}"
    if is_tensor(value) or isinstance(value, numpy.ndarray):
        span = f", from {value.min()} to {value.max()}" if value.size and not is_tensor(value) else ""
        return f"{type(value).__name__} of shape {tuple(value.shape)}, {value.dtype}{span}"
    return repr(value)
