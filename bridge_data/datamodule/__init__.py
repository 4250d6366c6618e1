"""The DataModule: training and validation loaders of one rank, for Megatron and for Lightning.

Lightning takes seconds to import, and only the DataModule itself needs it: names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.datamodule.batch_schedule import BatchSchedule as BatchSchedule
    from bridge_data.datamodule.bridge import DatasetBuildContext as DatasetBuildContext
    from bridge_data.datamodule.bridge import EnergonDatasetBuilder as EnergonDatasetBuilder
    from bridge_data.datamodule.bridge import EnergonDatasetConfig as EnergonDatasetConfig
    from bridge_data.datamodule.bridge import TaskEncoderConfig as TaskEncoderConfig
    from bridge_data.datamodule.lightning_trainer import MetricsCallback as MetricsCallback
    from bridge_data.datamodule.metric_sinks import JsonlSink as JsonlSink
    from bridge_data.datamodule.metric_sinks import LogSink as LogSink
    from bridge_data.datamodule.metric_sinks import MetricsReporter as MetricsReporter
    from bridge_data.datamodule.metric_sinks import MetricsServer as MetricsServer
    from bridge_data.datamodule.metric_sinks import TensorBoardSink as TensorBoardSink
    from bridge_data.datamodule.module import EnergonMultiModalDataModule as EnergonMultiModalDataModule
    from bridge_data.datamodule.trainer_loaders import EnergonDataloader as EnergonDataloader
    from bridge_data.datamodule.trainer_loaders import ValidationDataloader as ValidationDataloader
    from bridge_data.datamodule.trainer_loaders import cyclic_iter as cyclic_iter

_find, __all__ = names_of(__name__)
if not TYPE_CHECKING:
    __getattr__ = _find
