"""Training runs of recipes, under both trainers: what the oracle says of each step is what the step logged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridge_data import WorkerConfig
from bridge_data.tools.oracle import RunOrder
from recipes.run_log import read_run
from recipes.tiny_data import write_tiny_data
from recipes.train import load_recipe

ROOT = Path(__file__).parents[2]
NUM_STEPS = 12


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["lightning", "megatron"])
@pytest.mark.parametrize("packing", ["null", "24"])
def test_the_oracle_tells_the_steps_of_a_training_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: str, packing: str
) -> None:
    write_tiny_data(tmp_path / "tiny_data")
    monkeypatch.chdir(tmp_path)
    settings = [
        f"trainer={trainer}",
        "log_dir=log",
        f"training.train_steps={NUM_STEPS}",
        f"data.packing_buffer_size={packing}",
        "data.global_batch_size=4",
    ]
    if trainer == "megatron":
        settings.append("data.rampup_batch_size=[2,2,6]")
    command = [sys.executable, "-m", "recipes.train", "--recipe", "text_sft", "--tiny", *settings]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=env)
    assert done.returncode == 0, done.stderr
    recipe = load_recipe(None, settings, recipe="text_sft", tiny=True)
    data = recipe.build_data(None, recipe.build_tokenizer())
    config = WorkerConfig(0, 1, 0, num_lanes=recipe.loader.num_lanes, seed_offset=recipe.data.seed)
    order = RunOrder(data.datasets_provider(config, "train"), schedule=recipe.data.batch_schedule)
    logged = read_run(tmp_path / "log")
    assert list(logged) == list(range(NUM_STEPS))
    for step, batch in logged.items():
        told = order.at(step)
        assert [sample.key for sample in told.samples] == [key for keys in batch.keys for key in keys], step
        assert len(told.micro_batches) == len(batch.keys)
