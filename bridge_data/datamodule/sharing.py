"""Who of a replica reads: every rank for itself, or one for all; and whether replicas balance what they have read.

Enters: a data set of this data-parallel rank. Leaves: what yields batches on this rank. Guarantee: batches and states
are the same whoever reads; balanced, the same for each step of all replicas together.
"""

import copy
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, get_args

from bridge_data.datamodule.parallel import BalancedLoader, Balancing, ReplicaLoader, join_peers, join_replica
from bridge_data.datamodule.rank_states import hand_on_state
from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader import SavableDataLoader, get_savable_loader
from bridge_data.loader.loader_config import Ends
from bridge_data.topology import WorkerConfig

Share: TypeAlias = Literal["replicate", "broadcast"]
RankLoader: TypeAlias = SavableDataLoader | BalancedLoader | ReplicaLoader


class IdleDataloader(Iterator[Any]):
    """What a rank of a pipeline stage between the first and the last has in place of a loader: nothing is read or sent
    to it. It stands wherever the loaders of the other ranks do; it cannot be drawn from."""

    def __init__(self, worker_config: WorkerConfig) -> None:
        self._worker_config = worker_config
        self.first_micro_batch = 0
        self.skipped: dict[str, int] = {}

    def __next__(self) -> Any:
        raise ConfigError(
            'with share="broadcast", only the first and the last pipeline stage get batches; have the forward step of '
            'the stages between draw none, or take share="replicate"'
        )

    def wait_for_workers(self, timeout_s: float = 300) -> bool:
        """True: there are none to wait for."""
        return True

    def restart(self) -> None:
        """A new evaluation begins, of which this rank sees nothing."""

    def save_state(self) -> dict[str, Any]:
        """Nothing: the ranks of the first stage save the position."""
        return {}

    def restore_state(self, state: dict[str, Any] | None) -> None:
        """Note the number of the first micro-batch, for reports. The data-parallel ranks of this stage call it as those
        with a loader do."""
        self.first_micro_batch = hand_on_state(state, self._worker_config)["next_slot"]

    def close(self) -> None:
        """Nothing is open."""


def rank_loader(
    dataset: LaneDataset,
    share: Share,
    pg_collection: Any,
    *,
    pin_memory: bool,
    balancing: Balancing | None = None,
    **settings: Any,
) -> RankLoader | None:
    """The loader of this rank; None if it needs no data. With "broadcast" or `balancing`, all ranks of the job call it
    alike.

    Raises:
        ConfigError: if the ranks of the replica are not known.
    """
    if dataset.worker_config.world_size == 1:
        balancing = None  # there is nobody to share with
    if share == "replicate":
        own = get_savable_loader(dataset, pin_memory=pin_memory, **settings)
        if balancing is None:
            return own
        peers = join_peers(dataset.worker_config.data_parallel_group)
        return BalancedLoader(dataset, own, peers, balancing, pin_memory=pin_memory)
    ends: Ends = settings.pop("ends", "uneven")
    replica = join_replica(pg_collection)
    if not replica.needs_data:
        return None
    loader: SavableDataLoader | BalancedLoader | None = None
    if replica.readers is not None:
        # The reader's thread must not meet the training step in the groups that the step uses.
        reading = copy.copy(dataset)
        reading.worker_config = copy.copy(dataset.worker_config)
        reading.worker_config.data_parallel_group = replica.readers.group
        loader = get_savable_loader(reading, pin_memory=pin_memory, **settings)
        if balancing is not None:
            loader = BalancedLoader(reading, loader, replica.readers, balancing, pin_memory=pin_memory)
    return ReplicaLoader(dataset, replica, loader, pin_memory=pin_memory, ends=ends)


def check_share(share: str) -> None:
    """See that `share` is one of the ways.

    Raises:
        ConfigError: if it is not.
    """
    if share not in get_args(Share):
        expected = " or ".join(map(repr, get_args(Share)))
        raise ConfigError(f"EnergonMultiModalDataModule(share={share!r}): expected {expected}")
