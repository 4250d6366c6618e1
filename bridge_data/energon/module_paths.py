"""The module paths of Energon 7.4.1: `bridge_data.energon.X` has the names of `megatron.energon.X`.

`add_paths` puts a module into `sys.modules` for each row of `PATHS`. Its names are looked up on first use. Importing a
name that only Energon has raises an ImportError that says what to use instead. Looking it up on the module raises an
AttributeError, as `pickle`, which tries all modules, expects.
"""

import importlib
import inspect
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from bridge_data.energon.engine_names import has_stand_in, stand_in
from bridge_data.later import names_of

ROOT = "bridge_data.energon"

PUBLIC = frozenset(names_of("bridge_data")[1])
"""The public names of this package."""

ELSEWHERE = {
    "bridge_data.decode.av": (
        "AVData AVDecoder AVDecoderType AVWebdatasetDecoder get_clips_uniform get_single_frames_uniform"
    ),
    "bridge_data.decode.image": "ImageDecoderType",
    "bridge_data.plan.opening": "TraversedDatasetReference",
    "bridge_data.energon.engine_names": (
        "DatasetBlendMode ExtendableDataclassMixin PinMemoryMixin ShardInfo SystemRng SystemRngState WebdatasetInfo "
        "WebdatasetSplits format_sample_detailed"
    ),
    "bridge_data.energon.jsonl_and_joined": "get_dataset_from_config",
    "bridge_data.energon.epath": "DEFAULT_PROFILE_NAME EPath",
    "bridge_data.energon.preparing": "WebdatasetPreparator prepare_filesystem_dataset",
    "bridge_data.errors": "SampleException=SampleError EmptyDatasetError=DatasetError",
    "bridge_data.lanes.lane_dataset": "SavableDataset=LaneDataset",
    "bridge_data.energon.dataset_wrappers": "BatchDataset FilterDataset LimitDataset MapDataset RepeatDataset",
    "bridge_data.loader": "BasicDataLoader=SavableDataLoader",
    "bridge_data.plugins.media.media_rule": "MediaFilterConfig=MediaRule MediaFilterStrategy",
    "bridge_data.task.hooks": "get_source_info=sources_of",
    "bridge_data.task.task_encoder": "get_stateless",
    "bridge_data.data.metadata": (
        "MAIN_FOLDER_NAME=META_FOLDER INDEX_SQLITE_FILENAME=INDEX_SQLITE INDEX_UUID_FILENAME=INDEX_UUID "
        "INFO_JSON_FILENAME=INFO_JSON INFO_YAML_FILENAME=INFO_YAML SPLIT_YAML_FILENAME=SPLIT_YAML"
    ),
}
"""The module of each name that is not in `bridge_data` itself, with its name there if that differs."""

NAMES = {
    name: f"{module}:{own or name}"
    for module, entries in ELSEWHERE.items()
    for name, _, own in (entry.partition("=") for entry in entries.split())
}
"""The same as `module:name`, by name."""

_WITHOUT_NAMES = """
av.av_init av.av_reader bracecollapse cli deprecation epathlib.rclone_config eyaml flavors.jsonl.ijsonl
flavors.jsonl.ijsonl_reader flavors.jsonl.jsonl_prepare flavors.webdataset.aggregator_pool
flavors.webdataset.field_access flavors.webdataset.indexing flavors.webdataset.itar
flavors.webdataset.itar_reader flavors.webdataset.metadata flavors.webdataset.sample_loader
flavors.webdataset.sharder flavors.webdataset.tar_patcher
flavors.webdataset.thread_local_sqlite fork_hook local_copy metadataset.join_dataset_loader module_loader
retry_stream savable state tools tools.analyze_debug transforms transforms.common
transforms.custom transforms.mappers transforms.merge typed_converter watchdog wrappers.base
wrappers.blend_dataset wrappers.buffer wrappers.concat_dataset wrappers.epochize_dataset wrappers.gc_dataset
wrappers.group_batch_dataset wrappers.iter_map_dataset wrappers.log_sample_dataset wrappers.packing_dataset
wrappers.shuffle_buffer_dataset wrappers.watchdog_dataset
"""
"""Modules of which no name is here; importing one says what to use instead."""

