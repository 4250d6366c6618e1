"""The DataModule: training and validation loaders of one rank, for Megatron and for Lightning.

Lightning takes seconds to import, and only the DataModule itself needs it: names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.datamodule.batch_schedule import BatchSchedule
    from bridge_data.datamodule.bridge import (
        DatasetBuildContext,
        EnergonDatasetBuilder,
        EnergonDatasetConfig,
        TaskEncoderConfig,
    )
    from bridge_data.datamodule.lightning_trainer import MetricsCallback
    from bridge_data.datamodule.metric_sinks import (
        JsonlSink,
        LogSink,
        MetricsReporter,
        MetricsServer,
        TensorBoardSink,
    )
    from bridge_data.datamodule.module import EnergonMultiModalDataModule
    from bridge_data.datamodule.trainer_loaders import EnergonDataloader, ValidationDataloader, cyclic_iter

_NAMES_BY_MODULE = {
    "bridge_data.datamodule.batch_schedule": "BatchSchedule",
    "bridge_data.datamodule.bridge": "DatasetBuildContext EnergonDatasetBuilder EnergonDatasetConfig TaskEncoderConfig",
    "bridge_data.datamodule.lightning_trainer": "MetricsCallback",
    "bridge_data.datamodule.metric_sinks": "JsonlSink LogSink MetricsReporter MetricsServer TensorBoardSink",
    "bridge_data.datamodule.module": "EnergonMultiModalDataModule",
    "bridge_data.datamodule.trainer_loaders": "EnergonDataloader ValidationDataloader cyclic_iter",
}
"""The public names of each module, which is imported when one of them is first used. Type checkers and editors read the
imports above instead: both must name the same."""

__all__ = [
    "BatchSchedule",
    "DatasetBuildContext",
    "EnergonDataloader",
    "EnergonDatasetBuilder",
    "EnergonDatasetConfig",
    "EnergonMultiModalDataModule",
    "JsonlSink",
    "LogSink",
    "MetricsCallback",
    "MetricsReporter",
    "MetricsServer",
    "TaskEncoderConfig",
    "TensorBoardSink",
    "ValidationDataloader",
    "cyclic_iter",
]

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, _NAMES_BY_MODULE)
