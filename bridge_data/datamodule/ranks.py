"""Which data-parallel rank this process is.

It is the pure data-parallel rank: the context-parallel ranks of a replica work on parts of the same sequences, so they
read the same data, as tensor- and pipeline-parallel ranks do. The group that joins data and context parallelism
(`dp_cp`) would give each of them other data.
"""

import sys
from typing import Any

from bridge_data.topology import WorkerConfig


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
