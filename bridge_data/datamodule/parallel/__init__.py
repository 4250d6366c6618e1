"""Batches between ranks: one reader for a whole replica, and micro-batches exchanged so that ranks finish together.

    background        a loader whose batches come from a thread; any batch as bytes. The next two build on it
    replica           the ranks of one data-parallel replica: one reads and sends its batches to those that need them
    balance           a step: costs are gathered, `assignment` decides, batches are exchanged, each rank has its own
    assignment        what a micro-batch costs, and which rank works on which of a step
    context_parallel  a rank's part of a batch under context parallelism; its samples, if the groups of ranks change
    groups            the groups of a rank: those of a `pg_collection`, else Megatron's
    virtual_chunks    an iterator of the same batches for each model chunk of a virtual pipeline

All ranks of a group must make their loaders, restore and close them in the same order.
"""

from bridge_data.datamodule.parallel.context_parallel import (
    packed_seq_params,
    slice_for_context_parallel,
    with_context_groups,
    zigzag_positions,
)
from bridge_data.datamodule.parallel.groups import groups_beside, is_first_of_replica
from bridge_data.datamodule.parallel.virtual_chunks import virtual_iterators
from bridge_data.plugins.sharing.assignment import COSTS, Cost, find_cost
from bridge_data.plugins.sharing.background import BackgroundLoader, RankLoader
from bridge_data.plugins.sharing.balance import BalancedLoader, BalanceReport, Balancing
from bridge_data.plugins.sharing.replica import (
    Peers,
    Replica,
    ReplicaLoader,
    join_peers,
    join_replica,
)

__all__ = [
    "COSTS",
    "BackgroundLoader",
    "BalanceReport",
    "BalancedLoader",
    "Balancing",
    "Cost",
    "Peers",
    "RankLoader",
    "Replica",
    "ReplicaLoader",
    "find_cost",
    "groups_beside",
    "is_first_of_replica",
    "join_peers",
    "join_replica",
    "packed_seq_params",
    "slice_for_context_parallel",
    "virtual_iterators",
    "with_context_groups",
    "zigzag_positions",
]