PATHS = {
    "av": "AVDecoder AVWebdatasetDecoder AVData get_clips_uniform get_single_frames_uniform",
    "av.av_data": "AVData",
    "av.av_decoder": "AVDecoder AVWebdatasetDecoder",
    "av.utils": "get_clips_uniform get_single_frames_uniform",
    "cache": (
        "CachePool DecodeFileStore DirectLazy FileCacheLazy FileStore FileStoreCachePool FileStoreDecoder Lazy "
        "MockLazy NoCachePool PrimaryFileStore SystemFileStore"
    ),
    "cache.base": "FileStore Lazy MockLazy CachePool FileStoreDecoder PrimaryFileStore",
    "cache.file_cache_pool": "FileCacheLazy FileStoreCachePool",
    "cache.file_store": "DecodeFileStore SystemFileStore WebdatasetFileStore JsonlFileStore",
    "cache.no_cache": "DirectLazy NoCachePool",
    "cli.main": ("main=bridge_data.cli:main prepare_media_command=bridge_data.cli.prepare_command:prepare"),
    "dataset_config": "get_dataset_from_config",
    "edataclass": "edataclass",
    "epathlib": "DEFAULT_PROFILE_NAME EPath",
    "epathlib.epath": "EPath",
    "errors": "SkipSample SampleException FatalSampleError log_exception reraise_exception",
    "flavors": (
        "AVData AVDecoder AVDecoderType BaseCoreDatasetFactory BaseWebdatasetFactory CaptioningSample "
        "CaptioningWebdataset CrudeJsonlDatasetFactory CrudeSample CrudeWebdataset DefaultCrudeJsonlDatasetFactory "
        "DefaultDecoderWebdatasetFactory DefaultGenericWebdatasetFactory EmptyDatasetError "
        "ImageClassificationSample ImageClassificationWebdataset ImageDecoderType ImageSample ImageWebdataset "
        "InterleavedSample InterleavedWebdataset JoinedWebdatasetFactory MultiChoiceVQASample PinMemoryMixin "
        "MultiChoiceVQAWebdataset OCRSample OCRWebdataset Sample SampleDecoder SavableDataset "
        "SimilarityInterleavedSample SimilarityInterleavedWebdataset StandardWebdatasetFactory TextSample "
        "TextWebdataset VidQASample VidQAWebdataset VQAOCRWebdataset VQASample VQAWebdataset"
    ),
    "flavors.base_dataset": "Sample SavableDataset BaseCoreDatasetFactory PinMemoryMixin ExtendableDataclassMixin",
    "flavors.captioning": "CaptioningSample CaptioningWebdataset",
    "flavors.crude": "CrudeSample CrudeWebdataset",
    "flavors.image": "ImageSample ImageWebdataset",
    "flavors.image_classification": "ImageClassificationSample ImageClassificationWebdataset",
    "flavors.interleaved": "InterleavedSample InterleavedWebdataset",
    "flavors.jsonl": "CrudeJsonlDatasetFactory DefaultCrudeJsonlDatasetFactory",
    "flavors.jsonl.crude_jsonl_dataset": "CrudeJsonlDatasetFactory DefaultCrudeJsonlDatasetFactory",
    "flavors.multichoice_vqa": "MultiChoiceVQASample MultiChoiceVQAWebdataset",
    "flavors.ocr": "OCRSample OCRWebdataset",
    "flavors.similarity_interleaved": "SimilarityInterleavedSample SimilarityInterleavedWebdataset",
    "flavors.text": "TextSample TextWebdataset",
    "flavors.vid_qa": "VidQASample VidQAWebdataset",
    "flavors.vqa": "VQASample VQAWebdataset",
    "flavors.vqa_and_ocr": "VQAOCRSample VQAOCRWebdataset",
    "flavors.webdataset": (
        "AVData AVDecoder AVDecoderType BaseWebdatasetFactory DefaultDecoderWebdatasetFactory "
        "DefaultGenericWebdatasetFactory EmptyDatasetError ImageDecoderType JoinedWebdatasetFactory SampleDecoder "
        "StandardWebdatasetFactory"
    ),
    "flavors.webdataset.base_webdataset": "BaseWebdatasetFactory",
    "flavors.webdataset.config": (
        "MAIN_FOLDER_NAME INDEX_SQLITE_FILENAME INDEX_UUID_FILENAME INFO_JSON_FILENAME INFO_YAML_FILENAME "
        "SPLIT_YAML_FILENAME"
    ),
    "flavors.webdataset.default_decoder_webdataset": "DefaultDecoderWebdatasetFactory",
    "flavors.webdataset.default_generic_webdataset": "DefaultGenericWebdatasetFactory",
    "flavors.webdataset.empty_dataset_error": "EmptyDatasetError",
    "flavors.webdataset.joined_webdataset": "JoinedWebdatasetFactory",
    "flavors.webdataset.prepare": "WebdatasetPreparator",
    "flavors.webdataset.sample_decoder": "ImageDecoderType AVDecoderType SampleDecoder",
    "flavors.webdataset.standard_webdataset": "StandardWebdatasetFactory",
    "flavors.webdataset.structs": "ShardInfo WebdatasetInfo WebdatasetSplits",
    "loader": "get_savable_loader get_loader",
    "media": "AVMetadata ImageMetadata",
    "media.extractor": "MediaFilterStrategy MediaFilterConfig",
    "media.filesystem_prepare": "prepare_filesystem_dataset",
    "media.metadata": "AVMetadata ImageMetadata",
    "metadataset": (
        "DatasetLoader load_dataset DatasetLoaderInterface Metadataset MetadatasetV2 prepare_metadataset "
        "traverse_metadataset"
    ),
    "metadataset.dataset_loader": "DatasetLoader",
    "metadataset.loader": "load_dataset traverse_metadataset prepare_metadataset",
    "metadataset.loader_interface": "TraversedDatasetReference DatasetLoaderInterface DatasetBlendMode",
    "metadataset.metadataset": "Metadataset",
    "metadataset.metadataset_v2": "MetadatasetV2",
    "rng": "SystemRng SystemRngState",
    "sample_utils": "format_sample_detailed",
    "savable_loader": "SavableDataLoader BasicDataLoader",
    "source_info": "SourceInfo get_source_info",
    "task_encoder": (
        "AugmentTaskEncoder basic_sample_keys batch_list batch_pad_stack batch_stack Batch cooker Cooker "
        "DefaultTaskEncoder generic_batch get_train_dataset get_val_dataset get_val_datasets stateless TaskEncoder"
    ),
    "task_encoder.base": (
        "generic_batch batch_stack batch_pad_stack batch_list stateless get_stateless Batch TaskEncoder "
        "DefaultTaskEncoder AugmentTaskEncoder"
    ),
    "task_encoder.cooking": "cooker Cooker basic_sample_keys",
    "task_encoder.loader": "get_train_dataset get_val_dataset get_val_datasets",
    "tools.checkpoint": (
        "command=bridge_data.plugins.checkpoints.checkpoint_command:checkpoint "
        "command_redist=bridge_data.plugins.checkpoints.state_commands:redist "
        "command_info=bridge_data.plugins.checkpoints.checkpoint_command:info"
    ),
    "tools.info": "command=bridge_data.cli.info_command:info",
    "tools.lint": "command=bridge_data.plugins.doctor.check_command:check",
    "tools.mount": "command=bridge_data.plugins.mount.mount_command:mount",
    "tools.prepare": "command=bridge_data.cli.prepare_command:prepare",
    "tools.prepare_media": "command=bridge_data.cli.prepare_command:prepare",
    "tools.preview": "command=bridge_data.cli.info_command:info",
    "worker": "WorkerConfig",
    "wrappers": (
        "BatchDataset FilterDataset LimitDataset MapDataset RepeatDataset SkipSample concat_pad generic_concat "
        "homogeneous_concat_mix"
    ),
    "wrappers.batch_dataset": "BatchDataset",
    "wrappers.filter_dataset": "FilterDataset",
    "wrappers.limit_dataset": "LimitDataset",
    "wrappers.map_dataset": "MapDataset",
    "wrappers.mix_batch_dataset": "generic_concat concat_pad homogeneous_concat_mix",
    "wrappers.repeat_dataset": "RepeatDataset",
    "wrappers.skip": "SkipSample",
    **dict.fromkeys(_WITHOUT_NAMES.split(), ""),
}
"""The names that each module of Energon has here; `name=module:name` for names from elsewhere."""

