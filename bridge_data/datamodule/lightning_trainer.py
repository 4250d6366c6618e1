"""Data in a Lightning `Trainer`: its settings, and its progress.

Reads the trainer and the batch sizes of the DataModule; the trainer's steps. Returns the number of batches it has
trained on, and of batches it overfits. Raises `ConfigError` for a trainer whose steps are not those of the DataModule,
or which never ends though it is told to. Without Lightning, which many images for Megatron lack, there is no trainer,
and the DataModule is a plain class.
"""

import dataclasses
import functools
import importlib
import math
import sys
import warnings
from types import ModuleType
from typing import Any

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.datamodule.trainer_loaders import EnergonDataloader
from bridge_data.errors import ConfigError, StateError

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The two packages in which Lightning is published. Each takes only its own classes."""


def _find_package() -> ModuleType | None:
    """The one of `PACKAGES` that the program has imported already, else the first that can be; None if there is none.
    Warns of one that is installed, but broken."""
    for name in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            if error.name != (package := name.partition(".")[0]):  # it is there, but something that it needs is not
                told = f"{package} is installed, but cannot be imported ({error}): no Trainer of it can be used"
                warnings.warn(told, stacklevel=2)
    return None


LIGHTNING = _find_package()
"""The package of Lightning whose classes this process takes; None if it has none."""


def check_package(trainer: Any) -> None:
    """Check that a trainer is of the package whose class the DataModule has as a base.

    Raises:
        ConfigError: if it is of the other one, which would take no hook of the DataModule.
    """
    ours = None if LIGHTNING is None else LIGHTNING.__name__
    packages = {kind.__module__.rpartition(".trainer.")[0] for kind in type(trainer).__mro__}
    for theirs in packages.intersection(PACKAGES) - {ours}:
        raise ConfigError(
            f"the Trainer is of {theirs}, the DataModule of {ours}, which was imported first: their classes do not "
            f"mix. Import {theirs} before bridge_data, or write `import {ours} as pl` everywhere"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DataEpoch:
    """What an iteration of the training loader is on this rank."""

    length: int | None
    """Its batches, if they are known before it is read; None also if it does not end."""
    is_pass: bool
    """Whether it ends with a pass through data that end."""
    num_batches: int
    """The batches of one pass through the data, maybe about."""


def check_trainer(
    trainer: Any, schedule: BatchSchedule, num_micro_batches: int, epoch: DataEpoch, *, balanced: bool
) -> None:
    """Check what the trainer is set to: that it takes `num_micro_batches` of a rank per step, and that it ends. If
    `balanced`, also that no epoch of the trainer's own length ends within a step, where balanced ranks have no
    position.

    Raises:
        ConfigError: if it takes another number, an epoch ends there, its epochs never end, or a limit is a fraction
            of an unknown length.
    """
    check_callbacks(trainer)
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
    _check_fractions(trainer, epoch)
    length = _limited(trainer.limit_train_batches, epoch.length)
    if length is None and not epoch.is_pass:
        _check_endless(trainer, epoch)
    if length is not None:
        _check_whole_steps(trainer, num_micro_batches, epoch, length, balanced=balanced)


def _check_fractions(trainer: Any, epoch: DataEpoch) -> None:
    """Check limits that are parts of an epoch: fractions of one whose length Lightning knows, and at least a batch."""
    for name in ("overfit_batches", "limit_train_batches", "val_check_interval"):
        value = getattr(trainer, name, None)
        if not isinstance(value, float) or value in (0.0, 1.0):
            continue
        if epoch.is_pass or epoch.length is None:
            number = max(1, int(value * epoch.num_batches))
            raise ConfigError(
                f"Trainer({name}={value}): Lightning knows no length of an epoch, of which that is a fraction. Set "
                f"{name}={number}, or virtual_epoch_length={epoch.num_batches} of the DataModule: one pass through the "
                "data has about so many batches of a rank"
            )
        if name == "overfit_batches" and int(value * epoch.length) == 0:
            raise ConfigError(f"Trainer({name}={value}): of an epoch of {epoch.length} batches that is none; set 1")
    interval, length = trainer.val_check_interval, epoch.length if epoch.is_pass else None
    if isinstance(interval, int) and length is not None and interval > length and trainer.check_val_every_n_epoch:
        raise ConfigError(
            f"Trainer(val_check_interval={interval}): an epoch has {length} batches, so this never validates. Set at "
            f"most {length}; check_val_every_n_epoch=None to count over epochs; or limit_val_batches=0"
        )


def _check_endless(trainer: Any, epoch: DataEpoch) -> None:
    """Refuse a trainer that waits for the end of an epoch which never ends; warn if something else ends the run."""
    if (trainer.max_epochs or -1) < 1:
        return
    no_end = (
        f"Trainer(max_epochs={trainer.max_epochs}): the training data repeats endlessly, so its first epoch never "
        f"ends. Set virtual_epoch_length={epoch.num_batches} of the DataModule, which is one pass through the data, or "
        "its repeat=False, or max_steps or limit_train_batches of the trainer"
    )
    if trainer.max_steps == -1:
        raise ConfigError(f"{no_end}; max_epochs=-1 if something else ends the run")
    warnings.warn(f"{no_end}. Now max_steps={trainer.max_steps} alone ends the run", stacklevel=5)


def tell_of_no_validation(trainer: Any, epoch: DataEpoch) -> None:
    """Warn of a trainer that waits with validation for the end of endless data."""
    by_time = getattr(trainer, "_val_check_time_interval", None) is not None
    is_endless = _limited(trainer.limit_train_batches, epoch.length) is None and not epoch.is_pass
    if is_endless and trainer.val_check_interval == 1.0 and trainer.enable_validation and not by_time:
        warnings.warn(
            "this run never validates: the training data repeats endlessly, so no epoch ends. Set val_check_interval "
            f"of the trainer to a number of batches, or virtual_epoch_length={epoch.num_batches} of the DataModule; or "
            "limit_val_batches=0, if that is meant",
            stacklevel=4,
        )


def _check_whole_steps(trainer: Any, num_micro_batches: int, epoch: DataEpoch, length: int, *, balanced: bool) -> None:
    """Check that an epoch of `length` batches is of whole steps."""
    if length % num_micro_batches == 0:
        return
    if balanced and length != epoch.length:
        raise ConfigError(
            f"limit_train_batches={trainer.limit_train_batches} ends an epoch within a step of {num_micro_batches} "
            "micro-batches, which balanced ranks draw together, so some would come again in the next epoch; make it a "
            f"multiple of {num_micro_batches}, or leave balance out"
        )
    if not trainer.fast_dev_run:
        warnings.warn(
            f"an epoch of {length} batches (limit_train_batches={trainer.limit_train_batches}, of "
            f"{epoch.length or 'endless'} batches of the data) ends within a step of {num_micro_batches} "
            "micro-batches: Lightning takes that step with fewer samples than global_batch_size. Make it a multiple",
            stacklevel=5,
        )


def check_ends(ends: str, world_size: int) -> None:
    """Check that all ranks of finite data end an epoch after the same number of batches.

    Raises:
        ConfigError: if they may not.
    """
    if world_size > 1 and ends != "even":
        raise ConfigError(
            f"repeat=False, ends={ends!r}: an epoch ends with the data, on one of {world_size} ranks maybe a batch "
            'before another, which would wait for it for ever. Set ends="even", or virtual_epoch_length'
        )


def check_evaluation(trainer: Any, stage: str, loader: Any) -> None:
    """Check that a fraction to which the trainer limits the `loader` of an evaluation is of a known length; `stage` is
    "val" or "test".

    Raises:
        ConfigError: if it is not.
    """
    check_callbacks(trainer)
    name = f"limit_{stage}_batches"
    value = getattr(trainer, name)
    if not isinstance(value, float) or value in (0.0, 1.0):
        return
    try:
        len(loader)
    except TypeError:
        data = loader.dataloader.dataset
        given = "overfit_batches" if trainer.overfit_batches else name
        raise ConfigError(
            f"Trainer({given}={value}): the number of batches of this evaluation is not known before they are read, as "
            f"their samples are packed, grouped or made by generators. Set a number, such as "
            f"{given}={max(1, int(value * data.passes.num_batches()))}"
        ) from None


REFUSED_CALLBACKS = {
    "BatchSizeFinder": (
        "BatchSizeFinder (Tuner.scale_batch_size): micro_batch_size is fixed once the loaders of the DataModule are "
        "made, as its states count in micro-batches. Try sizes one by one: "
        "Trainer(fast_dev_run=3).fit(model, datamodule=EnergonMultiModalDataModule(..., micro_batch_size=size))"
    ),
    "GradientAccumulationScheduler": (
        "GradientAccumulationScheduler: the states of the DataModule count steps, each of the same number of "
        "micro-batches. Set Trainer(accumulate_grad_batches=...); a batch size that grows is rampup_batch_size, under "
        "Megatron"
    ),
}
"""Callbacks that change what a step is, by their class: why, and what there is instead."""


def check_callbacks(trainer: Any) -> None:
    """Check that no callback of the trainer changes what a step is.

    Raises:
        ConfigError: if one does.
    """
    names = {kind.__name__ for callback in trainer.callbacks for kind in type(callback).__mro__}
    for name in REFUSED_CALLBACKS.keys() & names:
        raise ConfigError(REFUSED_CALLBACKS[name])


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


def num_overfitted(trainer: Any, epoch_length: int | None) -> int | None:
    """The batches of a rank that the trainer repeats in every epoch (`overfit_batches`); None if it repeats none."""
    if not trainer.overfit_batches:
        return None
    return _limited(trainer.overfit_batches, epoch_length)


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
    loader: EnergonDataloader,
    loaded_in_epoch: int | None,
    world_size: int,
    num_micro_batches: int,
) -> None:
    """Report to the loader how many batches the trainer has trained on, and how many of them belong to an incomplete
    step. After a restore, first convert the trainer's own numbers; `loaded_in_epoch` is then the number of
    micro-batches of all ranks in its epoch."""
    if loaded_in_epoch is not None:
        _set_progress(trainer, loader.num_handed_out_before, loaded_in_epoch, world_size, num_micro_batches)
    loader.follow(functools.partial(num_trained, trainer), functools.partial(num_in_step, trainer, num_micro_batches))


def _set_progress(trainer: Any, total: int, in_epoch: int, world_size: int, num_micro_batches: int) -> None:
    """Continue counting from `total` batches of all ranks, `in_epoch` of them in this epoch. The numbers in the
    checkpoint are those of one rank of the run that saved it, maybe within a step."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    total, in_epoch = total // world_size, in_epoch // world_size
    if not _epoch_is_over(progress):
        in_epoch -= in_epoch % num_micro_batches
    progress.current.increment_by(in_epoch - progress.current.processed)
    # `ready` is one more if training has failed on a batch, `completed` one less if a hook of the batch has saved: this
    # Lightning sees from the totals. Its own may be another one behind, after a resume at the end of an epoch.
    for name in ("ready", "started", "processed", "completed"):
        setattr(progress.total, name, getattr(progress.current, name) + total - in_epoch)


def _epoch_is_over(progress: Any) -> bool:
    """Whether the last batch of an epoch has been trained on, not only fetched."""
    return bool(progress.is_last_batch and progress.current.processed == progress.current.ready)


def is_fitting(trainer: Any) -> bool:
    """Whether the trainer trains, so that loading a checkpoint sets the position of the data."""
    return bool(trainer.state.fn == "fit")


def _limited(limit: int | float, epoch_length: int | None) -> int | None:
    """The batches of an epoch under Lightning's `limit`, a number or a fraction; None if not known."""
    length = epoch_length or math.inf
    batches = min(limit, length) if isinstance(limit, int) else limit * length
    return None if batches == math.inf or math.isnan(batches) else int(batches)
