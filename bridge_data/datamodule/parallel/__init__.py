"""Model parallelism: the groups of a rank, and what each of its ranks gets of a batch.

groups            the groups of a rank: those of a `pg_collection`, else Megatron's
context_parallel  a rank's part of a batch under context parallelism; its samples, if the groups of ranks change
virtual_chunks    an iterator of the same batches for each model chunk of a virtual pipeline
"""

from bridge_data.datamodule.parallel.context_parallel import (
    packed_seq_params,
    slice_for_context_parallel,
    with_context_groups,
    zigzag_positions,
)
from bridge_data.datamodule.parallel.groups import groups_beside, is_first_of_replica
from bridge_data.datamodule.parallel.virtual_chunks import virtual_iterators

__all__ = [
    "groups_beside",
    "is_first_of_replica",
    "packed_seq_params",
    "slice_for_context_parallel",
    "virtual_iterators",
    "with_context_groups",
    "zigzag_positions",
]