LEFT_OUT = {
    "BlendDataset": "sources are blended by the order: `blend` in a metadataset",
    "ConcatDataset": "sources come one after the other in validation order",
    "EpochizeDataset": "virtual_epoch_length ends an iteration",
    "GcDataset": "workers leave no garbage of Python to collect by hand",
    "GroupBatchDataset": "batch_group_criterion of the task encoder",
    "IterMapDataset": "a hook may be a generator",
    "LogSampleDataset": "each batch carries its keys, and restore_sample makes it again",
    "MixBatchDataset": "batches mix sources unless batch_group_criterion keeps them apart",
    "PackingDataset": "packing_buffer_size",
    "ShuffleBufferDataset": "shuffle_buffer_size; no buffer exists, the order itself is mixed",
    "VideoData": "AVData, which AVDecoder makes",
    "WatchdogDataset": "watchdog_timeout_seconds of get_loader",
}
"""What replaces single names here: the wrappers of which programs build data sets, and what earlier releases had."""

MODULES_LEFT_OUT = {
    "transforms": "use torchvision's transforms, or `SampleDecoder(image_size=...)`, in a hook of the task encoder",
    "tools.analyze_debug": "the order is arithmetic, and can be computed without a log",
    "rng": "random generators are seeded by the sample before each hook",
    "state": "a state is a plain dict",
    "savable": "a state is a plain dict: the position in the order, which is arithmetic",
    "savable_loader": "a state is a plain dict: `save_state_rank` of the loader",
    "fork_hook": "data sets hold no handles that a fork would have to close",
    "watchdog": "watchdog_timeout_seconds of get_loader",
    "typed_converter": "mistakes in YAML are errors that name file and line",
    "module_loader": "trusted_modules and trust_dataset_code of get_train_dataset",
    "metadataset": "load_dataset reads a metadataset, and `get_datasets` of what it returns gives its plan",
    "flavors.webdataset": "bridge_data.data reads prepared folders, bridge_data.prepare writes them",
    "flavors.jsonl": "bridge_data.data.jsonl_file reads JSONL, bridge_data.prepare.jsonl_lines writes its index",
    "av": "AVDecoder, or SampleDecoder(av_decode=...)",
    "wrappers": "the pipeline is fixed, and the hooks of the task encoder are its parts",
}
"""What to use instead of all other names of a module and of its submodules."""


