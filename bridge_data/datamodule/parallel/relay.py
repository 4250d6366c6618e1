"""A loader that one rank of a replica reads, and that has the same batches on all of them.

    reader:  lanes ─▶ loader ─▶ thread ─▶ gloo ─▶ own queue
    others:                     thread ◀─ gloo ─▶ queue ─▶ next()

Enters: a data set and the role of this rank in its replica. Leaves: on each rank the same batches, each with the state
after it. Guarantees: batches and states are the same as if each rank read them itself; a rank may be up to
`prefetch_factor` batches ahead of another without waiting, so no schedule of pipeline stages can deadlock; tensors of
any dtype and shape, empty ones too, arrive unchanged.

Every batch is sent as bytes: its pickle and the memory of its tensors, in one broadcast after one of their sizes.
"""

import functools

import torch
import torch.distributed as dist

from bridge_data.datamodule.parallel.background import (
    BATCH,
    CLOSED,
    END,
    ERROR,
    Arrival,
    Arrivals,
    BackgroundLoader,
    Reading,
    fill,
    from_bytes,
    num_bytes,
    to_parts,
)
from bridge_data.datamodule.parallel.groups import Replica
from bridge_data.errors import WorkerError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.loader_config import Ends
from bridge_data.loader.pinning import Pin, can_pin, pinned


class ReplicaLoader(BackgroundLoader):
    """The batches of a replica, on each of its ranks that needs them.

    `dataset` is made on each of these ranks (which opens no shard); `loader` reads it on the reader only, and belongs
    to this object. All ranks of the replica must call `restore_state_rank` and `close` in the same order. An iteration
    ends where the reader's does.

    `ends` is that of `LoaderOptions`. `loader` itself must have "uneven" ends: how far its thread has read ahead
    differs between replicas, so the ranks could not agree there.

    The reader reads `prefetch_factor` batches ahead. The others accept everything that it sends, so that it never waits
    for them: a rank that is behind keeps more batches, a few micro-batches in a pipeline.
    """

    def __init__(
        self,
        dataset: LaneDataset,
        replica: Replica,
        loader: Reading | None,
        *,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
        ends: Ends = "uneven",
    ) -> None:
        arrivals = Arrivals(None if loader is None else prefetch_factor)
        pin = pinned if pin_memory and can_pin() else None
        run = functools.partial(_run, replica, arrivals, loader, pin)
        super().__init__(dataset, loader, arrivals, run, ends=ends)


def _send(replica: Replica, arrivals: Arrivals, loader: Reading) -> None:
    """The reader's thread: read, broadcast, keep; after a restore, from the new start."""
    generation, reading = 0, iter(loader)
    while not arrivals.closed:
        if arrivals.generation != generation:
            generation, start = arrivals.generation, arrivals.start
            assert start is not None
            loader.restore_state_rank(start)
            reading = iter(loader)
        try:
            item = Arrival(BATCH, next(reading), loader.save_state_rank())
        except StopIteration:
            item, reading = Arrival(END, None, loader.save_state_rank()), iter(loader)
        except Exception as error:
            item = Arrival(ERROR, error, None)
        _broadcast(replica, generation, item)
        arrivals.put(generation, item)
        if item.kind == ERROR:
            arrivals.wait_for_restore(generation)
    _broadcast(replica, generation, Arrival(CLOSED, None, None))
    loader.close()


def _receive(replica: Replica, arrivals: Arrivals, pin: Pin | None) -> None:
    """The thread of another rank: keep what the reader broadcasts, to its end; with `pin`, in page-locked memory."""
    while True:
        generation, item = _broadcast(replica)
        if item.kind == CLOSED:
            return arrivals.fail(WorkerError(f"rank {replica.reader}, which reads for this one, has closed its loader"))
        if pin is not None and item.kind == BATCH:
            item = item._replace(content=pin(item.content))
        arrivals.put(generation, item)


def _run(replica: Replica, arrivals: Arrivals, loader: Reading | None, pin: Pin | None) -> None:
    try:
        if loader is None:
            _receive(replica, arrivals, pin)
        else:
            _send(replica, arrivals, loader)
    except Exception as error:
        failure = WorkerError(f"batches of rank {replica.reader} can no longer be broadcast in its replica: {error}")
        failure.__cause__ = error
        arrivals.fail(failure)


def _broadcast(replica: Replica, generation: int = 0, item: Arrival | None = None) -> tuple[int, Arrival]:
    """Broadcast `item`; the other ranks give none, and get it."""
    if replica.members.size() == 1:
        assert item is not None
        return generation, item
    sizes = torch.zeros(2, dtype=torch.int64)
    parts: list[memoryview] = []
    if item is not None:
        parts = _encoded(item)
        sizes[0], sizes[1] = generation, num_bytes(parts)
    dist.broadcast(sizes, src=replica.reader, group=replica.members)
    content = torch.empty(int(sizes[1]), dtype=torch.uint8)
    if item is not None:
        fill(content, parts)
    dist.broadcast(content, src=replica.reader, group=replica.members)
    return (generation, item) if item is not None else (int(sizes[0]), from_bytes(content))


def _encoded(item: Arrival) -> list[memoryview]:
    """The item; if its content cannot be sent, an error."""
    try:
        return to_parts(item)
    except Exception as error:
        failure = WorkerError(f"{item.content!r:.200} cannot be sent to the other ranks of the replica: {error!r}")
        return to_parts(Arrival(ERROR, failure, None))
