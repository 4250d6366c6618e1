"""One rank of a job over finite data, its steps kept in step by a collective of its own, as training does.

python -m tests.loader.ends_job RANK WORLD_SIZE RENDEZVOUS DATA NUM_WORKERS
"""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from bridge_data import (
    Batch,
    DefaultTaskEncoder,
    SkipSample,
    TextSample,
    WorkerConfig,
    edataclass,
    get_savable_loader,
    get_val_dataset,
)


@edataclass
class Loss(Batch):
    loss_mask: torch.Tensor


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Leaves out so much that the ranks' shares differ."""

    def encode_sample(self, sample: TextSample) -> TextSample:
        if int(sample.text) % 8 in (1, 3, 5):
            raise SkipSample
        return sample

    def batch(self, samples: list[TextSample]) -> Loss:
        return Loss.from_samples(samples, loss_mask=torch.ones(len(samples)))


def main(rank: int, world_size: int, rendezvous: str, data: str, num_workers: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    config = WorkerConfig(rank, world_size, num_workers, num_lanes=2 * world_size)
    dataset = get_val_dataset(data, split_part="train", worker_config=config, batch_size=2, task_encoder=Encoder())
    passes = []
    with get_savable_loader(dataset, ends="even") as loader:
        for _ in range(2):
            steps = []
            for batch in loader:
                total = batch.loss_mask.sum()
                dist.all_reduce(total)
                steps.append([batch.__key__, float(batch.loss_mask.sum()), float(total)])
            passes.append(steps)
    print(json.dumps(passes))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
