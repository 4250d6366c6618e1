"""Ranks that are started with different settings or data, for `test_shared_states.py`: what each sees, as JSON.

settings_job FOLDER
"""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from bridge_data import StateError
from bridge_data.datamodule.shared_states import check_agreement
from tests.datamodule.jobs import as_rank
from tests.datamodule.parts import make_module


def refusal(folder: Path, what: str, **options: Any) -> str:
    options = {"num_lanes": 8, "global_batch_size": 8, "micro_batch_size": 1, **options}
    try:
        make_module(folder / what, **options).train_dataloader()
    except StateError as error:
        return str(error)
    return ""


def run(folder: Path) -> dict[str, Any]:
    rank, world = dist.get_rank(), dist.get_world_size()
    is_last = rank == world - 1
    seen: dict[str, Any] = {
        "the same": refusal(folder, "blend.yaml"),
        "weights": refusal(folder, "other.yaml" if is_last else "blend.yaml"),
        "data": refusal(folder, "b" if is_last else "a"),
        "seed": refusal(folder, "a", seed=int(is_last)),
        "lanes": refusal(folder, "a", num_lanes=16 if is_last else 8),
        "shuffle": refusal(folder, "a", shuffle_buffer_size=2000 if is_last else 20),
    }
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    across = [dist.new_group([first, first + 2]) for first in range(2)]
    groups = SimpleNamespace(dp=across[rank % 2], tp=pairs[rank // 2])
    seen["one of a replica"] = refusal(folder, "a", seed=int(is_last), pg_collection=groups)

    dataset = make_module(folder / "blend.yaml", num_lanes=8).train_dataloader().dataloader.dataset
    times = []
    for _ in range(21):
        dist.barrier()
        start = time.perf_counter()
        check_agreement(dataset)
        times.append(time.perf_counter() - start)
    seen["seconds"] = sorted(times)[10]
    return seen


if __name__ == "__main__":
    as_rank(sys.argv[1], lambda: run(Path(sys.argv[1])))
