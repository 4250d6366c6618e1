"""The DataModule: training and validation loaders of one rank, for Megatron and for Lightning."""

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.datamodule.dataset_builder import DatasetBuildContext, EnergonDatasetBuilder
from bridge_data.datamodule.dataset_config import EnergonDatasetConfig, TaskEncoderConfig
from bridge_data.datamodule.module import EnergonMultiModalDataModule
from bridge_data.datamodule.training import EnergonDataloader, cyclic_iter
from bridge_data.datamodule.validation import ValidationDataloader

__all__ = [
    "BatchSchedule",
    "DatasetBuildContext",
    "EnergonDataloader",
    "EnergonDatasetBuilder",
    "EnergonDatasetConfig",
    "EnergonMultiModalDataModule",
    "TaskEncoderConfig",
    "ValidationDataloader",
    "cyclic_iter",
]
