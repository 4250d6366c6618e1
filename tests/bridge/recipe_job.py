"""A recipe of `recipes.bridge` with a tiny model on the CPU, for two steps of Bridge's `pretrain`: its data, batches
and tokenizer are the recipe's, changed by overrides as a user gives them.

    recipe_job RECIPE DATA FOLDER

Writes the steps to `FOLDER/RECIPE-0.jsonl`.
"""

import sys
from pathlib import Path
from typing import Any

from tests.bridge import run_job  # first: it changes what is imported

# isort: split
from megatron.bridge import AutoBridge
from megatron.bridge.training.callbacks import CallbackManager
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

from recipes.bridge import vlm
from tests.bridge.qwen_model import make_original
from tests.bridge.run_parts import FAMILY, SEQ_LENGTH
from tests.ranks import fork_ranks
from tests.tiny_models.parts import tiny_image_processor, tiny_tokenizer

OF_THE_CPU = ("model", "optimizer", "scheduler", "validation", "logger", "checkpoint", "dist", "ddp")


def make_config(name: str, data: str, folder: Path) -> Any:
    """The recipe, on the CPU."""
    AutoBridge.from_hf_pretrained = lambda *_, **__: AutoBridge.from_hf_config(make_original().config)
    recipe, small = vlm.RECIPES[name](), run_job.make_config("uninterrupted", data, folder)
    for part in OF_THE_CPU:
        setattr(recipe, part, getattr(small, part))
    recipe.mixed_precision = recipe.peft = None
    overrides = [
        f"dataset.path={data}",
        f"dataset.task_encoder.image_processor={folder / 'parts'}",
        f"tokenizer.tokenizer_model={folder / 'parts'}",
        f"dataset.seq_length={SEQ_LENGTH}",
        "dataset.packing_buffer_size=8",
        "dataset.num_workers=0",
        "dataset.dataset_kwargs.num_lanes=4",
        "dataset.do_validation=false",
        "dataset.pin_memory=false",
        "train.global_batch_size=4",
        "train.train_iters=2",
        "train.manual_gc=false",
        "scheduler.lr_decay_iters=2",
    ]
    return process_config_with_overrides(recipe, cli_overrides=overrides)


def work(name: str, data: str, folder: Path) -> None:
    """The work of the rank."""
    run_job.allow_cpu()
    step = run_job.ReportedStep(None)
    with (folder / f"{name}-0.jsonl").open("w", buffering=1) as file:
        callbacks = CallbackManager()
        callbacks.add(run_job.StepWriter(step, file))
        pretrain(make_config(name, data, folder), step, callbacks)


def main(name: str, data: str, folder: str) -> None:
    for part in (tiny_tokenizer(FAMILY), tiny_image_processor(FAMILY)):
        part.save_pretrained(Path(folder, "parts"))
    sys.exit(fork_ranks(1, lambda: work(name, data, Path(folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])
