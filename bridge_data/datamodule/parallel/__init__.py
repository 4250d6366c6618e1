"""Batches sent between ranks: one reader for a whole replica, and micro-batches exchanged to balance the ranks."""

from bridge_data.datamodule.parallel.assignment import COSTS, Cost, find_cost
from bridge_data.datamodule.parallel.background import BackgroundLoader, RankLoader
from bridge_data.datamodule.parallel.balance import BalancedLoader, BalanceReport, Balancing
from bridge_data.datamodule.parallel.context_parallel import (
    packed_seq_params,
    slice_for_context_parallel,
    zigzag_positions,
)
from bridge_data.datamodule.parallel.groups import groups_beside, is_first_of_replica
from bridge_data.datamodule.parallel.replica import (
    Peers,
    Replica,
    ReplicaLoader,
    join_peers,
    join_replica,
)
from bridge_data.datamodule.parallel.virtual_chunks import virtual_iterators

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
    "zigzag_positions",
]
