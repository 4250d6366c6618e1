"""A data set whose lanes say what their time went to.

Enters: a data set. Leaves: the same one, each batch of which comes with what its process has done since the batch
before, so that it needs no way of its own from a worker to the trainer. Guarantee: the batches are the same; a data set
that is not clocked pays nothing, since the clock is wrapped around readers, loaders, hooks and lanes.
"""

import dataclasses
import functools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Self, cast

from bridge_data import samples
from bridge_data.decode import Loader, open_loader
from bridge_data.errors import ErrorHandler
from bridge_data.lanes.lane import Lane, LaneBatch
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.order import SampleRef
from bridge_data.order.state import LoaderState
from bridge_data.samples import CrudeSample, Sample
from bridge_data.shards import ByteRange, RawSample, RecordReader, Records
from bridge_data.shards.blocks import BlockBudget, Cut, OpenBlocks
from bridge_data.shards.joined_records import JoinedRawSample
from bridge_data.task import STAGES, Hooks
from bridge_data.tools.bench.clock import Clock, Key, Tally

OF_SOURCES = STAGES[: STAGES.index("postencode_sample") + 1]
"""The hooks that work on one sample, and so for one source."""


@dataclasses.dataclass(slots=True)
class Clocked:
    """A batch, and what the process that made it did since its batch before."""

    batch: Any
    tallies: dict[Key, Tally]
    delay_ns: int
    """How long it had to wait for a core."""

    def pin_memory(self) -> "Clocked":
        """A copy with the batch in page-locked memory."""
        pinned = self.batch.pin_memory() if hasattr(self.batch, "pin_memory") else samples.pin(self.batch)
        return Clocked(pinned, self.tallies, self.delay_ns)


class ClockedDataset(LaneDataset):
    """A data set whose batches are `Clocked`."""

    @classmethod
    def of(cls, dataset: LaneDataset) -> Self:
        """The same data set, with a clock."""
        clocked = cls.__new__(cls)
        vars(clocked).update(dataset.__getstate__())
        return clocked

    def lane(self, lane: int, state: LoaderState, watch: Callable[[SampleRef], None] | None = None) -> Lane:
        """The lane with number `lane`, where `state` has it."""
        return _ClockedLane.of(super().lane(lane, state, watch), self._clock)

    def sample_bytes(self, num_samples: int) -> float:
        """The mean number of bytes that are read of a sample, over so many that come first."""
        state = self.new_state()
        drawn = self._order.cursor(next(iter(state.lanes)), state).take(num_samples)
        sizes = [_num_bytes(self._loaders[ref.source].read(ref.index)) for _, ref in drawn]
        return sum(sizes) / len(sizes)

    @functools.cached_property
    def _clock(self) -> Clock:
        return Clock()

    @functools.cached_property
    def _loaders(self) -> list[Loader]:
        loaders: list[Loader] = []
        for number, source in enumerate(self.plan.sources):
            records = _ClockedRecords(source.records, self._clock, number)
            clocked = dataclasses.replace(source, records=cast(Records, records))
            loaders.append(_ClockedLoader(open_loader(clocked, self.task_encoder.decoder), self._clock, number))
        return loaders

    def _hooks(self, handler: ErrorHandler | None) -> Hooks:
        numbers = {key: number for number, key in enumerate(self._order.source_keys)}
        return _ClockedHooks.of(super()._hooks(handler), self._clock, numbers)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_clock"}


class _ClockedLane(Lane):
    _clock: Clock

    @classmethod
    def of(cls, lane: Lane, clock: Clock) -> Self:
        clocked = cls.__new__(cls)
        vars(clocked).update(vars(lane), _clock=clock)
        return clocked

    def next(self) -> LaneBatch:
        self._clock.begin_batch()
        try:
            item = super().next()
        finally:
            self._clock.end_batch()
        item.batch = Clocked(item.batch, self._clock.take(), self._clock.take_delay_ns())
        return item


