"""Batches that go from rank to rank: one reader for all of a replica, and micro-batches that are exchanged to balance
the ranks."""

from bridge_data.replica.background import BackgroundLoader
from bridge_data.replica.balance import BalancedLoader
from bridge_data.replica.context_parallel import packed_seq_params, slice_for_context_parallel, zigzag_positions
from bridge_data.replica.costs import COSTS, Cost, find_cost
from bridge_data.replica.exchange import BalanceReport, Balancing
from bridge_data.replica.groups import Peers, Replica, join_peers, join_replica
from bridge_data.replica.relay import ReplicaLoader
from bridge_data.replica.virtual import virtual_iterators

__all__ = [
    "COSTS",
    "BackgroundLoader",
    "BalanceReport",
    "BalancedLoader",
    "Balancing",
    "Cost",
    "Peers",
    "Replica",
    "ReplicaLoader",
    "find_cost",
    "join_peers",
    "join_replica",
    "packed_seq_params",
    "slice_for_context_parallel",
    "virtual_iterators",
    "zigzag_positions",
]
