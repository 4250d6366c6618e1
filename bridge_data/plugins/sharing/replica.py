"""A data-parallel replica: which of its ranks need its batches, which one reads, and the loader that forwards them.

    reader:  lanes ─▶ loader ─▶ thread ─▶ gloo ─▶ own queue
    others:                     thread ◀─ gloo ─▶ queue ─▶ next()

Reads the tensor, context, pipeline and data-parallel groups of this rank, and a data set. Returns a process group of
all tensor- and context-parallel ranks in the replica's first and last pipeline stage, and one of the ranks that read
(ranks of the stages between need no data); on each rank of the replica the same batches, each with the state after it.

All ranks of the job create the same groups in the same order. Batches and states are the same as if each rank read them
itself. A rank may be up to `NUM_AHEAD` batches ahead of another without waiting, so no schedule of pipeline stages can
deadlock. Tensors of any dtype and shape, empty ones too, arrive unchanged.

The groups use gloo and belong to one loader, so its transfers, which run during the training step, never interfere with
the collectives of the step. Every batch is sent as bytes: its pickle and the memory of its tensors, in one broadcast
after one of their sizes.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from bridge_data.datamodule.parallel.groups import groups_of, has_megatron_groups
from bridge_data.datamodule.trainer_loaders import RankLoader
from bridge_data.errors import ConfigError, WorkerError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.lane_pool import Pin
from bridge_data.loader.metrics import LoaderMetrics
from bridge_data.loader.pinning import can_pin, pinned
from bridge_data.order.state import LoaderState
from bridge_data.plugins.sharing.background import (
    BATCH,
    CLOSED,
    END,
    ERROR,
    Arrival,
    Arrivals,
    BackgroundLoader,
    filled,
    from_bytes,
    to_parts,
)
from bridge_data.run_options import LoaderConfig
from bridge_data.topology import is_distributed

NUM_AHEAD = 2
"""Batches that the reader keeps ready beside those that its workers prepare (`prefetch_factor`)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Replica:
    """The role of this rank in its replica.

    `reader` is the global rank that reads. `members` is the group of ranks that get its batches, None on a rank that
    needs none. `readers` are the reading ranks of all replicas, None on a rank that does not read.
    """

    reader: int
    members: Any
    readers: "ReplicaRanks | None"

    @property
    def needs_data(self) -> bool:
        """Whether this rank is on the first or the last pipeline stage."""
        return self.members is not None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaRanks:
    """One rank per replica: a gloo group, and the global ranks in the order of data-parallel ranks."""

    group: Any
    ranks: tuple[int, ...]


def join_peers(data_parallel_group: Any = None) -> ReplicaRanks:
    """A new group of the ranks of a data-parallel group (None: all of the job). All ranks of the job must call it, the
    same number of times.

    Raises:
        ConfigError: outside a distributed run.
    """
    _check_distributed("balance exchanges batches between ranks", "leave balance out")
    own = tuple(dist.get_process_group_ranks(data_parallel_group))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    groups = {ranks: dist.new_group(sorted(ranks), backend="gloo") for ranks in sorted(set(everyone))}
    return ReplicaRanks(group=groups[own], ranks=own)


def join_replica(pg_collection: Any = None) -> Replica:
    """The role of this rank, from its groups. All ranks of the job must call it, the same number of times.

    Raises:
        ConfigError: outside a distributed run, or without model-parallel groups.
    """
    _check_distributed('share="broadcast" sends batches between ranks', 'set share="replicate"')
    if pg_collection is None and not has_megatron_groups():
        raise ConfigError(
            'share="broadcast" needs to know the replicas: pass pg_collection, or call '
            "megatron.core.parallel_state.initialize_model_parallel first"
        )
    own = groups_of(pg_collection).coordinates
    coordinates: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(coordinates, own)
    replicas: dict[int, dict[tuple[int, ...], int]] = {}
    for rank, ((dp, _), (pp, num_stages), (cp, _), (tp, _)) in enumerate(coordinates):
        if pp in (0, num_stages - 1):
            members = replicas.setdefault(dp, {})
            if (pp, cp, tp) in members:
                raise ConfigError(
                    f"ranks {members[pp, cp, tp]} and {rank} both have data-parallel rank {dp} and pipeline, context "
                    f"and tensor ranks {pp}, {cp}, {tp}: the groups of pg_collection are not those of one job"
                )
            members[pp, cp, tp] = rank
    reader_of = {dp: members[min(members)] for dp, members in sorted(replicas.items())}
    members_of = {dp: dist.new_group(sorted(replicas[dp].values()), backend="gloo") for dp in reader_of}
    readers = ReplicaRanks(
        group=dist.new_group(sorted(reader_of.values()), backend="gloo"),
        ranks=tuple(reader_of[dp] for dp in sorted(reader_of)),
    )
    dp, rank = own[0][0], dist.get_rank()
    return Replica(
        reader=reader_of[dp],
        members=members_of[dp] if rank in replicas[dp].values() else None,
        readers=readers if rank == reader_of[dp] else None,
    )