def reason(path: str, name: str) -> str:
    """What to use instead of a missing name of an Energon module."""
    if name in LEFT_OUT:
        return LEFT_OUT[name]
    while path and path not in MODULES_LEFT_OUT:
        path = path.rpartition(".")[0]
    return MODULES_LEFT_OUT.get(path, "it is a part of Energon's engine, which does not exist here")


class EnergonModule(ModuleType):
    """The module of one path of Energon, whose names are looked up on first use."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{ROOT}.{path}", f"The names of `megatron.energon.{path}`, from `bridge_data`.")
        self.__spec__ = ModuleSpec(self.__name__, None, is_package=True)
        self.__path__: list[str] = []
        self._objects = dict(_entry(entry) for entry in PATHS[path].split())
        self.__all__ = list(self._objects)
        self._energon_path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if has_stand_in(self._energon_path, name):
            return stand_in(self._energon_path, name, message_of)
        if name not in {*self._objects, *NAMES, *PUBLIC}:  # Energon's modules also have names that they import
            raise missing(self._energon_path, name)
        value = _found(self._objects.get(name) or _object_of(name))
        setattr(self, name, value)
        return value


def message_of(path: str, name: str) -> str:
    """What to use instead of a name of the module `path` that is not here."""
    return f"{ROOT}.{path} has no {name}: {reason(path, name)}. See docs/energon.md"


def missing(path: str, name: str) -> Exception:
    """The error for a name missing in the module `path` (empty for the package itself), to be raised in its
    `__getattr__`."""
    where = f"{ROOT}.{path}".rstrip(".")
    if not name.startswith("_") and path:
        message = message_of(path, name)
        return ImportError(message, name=where) if _is_from_import() else AttributeError(message)
    return AttributeError(f"module {where!r} has no attribute {name!r}")


def _is_from_import() -> bool:
    """Whether a name is looked up for `from ... import`, where an ImportError passes through `hasattr`."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(ROOT):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_handle_fromlist"


def public_names() -> set[str]:
    """The names that Energon's package itself exports and this package has."""
    names = {_entry(entry)[0] for entries in PATHS.values() for entry in entries.split()}
    wrappers = {"BatchDataset", "FilterDataset", "LimitDataset", "MapDataset", "RepeatDataset"}
    return names & PUBLIC | wrappers | {"SavableDataset"}


def value_of(name: str) -> Any:
    """Our object for a name of Energon."""
    return _found(_object_of(name))


def _object_of(name: str) -> str:
    return NAMES.get(name, f"bridge_data:{name}")


def _found(where: str) -> Any:
    module, _, attribute = where.partition(":")
    return getattr(importlib.import_module(module), attribute)


def add_paths() -> None:
    """Put a module for each path into `sys.modules`; called when `bridge_data.energon` is imported."""
    for path in sorted(PATHS):  # a package before its modules
        module = EnergonModule(path)
        sys.modules[module.__name__] = module
        parent, _, last = module.__name__.rpartition(".")
        if last != "edataclass":  # as in Energon, the package has the decorator of this name, not the module
            setattr(sys.modules[parent], last, module)


def _entry(entry: str) -> tuple[str, str]:
    name, given, where = entry.partition("=")
    return name, where if given else _object_of(name)
