"""Each test starts processes of its own: process groups must not stay behind in this one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]

LOSS_OF_A_RANK = """
import json, sys
import torch
import torch.distributed as dist
from recipes.trainer.parallel import global_loss
store, rank, size, sums = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
first = int(sys.argv[5])
own = torch.tensor(sums[(rank - first) % size::size], dtype=torch.float64)
print(json.dumps(global_loss(own, None, first)))
dist.destroy_process_group()
"""

TOO_FEW_RANKS = """
from bridge_data.errors import ConfigError
from recipes.trainer.config import ParallelConfig
from recipes.trainer.parallel import initialize_parallel
try:
    initialize_parallel(ParallelConfig(tensor_parallel_size=2, context_parallel_size=3), seed=1)
except ConfigError as error:
    print(error)
"""


def start(program: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


@pytest.mark.parametrize(("num_ranks", "first"), [(1, 0), (2, 0), (4, 6)])
def test_the_loss_of_a_global_batch_does_not_depend_on_the_ranks(tmp_path: Path, num_ranks: int, first: int) -> None:
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(8, generator=generator, dtype=torch.float64) * 1e3
    sums = [[loss, float(tokens)] for tokens, loss in enumerate(losses.tolist())]
    jobs = [
        start(LOSS_OF_A_RANK, str(tmp_path / "store"), str(rank), str(num_ranks), json.dumps(sums), str(first))
        for rank in range(num_ranks)
    ]
    printed = [json.loads(job.communicate(timeout=100)[0]) for job in jobs]
    expected = torch.tensor(sums, dtype=torch.float64).sum(0).tolist()
    assert printed == [[expected[0] / expected[1], int(expected[1])]] * num_ranks


def test_sizes_that_do_not_divide_the_ranks_are_a_config_error() -> None:
    printed, _ = start(TOO_FEW_RANKS).communicate(timeout=100)
    assert printed.startswith("1 ranks cannot be divided into replicas of 6 (tensor_parallel_size=2 x pipeline")
