"""Runs of a small LLaVA by Megatron-Bridge's `vlm_step`, for `test_run.py`, one after the other:

    uninterrupted   on two ranks, all steps
    killed          on two ranks; Bridge saves the position of the data in `FOLDER/checkpoints/energon`, and in a later
                    step SIGKILL ends all processes of the group, so start it in a group of its own
    fewer           resumed on one rank from what Bridge saved
    more            resumed on four ranks from files for them, in `FOLDER/wider`

Each rank writes a line for each of its steps to `FOLDER/RUN-RANK.jsonl`.

    run_job DATA FOLDER RUN...
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recipes import cpu_shim
from tests.bridge.imports import change_imports

cpu_shim.install()
change_imports()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.bridge.training import vlm_step  # noqa: E402
from megatron.bridge.training.checkpointing import (  # noqa: E402
    DATALOADER_STATE_SUBDIR,
    get_checkpoint_name,
    maybe_load_dataloader_state,
    maybe_save_dataloader_state,
)
from megatron.bridge.training.config import RerunStateMachineConfig  # noqa: E402
from megatron.core import dist_checkpointing  # noqa: E402
from megatron.core.rerun_state_machine import RerunDataIterator  # noqa: E402
from megatron.core.timers import Timers  # noqa: E402
from megatron.core.utils import StragglerDetector  # noqa: E402

from recipes.megatron_model import MegatronModel  # noqa: E402
from recipes.packed_attention import sequence_numbers  # noqa: E402
from recipes.trainer.config import ParallelConfig, TrainingConfig  # noqa: E402
from recipes.trainer.loop import MegatronTrainer, StepReport  # noqa: E402
from recipes.trainer.parallel import initialize_parallel  # noqa: E402
from tests.bridge.run_parts import (  # noqa: E402
    GLOBAL_BATCH,
    KILLED_IN,
    NUM_RANKS,
    NUM_STEPS,
    SAVED_AFTER,
    SEQ_LENGTH,
    make_data,
    make_model,
)
from tests.ranks import fork_ranks  # noqa: E402


class BridgeModel(MegatronModel):
    """Our model, called as Bridge's step calls its own."""

    def forward(
        self,
        input_ids: Any,
        position_ids: Any,
        attention_mask: Any,
        labels: Any,
        loss_mask: Any,
        pixel_values: Any = None,
        packed_seq_params: Any = None,
    ) -> Any:
        sequences = sequence_numbers(packed_seq_params.cu_seqlens_q[None], input_ids.shape[1])
        media = {} if pixel_values is None else {"pixel_values": pixel_values}
        return super().forward(input_ids, media, sequences, labels)


class BridgeStep:
    """Bridge's forward step, which also reports the keys of the samples; after `killed_after` micro-batches, the job is
    killed."""

    def __init__(self, killed_after: int | None) -> None:
        settings = SimpleNamespace(dataset=SimpleNamespace(), rerun_state_machine=RerunStateMachineConfig())
        self.state = SimpleNamespace(cfg=settings, timers=Timers(0, "minmax"), straggler_timer=StragglerDetector())
        self.killed_after, self.num_calls = killed_after, 0

    def __call__(self, iterator: Any, model: Any) -> tuple[Any, Any]:
        if self.num_calls == self.killed_after:
            dist.barrier()  # so that all ranks have written the step before
            os.killpg(0, signal.SIGKILL)
        self.num_calls += 1
        keys: list[str] = []

        def batches() -> Iterator[Any]:
            batch = next(iterator)
            keys.extend(batch["__keys__"])
            yield batch

        output, loss_function = vlm_step.forward_step(self.state, batches(), model)

        def loss(losses: Any) -> tuple[Any, Any, dict[str, Any]]:
            total, num_tokens, reported = loss_function(losses)
            loss_sum, _ = reported["lm loss"]
            return total, num_tokens, {"loss_sum": loss_sum, "num_tokens": num_tokens, "keys": keys}

        return output, loss


def positions_in(checkpoints: str | Path) -> Path:
    """Where Bridge looks for the positions of the data if its config does not say it."""
    return Path(checkpoints, DATALOADER_STATE_SUBDIR)


class BridgeTrainer(MegatronTrainer):
    """Our loop; Bridge saves the position of the data, and loads it from `dataloader_load`; megatron-core does all
    else."""

    def __init__(self, dataloader_load: Path | None, config: TrainingConfig, *others: Any) -> None:
        super().__init__(config, *others)
        self.checkpoints, self.dataloader_load = str(config.checkpoint_dir), dataloader_load

    def _save(self, step: int, iterator: Any) -> None:
        folder = Path(get_checkpoint_name(self.checkpoints, step))
        if dist.get_rank() == 0:
            folder.mkdir(parents=True)
        dist.barrier()
        dist_checkpointing.save(self._sharded_state(is_loading=False), str(folder))
        maybe_save_dataloader_state([], iterator, step, str(positions_in(self.checkpoints)), pg_collection=self.groups)

    def _restore(self, loader: Any) -> int:
        if self.dataloader_load is None:
            return 0
        folder = get_checkpoint_name(self.checkpoints, SAVED_AFTER)
        state = dist_checkpointing.load(self._sharded_state(is_loading=True), folder)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.step(SAVED_AFTER)
        iterator = RerunDataIterator(loader)
        maybe_load_dataloader_state(iterator, SAVED_AFTER, str(self.dataloader_load), pg_collection=self.groups)
        return SAVED_AFTER


def train(run: str, data: str, folder: Path) -> None:
    """The work of one rank."""
    torch.set_num_threads(1)
    groups = initialize_parallel(ParallelConfig(), seed=1)
    is_killed, checkpoints = run == "killed", folder / "checkpoints"
    config = TrainingConfig(
        train_steps=NUM_STEPS,
        learning_rate=1e-2,
        checkpoint_dir=str(checkpoints),
        save_interval=SAVED_AFTER if is_killed else None,
    )
    killed_after = KILLED_IN * GLOBAL_BATCH // NUM_RANKS[run] + 1 if is_killed else None
    with (folder / f"{run}-{dist.get_rank()}.jsonl").open("w", buffering=1) as steps:

        def write(report: StepReport) -> None:
            keys = {micro_batch.number: micro_batch.outputs["keys"] for micro_batch in report.micro_batches}
            line = {"step": report.step, "loss": report.loss, "num_tokens": report.num_tokens, "keys": keys}
            steps.write(json.dumps(line) + "\n")

        dataloader_load = {"fewer": positions_in(checkpoints), "more": folder / "wider"}.get(run)
        model = BridgeModel(make_model(), groups, seq_length=SEQ_LENGTH)
        trainer = BridgeTrainer(dataloader_load, config, groups, model, BridgeStep(killed_after), write)
        trainer.fit(make_data(data, groups))
    dist.barrier()
    dist.destroy_process_group()


def main(data: str, folder: str, *runs: str) -> None:
    for run in runs:
        if status := fork_ranks(NUM_RANKS[run], lambda run=run: train(run, data, Path(folder))):
            sys.exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
