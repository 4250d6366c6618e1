"""Which data-parallel rank this process is, and the states of all of them.

It is the pure data-parallel rank: the context-parallel ranks of a replica work on parts of the same sequences, so they
read the same data, as tensor- and pipeline-parallel ranks do. The group that joins data and context parallelism
(`dp_cp`) would give each of them other data.
"""

import sys
from typing import Any

import torch.distributed as dist

from bridge_data.errors import StateError
from bridge_data.state import merge_states
from bridge_data.worker import WorkerConfig


def build_worker_config(pg_collection: Any, num_workers: int, **settings: Any) -> WorkerConfig:
    """The worker config of this rank, from the `dp` group of the collection, or from Megatron's parallel state where
    that is initialised, or else from all processes of the job; `settings` are further fields of it."""
    group = _data_parallel_group(pg_collection)
    if group is None:
        default = WorkerConfig.default_worker_config(num_workers)
        rank, world_size = default.rank, default.world_size
    else:
        rank, world_size = group.rank(), group.size()
    return WorkerConfig(
        rank=rank, world_size=world_size, num_workers=num_workers, data_parallel_group=group, **settings
    )


def _data_parallel_group(pg_collection: Any) -> Any:
    group = getattr(pg_collection, "dp", None)
    parallel_state = sys.modules.get("megatron.core.parallel_state")  # not imported: not initialised either
    if group is None and parallel_state is not None and parallel_state.model_parallel_is_initialized():
        return parallel_state.get_data_parallel_group()
    return group


def gather_state(state: dict[str, Any], config: WorkerConfig) -> dict[str, Any]:
    """The state of the whole job out of that of each data-parallel rank; all of them must call it.

    Raises:
        StateError: outside a distributed run of so many ranks.
    """
    if config.world_size == 1:
        return state
    if not (dist.is_available() and dist.is_initialized()):
        raise StateError(
            f"the states of {config.world_size} data-parallel ranks cannot be gathered: torch.distributed is not "
            "initialised. Save each rank's own with the loader's save_state_rank, and join them with merge_states"
        )
    states: list[Any] = [None] * config.world_size
    dist.all_gather_object(states, state, group=config.data_parallel_group)
    return merge_states(states)
