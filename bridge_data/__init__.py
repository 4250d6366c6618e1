"""Multimodal training data for Megatron and Lightning, in the Energon on-disk format.

Order is arithmetic, work is a pure function, state is a handful of integers. This module is the public surface; the
names that need Lightning or Megatron are imported when they are first used, so that `import bridge_data` stays quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bridge_data.dataset import LaneDataset, get_train_dataset, get_val_dataset
from bridge_data.decode import SampleDecoder
from bridge_data.errors import (
    BridgeDataError,
    ConfigError,
    DatasetError,
    FatalSampleError,
    IgnoreSample,
    SampleError,
    SkipSample,
    StateError,
    WorkerError,
    log_exception,
    reraise_exception,
)
from bridge_data.loader import SavableDataLoader, get_loader, get_savable_loader
from bridge_data.samples import (
    Batch,
    CaptioningSample,
    CrudeSample,
    ImageSample,
    Sample,
    SourceInfo,
    TextSample,
    VQASample,
    batch_list,
    batch_pad_stack,
    batch_stack,
    edataclass,
    generic_batch,
)
from bridge_data.state import merge_states
from bridge_data.task import Cooker, DefaultTaskEncoder, TaskEncoder, basic_sample_keys, stateless
from bridge_data.worker import WorkerConfig

if TYPE_CHECKING:
    from bridge_data.checkpoint import load_states, save_rank_state, save_states
    from bridge_data.datamodule import EnergonDataloader, EnergonMultiModalDataModule, cyclic_iter
    from bridge_data.multimodal import MultiModalSampleConfig, MultiModalTaskEncoder

_LAZY = {
    "EnergonDataloader": "bridge_data.datamodule",
    "EnergonMultiModalDataModule": "bridge_data.datamodule",
    "MultiModalSampleConfig": "bridge_data.multimodal",
    "MultiModalTaskEncoder": "bridge_data.multimodal",
    "cyclic_iter": "bridge_data.datamodule",
    "load_states": "bridge_data.checkpoint",
    "save_rank_state": "bridge_data.checkpoint",
    "save_states": "bridge_data.checkpoint",
}

__all__ = [
    "Batch",
    "BridgeDataError",
    "CaptioningSample",
    "ConfigError",
    "Cooker",
    "CrudeSample",
    "DatasetError",
    "DefaultTaskEncoder",
    "EnergonDataloader",
    "EnergonMultiModalDataModule",
    "FatalSampleError",
    "IgnoreSample",
    "ImageSample",
    "LaneDataset",
    "MultiModalSampleConfig",
    "MultiModalTaskEncoder",
    "Sample",
    "SampleDecoder",
    "SampleError",
    "SavableDataLoader",
    "SkipSample",
    "SourceInfo",
    "StateError",
    "TaskEncoder",
    "TextSample",
    "VQASample",
    "WorkerConfig",
    "WorkerError",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "cyclic_iter",
    "edataclass",
    "generic_batch",
    "get_loader",
    "get_savable_loader",
    "get_train_dataset",
    "get_val_dataset",
    "load_states",
    "log_exception",
    "merge_states",
    "reraise_exception",
    "save_rank_state",
    "save_states",
    "stateless",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'bridge_data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
