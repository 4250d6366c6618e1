"""Each test starts a job: process groups must not stay behind in this process."""

import json
from pathlib import Path

import pytest
import torch

from tests.ranks import run_job

LOSS_OF_A_RANK = """
import json, sys
import torch
import torch.distributed as dist
from recipes.trainer.parallel import global_loss
folder, sums, first = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
own = torch.tensor(sums[(rank - first) % size::size], dtype=torch.float64)
with open(f"{folder}/{rank}", "w") as file:
    json.dump(global_loss(own, None, first), file)
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


@pytest.mark.parametrize(("num_ranks", "first"), [(1, 0), (2, 0), (4, 6)])
def test_the_loss_of_a_global_batch_does_not_depend_on_the_ranks(tmp_path: Path, num_ranks: int, first: int) -> None:
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(8, generator=generator, dtype=torch.float64) * 1e3
    sums = [[loss, float(tokens)] for tokens, loss in enumerate(losses.tolist())]
    arguments = str(tmp_path), json.dumps(sums), str(first)
    status, output = run_job("-c", LOSS_OF_A_RANK, *arguments, num_ranks=num_ranks)
    assert status == 0, output
    printed = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(num_ranks)]
    expected = torch.tensor(sums, dtype=torch.float64).sum(0).tolist()
    assert printed == [[expected[0] / expected[1], int(expected[1])]] * num_ranks


def test_sizes_that_do_not_divide_the_ranks_are_a_config_error() -> None:
    _, printed = run_job("-c", TOO_FEW_RANKS)
    assert printed.startswith("1 ranks cannot be divided into replicas of 6 (tensor_parallel_size=2 x pipeline")
