"""The loader of this rank: which rank reads for a replica, whether ranks balance, and what a rank without data gets.

Reads process groups, and a data set of this data-parallel rank. Returns a loader of batches for this rank. Batches and
states are the same, whichever rank reads; if balanced, the same per step of all replicas together.
"""

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.datamodule.parallel import (
    BalancedLoader,
    Balancing,
    RankLoader,
    ReplicaLoader,
    groups_beside,
    is_first_of_replica,
    join_peers,
    join_replica,
)
from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.factory import open_loader, with_extras
from bridge_data.loader.metrics import LoaderMetrics
from bridge_data.loader.rank_states import check_agreement, distribute_state
from bridge_data.order.state import LoaderState
from bridge_data.run_options import LoaderConfig, Share
from bridge_data.topology import WorkerConfig


class IdleDataloader(Iterator[Any]):
    """Replaces the loader on ranks of middle pipeline stages, which get no data. It has the methods of a loader, but no
    batches."""

    def __init__(self, worker_config: WorkerConfig) -> None:
        self._worker_config = worker_config
        self.first_micro_batch = 0
        self.skipped: dict[str, int] = {}

    def __next__(self) -> Any:
        raise ConfigError(
            'with share="broadcast", only the first and the last pipeline stage get batches; have the forward step of '
            'the stages between draw none, or set share="replicate"'
        )

    def wait_for_workers(self, timeout_s: float = 300) -> bool:
        """Returns True at once: there are no workers."""
        return True

    def metrics(self, *, of_job: bool = False) -> LoaderMetrics:
        """Zeros: this rank gets no batches, as all data-parallel ranks of its stage."""
        return LoaderMetrics()

    def restart(self) -> None:
        """Does nothing: this rank takes no part in an evaluation."""

    def save_state(self) -> dict[str, Any]:
        """Empty: the ranks of the first stage save the position."""
        return {}

    def restore_state(self, state: LoaderState | dict[str, Any] | None, *, strict: bool | None = None) -> None:
        """Set the number of the first micro-batch. All data-parallel ranks of this stage must call it."""
        self.first_micro_batch = distribute_state(state, self._worker_config).num_handed_out

    def close(self) -> None:
        """Does nothing."""


def rank_loader(
    dataset: LaneDataset,
    config: LoaderConfig,
    share: Share,
    pg_collection: Any,
    balancing: Balancing | None = None,
) -> "RankLoader | None":
    """The loader of this rank; None if it needs no data. All ranks of its data-, tensor- and context-parallel groups
    must call it, and with "broadcast" or `balancing` all of the job, in the same order.

    Raises:
        ConfigError: if the ranks of the replica are not known, or balanced ranks should end evenly.
        StateError: on all of these ranks, if what they have found beside the data differs.
    """
    if balancing is not None and config.ends != "uneven":
        raise ConfigError(
            f"balance is for training, ends={config.ends!r} for validation, which is never balanced: remove one of them"
        )
    groups = groups_beside(pg_collection) if share == "replicate" else ()
    check_agreement(dataset.extras, dataset.worker_config, groups)
    is_validation = dataset.fingerprint()["order"] == "ordered"
    if not is_validation:  # its position has the sums of the ledger on all ranks, also on those that write no file
        dataset = with_extras(dataset, config)
    if is_validation or (share == "replicate" and not is_first_of_replica(pg_collection)):
        config = dataclasses.replace(config, ledger_path=None)
    if share == "replicate":
        own = open_loader(dataset, config)
        if balancing is None:
            return own
        peers = join_peers(dataset.worker_config.data_parallel_group)
        return BalancedLoader(dataset, own, peers, balancing, config)
    replica = join_replica(pg_collection)
    if not replica.needs_data:
        return None
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


def balancing_of(
    cost: Callable[[Any], float] | None, schedule: BatchSchedule, num_micro_batches: int, config: WorkerConfig
) -> Balancing | None:
    """How the ranks of `config` share the micro-batches of a step by `cost`, at most `num_micro_batches` per rank; None
    if there is nothing to balance."""
    if cost is None or config.world_size == 1:
        return None
    if num_micro_batches == 1:
        warnings.warn(
            "balance has no effect: a rank takes one micro-batch per step, so there is nothing to exchange. Set "
            "a smaller micro_batch_size, or use lpt_balanced packs",
            stacklevel=4,
        )
        return None

    def step_size(first_micro_batch: int) -> int:
        return schedule.num_micro_batches(first_micro_batch * schedule.micro_batch_size, config.world_size)

    return Balancing(cost=cost, step_size=step_size, max_step_size=num_micro_batches)
