"""The loader of this rank: of its own lanes; or by a plug-in, which shares batches between ranks.

Reads a data set of this data-parallel rank, and process groups. Returns a `RankLoader`; None on a rank that needs no
data, where an `IdleDataloader` stands in its place. Batches and states are the same, whichever rank reads. Raises
`ConfigError` if what shares batches is not installed, and `StateError` on all ranks if what they have found beside the
data differs.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from bridge_data.datamodule.parallel.groups import groups_beside, is_first_of_replica
from bridge_data.errors import ConfigError
from bridge_data.extensions import Feature
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.factory import open_loader, with_extras
from bridge_data.loader.metrics import LoaderMetrics
from bridge_data.loader.rank_states import check_agreement, distribute_state
from bridge_data.order.state import LoaderState
from bridge_data.run_options import LoaderConfig, Share
from bridge_data.topology import WorkerConfig


class RankLoader(Protocol):
    """A loader of one rank: that of its own lanes (`SavableDataLoader`), or one whose batches come from other ranks."""

    @property
    def is_within_step(self) -> bool:
        """Whether the last batch came with the state before it, because the rest of its step is still to come."""

    @property
    def dataset(self) -> LaneDataset: ...
    @property
    def skipped(self) -> dict[str, int]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def metrics(self, *, of_job: bool = False) -> LoaderMetrics: ...
    def snapshot(self) -> LoaderState: ...
    def save_state_rank(self) -> dict[str, Any]: ...
    def restore_state_rank(self, state: LoaderState | dict[str, Any], *, strict: bool = True) -> None: ...
    def wait_for_workers(self, timeout_s: float = 300) -> bool: ...
    def close(self) -> None: ...


_SHARE = Feature[Callable[[LaneDataset, LoaderConfig, Share, Any, Any], RankLoader | None]]("share")
"""The loader of `rank_loader`, for all of its arguments."""


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
    dataset: LaneDataset, config: LoaderConfig, share: Share, pg_collection: Any, balancing: Any = None
) -> RankLoader | None:
    """The loader of this rank; None if it needs no data. All ranks of its data-, tensor- and context-parallel groups
    must call it, and with "broadcast" or `balancing` (see the plug-in `balance`) all of the job, in the same order.

    Raises:
        ConfigError: if the ranks of the replica are not known, or balanced ranks should end evenly.
        StateError: on all of these ranks, if what they have found beside the data differs.
    """
    groups = groups_beside(pg_collection) if share == "replicate" else ()
    check_agreement(dataset.extras, dataset.worker_config, groups)
    is_validation = dataset.fingerprint()["order"] == "ordered"
    if not is_validation:  # its position has the sums of the ledger on all ranks, also on those that write no file
        dataset = with_extras(dataset, config)
    if is_validation or (share == "replicate" and not is_first_of_replica(pg_collection)):
        config = dataclasses.replace(config, ledger_path=None)
    if share == "replicate" and balancing is None:
        return open_loader(dataset, config)
    shared = _SHARE.get(needed_by="balance" if share == "replicate" else f"share={share!r}")
    return shared(dataset, config, share, pg_collection, balancing)
