from typing import Any

import pytest

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError
from recipes.trainer.config import ParallelConfig, TrainingConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_steps": 0}, "train_steps=0"),
        ({"train_samples": 0, "train_steps": None}, "train_samples=0"),
        ({"eval_iters": 0}, "eval_iters=0"),
        ({"save_interval": 0, "checkpoint_dir": "x"}, "save_interval=0"),
        ({"save_interval": 5}, "set checkpoint_dir"),
        ({"exit_signal": "SIGTREM", "checkpoint_dir": "x"}, "expected the name of a signal"),
        ({"exit_signal": "SIGTERM"}, "needs a folder; set checkpoint_dir"),
        ({"exit_signal": "SIGKILL", "checkpoint_dir": "x"}, "no process can catch it"),
        ({"warmup_steps": 10}, "fewer steps of warm-up than of training"),
        ({"train_samples": 80}, "train_samples=80.: expected one of"),
        ({"train_steps": None}, "expected one of train_steps"),
        ({"epochs_of": "a"}, "epochs_of"),
        ({"train_steps": None, "max_epochs": -1.0}, "max_epochs=-1.0"),
    ],
)
def test_settings_out_of_range_are_config_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**{"train_steps": 10, **settings})
    with pytest.raises(ConfigError, match="tensor_parallel_size=0"):
        ParallelConfig(tensor_parallel_size=0)


@pytest.mark.parametrize(
    ("ramp", "samples", "steps"),
    [(None, 80, 10), (None, 87, 10), (None, 88, 11), ([2, 2, 12], 14, 4), ([2, 2, 12], 30, 6)],
)
def test_samples_are_as_many_whole_global_batches_as_they_make(
    ramp: list[int] | None, samples: int, steps: int
) -> None:
    config = TrainingConfig(train_samples=samples).in_steps(BatchSchedule(8, 2, ramp))
    assert (config.train_steps, config.train_samples) == (steps, None)


def test_samples_that_make_no_step_or_no_more_than_the_warm_up_are_refused() -> None:
    with pytest.raises(ConfigError, match="the first global batch takes 8"):
        TrainingConfig(train_samples=7).in_steps(BatchSchedule(8, 2))
    with pytest.raises(ConfigError, match="fewer steps of warm-up"):
        TrainingConfig(train_samples=16, warmup_steps=2).in_steps(BatchSchedule(8, 2))


def test_the_learning_rate_is_that_of_megatron_s_schedule() -> None:
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    config = TrainingConfig(train_steps=20, warmup_steps=4, learning_rate=0.5, min_learning_rate=0.1)
    group = {"lr": 0.0, "weight_decay": 0.0, "max_lr": 0.5, "min_lr": 0.1}
    optimizer = type("Optimizer", (), {"param_groups": [group]})()
    schedule = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=0.5,
        min_lr=0.1,
        lr_warmup_steps=4,
        lr_decay_steps=20,
        lr_decay_style="cosine",
        start_wd=0.0,
        end_wd=0.0,
        wd_incr_steps=20,
        wd_incr_style="constant",
    )
    for step in range(25):
        assert 0.5 * config.learning_rate_factor(step) == pytest.approx(schedule.get_lr(group)), step
        schedule.step(1)
