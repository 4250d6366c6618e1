"""Multimodal training data for Megatron and Lightning, in the Energon on-disk format.

Order is arithmetic, work is a pure function, state is a handful of integers. This module is the public surface. A name
is imported when it is first used, so that `import bridge_data` costs next to nothing, and a command that prepares data
never waits for torch.
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bridge_data.datamodule import (
        DatasetBuildContext,
        EnergonDataloader,
        EnergonDatasetBuilder,
        EnergonDatasetConfig,
        EnergonMultiModalDataModule,
        JsonlSink,
        LogSink,
        MetricsCallback,
        MetricsReporter,
        MetricsServer,
        TensorBoardSink,
        cyclic_iter,
    )
    from bridge_data.decode import SampleDecoder
    from bridge_data.encoders import (
        FamilyConfig,
        FamilyTaskEncoder,
        HFTaskEncoder,
        MultiModalSampleConfig,
        MultiModalTaskEncoder,
    )
    from bridge_data.energon import (
        BaseCoreDatasetFactory,
        BaseWebdatasetFactory,
        CaptioningWebdataset,
        CrudeJsonlDatasetFactory,
        CrudeWebdataset,
        DatasetLoader,
        DatasetLoaderInterface,
        DefaultCrudeJsonlDatasetFactory,
        DefaultDecoderWebdatasetFactory,
        DefaultGenericWebdatasetFactory,
        ImageClassificationWebdataset,
        ImageWebdataset,
        InterleavedWebdataset,
        JoinedWebdatasetFactory,
        Metadataset,
        MetadatasetV2,
        MultiChoiceVQAWebdataset,
        OCRWebdataset,
        SimilarityInterleavedWebdataset,
        StandardWebdatasetFactory,
        TextWebdataset,
        VidQAWebdataset,
        VQAOCRWebdataset,
        VQAWebdataset,
        load_dataset,
        prepare_metadataset,
        traverse_metadataset,
    )
    from bridge_data.errors import (
        BridgeDataError,
        ConfigError,
        DatasetError,
        FatalSampleError,
        ForgottenSampleError,
        IgnoreSample,
        SampleError,
        SkipSample,
        StateError,
        WorkerError,
        log_exception,
        reraise_exception,
    )
    from bridge_data.lanes.datasets import get_train_dataset, get_val_dataset, get_val_datasets
    from bridge_data.lanes.lane_dataset import LaneDataset
    from bridge_data.limits import Limits
    from bridge_data.loader import SavableDataLoader, get_loader, get_savable_loader
    from bridge_data.loader.checkpoint import load_states, save_rank_state, save_states
    from bridge_data.order.state import merge_states
    from bridge_data.plan import InMemoryDataset
    from bridge_data.prepare import ShardWriter, write
    from bridge_data.samples import (
        Batch,
        CaptioningSample,
        CrudeSample,
        ImageClassificationSample,
        ImageSample,
        InterleavedSample,
        MultiChoiceVQASample,
        OCRSample,
        Sample,
        SimilarityInterleavedSample,
        SourceInfo,
        TextSample,
        VidQASample,
        VQAOCRSample,
        VQASample,
        edataclass,
    )
    from bridge_data.samples.collation import (
        batch_list,
        batch_pad_stack,
        batch_stack,
        concat_pad,
        generic_batch,
        generic_concat,
    )
    from bridge_data.shards.media_metadata import AVMetadata, ImageMetadata
    from bridge_data.task import (
        AugmentTaskEncoder,
        Cooker,
        DefaultTaskEncoder,
        Packing,
        TaskEncoder,
        basic_sample_keys,
        cooker,
        group_by,
        homogeneous_concat_mix,
        shape_of,
        source_of,
        subflavor,
        type_of,
    )
    from bridge_data.task.packers import packing_efficiency
    from bridge_data.task.stores import (
        CachePool,
        DecodeFileStore,
        DirectLazy,
        FileCacheLazy,
        FileStore,
        FileStoreCachePool,
        FileStoreDecoder,
        JsonlFileStore,
        Lazy,
        MockLazy,
        NoCachePool,
        PrimaryFileStore,
        SystemFileStore,
        WebdatasetFileStore,
    )
    from bridge_data.task.task_encoder import stateless
    from bridge_data.topology import WorkerConfig

_NAMES_BY_MODULE = {
    "bridge_data.datamodule": (
        "DatasetBuildContext EnergonDataloader EnergonDatasetBuilder EnergonDatasetConfig "
        "EnergonMultiModalDataModule JsonlSink LogSink MetricsCallback MetricsReporter MetricsServer TensorBoardSink "
        "cyclic_iter"
    ),
    "bridge_data.decode": "SampleDecoder",
    "bridge_data.encoders": "FamilyConfig FamilyTaskEncoder HFTaskEncoder MultiModalSampleConfig MultiModalTaskEncoder",
    "bridge_data.energon": (
        "BaseCoreDatasetFactory BaseWebdatasetFactory CaptioningWebdataset CrudeJsonlDatasetFactory "
        "CrudeWebdataset DatasetLoader DatasetLoaderInterface DefaultCrudeJsonlDatasetFactory "
        "DefaultDecoderWebdatasetFactory DefaultGenericWebdatasetFactory ImageClassificationWebdataset "
        "ImageWebdataset InterleavedWebdataset JoinedWebdatasetFactory Metadataset MetadatasetV2 "
        "MultiChoiceVQAWebdataset OCRWebdataset SimilarityInterleavedWebdataset StandardWebdatasetFactory "
        "TextWebdataset VQAOCRWebdataset VQAWebdataset VidQAWebdataset load_dataset prepare_metadataset "
        "traverse_metadataset"
    ),
    "bridge_data.errors": (
        "BridgeDataError ConfigError DatasetError FatalSampleError ForgottenSampleError IgnoreSample SampleError "
        "SkipSample StateError WorkerError log_exception reraise_exception"
    ),
    "bridge_data.lanes.datasets": "get_train_dataset get_val_dataset get_val_datasets",
    "bridge_data.limits": "Limits",
    "bridge_data.lanes.lane_dataset": "LaneDataset",
    "bridge_data.loader": "SavableDataLoader get_loader get_savable_loader",
    "bridge_data.loader.checkpoint": "load_states save_rank_state save_states",
    "bridge_data.order.state": "merge_states",
    "bridge_data.plan": "InMemoryDataset",
    "bridge_data.prepare": "ShardWriter write",
    "bridge_data.samples": (
        "Batch CaptioningSample CrudeSample ImageClassificationSample ImageSample InterleavedSample "
        "MultiChoiceVQASample OCRSample Sample SimilarityInterleavedSample SourceInfo TextSample "
        "VQAOCRSample VQASample VidQASample edataclass"
    ),
    "bridge_data.samples.collation": "batch_list batch_pad_stack batch_stack concat_pad generic_batch generic_concat",
    "bridge_data.shards.media_metadata": "AVMetadata ImageMetadata",
    "bridge_data.task": (
        "AugmentTaskEncoder Cooker DefaultTaskEncoder Packing TaskEncoder basic_sample_keys cooker group_by "
        "homogeneous_concat_mix shape_of source_of subflavor type_of"
    ),
    "bridge_data.task.packers": "packing_efficiency",
    "bridge_data.task.task_encoder": "stateless",
    "bridge_data.task.stores": (
        "CachePool DecodeFileStore DirectLazy FileCacheLazy FileStore FileStoreCachePool FileStoreDecoder "
        "JsonlFileStore Lazy MockLazy NoCachePool PrimaryFileStore SystemFileStore WebdatasetFileStore"
    ),
    "bridge_data.topology": "WorkerConfig",
}
"""The module of each public name: the same as above, for Python, as that is for those who read and check types."""

__all__ = [
    "AVMetadata",
    "AugmentTaskEncoder",
    "BaseCoreDatasetFactory",
    "BaseWebdatasetFactory",
    "Batch",
    "BridgeDataError",
    "CachePool",
    "CaptioningSample",
    "CaptioningWebdataset",
    "ConfigError",
    "Cooker",
    "CrudeJsonlDatasetFactory",
    "CrudeSample",
    "CrudeWebdataset",
    "DatasetBuildContext",
    "DatasetError",
    "DatasetLoader",
    "DatasetLoaderInterface",
    "DecodeFileStore",
    "DefaultCrudeJsonlDatasetFactory",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "DefaultTaskEncoder",
    "DirectLazy",
    "EnergonDataloader",
    "EnergonDatasetBuilder",
    "EnergonDatasetConfig",
    "EnergonMultiModalDataModule",
    "FamilyConfig",
    "FamilyTaskEncoder",
    "FatalSampleError",
    "FileCacheLazy",
    "FileStore",
    "FileStoreCachePool",
    "FileStoreDecoder",
    "ForgottenSampleError",
    "HFTaskEncoder",
    "IgnoreSample",
    "ImageClassificationSample",
    "ImageClassificationWebdataset",
    "ImageMetadata",
    "ImageSample",
    "ImageWebdataset",
    "InMemoryDataset",
    "InterleavedSample",
    "InterleavedWebdataset",
    "JoinedWebdatasetFactory",
    "JsonlFileStore",
    "JsonlSink",
    "LaneDataset",
    "Lazy",
    "Limits",
    "LogSink",
    "Metadataset",
    "MetadatasetV2",
    "MetricsCallback",
    "MetricsReporter",
    "MetricsServer",
    "MockLazy",
    "MultiChoiceVQASample",
    "MultiChoiceVQAWebdataset",
    "MultiModalSampleConfig",
    "MultiModalTaskEncoder",
    "NoCachePool",
    "OCRSample",
    "OCRWebdataset",
    "Packing",
    "PrimaryFileStore",
    "Sample",
    "SampleDecoder",
    "SampleError",
    "SavableDataLoader",
    "ShardWriter",
    "SimilarityInterleavedSample",
    "SimilarityInterleavedWebdataset",
    "SkipSample",
    "SourceInfo",
    "StandardWebdatasetFactory",
    "StateError",
    "SystemFileStore",
    "TaskEncoder",
    "TensorBoardSink",
    "TextSample",
    "TextWebdataset",
    "VQAOCRSample",
    "VQAOCRWebdataset",
    "VQASample",
    "VQAWebdataset",
    "VidQASample",
    "VidQAWebdataset",
    "WebdatasetFileStore",
    "WorkerConfig",
    "WorkerError",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "concat_pad",
    "cooker",
    "cyclic_iter",
    "edataclass",
    "generic_batch",
    "generic_concat",
    "get_loader",
    "get_savable_loader",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
    "group_by",
    "homogeneous_concat_mix",
    "load_dataset",
    "load_states",
    "log_exception",
    "merge_states",
    "packing_efficiency",
    "prepare_metadataset",
    "reraise_exception",
    "save_rank_state",
    "save_states",
    "shape_of",
    "source_of",
    "stateless",
    "subflavor",
    "traverse_metadataset",
    "type_of",
    "write",
]


if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, _NAMES_BY_MODULE)


def __dir__() -> list[str]:
    return __all__
