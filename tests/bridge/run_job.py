"""Runs of Megatron-Bridge's `pretrain`, with its `vlm_step` and a tiny Qwen2.5-VL of its own, for `test_run.py`, one
after the other:

    uninterrupted   on two ranks, all steps
    killed          on two ranks; Bridge saves in `FOLDER/checkpoints`, and in a later step SIGKILL ends all processes
                    of the group, so start it in a group of its own
    fewer           resumed on one rank from what Bridge saved
    more            resumed on four ranks, with files of the data's position for them in `FOLDER/wider`

Each rank writes a line for each of its steps to `FOLDER/RUN-RANK.jsonl`, and the first one the metrics of the data
after every fifth step to `FOLDER/RUN-metrics.jsonl`.

    run_job DATA FOLDER RUN...
"""

import functools
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from recipes.demo import cpu_shim
from tests.bridge.imports import change_imports

cpu_shim.install()
change_imports()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.bridge.peft import utils as peft  # noqa: E402
from megatron.bridge.training import (  # noqa: E402
    checkpointing,
    config,
    eval,
    initialize,
    setup,
    train,
    vlm_step,
)
from megatron.bridge.training.callbacks import Callback, CallbackContext, CallbackManager  # noqa: E402
from megatron.bridge.training.pretrain import pretrain  # noqa: E402
from megatron.bridge.training.state import GlobalState  # noqa: E402
from megatron.bridge.training.tokenizers.config import TokenizerConfig  # noqa: E402
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed  # noqa: E402

from bridge_data import JsonlSink, MetricsReporter  # noqa: E402
from tests.bridge.qwen_model import make_provider  # noqa: E402
from tests.bridge.run_parts import (  # noqa: E402
    FAMILY,
    GLOBAL_BATCH,
    KILLED_IN,
    NUM_RANKS,
    NUM_STEPS,
    SAVED_AFTER,
    make_dataset,
)
from tests.ranks import fork_ranks  # noqa: E402
from tests.tiny_models.parts import tiny_tokenizer  # noqa: E402

LEARNING_RATE, WEIGHT_DECAY = 1e-2, 0.01


class ReportedStep:
    """Bridge's forward step, which also notes keys, loss and tokens of each micro-batch; after `killed_after` of them,
    the job is killed."""

    def __init__(self, killed_after: int | None) -> None:
        self.killed_after, self.num_calls = killed_after, 0
        self.micro_batches: list[dict[str, Any]] = []

    def __call__(self, state: GlobalState, data_iterator: Any, model: Any) -> tuple[Any, Any]:
        if self.num_calls == self.killed_after:
            dist.barrier()  # so that all ranks have written the step before
            os.killpg(0, signal.SIGKILL)
        self.num_calls += 1
        noted: dict[str, Any] = {}
        self.micro_batches.append(noted)

        def batches() -> Iterator[Any]:
            batch = next(data_iterator)
            noted["keys"] = batch["__keys__"]
            yield batch

        output, loss_function = vlm_step.forward_step(state, batches(), model)

        def loss(losses: Any) -> Any:
            total, num_tokens, reported = loss_function(losses)
            noted["loss_sum"], noted["num_tokens"] = reported["lm loss"].tolist()
            return total, num_tokens, reported

        return output, loss


class StepWriter(Callback):
    """Writes a line for each step."""

    def __init__(self, step: ReportedStep, file: TextIO) -> None:
        self.step, self.file = step, file

    def on_train_step_end(self, context: CallbackContext) -> None:
        done, loss = context.state.train_state.step, context.loss_dict.get("lm loss")  # None before the last stage
        line = {"step": done, "loss": loss if loss is None else float(loss), "micro_batches": self.step.micro_batches}
        self.file.write(json.dumps(line) + "\n")
        self.step.micro_batches = []


def make_config(run: str, data: str, folder: Path) -> Any:
    """Bridge's configuration of a run."""
    checkpoints = str(folder / "checkpoints")
    dataset = make_dataset(data)
    if run == "more":
        dataset.dataloader_load = str(folder / "wider")
    return config.ConfigContainer(
        model=make_provider(),
        train=config.TrainingConfig(
            micro_batch_size=1, global_batch_size=GLOBAL_BATCH, train_iters=NUM_STEPS, manual_gc=False
        ),
        validation=config.ValidationConfig(eval_iters=0, eval_interval=None),
        optimizer=config.OptimizerConfig(
            optimizer="adam",
            lr=LEARNING_RATE,
            min_lr=LEARNING_RATE / 10,
            weight_decay=WEIGHT_DECAY,
            use_distributed_optimizer=False,
        ),
        scheduler=config.SchedulerConfig(
            lr_decay_style="cosine",
            lr_warmup_iters=0,
            lr_decay_iters=NUM_STEPS,
            start_weight_decay=WEIGHT_DECAY,
            end_weight_decay=WEIGHT_DECAY,
        ),
        dataset=dataset,
        logger=config.LoggerConfig(log_interval=1),
        tokenizer=TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(folder / "tokenizer")),
        checkpoint=config.CheckpointConfig(
            save=checkpoints if run == "killed" else None,
            load=checkpoints if run in ("fewer", "more") else None,
            save_interval=SAVED_AFTER,
            ckpt_format="torch_dist",
        ),
        dist=config.DistributedInitConfig(distributed_backend="gloo"),
        ddp=config.DistributedDataParallelConfig(
            use_distributed_optimizer=False, grad_reduce_in_fp32=True, overlap_grad_reduce=False
        ),
    )


def allow_cpu() -> None:
    """Change what asks for CUDA, for ModelOpt, of which there is only a stand-in, or for a C++ compiler, which other
    data sets of Megatron need."""
    setup.initialize_megatron = functools.partial(initialize_on_cpu, setup.initialize_megatron)
    initialize.compile_helpers = lambda: None
    checkpointing.save_sharded_modelopt_state = lambda *_: None
    for module in (train, eval):
        module.get_tensor_shapes_adjust_fn_for_distillation = lambda *_, **__: None
    peft.HAVE_TE = False


def initialize_on_cpu(original: Any, **settings: Any) -> Any:
    """As `original`, which seeds Megatron's generators only where there is CUDA."""
    groups = original(**settings, allow_no_cuda=True)
    model_parallel_cuda_manual_seed(settings["cfg"].rng.seed)
    return groups


def work(run: str, data: str, folder: Path) -> None:
    """The work of one rank."""
    torch.set_num_threads(1)
    allow_cpu()
    step = ReportedStep(KILLED_IN * GLOBAL_BATCH // NUM_RANKS[run] if run == "killed" else None)
    config = make_config(run, data, folder)
    sinks = [JsonlSink(folder / f"{run}-metrics.jsonl")]
    with (
        (folder / f"{run}-{os.environ['RANK']}.jsonl").open("w", buffering=1) as file,
        MetricsReporter(config.dataset, sinks, every_steps=5) as reporter,
    ):
        callbacks = CallbackManager()
        callbacks.add(StepWriter(step, file))
        callbacks.register("on_train_step_end", reporter.on_train_step_end)
        pretrain(config, step, callbacks)


def main(data: str, folder: str, *runs: str) -> None:
    tiny_tokenizer(FAMILY).save_pretrained(Path(folder, "tokenizer"))
    for run in runs:
        if status := fork_ranks(NUM_RANKS[run], lambda run=run: work(run, data, Path(folder))):
            sys.exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
