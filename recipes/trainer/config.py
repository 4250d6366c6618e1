"""Settings of a training run, and of Megatron's model parallelism, checked when they are made."""

import dataclasses
import math
from dataclasses import dataclass

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError
from bridge_data.options import check_at_least
from recipes.trainer.exit_signal import signal_number


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """Length, optimizer and checkpoints of a run.

    The length is `train_steps`, or `train_samples`: as many whole global batches as these make (with packing, a
    sample is a pack). `skip_train` trains nothing: the newest checkpoint is loaded and evaluated. Intervals are in
    steps; None means never. Under Megatron, saving and evaluation also happen after the last step; Lightning's own
    intervals decide where it trains. `seed` is of what the training draws, such as dropout, not of data and new
    weights. An evaluation runs `eval_iters` global batches of each validation set. When any rank receives
    `exit_signal` (such as "SIGTERM"), all ranks save after the current step and exit; None leaves signals alone.
    The learning rate grows over `warmup_steps`, then falls by a cosine to `min_learning_rate` at the end.

    Raises:
        ConfigError: if a number is out of range, or settings contradict each other.
    """

    train_steps: int | None = None
    train_samples: int | None = None
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
        check_at_least(self, 1, "train_steps", "train_samples", "eval_iters", "save_interval", "eval_interval")
        if (self.train_steps is None) == (self.train_samples is None):
            raise ConfigError(
                f"TrainingConfig(train_steps={self.train_steps}, train_samples={self.train_samples}): expected one of "
                "them; set the other to null"
            )
        for name, wish in (("save_interval", "saving"), ("exit_signal", "saving on a signal")):
            if getattr(self, name) is not None and self.checkpoint_dir is None:
                raise ConfigError(
                    f"TrainingConfig({name}={getattr(self, name)!r}, checkpoint_dir=None): {wish} needs a folder; "
                    "set checkpoint_dir"
                )
        if self.exit_signal is not None:
            signal_number(self.exit_signal)
        if self.warmup_steps < 0 or (self.train_steps is not None and self.warmup_steps >= self.train_steps):
            raise ConfigError(
                f"TrainingConfig(warmup_steps={self.warmup_steps}, train_steps={self.train_steps}): "
                "expected fewer steps of warm-up than of training"
            )

    def in_steps(self, schedule: BatchSchedule) -> "TrainingConfig":
        """The same with `train_steps`, if `train_samples` is given.

        Raises:
            ConfigError: if the samples make no step, or fewer than those of the warm-up.
        """
        if self.train_samples is None:
            return self
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
