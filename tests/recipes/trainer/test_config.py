import pytest

from bridge_data.errors import ConfigError
from recipes.trainer.config import MegatronTrainerConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_steps": 0}, "train_steps=0"),
        ({"eval_iters": 0}, "eval_iters=0"),
        ({"save_interval": 0, "checkpoint_dir": "x"}, "save_interval=0"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0"),
        ({"save_interval": 5}, "set checkpoint_dir"),
        ({"exit_signal": "SIGTREM"}, "expected the name of a signal"),
        ({"exit_signal": "SIGTERM"}, "needs a folder; set checkpoint_dir"),
        ({"exit_signal": "SIGKILL"}, "no process can catch it"),
        ({"warmup_steps": 10}, "fewer steps of warm-up than of training"),
    ],
)
def test_settings_out_of_range_are_config_errors(settings: dict[str, int | str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MegatronTrainerConfig(**{"train_steps": 10, **settings})
