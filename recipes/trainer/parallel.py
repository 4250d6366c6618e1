"""Process groups of a Megatron job, seeds, and the loss of the global batch.

Reads the parallel sizes of the config, and torchrun's environment. Returns the process groups of this rank. The global
loss is bit-identical for any number of data-parallel ranks.
"""

import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from bridge_data.errors import ConfigError
from recipes.trainer.config import ParallelConfig

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection


def initialize_parallel(config: ParallelConfig, seed: int) -> "ProcessGroupCollection":
    """Join the job that torchrun started (or start a job of one rank), create the process groups, and seed the ranks.

    Raises:
        ConfigError: if the parallel sizes do not divide the number of ranks.
    """
    from megatron.core import parallel_state
    from megatron.core.process_groups_config import ProcessGroupCollection

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if "RANK" in os.environ:
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    per_replica = config.tensor_parallel_size * config.pipeline_parallel_size * config.context_parallel_size
    if dist.get_world_size() % per_replica:
        raise ConfigError(
            f"{dist.get_world_size()} ranks cannot be divided into replicas of {per_replica} "
            f"(tensor_parallel_size={config.tensor_parallel_size} x pipeline_parallel_size="
            f"{config.pipeline_parallel_size} x context_parallel_size={config.context_parallel_size})"
        )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=config.tensor_parallel_size,
        pipeline_model_parallel_size=config.pipeline_parallel_size,
        context_parallel_size=config.context_parallel_size,
    )
    groups = ProcessGroupCollection.use_mpu_process_groups()
    seed_stage(seed, groups.pp.rank())
    return groups


def global_loss(
    sums: torch.Tensor, dp_group: "dist.ProcessGroup | None", first_micro_batch: int = 0
) -> tuple[float, int]:
    """(mean token loss, number of tokens) of the global batch.

    `sums` is float64 (micro-batches, 2): sum of losses and number of tokens of each micro-batch of this rank. They are
    added in the order of the global batch, so the result does not depend on the number of ranks. `first_micro_batch` is
    the number of the step's first micro-batch in the whole job, which determines the rank it belongs to.
    """
    parts = [torch.empty_like(sums) for _ in range(dist.get_world_size(dp_group))]
    dist.all_gather(parts, sums, group=dp_group)
    first_rank = first_micro_batch % len(parts)
    parts = parts[first_rank:] + parts[:first_rank]
    loss_sum, num_tokens = torch.stack(parts, dim=1).flatten(0, 1).sum(0).tolist()
    return loss_sum / max(num_tokens, 1.0), int(num_tokens)


def seed_stage(seed: int, pp_rank: int) -> None:
    """Seed torch's and Megatron's generators: per pipeline stage, equal for its tensor-parallel ranks."""
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    torch.manual_seed(seed + 100 * pp_rank)
    model_parallel_cuda_manual_seed(seed + 100 * pp_rank)
