"""Batches shared between ranks: who reads for a replica, and whether ranks balance a step.

Reads process groups, and a data set of this data-parallel rank. Returns a loader of batches for this rank. Batches and
states are the same, whichever rank reads; if balanced, the same per step of all replicas together.
"""

import copy
import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.datamodule.trainer_loaders import RankLoader
from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.factory import open_loader
from bridge_data.plugins.sharing.assignment import Cost, find_cost
from bridge_data.plugins.sharing.balance import BalancedLoader, Balancing
from bridge_data.plugins.sharing.replica import IdleLoader, ReplicaLoader, join_peers, join_replica
from bridge_data.run_options import LoaderConfig, Share
from bridge_data.task import TaskEncoder
from bridge_data.topology import WorkerConfig


def shared_loader(
    dataset: LaneDataset, config: LoaderConfig, share: Share, pg_collection: Any, balancing: Balancing | None
) -> RankLoader:
    """The loader of this rank, whose batches other ranks read or balance with it; see `rank_loader`."""
    if balancing is not None and config.ends != "uneven":
        raise ConfigError(
            f"balance is for training, ends={config.ends!r} for validation, which is never balanced: remove one of them"
        )
    if share == "replicate":
        own = open_loader(dataset, config)
        if balancing is None:
            return own
        peers = join_peers(dataset.worker_config.data_parallel_group)
        return BalancedLoader(dataset, own, peers, balancing, config)
    replica = join_replica(pg_collection)
    if not replica.needs_data:
        return IdleLoader(dataset)
    loader: RankLoader | None = None
    if replica.readers is not None:
        # The reader's thread must not meet the training step in the groups that the step uses.
        reading = dataset.changed(worker_config=copy.copy(dataset.worker_config))
        reading.worker_config.data_parallel_group = replica.readers.group
        own = open_loader(reading, dataclasses.replace(config, ends="uneven"))
        loader = own
        if balancing is not None:
            loader = BalancedLoader(reading, own, replica.readers, balancing, config)
    return ReplicaLoader(dataset, replica, loader, config)


def balanced_by(
    balance: Any, encoder: TaskEncoder[Any, Any, Any, Any]
) -> Callable[[BatchSchedule, int, WorkerConfig], Balancing | None]:
    """What says how ranks share the micro-batches of a step, for the option `balance`; see `balancing_of`.

    Raises:
        ConfigError: if the encoder has no such cost.
    """
    return functools.partial(balancing_of, find_cost(balance, encoder))


def balancing_of(cost: Cost, schedule: BatchSchedule, num_micro_batches: int, config: WorkerConfig) -> Balancing | None:
    """How the ranks of `config` share the micro-batches of a step by `cost`, at most `num_micro_batches` per rank; None
    if there is nothing to balance."""
    if config.world_size == 1:
        return None
    if num_micro_batches == 1:
        warnings.warn(
            "balance has no effect: a rank takes one micro-batch per step, so there is nothing to exchange. Set "
            "a smaller micro_batch_size, or use lpt_balanced packs",
            stacklevel=4,
        )
        return None

    def step_size(num_handed_out: int) -> int:
        return schedule.num_micro_batches(num_handed_out * schedule.micro_batch_size, config.world_size)

    return Balancing(cost=cost, step_size=step_size, max_step_size=num_micro_batches)
