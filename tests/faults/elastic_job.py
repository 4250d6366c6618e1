"""One rank of a job that can be killed at any moment: trains (an all-reduce a step), logs, saves every few steps.

torchrun --nproc-per-node N -m tests.faults.elastic_job FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from bridge_data import LaneDataset, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.loader.checkpoint import load_states, save_rank_state
from tests.properties.jobs import Encoder

SAVE_EVERY = 5


def newest(folder: Path) -> Path | None:
    """The newest checkpoint: one that was being written when the job died has no file of rank 0."""
    complete = [path.parent for path in folder.glob("iter_*/train_dataloader_dprank000.pt")]
    return max(complete, default=None)


def make_dataset(folder: Path, config: WorkerConfig) -> LaneDataset:
    return get_train_dataset(
        folder / "data" / "blend.yaml",
        worker_config=config,
        batch_size=2,
        packing_buffer_size=20,
        shuffle_buffer_size=50,
        max_samples_per_sequence=20,
        task_encoder=Encoder(skip_every=7, num_parts=2),
    )


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dataset = make_dataset(folder, WorkerConfig(rank, dist.get_world_size(), 1))
    start, step = newest(folder), 0
    log_file = folder / f"log-{os.environ['RUN']}-{rank}.jsonl"
    with get_savable_loader(dataset) as loader, open(log_file, "w", buffering=1) as log:
        if start is not None:
            step = int(start.name.removeprefix("iter_"))
            loader.restore_state_rank(load_states(start, step=step))
        for batch in loader:
            step += 1
            log.write(json.dumps({"step": step, "keys": [key for unit in batch for key in unit]}) + "\n")
            dist.all_reduce(torch.ones(1))
            if step % SAVE_EVERY == 0:
                save_rank_state(folder / f"iter_{step:07d}", loader.save_state_rank(), step=step)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
