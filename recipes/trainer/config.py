"""Settings of the Megatron training loop, checked when they are made."""

from dataclasses import dataclass

from bridge_data.errors import ConfigError
from recipes.trainer.exit_signal import signal_number


@dataclass(frozen=True, kw_only=True, slots=True)
class MegatronTrainerConfig:
    """Length, parallel sizes, optimizer and checkpoints of a run.

    Intervals are in steps; None means never. Saving and evaluation also happen after the last step. An evaluation runs
    `eval_iters` global batches of each validation set. When any rank receives `exit_signal` (such as "SIGTERM"), all
    ranks save after the current step and exit; None leaves signals alone.

    Raises:
        ConfigError: if a number is out of range.
    """

    train_steps: int
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
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    seed: int = 1234

    def __post_init__(self) -> None:
        for name in ("train_steps", "eval_iters", "save_interval", "eval_interval"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"MegatronTrainerConfig({name}={value}): expected at least 1")
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"MegatronTrainerConfig({name}={getattr(self, name)}): expected at least 1")
        if self.save_interval is not None and self.checkpoint_dir is None:
            raise ConfigError(
                f"MegatronTrainerConfig(save_interval={self.save_interval}, checkpoint_dir=None): "
                "saving needs a folder; set checkpoint_dir"
            )
        if self.exit_signal is not None:
            signal_number(self.exit_signal)
        if self.exit_signal is not None and self.checkpoint_dir is None:
            raise ConfigError(
                f"MegatronTrainerConfig(exit_signal={self.exit_signal!r}, checkpoint_dir=None): saving on a "
                "signal needs a folder; set checkpoint_dir"
            )
        if not 0 <= self.warmup_steps < self.train_steps:
            raise ConfigError(
                f"MegatronTrainerConfig(warmup_steps={self.warmup_steps}, train_steps={self.train_steps}): "
                "expected fewer steps of warm-up than of training"
            )
