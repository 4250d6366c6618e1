"""One rank of two that draw different numbers of batches, and sum up their metrics.

metrics_job DATA FOLDER

Writes to FOLDER, for each rank, its own counts and those of the job.
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from bridge_data import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset


def main(data: str, folder: str) -> None:
    dist.init_process_group("gloo")
    config = WorkerConfig.default_worker_config(num_workers=0)
    dataset = get_train_dataset(
        data,
        worker_config=config,
        batch_size=2,
        shuffle_buffer_size=20,
        max_samples_per_sequence=20,
        task_encoder=DefaultTaskEncoder(),
    )
    names = ("samples", "batches", "bytes_read")
    with get_savable_loader(dataset) as loader:
        for _ in zip(range(5 * (config.rank + 1)), loader, strict=False):
            pass
        own, job = loader.metrics(), loader.metrics(of_job=True)
    found = {"own": {name: getattr(own, name) for name in names}, "job": {name: getattr(job, name) for name in names}}
    Path(folder, f"{config.rank}.json").write_text(json.dumps({**found, "num_ranks": job.num_ranks}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
