"""Settings of a training run, and of Megatron's model parallelism, checked when they are made."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError
from bridge_data.options import check_at_least, check_number
from bridge_data.storage.locations import COPY_IT, output_on_disk
from recipes.trainer.exit_signal import signal_number

if TYPE_CHECKING:
    from bridge_data.lanes.lane_dataset import LaneDataset

_LENGTHS = ("train_steps", "train_samples", "max_tokens", "max_epochs")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """Length, optimizer and checkpoints of a run.

    The length is one of: `train_steps`; `train_samples`, as many whole global batches as these make (with packing, a
    sample is a pack); `max_tokens`, the fewest steps that have so many; `max_epochs`, the fewest steps that draw so
    many, of all data or of the source `epochs_of`. The last two are counted from the cost index of the data, in at most
    `max_planned_samples` samples (see `bridge_data.tools.planning`). `skip_train` trains nothing: the newest checkpoint
    is loaded and evaluated. Intervals are in steps; None means never. Under Megatron, saving and evaluation also happen
    after the last step; Lightning's own intervals decide where it trains. `seed` is of what the training draws, such as
    dropout, not of data and new weights. An evaluation runs `eval_iters` global batches of each validation set. When
    any rank receives `exit_signal` (such as "SIGTERM"), all ranks save after the current step and exit; None leaves
    signals alone.
    The learning rate grows over `warmup_steps`, then falls by a cosine to `min_learning_rate` at the end.

    Raises:
        ConfigError: if a number is out of range, or settings contradict each other.
    """

    train_steps: int | None = None
    train_samples: int | None = None
    max_tokens: int | None = None
    max_epochs: float | None = None
    epochs_of: str | None = None
    max_planned_samples: int = 4_000_000
    skip_train: bool = False
    checkpoint_dir: str | None = None
    save_interval: int | None = None
    eval_interval: int | None = None
    eval_iters: int = 1
    exit_signal: str | None = None
    learning_rate: float = 1e-3
    min_learning_rate: float = 0.0
    warmup_steps: int = 0
    weight_decay: float = 0.01
    clip_grad: float = 1.0
    seed: int = 1234

    def __post_init__(self) -> None:
        check_at_least(self, 1, "train_steps", "train_samples", "max_tokens", "max_planned_samples")
        check_number("TrainingConfig: max_epochs", self.max_epochs, "a positive number", or_none=True)
        check_at_least(self, 1, "eval_iters", "save_interval", "eval_interval")
        given = {name: value for name in _LENGTHS if (value := getattr(self, name)) is not None}
        if len(given) != 1 or (self.epochs_of is not None and self.max_epochs is None):
            raise ConfigError(
                f"TrainingConfig({', '.join(f'{name}={value}' for name, value in given.items())}): expected one of "
                f"{', '.join(_LENGTHS)}; set the others to null (and epochs_of, without max_epochs)"
            )
        for name, wish in (("save_interval", "saving"), ("exit_signal", "saving on a signal")):
            if getattr(self, name) is not None and self.checkpoint_dir is None:
                raise ConfigError(
                    f"TrainingConfig({name}={getattr(self, name)!r}, checkpoint_dir=None): {wish} needs a folder; "
                    "set checkpoint_dir"
                )
        if self.checkpoint_dir is not None:
            folder = output_on_disk("TrainingConfig: checkpoint_dir", self.checkpoint_dir, COPY_IT)
            object.__setattr__(self, "checkpoint_dir", str(folder))
        if self.exit_signal is not None:
            signal_number(self.exit_signal)
        if self.warmup_steps < 0 or (self.train_steps is not None and self.warmup_steps >= self.train_steps):
            raise ConfigError(
                f"TrainingConfig(warmup_steps={self.warmup_steps}, train_steps={self.train_steps}): "
                "expected fewer steps of warm-up than of training"
            )

    def in_steps(self, schedule: BatchSchedule, dataset: "Callable[[], LaneDataset] | None" = None) -> "TrainingConfig":
        """The same with `train_steps`, if the length is another; `dataset` makes the training data, for `max_tokens`
        and `max_epochs`.

        Raises:
            ConfigError: if the length makes no step, or fewer than those of the warm-up, or cannot be counted.
        """
        if self.train_steps is not None:
            return self
        if self.train_samples is None:
            from bridge_data.tools.planning import Planner, RunLength  # here: few runs need it

            assert dataset is not None
            length = RunLength(tokens=self.max_tokens, epochs=self.max_epochs, source=self.epochs_of)
            num_steps = Planner(dataset(), schedule).num_steps(length, self.max_planned_samples)
            return dataclasses.replace(self, train_steps=num_steps, max_tokens=None, max_epochs=None, epochs_of=None)
        num_steps = schedule.step_after(self.train_samples)
        if num_steps < 1:
            raise ConfigError(
                f"TrainingConfig(train_samples={self.train_samples}): the first global batch takes "
                f"{schedule.size_after(0)}; expected at least as many"
            )
        return dataclasses.replace(self, train_steps=num_steps, train_samples=None)

    def learning_rate_factor(self, step: int) -> float:
        """The learning rate of a step as a share of `learning_rate`; the first step is number 0.

        Source: `OptimizerParamScheduler.get_lr` of megatron-core, for a cosine.
        """
        if step < self.warmup_steps:
            return step / self.warmup_steps
        least = self.min_learning_rate / self.learning_rate
        way = max((self.train_steps or 1) - self.warmup_steps, 1)
        done = min((step - self.warmup_steps) / way, 1.0)
        return least + (1 - least) * 0.5 * (math.cos(math.pi * done) + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """Megatron's parallel sizes; the ranks that they leave are data-parallel.

    Raises:
        ConfigError: if a size is out of range.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1

    def __post_init__(self) -> None:
        check_at_least(self, 1, *(field.name for field in dataclasses.fields(self)))
