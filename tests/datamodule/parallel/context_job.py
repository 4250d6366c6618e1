"""One of four ranks under hybrid context parallelism, for `test_context_groups.py`: what Megatron-core's own step runs
of a loader, and what Megatron-core's own loader would have given this rank. Both ask for a GPU, and get the CPU.

    context_job FOLDER DATA
"""

import contextlib
import inspect
import itertools
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.datasets.data_schedule import HybridCPDataLoaderWrapper
from megatron.core.pipeline_parallel import hybrid_cp_schedule, schedules

from bridge_data import get_savable_loader
from bridge_data.datamodule.parallel import with_context_groups
from tests.datamodule.jobs import as_rank
from tests.datamodule.parallel.matrix_job import megatrons_part
from tests.datamodule.parallel.test_context_groups import MOST, PACKS, Tokens, lists_of
from tests.lanes.planned_packs import planned

NUM_STEPS = 3
_made = torch.tensor


def on_cpu(*values: Any, **settings: Any) -> torch.Tensor:
    return _made(*values, **{**settings, "device": "cpu"})


def step_of(forward_step: Any, data: Any) -> None:
    """Run Megatron-core's step with (samples, groups) of this rank."""
    schedules.forward_step, schedules.backward_step = forward_step, lambda *_: None
    run = hybrid_cp_schedule.hybrid_context_parallel_forward_backward
    given = dict.fromkeys(inspect.signature(run).parameters) | {
        "data_iterator": iter([data]),
        "no_sync_func": contextlib.nullcontext,
        "total_num_tokens": 0,
        "check_first_val_step": lambda *_: False,
    }
    run(**given)


def run(data: str) -> dict[str, Any]:
    torch.tensor, torch.Tensor.cuda = on_cpu, lambda self, *_, **__: self
    torch.cuda.current_device = lambda: torch.device("cpu")
    parallel_state.initialize_model_parallel(hybrid_context_parallel=True)
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    dataset = planned(data, Tokens(), batch_size=PACKS)
    ran: list[Any] = []

    def forward_step(function: Any, iterator: Any, *arguments: Any, **settings: Any) -> Any:
        """What the ranks of the sample have of it together."""
        sample = next(iterator)
        whole, size, sums = sample["tokens"], int(sample["local_cp_size"]), sample["loss_mask"].sum()
        if size > 1:
            among = parallel_state.get_hybrid_data_context_parallel_groups(group_size=size)
            tokens = megatrons_part({"tokens": whole[None]}, cp_group=among)["tokens"]
            dist.all_reduce(found := torch.stack([tokens.sum(), torch.as_tensor(tokens.numel())]), group=among)
            assert found.tolist() == [int(whole.sum()), len(whole)]
            assert tokens.numel() == len(whole) // size
        ran.append([int(whole[0]), size])
        return torch.zeros(()), sums

    ours = [*itertools.islice(get_savable_loader(with_context_groups(dataset, group, MOST)), NUM_STEPS)]
    held = [[lists_of(samples), groups] for samples, groups in ours]
    for samples, groups in ours:
        step_of(forward_step, (samples, groups))
    own = [
        batch[group.rank() * PACKS // 4 :][: PACKS // 4]
        for batch in itertools.islice(get_savable_loader(dataset), NUM_STEPS)
    ]
    theirs = [
        *itertools.islice(
            HybridCPDataLoaderWrapper(iter(own), SimpleNamespace(max_seqlen_per_dp_cp_rank=MOST)), NUM_STEPS
        )
    ]
    return {
        "ran": ran,
        "ours": held,
        "theirs": [[lists_of(samples), groups] for samples, groups in theirs],
    }


if __name__ == "__main__":
    as_rank(sys.argv[1], lambda: run(sys.argv[2]))
