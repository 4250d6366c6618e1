"""Metrics of the data in a Lightning `Trainer`: scalars `data/NAME` in each of its loggers (TensorBoard, CSV, W&B)."""

import importlib
from collections.abc import Sequence
from typing import Any

from bridge_data.datamodule.lightning_trainer import LIGHTNING, PACKAGES
from bridge_data.errors import ConfigError
from bridge_data.plugins.metrics.metric_sinks import MetricsReport, MetricsReporter, MetricsSink

_Base: Any = (LIGHTNING or importlib.import_module(PACKAGES[0])).Callback


class MetricsCallback(_Base):  # type: ignore[misc]  # lightning is not followed
    """Logs the metrics of all data-parallel ranks together every `every_steps` steps of the optimizer; if None, as
    often as the trainer logs (`log_every_n_steps`). `sinks` get them too.

    `trainer.train_dataloader` must be a loader of this package.
    """

    def __init__(self, every_steps: int | None = None, sinks: Sequence[MetricsSink] = ()) -> None:
        self._every_steps, self._sinks = every_steps, sinks
        self._reporter: MetricsReporter | None = None
        self._last_step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Count from the step that the trainer is at.

        Raises:
            ConfigError: if its loader has no metrics.
        """
        loader = trainer.train_dataloader
        if not hasattr(loader, "metrics"):
            raise ConfigError(
                f"MetricsCallback: the trainer's loader is a {type(loader).__name__}, which has no metrics; give the "
                "trainer the DataModule of this package, or a loader of get_savable_loader"
            )
        every_steps = trainer.log_every_n_steps if self._every_steps is None else self._every_steps
        self._reporter = MetricsReporter(loader, [_LoggersSink(trainer), *self._sinks], every_steps=max(1, every_steps))
        self._last_step = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report, if a step has just ended and a report is due."""
        if self._reporter is not None and trainer.global_step != self._last_step:
            self._last_step = trainer.global_step
            self._reporter.step(self._last_step)


class _LoggersSink:
    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def write(self, report: MetricsReport) -> None:
        values = {f"data/{name}": value for name, value in report.values().items()}
        for log in self._trainer.loggers:
            log.log_metrics(values, step=report.step - 1)  # as what Lightning logs, which counts steps from 0

    def close(self) -> None:
        """Does nothing: the loggers are the trainer's."""
