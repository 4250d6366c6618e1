"""A recipe of `recipes.bridge` with a tiny model on the CPU, for two steps of Bridge's `pretrain`: its data, batches
and tokenizer are those of a YAML, changed by overrides, both on the command line of the recipes.

    recipe_job RECIPE DATA FOLDER

Writes the steps to `FOLDER/RECIPE-0.jsonl`.
"""

import os
import sys
from pathlib import Path
from typing import Any

from tests.bridge import run_job  # first: it changes what is imported

# isort: split
from megatron.bridge.training.callbacks import CallbackManager
from megatron.bridge.training.pretrain import pretrain

from recipes.bridge import vlm
from tests.bridge.qwen_model import make_original
from tests.bridge.run_parts import FAMILY, SEQ_LENGTH
from tests.ranks import fork_ranks
from tests.tiny_models.parts import tiny_image_processor, tiny_tokenizer

OF_THE_CPU = ("model", "optimizer", "scheduler", "validation", "logger", "checkpoint", "dist", "ddp")

DATA = """
data:
  path: {data}
  tokenizer: parts
  image_processor: parts
  task_encoder:
    class_path: bridge_data.encoders.QwenVLTaskEncoder
    init_args: {{family: {{class_path: bridge_data.encoders.Qwen2_5VL}}}}
  global_batch_size: 8
  packing_buffer_size: 8
  num_workers: 0
"""


def make_config(name: str, data: str, folder: Path) -> Any:
    """The recipe, on the CPU."""
    Path("data.yaml").write_text(DATA.format(data=data))
    overrides = [
        f"dataset.seq_length={SEQ_LENGTH}",
        "+dataset.dataset_kwargs.num_lanes=4",
        "dataset.do_validation=false",
        "dataset.pin_memory=false",
        "train.global_batch_size=4",
        "train.train_iters=2",
        "train.manual_gc=false",
    ]
    recipe, small = (
        vlm.main([name, "--data", "data.yaml", *overrides]),
        run_job.make_config("uninterrupted", data, folder),
    )
    assert recipe.model.seq_length == SEQ_LENGTH
    for part in OF_THE_CPU:
        setattr(recipe, part, getattr(small, part))
    recipe.scheduler.lr_decay_iters = 2
    recipe.mixed_precision = recipe.peft = None
    return recipe


def work(name: str, data: str, folder: Path) -> None:
    """The work of the rank."""
    run_job.allow_cpu()
    step = run_job.ReportedStep(None)
    with (folder / f"{name}-0.jsonl").open("w", buffering=1) as file:
        callbacks = CallbackManager()
        callbacks.add(run_job.StepWriter(step, file))
        pretrain(make_config(name, data, folder), step, callbacks)


def main(name: str, data: str, folder: str) -> None:
    os.chdir(folder)
    for part in (tiny_tokenizer(FAMILY), tiny_image_processor(FAMILY)):
        part.save_pretrained("parts")
    make_original().config.save_pretrained("Qwen/Qwen2.5-VL-7B-Instruct")  # which Bridge's recipe reads
    sys.exit(fork_ranks(1, lambda: work(name, data, Path(folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])
