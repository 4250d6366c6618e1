"""Runs of a recipe of `recipes.bridge` with a tiny model on the CPU, by Bridge's `pretrain`: its data, batches and
tokenizer are those of a YAML, changed by overrides, both on the command line of the recipes.

    uninterrupted   all steps
    killed          saved by Bridge after some, and ended by SIGKILL in the one after the next
    resumed         from what Bridge saved

    recipe_job RECIPE DATA FOLDER

Writes the steps of each run to `FOLDER/RUN.jsonl`.
"""

import os
import signal
import sys
import types
from pathlib import Path
from typing import Any

from tests.bridge import run_job  # first: it changes what is imported

# isort: split
from megatron.bridge.training.callbacks import CallbackManager
from megatron.bridge.training.pretrain import pretrain

from recipes.bridge import vlm
from tests.bridge.family_models import make_provider, save_parts
from tests.bridge.recipe_parts import GLOBAL_BATCH, KILLED_IN, NUM_STEPS, RECIPES, SAVED_AFTER, Tried
from tests.bridge.run_parts import SEQ_LENGTH
from tests.ranks import fork_ranks

OF_THE_CPU = ("optimizer", "scheduler", "validation", "logger", "dist", "ddp")

DATA = """
data:
  path: {data}
  tokenizer: parts
  task_encoder: {encoder}
  global_batch_size: 8
  packing_buffer_size: {buffer}
  num_workers: 0
"""


def make_config(name: str, data: str, run: str) -> Any:
    """The recipe, on the CPU."""
    tried = RECIPES[name]
    Path("data.yaml").write_text(DATA.format(data=data, encoder=tried.encoder, buffer=tried.buffer) + tried.settings)
    overrides = [
        f"dataset.seq_length={SEQ_LENGTH}",
        "+dataset.dataset_kwargs.num_lanes=4",
        "dataset.do_validation=false",
        "dataset.pin_memory=false",
        f"train.global_batch_size={GLOBAL_BATCH}",
        f"train.train_iters={NUM_STEPS}",
        "train.manual_gc=false",
        "mixed_precision=null",
    ]
    recipe, small = vlm.main([name, "--data", "data.yaml", *overrides]), run_job.make_config(run, data, Path())
    assert recipe.model.seq_length == SEQ_LENGTH
    recipe.model = make_provider(tried.family)
    for part in OF_THE_CPU:
        setattr(recipe, part, getattr(small, part))
    recipe.scheduler.lr_decay_iters = NUM_STEPS
    recipe.checkpoint = small.checkpoint
    recipe.checkpoint.save_interval = SAVED_AFTER
    recipe.checkpoint.load = "checkpoints" if run == "resumed" else None
    recipe.mixed_precision = recipe.peft = None
    return recipe


def work(name: str, data: str, run: str) -> None:
    """The work of the rank."""
    os.setpgid(0, 0)  # which the killed run ends
    sys.modules["__main__"] = types.ModuleType("__main__")  # which a process that saves would import: it takes seconds
    run_job.allow_cpu()
    config = make_config(name, data, run)
    step = run_job.ReportedStep(KILLED_IN * GLOBAL_BATCH // config.train.micro_batch_size if run == "killed" else None)
    with open(f"{run}.jsonl", "w", buffering=1) as file:
        callbacks = CallbackManager()
        callbacks.add(run_job.StepWriter(step, file))
        pretrain(config, step, callbacks)


def main(name: str, data: str, folder: str) -> None:
    os.chdir(folder)
    tried: Tried = RECIPES[name]
    save_parts(tried.family, "parts", tried.checkpoint)
    for run, expected in (("uninterrupted", 0), ("killed", -signal.SIGKILL), ("resumed", 0)):
        if (status := fork_ranks(1, lambda run=run: work(name, data, run))) != expected:
            sys.exit(status or 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
