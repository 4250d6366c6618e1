"""Pack sources: which samples of a lane share a pack.

A `PackSource` (see `lane`) belongs to one lane. It chooses the members of the next pack, and makes packs of members.
`OnlinePacker` is the usual one: it draws samples into a buffer, of which the task encoder chooses packs. `PackSources`
opens one for each lane of a data set; a subclass opens others: `dataset.changed(pack_sources=PairsOfLanes())`.

    class Pairs:                                           # every two samples that come one after the other
        def __init__(self, feed):
            self.feed, self.held = feed, Held()
        def next(self):
            return [self.feed.next(), self.feed.next()]
        def pack(self, items):
            return self.feed.pack(items)
        def state(self):
            return None
        def seek(self, state, held):
            self.held = held
        def upcoming(self, num_packs, most):
            return self.feed.upcoming(2 * num_packs, most)

    class PairsOfLanes(PackSources):
        def open(self, dataset, feed, lane, state):
            return Pairs(feed)

A lane saves what its source holds as references, and what the source says itself as it is. So a lane that is restored
goes on as if it had not been interrupted, if what a source does next follows from these two and the draws. When lanes
are resharded, what they hold becomes a part of the rest of the data, and their own states are lost, unless
`PackSources.resharded` does better. The data set needs a `packing_buffer_size`, and an encoder that packs.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

from bridge_data.lanes.lane import Held, PackSource, SampleFeed
from bridge_data.lanes.maker import Batching, Item, Pack
from bridge_data.order import SampleRef
from bridge_data.order.plan_order import PlanOrder
from bridge_data.order.state import LoaderState
from bridge_data.plan import Plan
from bridge_data.task import TaskEncoder
from bridge_data.task.packers import FitToPack
from bridge_data.topology import WorkerConfig


class PackedData(Protocol):
    """What pack sources may know of their `LaneDataset`, whose module imports this one."""

    plan: Plan
    order: PlanOrder
    batching: Batching
    task_encoder: TaskEncoder[Any, Any, Any, Any]
    worker_config: WorkerConfig


class PackSources:
    """Opens the pack sources of a data set, in each process. Here, those of online packing.

    It is picklable, and is not changed by a run.
    """

    keeps_order: ClassVar[bool] = True
    """Whether the samples of a lane are read in the order of its cursor, so that neighbours may be read together."""
    fit: ClassVar[FitToPack] = FitToPack.SKIP_OR_TRUNCATE
    """What a `Packing` of the encoder does to each sample before it is packed."""
    makes_batches: bool = False
    """Whether a pack is a micro-batch as it is."""
    modules: tuple[str, ...] = ()
    """What its sources import on first use."""
    are_planned: ClassVar[bool] = False
    """Whether the samples of each pack are known before any is read: see `members`."""

    def batched(self, dataset: PackedData) -> "PackSources":
        """The pack sources of `dataset`, a copy of the data set of these with another batch size and another encoder.

        Raises:
            ConfigError: if there are none for this encoder.
        """
        return self

    def fingerprint(self, dataset: PackedData) -> dict[str, Any]:
        """What must be equal, beside the order and the sizes, for a state to mean the same packs."""
        return {}

    def open(self, dataset: PackedData, feed: SampleFeed, lane: int, state: LoaderState) -> PackSource:
        """The pack source of a lane of the job, which is then set to its position in `state`."""
        size = dataset.batching.packing_buffer_size
        assert size is not None
        return OnlinePacker(feed, size)

    def members(self, dataset: PackedData, lane: int, state: LoaderState) -> Iterator[Sequence[SampleRef]]:
        """If they `are_planned`: the samples of the packs of a lane from its position in `state` on, in order."""
        raise NotImplementedError

    def for_ranks(self, num_ranks: int) -> "PackSources":
        """The pack sources of a job of `num_ranks` data-parallel ranks."""
        return self

    def have_ended(self, dataset: PackedData, state: LoaderState, lanes: Iterable[int]) -> bool:
        """Whether these lanes of finite data have nothing left in `state`, as far as is known without reading."""
        return dataset.order.have_ended(state, lanes)

    def drawn(self, dataset: PackedData, state: LoaderState) -> LoaderState:
        """`state` with the cursors that say how far its lanes have drawn: those of the lanes, if they draw themselves.
        Metrics count epochs by it."""
        return state

    def check(self, dataset: PackedData, state: LoaderState) -> None:
        """Check that a saved state of these settings can be continued.

        Raises:
            StateError: if it cannot.
        """

    def resharded(self, dataset: PackedData, state: LoaderState, num_lanes: int, lanes: Collection[int]) -> LoaderState:
        """A whole state converted to `num_lanes` lanes, of which only `lanes` are computed."""
        return dataset.order.resharded(state, num_lanes, lanes)


class OnlinePacker:
    """Packs that the task encoder chooses from a buffer of `size` samples."""

    def __init__(self, feed: SampleFeed, size: int) -> None:
        self._feed, self._size, self.held = feed, size, Held()

    def next(self) -> list[Item]:
        """The members of the next pack."""
        while not self.held.packs:
            self._fill()
        return self.held.packs.popleft()

    def pack(self, items: list[Item]) -> Pack | None:
        """The pack of these members."""
        return self._feed.pack(items)

    def state(self) -> None:
        """Nothing: it continues from what it holds."""

    def seek(self, state: Any, held: Held) -> None:
        """Continue with what was held."""
        self.held = held

    def upcoming(self, num_packs: int, most: int) -> Sequence[SampleRef]:
        """Samples of the next buffer, if that is needed for so many packs."""
        return self._feed.upcoming(self._size, most) if num_packs > len(self.held.packs) else []

    def _fill(self) -> None:
        """Fill the buffer, first with what the last one left over, and choose packs from it."""
        feed, held = self._feed, self.held
        feed.count_from_here()
        buffer = [item for item in held.carried if feed.read(item)]
        held.carried = []
        at_end = False
        try:
            while len(buffer) < self._size:
                item = feed.next(self._size - len(buffer))
                if feed.read(item):
                    buffer.append(item)
        except StopIteration:
            at_end = True
            if not buffer:
                raise
        packs, held.carried = feed.select(buffer, at_end=at_end)
        held.packs.extend(packs)
