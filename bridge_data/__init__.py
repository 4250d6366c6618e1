"""Multimodal training data for Megatron and Lightning, in the Energon on-disk format. This module has the public names.

>>> from bridge_data import InMemoryDataset, TextSample, WorkerConfig, get_loader, get_train_dataset
>>> data = InMemoryDataset([TextSample(__key__=str(number), text="text") for number in range(100)])
>>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
>>> shuffling = {"shuffle_buffer_size": 100, "max_samples_per_sequence": None}
>>> loader = get_loader(get_train_dataset(data, worker_config=config, batch_size=4, **shuffling))
>>> batch = next(iter(loader))
>>> len(batch.__key__)
4

Names are imported on first use: `import bridge_data` takes a few milliseconds, and a command that prepares data never
imports torch.
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bridge_data.datamodule import DatasetBuildContext as DatasetBuildContext
    from bridge_data.datamodule import EnergonDataloader as EnergonDataloader
    from bridge_data.datamodule import EnergonDatasetBuilder as EnergonDatasetBuilder
    from bridge_data.datamodule import EnergonDatasetConfig as EnergonDatasetConfig
    from bridge_data.datamodule import EnergonMultiModalDataModule as EnergonMultiModalDataModule
    from bridge_data.datamodule import cyclic_iter as cyclic_iter
    from bridge_data.decode import SampleDecoder as SampleDecoder
    from bridge_data.decode.media_metadata import AVMetadata as AVMetadata
    from bridge_data.decode.media_metadata import ImageMetadata as ImageMetadata
    from bridge_data.encoders import FamilyConfig as FamilyConfig
    from bridge_data.encoders import FamilyTaskEncoder as FamilyTaskEncoder
    from bridge_data.encoders import HFTaskEncoder as HFTaskEncoder
    from bridge_data.encoders import MultiModalSampleConfig as MultiModalSampleConfig
    from bridge_data.encoders import MultiModalTaskEncoder as MultiModalTaskEncoder
    from bridge_data.energon import BaseCoreDatasetFactory as BaseCoreDatasetFactory
    from bridge_data.energon import BaseWebdatasetFactory as BaseWebdatasetFactory
    from bridge_data.energon import CaptioningWebdataset as CaptioningWebdataset
    from bridge_data.energon import CrudeJsonlDatasetFactory as CrudeJsonlDatasetFactory
    from bridge_data.energon import CrudeWebdataset as CrudeWebdataset
    from bridge_data.energon import DatasetLoader as DatasetLoader
    from bridge_data.energon import DatasetLoaderInterface as DatasetLoaderInterface
    from bridge_data.energon import DefaultCrudeJsonlDatasetFactory as DefaultCrudeJsonlDatasetFactory
    from bridge_data.energon import DefaultDecoderWebdatasetFactory as DefaultDecoderWebdatasetFactory
    from bridge_data.energon import DefaultGenericWebdatasetFactory as DefaultGenericWebdatasetFactory
    from bridge_data.energon import ImageClassificationWebdataset as ImageClassificationWebdataset
    from bridge_data.energon import ImageWebdataset as ImageWebdataset
    from bridge_data.energon import InterleavedWebdataset as InterleavedWebdataset
    from bridge_data.energon import JoinedWebdatasetFactory as JoinedWebdatasetFactory
    from bridge_data.energon import Metadataset as Metadataset
    from bridge_data.energon import MetadatasetV2 as MetadatasetV2
    from bridge_data.energon import MultiChoiceVQAWebdataset as MultiChoiceVQAWebdataset
    from bridge_data.energon import OCRWebdataset as OCRWebdataset
    from bridge_data.energon import SimilarityInterleavedWebdataset as SimilarityInterleavedWebdataset
    from bridge_data.energon import StandardWebdatasetFactory as StandardWebdatasetFactory
    from bridge_data.energon import TextWebdataset as TextWebdataset
    from bridge_data.energon import VidQAWebdataset as VidQAWebdataset
    from bridge_data.energon import VQAOCRWebdataset as VQAOCRWebdataset
    from bridge_data.energon import VQAWebdataset as VQAWebdataset
    from bridge_data.energon import load_dataset as load_dataset
    from bridge_data.energon import prepare_metadataset as prepare_metadataset
    from bridge_data.energon import traverse_metadataset as traverse_metadataset
    from bridge_data.errors import BridgeDataError as BridgeDataError
    from bridge_data.errors import ConfigError as ConfigError
    from bridge_data.errors import DatasetError as DatasetError
    from bridge_data.errors import FatalSampleError as FatalSampleError
    from bridge_data.errors import ForgottenSampleError as ForgottenSampleError
    from bridge_data.errors import IgnoreSample as IgnoreSample
    from bridge_data.errors import SampleError as SampleError
    from bridge_data.errors import SkipSample as SkipSample
    from bridge_data.errors import StateError as StateError
    from bridge_data.errors import WorkerError as WorkerError
    from bridge_data.errors import log_exception as log_exception
    from bridge_data.errors import reraise_exception as reraise_exception
    from bridge_data.lanes.datasets import get_train_dataset as get_train_dataset
    from bridge_data.lanes.datasets import get_val_dataset as get_val_dataset
    from bridge_data.lanes.datasets import get_val_datasets as get_val_datasets
    from bridge_data.lanes.lane_dataset import LaneDataset as LaneDataset
    from bridge_data.limits import Limits as Limits
    from bridge_data.loader import SavableDataLoader as SavableDataLoader
    from bridge_data.loader import get_loader as get_loader
    from bridge_data.loader import get_savable_loader as get_savable_loader
    from bridge_data.loader.checkpoint import load_states as load_states
    from bridge_data.loader.checkpoint import save_rank_state as save_rank_state
    from bridge_data.loader.checkpoint import save_states as save_states
    from bridge_data.order.state import merge_states as merge_states
    from bridge_data.plan import InMemoryDataset as InMemoryDataset
    from bridge_data.plugins.caches.cache_pool import FileCacheLazy as FileCacheLazy
    from bridge_data.plugins.caches.cache_pool import FileStoreCachePool as FileStoreCachePool
    from bridge_data.plugins.metrics.lightning_callback import MetricsCallback as MetricsCallback
    from bridge_data.plugins.metrics.metric_services import MetricsServer as MetricsServer
    from bridge_data.plugins.metrics.metric_services import TensorBoardSink as TensorBoardSink
    from bridge_data.plugins.metrics.metric_sinks import JsonlSink as JsonlSink
    from bridge_data.plugins.metrics.metric_sinks import LogSink as LogSink
    from bridge_data.plugins.metrics.metric_sinks import MetricsReporter as MetricsReporter
    from bridge_data.plugins.ray.ray_workers import RayWorkers as RayWorkers
    from bridge_data.prepare import ShardWriter as ShardWriter
    from bridge_data.prepare import write as write
    from bridge_data.run_options import Memo as Memo
    from bridge_data.samples import Batch as Batch
    from bridge_data.samples import CaptioningSample as CaptioningSample
    from bridge_data.samples import CrudeSample as CrudeSample
    from bridge_data.samples import ImageClassificationSample as ImageClassificationSample
    from bridge_data.samples import ImageSample as ImageSample
    from bridge_data.samples import InterleavedSample as InterleavedSample
    from bridge_data.samples import MultiChoiceVQASample as MultiChoiceVQASample
    from bridge_data.samples import OCRSample as OCRSample
    from bridge_data.samples import Sample as Sample
    from bridge_data.samples import SimilarityInterleavedSample as SimilarityInterleavedSample
    from bridge_data.samples import SourceInfo as SourceInfo
    from bridge_data.samples import TextSample as TextSample
    from bridge_data.samples import VidQASample as VidQASample
    from bridge_data.samples import VQAOCRSample as VQAOCRSample
    from bridge_data.samples import VQASample as VQASample
    from bridge_data.samples import edataclass as edataclass
    from bridge_data.samples.collation import batch_list as batch_list
    from bridge_data.samples.collation import batch_pad_stack as batch_pad_stack
    from bridge_data.samples.collation import batch_stack as batch_stack
    from bridge_data.samples.collation import concat_pad as concat_pad
    from bridge_data.samples.collation import generic_batch as generic_batch
    from bridge_data.samples.collation import generic_concat as generic_concat
    from bridge_data.task import AugmentTaskEncoder as AugmentTaskEncoder
    from bridge_data.task import Cooker as Cooker
    from bridge_data.task import DefaultTaskEncoder as DefaultTaskEncoder
    from bridge_data.task import Packing as Packing
    from bridge_data.task import TaskEncoder as TaskEncoder
    from bridge_data.task import basic_sample_keys as basic_sample_keys
    from bridge_data.task import cooker as cooker
    from bridge_data.task import group_by as group_by
    from bridge_data.task import homogeneous_concat_mix as homogeneous_concat_mix
    from bridge_data.task import shape_of as shape_of
    from bridge_data.task import source_of as source_of
    from bridge_data.task import subflavor as subflavor
    from bridge_data.task import type_of as type_of
    from bridge_data.task.packers import packing_efficiency as packing_efficiency
    from bridge_data.task.stores import CachePool as CachePool
    from bridge_data.task.stores import DecodeFileStore as DecodeFileStore
    from bridge_data.task.stores import DirectLazy as DirectLazy
    from bridge_data.task.stores import FileStore as FileStore
    from bridge_data.task.stores import FileStoreDecoder as FileStoreDecoder
    from bridge_data.task.stores import JsonlFileStore as JsonlFileStore
    from bridge_data.task.stores import Lazy as Lazy
    from bridge_data.task.stores import MockLazy as MockLazy
    from bridge_data.task.stores import NoCachePool as NoCachePool
    from bridge_data.task.stores import PrimaryFileStore as PrimaryFileStore
    from bridge_data.task.stores import SystemFileStore as SystemFileStore
    from bridge_data.task.stores import WebdatasetFileStore as WebdatasetFileStore
    from bridge_data.task.task_encoder import stateless as stateless
    from bridge_data.topology import WorkerConfig as WorkerConfig

_find, __all__ = names_of(__name__)
if not TYPE_CHECKING:
    __getattr__ = _find


def __dir__() -> list[str]:
    return __all__
