"""Jobs of several gloo ranks, each of which writes down what it saw."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.ranks import run_job


def run_ranks(
    job: str, num_ranks: int, folder: Path, *arguments: object, timeout_s: float = 150
) -> list[dict[str, Any]]:
    """Run the module `job` of this package with `folder` and the arguments, on so many ranks; what each saw."""
    command = [f"tests.datamodule.{job}", str(folder), *map(str, arguments)]
    status, output = run_job(*command, num_ranks=num_ranks, timeout_s=timeout_s)
    assert status == 0, output
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(num_ranks)]


def as_rank(folder: str, work: Callable[[], dict[str, Any]]) -> None:
    """Do `work` as one rank of a gloo job; what it returns is what the rank saw."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seen = work()
    Path(folder, f"rank{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


def in_order(ranks: list[dict[str, Any]], name: str) -> list[Any]:
    """The micro-batches of the ranks that have seen `name`, in the order of the job."""
    drawn = [rank[name] for rank in ranks if name in rank]
    return [batch for batches in zip(*drawn, strict=True) for batch in batches]
