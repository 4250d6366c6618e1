"""Small real inputs for `recipes.megatron.train_vlm`, and runs of it on the CPU, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from recipes.demo.__main__ import MODEL, Demo
from recipes.demo.photos import DemoDataConfig
from tests.ranks import run_job

ROOT = Path(__file__).parents[2]
NUM_STEPS, SAVE_INTERVAL = 8, 3


FORKS = """
from types import SimpleNamespace
from megatron.core.dist_checkpointing.strategies import filesystem_async
from torch import multiprocessing

forking = {"get_context": lambda method: multiprocessing.get_context("fork")}
filesystem_async.mp = SimpleNamespace(**vars(multiprocessing) | forking)
"""
"""The process that `dist_checkpointing` starts for the results of its writers is forked: a new one would import what
they are of, for seconds."""

PROGRAM = f"""{FORKS}
from recipes.demo.on_cpu import main
main()
"""


def make_inputs(folder: Path) -> Path:
    """Data, tokenizer and image processor of the demo, small."""
    Demo(folder, NUM_STEPS, []).prepare(DemoDataConfig(num_captions=60, num_questions=40, samples_per_shard=10))
    return folder


def arguments(inputs: Path, run: Path, **settings: object) -> list[str]:
    """The arguments of the script for 8 steps, saved after 3, 6 and 8, with `settings` changed: those of the data are
    `data_NAME`, and those of the model `model_NAME`."""
    given = {
        "data_path": inputs / "data" / "blend.yaml",
        "data_tokenizer": inputs / "tokenizer",
        "data_image_processor": inputs / "image_processor",
        "data_global_batch_size": 4,
        "data_num_workers": 0,
        "train_steps": NUM_STEPS,
        "save_interval": SAVE_INTERVAL,
        "lr": 3e-3,
        "bf16": "false",
        **{f"model_{name}": value for name, value in MODEL.items()},
        **settings,
    }
    names = {name: name.replace("_", ".", name.startswith(("data_", "model_"))) for name in given}
    config = str(ROOT / "configs" / "demo.yaml")
    return [config, str(run), *(f"--{names[name]}={value}" for name, value in given.items())]


def train(inputs: Path, run: Path, *, num_ranks: int = 1, **settings: object) -> str:
    """What the script prints."""
    status, printed = run_job("-c", PROGRAM, *arguments(inputs, run, **settings), num_ranks=num_ranks, timeout_s=250)
    assert status == 0, printed
    return printed


DRIVER = """
import json, sys
from pathlib import Path
from recipes.demo.jobs import run_job
options = json.loads(sys.argv[2])
run_job("recipes.demo.on_cpu", sys.argv[3:], folder=Path(sys.argv[1]), on_step=lambda line: None, **options)
"""
"""A process of its own, as what it starts must not become children of the tests."""


def launch(run: Path, given: list[str], **options: object) -> None:
    """Train by the launcher of the demo, which may kill the job (see `recipes.demo.jobs.run_job`)."""
    command = [sys.executable, "-c", DRIVER, str(run), json.dumps(options), *given]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr
