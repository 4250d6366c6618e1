"""Data in a Lightning `Trainer`: its settings, its progress, and the callback that logs metrics.

Enters: the trainer and the batch sizes of the DataModule; the trainer's steps. Leaves: the number of batches it has
trained on, and of batches it overfits; scalars `data/NAME` in each of its loggers (TensorBoard, CSV, W&B).
Guarantee: a trainer whose steps are not those of the DataModule is refused.
"""

import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any

from lightning.pytorch.callbacks import Callback

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.datamodule.metric_sinks import MetricsReport, MetricsReporter, MetricsSink
from bridge_data.datamodule.sharing import IdleDataloader
from bridge_data.datamodule.trainer_loaders import EnergonDataloader
from bridge_data.errors import ConfigError, StateError


def check_steps(
    trainer: Any, schedule: BatchSchedule, num_micro_batches: int, virtual_epoch_length: int, balanced: bool
) -> None:
    """Check that the trainer takes `num_micro_batches` of a rank per step; if `balanced`, also that no epoch of the
    trainer's own length ends within a step, where balanced ranks have no position.

    Raises:
        ConfigError: if it takes another number, or an epoch ends there.
    """
    if schedule.rampup_batch_size is not None:
        raise ConfigError(
            f"rampup_batch_size={list(schedule.rampup_batch_size)}: Lightning takes the same number of "
            "micro-batches for every step; leave it out, or train under Megatron"
        )
    if trainer.accumulate_grad_batches != num_micro_batches:
        raise ConfigError(
            f"global_batch_size={schedule.global_batch_size} means {num_micro_batches} micro-batches of a rank in a "
            f"step, the trainer takes {trainer.accumulate_grad_batches}; set "
            f"Trainer(accumulate_grad_batches={num_micro_batches}), or another global_batch_size"
        )
    length = _limited(trainer.limit_train_batches, virtual_epoch_length)
    if length is None and trainer.max_steps == -1 and (trainer.max_epochs or -1) > 0:
        warnings.warn(
            f"Trainer(max_epochs={trainer.max_epochs}) never ends: the training data is endless, so its first epoch "
            "is too. Set virtual_epoch_length of the DataModule or limit_train_batches of the trainer, or train for "
            "max_steps",
            stacklevel=4,
        )
    if length is None or length % num_micro_batches == 0:
        return
    if balanced and length != virtual_epoch_length:
        raise ConfigError(
            f"limit_train_batches={trainer.limit_train_batches} ends an epoch within a step of {num_micro_batches} "
            "micro-batches, which balanced ranks draw together, so some would come again in the next epoch; make it a "
            f"multiple of {num_micro_batches}, or leave balance out"
        )
    if not trainer.fast_dev_run:
        warnings.warn(
            f"an epoch of {length} batches (limit_train_batches={trainer.limit_train_batches}, virtual_epoch_length="
            f"{virtual_epoch_length}) ends within a step of {num_micro_batches} micro-batches: Lightning takes that "
            "step with fewer samples than global_batch_size. Make it a multiple",
            stacklevel=4,
        )


def check_new(trainer: Any, data_module: str) -> None:
    """Check that a run without a loaded position of the data has no loaded model; `data_module` names the class.

    Raises:
        StateError: if the trainer has resumed from a checkpoint.
    """
    if trainer.ckpt_path is not None and trainer.global_step:
        raise StateError(
            f"{trainer.ckpt_path} has no state of the data under {data_module!r}, so the data would start over at step "
            f"{trainer.global_step}. It was saved without this DataModule; to continue from its weights, load them "
            "into the model and fit without ckpt_path"
        )


def num_overfitted(trainer: Any, virtual_epoch_length: int) -> int | None:
    """The batches of a rank that the trainer repeats in every epoch (`overfit_batches`); None if it repeats none."""
    if not trainer.overfit_batches:
        return None
    return _limited(trainer.overfit_batches, virtual_epoch_length)


def check_overfitted(wanted: int | None, made_for: int | None) -> None:
    """Check that the trainer wants as many repeated batches as the training loader was `made_for`.

    Raises:
        ConfigError: if it is not.
    """
    if wanted != made_for:
        raise ConfigError(
            f"Trainer(overfit_batches=...) repeats {wanted or 'no'} batches, the training loader of this DataModule "
            f"was made to repeat {made_for or 'none'}; make another DataModule"
        )


def num_trained(trainer: Any) -> int:
    """The batches that the trainer has trained on, without a failed one."""
    return int(trainer.fit_loop.epoch_loop.batch_progress.total.processed)


def num_in_step(trainer: Any, num_micro_batches: int) -> int:
    """The batches that the trainer has trained on since its last step; the last batch of an epoch completes one."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    return 0 if _epoch_is_over(progress) else int(progress.current.processed) % num_micro_batches


def num_in_epoch(trainer: Any, num_micro_batches: int) -> int:
    """The batches of a rank in the whole steps of the trainer's epoch."""
    current = trainer.fit_loop.epoch_loop.batch_progress.current
    return int(current.processed) - num_in_step(trainer, num_micro_batches)


def follow(
    trainer: Any,
    loader: EnergonDataloader | IdleDataloader,
    loaded_in_epoch: int | None,
    world_size: int,
    num_micro_batches: int,
) -> None:
    """Report to the loader how many batches the trainer has trained on, and how many of them belong to an incomplete
    step. After a restore, first convert the trainer's own numbers; `loaded_in_epoch` is then the number of
    micro-batches of all ranks in its epoch."""
    if loaded_in_epoch is not None:
        _set_progress(trainer, loader.first_micro_batch, loaded_in_epoch, world_size, num_micro_batches)
    if isinstance(loader, EnergonDataloader):
        loader.follow(
            functools.partial(num_trained, trainer), functools.partial(num_in_step, trainer, num_micro_batches)
        )


def _set_progress(trainer: Any, total: int, in_epoch: int, world_size: int, num_micro_batches: int) -> None:
    """Continue counting from `total` batches of all ranks, `in_epoch` of them in this epoch. The numbers in the
    checkpoint are those of one rank of the run that saved it, maybe within a step."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    total, in_epoch = total // world_size, in_epoch // world_size
    if not _epoch_is_over(progress):
        in_epoch -= in_epoch % num_micro_batches
    for counts, number in ((progress.total, total), (progress.current, in_epoch)):
        counts.increment_by(number - counts.processed)  # `ready` is one more if training has failed on a batch


def _epoch_is_over(progress: Any) -> bool:
    """Whether the last batch of an epoch has been trained on, not only fetched."""
    return bool(progress.is_last_batch and progress.current.processed == progress.current.ready)


def is_fitting(trainer: Any) -> bool:
    """Whether the trainer trains, so that loading a checkpoint sets the position of the data."""
    return bool(trainer.state.fn == "fit")


def _limited(limit: int | float, virtual_epoch_length: int) -> int | None:
    """The batches of an epoch under Lightning's `limit`, a number or a fraction; None if endless."""
    length = virtual_epoch_length or math.inf
    batches = min(limit, length) if isinstance(limit, int) else limit * length
    return None if batches == math.inf else int(batches)


class MetricsCallback(Callback):  # type: ignore[misc]  # lightning is not followed
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
            log.log_metrics(values, step=report.step)

    def close(self) -> None:
        """Does nothing: the loggers are the trainer's."""
