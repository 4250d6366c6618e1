"""The options of the DataModule besides its parameters: for editors, type checkers and `LightningCLI`.

Enters: keyword arguments. Leaves: a `DataModuleSettings`, which has them grouped by their use: the training data set,
the workers, the loader, the DataModule itself. Guarantee: an unknown name is refused.
"""

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.datamodule.sharing import Share, check_share
from bridge_data.errors import ConfigError, ErrorHandler
from bridge_data.lanes.datasets import DatasetOptions, get_train_dataset
from bridge_data.loader import get_savable_loader
from bridge_data.loader.loader_config import LoaderOptions
from bridge_data.order.step_skips import NO_REPEATS, StepSkips
from bridge_data.plan.document import nearest
from bridge_data.plan.source import EpochsPerShuffle
from bridge_data.task.stores import CachePool
from bridge_data.topology import WorkerConfig


class TrainingOptions(TypedDict, total=False):
    """Parameters of `get_train_dataset`, which explains them."""

    split_part: str
    batch_drop_last: bool
    virtual_epoch_length: int
    shuffle_over_epochs_multiplier: EpochsPerShuffle
    repeat: bool


class EnergonLoaderOptions(TypedDict, total=False):
    """Parameters of `get_savable_loader`, which explains them."""

    prefetch_factor: int
    cache_pool: CachePool | None
    watchdog_timeout_seconds: float | None
    watchdog_initial_timeout_seconds: float | None
    fail_on_timeout: bool
    checkpoint_every_sec: float | None
    checkpoint_every_min_n_samples: int | None
    n_checkpoints: int | None
    gc_collect_every_n_steps: int | None


class WorkerOptions(TypedDict, total=False):
    """The fields of `WorkerConfig`, which explains them, but for those that the job decides: ranks, groups and
    `num_workers`. `seed` is its `seed_offset`."""

    seed: int
    num_lanes: int
    max_open_bytes: int
    global_error_handler: ErrorHandler
    restore_error_handler: ErrorHandler
    worker_log_level: int
    worker_debug_path: str | None


class OwnOptions(TypedDict, total=False):
    """Options that only the DataModule has."""

    eval_batches: int | None
    """Under Megatron, draws after which validation starts over; None: after the last batch. (It also starts over when
    there was training in between.)"""
    multiple_validation_sets: bool
    """Validate on each source separately: `val_dataloader` and `build` return a list of loaders, one per source, which
    `val_names` names."""
    val_batch_drop_last: bool
    """Drop the last micro-batch of validation if it is not full."""
    rampup_batch_size: Sequence[int] | None
    """Megatron's [first global batch size, increment, samples] of a ramp to `global_batch_size`."""
    skip_steps: Sequence[str | int]
    """Steps whose data are skipped, such as ["1200-1260", "1300"]: both ends included, counted from 0 in the run
    without skips. The trainer's own steps stay consecutive. Needs `global_batch_size`."""
    balance: bool | str | Callable[[Any], float]
    """The cost by which the micro-batches of a training step are distributed over the data-parallel ranks: "tokens",
    "pixels", "frames", a function of the batch, or True for the encoder's `batch_cost`. All ranks must ask for their
    loaders in the same order."""
    strict_restore: bool
    """Refuse to restore a state of another blend (default True). If False, weights and added data sets may differ;
    differences are logged."""
    share: Share
    """Which ranks of a replica read. "replicate": every rank. "broadcast": one, for the ranks of the first and the last
    pipeline stage; all ranks must ask for their loaders in the same order, and close them before the process groups are
    destroyed."""


class DataModuleOptions(
    OwnOptions, WorkerOptions, TrainingOptions, DatasetOptions, EnergonLoaderOptions, LoaderOptions, total=False
):
    """All of them. (`ends` of `LoaderOptions` defaults to "even" for validation in a distributed run.)"""


def option_defaults() -> dict[str, Any]:
    """The default of each of `DataModuleOptions`."""
    found: dict[str, Any] = {}
    for taker in (get_train_dataset, get_savable_loader, WorkerConfig, DataModuleSettings):
        found |= {name: parameter.default for name, parameter in inspect.signature(taker).parameters.items()}
    found["seed"] = found["seed_offset"]
    return {name: found[name] for name in DataModuleOptions.__annotations__}


_DATASET = {*TrainingOptions.__annotations__, *DatasetOptions.__annotations__}
_LOADER = {*EnergonLoaderOptions.__annotations__, *LoaderOptions.__annotations__}
_WORKER_FIELDS = {name: name for name in WorkerOptions.__annotations__} | {"seed": "seed_offset"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DataModuleSettings:
    """Arguments of `get_train_dataset`, `WorkerConfig` and `get_savable_loader`, and the `OwnOptions` with their
    defaults."""

    dataset: dict[str, Any]
    workers: dict[str, Any]
    loader: dict[str, Any]
    eval_batches: int | None = None
    multiple_validation_sets: bool = False
    val_batch_drop_last: bool = False
    rampup_batch_size: Sequence[int] | None = None
    skip_steps: Sequence[str | int] = ()
    balance: bool | str | Callable[[Any], float] = False
    strict_restore: bool = True
    share: Share = "replicate"

    @property
    def validation(self) -> dict[str, Any]:
        """Arguments of `get_val_dataset`."""
        given = {name: value for name, value in self.dataset.items() if name in DatasetOptions.__annotations__}
        return given | {"batch_drop_last": self.val_batch_drop_last}

    def skips(self, schedule: BatchSchedule, global_batch_size: int | None) -> StepSkips | None:
        """The micro-batches that are skipped; None if none are.

        Raises:
            ConfigError: if the steps are invalid, overlap, or depend on the number of ranks.
        """
        found = schedule.skips(self.skip_steps)
        if found is not None and global_batch_size is None:
            raise ConfigError(
                f"{found}: without global_batch_size, the size of a step depends on the number of ranks; set it"
            )
        return found

    def __post_init__(self) -> None:
        check_share(self.share)
        if self.eval_batches is not None and self.eval_batches < 1:
            raise ConfigError(f"EnergonMultiModalDataModule(eval_batches={self.eval_batches}): expected at least 1")


def sort_settings(given: Mapping[str, Any]) -> DataModuleSettings:
    """Group the options of a DataModule by their use.

    Raises:
        ConfigError: for an unknown name, with the nearest known one.
    """
    known = DataModuleOptions.__annotations__.keys()
    if (repeated := given.get("repeat_steps")) is not None:
        raise ConfigError(f"repeat_steps={repeated!r}: {NO_REPEATS}")
    for name in given:
        if name not in known:
            raise ConfigError(f"EnergonMultiModalDataModule has no setting {name!r}{nearest(name, known)}")
    return DataModuleSettings(
        dataset={name: value for name, value in given.items() if name in _DATASET},
        workers={_WORKER_FIELDS[name]: value for name, value in given.items() if name in _WORKER_FIELDS},
        loader={name: value for name, value in given.items() if name in _LOADER},
        **{name: value for name, value in given.items() if name in OwnOptions.__annotations__},
    )


def warn_without_effect(**given: Any) -> None:
    """Warn of arguments, not None, that only the default task encoder takes."""
    for name, value in given.items():
        if value is not None:
            warnings.warn(
                f"EnergonMultiModalDataModule: {name} has no effect with a task_encoder: set it there",
                stacklevel=3,
            )