class _ClockedRecords:
    """Records whose readers are clocked."""

    def __init__(self, records: Records, clock: Clock, source: int) -> None:
        self._records, self._clock, self._source = records, clock, source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    def reader(self) -> RecordReader:
        return _ClockedReader(self._records.reader(), self._clock, Key("read", self._source))


class _ClockedReader:
    def __init__(self, reader: RecordReader, clock: Clock, key: Key) -> None:
        self._reader, self._clock, self._key = reader, clock, key

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        self._clock.enter(self._key)
        try:
            return self._reader.read(index, parts)
        finally:
            self._clock.leave()

    def byte_ranges(self, index: int, parts: Container[str] | None = None) -> Sequence[ByteRange]:
        return self._reader.byte_ranges(index, parts)

    def read_in_blocks(self, blocks: OpenBlocks | None) -> None:
        self._reader.read_in_blocks(blocks)

    def block(self, index: int) -> range | None:
        return self._reader.block(index)

    def block_bytes(self, block: range) -> ByteRange | None:
        return self._reader.block_bytes(block)


class _ClockedLoader:
    """A loader whose streams are clocked. Its reader is a clocked one; what it builds by itself is run as a hook."""

    def __init__(self, loader: Loader, clock: Clock, source: int) -> None:
        self._loader, self._clock, self._key = loader, clock, Key("decode", source)
        self.is_plain = loader.is_plain

    def read(self, index: int) -> RawSample:
        return self._loader.read(index)

    def places(self, index: int) -> Sequence[ByteRange]:
        return self._loader.places(index)

    def read_in_blocks(self, cut: Cut | None, budget: BlockBudget) -> None:
        self._loader.read_in_blocks(cut, budget)

    def block(self, index: int) -> range | None:
        return self._loader.block(index)

    def block_place(self, block: range) -> ByteRange | None:
        return self._loader.block_place(block)

    def build(self, raw: RawSample, index: int) -> Sample | CrudeSample:
        return self._loader.build(raw, index)

    def stream(self, indices: Iterable[int]) -> Iterator[Sample | CrudeSample] | None:
        stream = self._loader.stream(indices)
        return None if stream is None else _ClockedStream(stream, self._clock, self._key)


class _ClockedStream(Iterator[Sample | CrudeSample]):
    def __init__(self, stream: Iterator[Sample | CrudeSample], clock: Clock, key: Key) -> None:
        self._stream, self._clock, self._key = stream, clock, key

    def __next__(self) -> Sample | CrudeSample:
        self._clock.enter(self._key)
        try:
            return next(self._stream)
        finally:
            self._clock.leave()


class _ClockedHooks(Hooks):
    """Hooks each of which is clocked, and the seeding before it by itself."""

    _clock: Clock
    _numbers: dict[int, int]
    """Of sources, by their keys."""

    @classmethod
    def of(cls, hooks: Hooks, clock: Clock, numbers: dict[int, int]) -> Self:
        clocked = cls.__new__(cls)
        vars(clocked).update(vars(hooks), _clock=clock, _numbers=numbers)
        return clocked

    def run(
        self, stage: str, fn: Callable[[Any], Any], argument: Any, sample: tuple[int, ...], count: int = 1
    ) -> list[Any]:
        self._clock.enter(Key(stage, self._numbers[sample[0]] if stage in OF_SOURCES else None))
        try:
            return super().run(stage, fn, argument, sample, count)
        finally:
            self._clock.leave()

    def _seed(self, stage: str, sample: tuple[int, ...]) -> None:
        self._clock.enter(Key(f"seed {stage}"))
        try:
            super()._seed(stage, sample)
        finally:
            self._clock.leave()

    def __exit__(self, *exception: object) -> None:
        self._clock.enter(Key("seed"))
        try:
            super().__exit__(*exception)
        finally:
            self._clock.leave()


def _num_bytes(raw: RawSample) -> int:
    members = raw.members if isinstance(raw, JoinedRawSample) else (raw,)
    return sum(len(content) for member in members if member is not None for content in member.parts.values())
