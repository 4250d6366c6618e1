"""Runs of Bridge's `pretrain` and `finetune` with adapters, stages, evaluation or skipped steps:
uninterrupted; saved, and killed two steps after; resumed; and started again in the process of a run that failed.

    variant_job VARIANT DATA FOLDER

Each rank writes its steps and evaluations to `FOLDER/RUN-RANK.jsonl`.
"""

import json
import os
import signal
import sys
import types
from pathlib import Path
from typing import Any

from tests.bridge import run_job  # first: it changes what is imported

# isort: split
import torch
import torch.distributed as dist
from megatron.bridge.peft.lora import LoRA
from megatron.bridge.training.callbacks import Callback, CallbackContext, CallbackManager
from megatron.bridge.training.config import ValidationConfig
from megatron.bridge.training.finetune import finetune
from megatron.bridge.training.pretrain import pretrain

from tests.bridge.family_models import make_provider
from tests.bridge.run_parts import FAMILY
from tests.bridge.variant_parts import KILLED_AFTER, NUM_STEPS, SAVED_AFTER, SKIPPED, VARIANTS
from tests.ranks import fork_ranks
from tests.tiny_models.parts import tiny_tokenizer

LINEAR = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]


def make_config(name: str, data: str, run: str) -> Any:
    """The configuration of a run."""
    config = run_job.make_config("uninterrupted", data, Path())
    config.model = make_provider(VARIANTS[name].family)
    config.train.train_iters = config.scheduler.lr_decay_iters = NUM_STEPS
    config.checkpoint.save_interval = SAVED_AFTER
    if run == "base":
        config.checkpoint.save, config.train.train_iters = "base", SAVED_AFTER
        return config
    if run in ("killed", "restarted"):
        config.checkpoint.save = run
    if run in ("resumed", "restarted"):
        config.checkpoint.load = "killed" if run == "resumed" else run
    if name == "lora":
        config.checkpoint.pretrained_checkpoint = "base"
        config.peft = LoRA(dim=4, alpha=8, target_modules=LINEAR)
    elif name == "evaluation":
        config.dataset.do_validation = True
        config.dataset.num_workers = config.dataset.num_val_workers = 1
        config.validation = ValidationConfig(eval_iters=2, eval_interval=2, eval_global_batch_size=2)
    elif name == "skipping":
        config.train.iterations_to_skip = [SKIPPED]
    elif name == "pipeline":
        config.model.pipeline_model_parallel_size, config.model.pipeline_dtype = 2, torch.float32
    return config


class Writer(run_job.StepWriter):
    """Writes a line for each evaluation, too."""

    def on_eval_end(self, context: CallbackContext) -> None:
        line = {"evaluated": context.state.train_state.step, "micro_batches": self.step.micro_batches}
        self.file.write(json.dumps(line) + "\n")
        self.step.micro_batches = []


class End(Callback):
    """Ends the run after a step: by SIGKILL, or by an error."""

    def __init__(self, run: str) -> None:
        self.run, self.is_done = run, run not in ("killed", "restarted")

    def on_train_step_end(self, context: CallbackContext) -> None:
        if self.is_done or context.state.train_state.step != KILLED_AFTER:
            return
        self.is_done = True
        if self.run == "restarted":
            raise TimeoutError("a fault")
        dist.barrier()  # so that all ranks have written the step
        os.kill(os.getpid(), signal.SIGKILL)


def work(name: str, data: str, run: str) -> None:
    """The work of a rank."""
    sys.modules["__main__"] = types.ModuleType("__main__")  # which a process that saves would import: it takes seconds
    torch.set_num_threads(1)
    run_job.allow_cpu()
    config = make_config(name, data, run)
    step, callbacks = run_job.ReportedStep(None), CallbackManager()
    train = pretrain if config.peft is None else finetune
    with open(f"{run}-{os.environ['RANK']}.jsonl", "w", buffering=1) as file:
        callbacks.add([Writer(step, file), End(run)])
        try:
            train(config, step, callbacks)
        except TimeoutError:
            step.micro_batches = []
            file.write(json.dumps("restarted") + "\n")
            train(config, step, callbacks)


def main(name: str, data: str, folder: str) -> None:
    os.chdir(folder)
    tiny_tokenizer(FAMILY).save_pretrained("tokenizer")
    runs = {"uninterrupted": 0, "killed": -signal.SIGKILL, "resumed": 0}
    if name == "lora":
        runs = {"base": 0, **runs}
    elif VARIANTS[name].num_ranks == 1:
        runs["restarted"] = 0
    for run, expected in runs.items():
        if (status := fork_ranks(VARIANTS[name].num_ranks, lambda run=run: work(name, data, run))) != expected:
            sys.exit(status or 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
