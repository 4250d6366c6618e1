"""A loader of which one rank of a replica reads, and all have the batches.

    reader:  lanes ─▶ loader ─▶ thread ─▶ gloo ─▶ own queue
    others:                     thread ◀─ gloo ─▶ queue ─▶ next()

Enters: a data set and this rank's place in its replica. Leaves: on each rank the same batches, each with the state
after it. Guarantees: the stream and the states are those that each rank would have had by reading itself; a rank that
draws ahead of another by up to `prefetch_factor` batches waits for nobody, so no schedule of pipeline stages can
deadlock; tensors of any dtype and shape, empty ones too, come through bit by bit.

Every batch travels as bytes: its pickle and the memory of its tensors, in one broadcast after one of their sizes.
"""

import functools

import torch
import torch.distributed as dist

from bridge_data.datamodule.parallel import wire
from bridge_data.datamodule.parallel.background import (
    BATCH,
    CLOSED,
    END,
    ERROR,
    Arrival,
    Arrivals,
    BackgroundLoader,
    Reading,
)
from bridge_data.datamodule.parallel.groups import Replica
from bridge_data.errors import WorkerError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.loader_config import Ends


class ReplicaLoader(BackgroundLoader):
    """The batches of a replica, on each of its ranks that needs them.

    `dataset` is made on each of these ranks (that opens no shard); `loader` reads it, on the reader alone, and belongs
    to this object from then on. All ranks of the replica call `restore_state_rank` and `close` alike. An iteration ends
    where the reader's does.

    `ends` is how finite data ends, as in `LoaderConfig`; `loader` itself must end unevenly: what its thread has read
    ahead differs between replicas, so there the ranks could not agree.

    The reader reads `prefetch_factor` batches ahead. The others take whatever it sends, so that it never waits for
    them: they hold as many more as they are behind it, a few micro-batches in a pipeline.
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
        inbox = Arrivals(None if loader is None else prefetch_factor)
        run = functools.partial(_run, replica, inbox, loader)
        super().__init__(dataset, loader, inbox, run, pin=pin_memory and loader is None, ends=ends)


def _send(replica: Replica, inbox: Arrivals, loader: Reading) -> None:
    """The reader's thread: read, hand round, keep; from the new start after a restore."""
    generation, reading = 0, iter(loader)
    while not inbox.closed:
        if inbox.generation != generation:
            generation, start = inbox.generation, inbox.start
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
        inbox.put(generation, item)
        if item.kind == ERROR:
            inbox.wait_for_restore(generation)
    _broadcast(replica, generation, Arrival(CLOSED, None, None))
    loader.close()


def _receive(replica: Replica, inbox: Arrivals) -> None:
    """The thread of another rank: keep what the reader hands round, to its end."""
    while True:
        generation, item = _broadcast(replica)
        if item.kind == CLOSED:
            return inbox.fail(WorkerError(f"rank {replica.reader}, which reads for this one, has closed its loader"))
        inbox.put(generation, item)


def _run(replica: Replica, inbox: Arrivals, loader: Reading | None) -> None:
    try:
        if loader is None:
            _receive(replica, inbox)
        else:
            _send(replica, inbox, loader)
    except Exception as error:
        failure = WorkerError(f"batches of rank {replica.reader} can no longer be handed round its replica: {error}")
        failure.__cause__ = error
        inbox.fail(failure)


def _broadcast(replica: Replica, generation: int = 0, item: Arrival | None = None) -> tuple[int, Arrival]:
    """Hand `item` round; the others give none, and get it."""
    if replica.members.size() == 1:
        assert item is not None
        return generation, item
    sizes = torch.zeros(2, dtype=torch.int64)
    parts: list[memoryview] = []
    if item is not None:
        parts = _encoded(item)
        sizes[0], sizes[1] = generation, wire.num_bytes(parts)
    dist.broadcast(sizes, src=replica.reader, group=replica.members)
    content = torch.empty(int(sizes[1]), dtype=torch.uint8)
    if item is not None:
        wire.fill(content, parts)
    dist.broadcast(content, src=replica.reader, group=replica.members)
    return (generation, item) if item is not None else (int(sizes[0]), wire.decoded(content))


def _encoded(item: Arrival) -> list[memoryview]:
    """The item; where its content cannot travel, the error that says so."""
    try:
        return wire.encoded(item)
    except Exception as error:
        failure = WorkerError(f"{item.content!r:.200} cannot be sent to the other ranks of the replica: {error!r}")
        return wire.encoded(Arrival(ERROR, failure, None))