def _check_distributed(why: str, fix: str) -> None:
    if not is_distributed():
        raise ConfigError(f"{why}, but torch.distributed is not initialised; call init_process_group first, or {fix}")


class ReplicaLoader(BackgroundLoader):
    """The batches of a replica, on each of its ranks that needs them.

    `dataset` is made on each of these ranks (which opens no shard); `loader` reads it on the reader only, and belongs
    to this object. All ranks of the replica must call `restore_state_rank` and `close` in the same order. An iteration
    ends where the reader's does.

    `loader` itself must have "uneven" ends: how far its thread has read ahead differs between replicas, so the ranks
    could not agree there.

    The reader reads `NUM_AHEAD` batches ahead. The others accept everything it sends, so that it never waits
    for them: a rank that is behind keeps more batches, a few micro-batches in a pipeline.
    """

    def __init__(
        self,
        dataset: LaneDataset,
        replica: Replica,
        loader: RankLoader | None,
        config: LoaderConfig,
    ) -> None:
        arrivals = Arrivals(None if loader is None else NUM_AHEAD)
        pin = pinned if config.pin_memory and can_pin() else None
        run: Callable[[], None]
        if loader is None:
            run = functools.partial(_receive, replica, arrivals, pin)
        else:
            run = functools.partial(_send, replica, arrivals, loader)
        failure = f"batches of rank {replica.reader} can no longer be broadcast in its replica"
        super().__init__(dataset, loader, arrivals, run, failure, config)


class IdleLoader(Iterator[Any]):
    """In place of a loader, on ranks of middle pipeline stages, which get no batches."""

    is_within_step, is_idle = False, True

    def __init__(self, dataset: LaneDataset) -> None:
        self.dataset, self.skipped, self._state = dataset, dict[str, int](), dataset.new_state()

    def __next__(self) -> Any:
        raise ConfigError(
            'with share="broadcast", only the first and the last pipeline stage get batches; have the forward step of '
            'the stages between draw none, or set share="replicate"'
        )

    def __len__(self) -> int:
        return 0

    def metrics(self, *, of_job: bool = False) -> LoaderMetrics:
        """Zeros: this rank gets no batches, as all data-parallel ranks of its stage."""
        return LoaderMetrics()

    def snapshot(self) -> LoaderState:
        """The state before the first batch."""
        return self._state

    def save_state_rank(self) -> dict[str, Any]:
        """Empty: the ranks of the first stage save the position."""
        return {}

    def restore_state_rank(self, state: LoaderState | dict[str, Any], *, strict: bool = True) -> None:
        """Does nothing."""

    def wait_for_workers(self, timeout_s: float = 300) -> bool:
        """Returns True at once: there are no workers."""
        return True

    def close(self) -> None:
        """Does nothing."""


def _send(replica: Replica, arrivals: Arrivals, loader: RankLoader) -> None:
    """The reader's thread: read, broadcast, keep; after a restore, from the new start."""
    restore_number, reading = 0, iter(loader)
    while not arrivals.closed:
        if (newest := arrivals.follow(loader, restore_number)) != restore_number:
            restore_number, reading = newest, iter(loader)
        try:
            item = Arrival(BATCH, next(reading), loader.snapshot())
        except StopIteration:
            item, reading = Arrival(END, None, loader.snapshot()), iter(loader)
        except Exception as error:
            item = Arrival(ERROR, error, None)
        _broadcast(replica, restore_number, item)
        arrivals.put(restore_number, item)
        if item.kind == ERROR:
            arrivals.wait_for_restore(restore_number)
    _broadcast(replica, restore_number, Arrival(CLOSED, None, None))


def _receive(replica: Replica, arrivals: Arrivals, pin: Pin | None) -> None:
    """The thread of another rank: keep what the reader broadcasts, to its end; with `pin`, in page-locked memory."""
    while True:
        restore_number, item = _broadcast(replica)
        if item.kind == CLOSED:
            return arrivals.fail(WorkerError(f"rank {replica.reader}, which reads for this one, has closed its loader"))
        if pin is not None and item.kind == BATCH:
            item = item._replace(content=pin(item.content))
        arrivals.put(restore_number, item)


def _broadcast(replica: Replica, restore_number: int = 0, item: Arrival | None = None) -> tuple[int, Arrival]:
    """Broadcast `item`; the other ranks pass None, and get it."""
    if replica.members.size() == 1:
        assert item is not None
        return restore_number, item
    sizes = torch.zeros(2, dtype=torch.int64)
    if item is not None:
        content = filled(_sendable(item))
        sizes[0], sizes[1] = restore_number, content.numel()
    dist.broadcast(sizes, src=replica.reader, group=replica.members)
    if item is None:
        content = torch.empty(int(sizes[1]), dtype=torch.uint8)
    dist.broadcast(content, src=replica.reader, group=replica.members)
    return (restore_number, item) if item is not None else (int(sizes[0]), from_bytes(content))


def _sendable(item: Arrival) -> list[memoryview]:
    """The parts of the item; if it cannot be sent, of the error that says so."""
    try:
        return to_parts(item)
    except WorkerError as failure:
        return to_parts(Arrival(ERROR, failure, None))
