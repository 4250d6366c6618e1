"""The chosen samples of a data set as a data set of their own.

Enters: `Records`, and which of them are chosen. Leaves: `Records` with these alone, numbered from 0, in the same order;
shards without any are left out. Guarantee: a sample keeps its key and its number of before; neighbours are read
together, with those between them that are not chosen, unless these are far more.
"""

import dataclasses
import functools
from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any, Self

from bridge_data.shards.blocks import Cut, OpenBlocks, Samples
from bridge_data.shards.records import ByteRange, Forgetting, RawSample, RecordReader, Records
from bridge_data.shards.tombstones import Tombstones
from bridge_data.shards.where.choices import Choice
from bridge_data.storage import Location

MAX_READ_PER_CHOSEN = 8
"""Samples that are read together, at most, for each that is chosen of them; else they are read singly."""


@dataclasses.dataclass(frozen=True, eq=False)
class ChosenRecords:
    """The samples of `records` that `choice` has."""

    records: Records
    choice: Choice

    @property
    def root(self) -> Location:
        return self.records.root

    @property
    def split_part(self) -> str:
        return self.records.split_part

    @property
    def num_samples(self) -> int:
        return self.choice.num_chosen

    @functools.cached_property
    def _shards(self) -> list[int]:
        """The numbers of the shards that have chosen samples."""
        return [shard for shard, count in enumerate(self.choice.counts) if count]

    @functools.cached_property
    def counts(self) -> Sequence[int]:
        return [count for count in self.choice.counts if count]

    @functools.cached_property
    def names(self) -> Sequence[str]:
        names = self.records.names
        return [names[shard] for shard in self._shards]

    @property
    def sample_bytes(self) -> float | None:
        """Mean bytes of a sample of `records`."""
        return self.records.sample_bytes

    @property
    def read_bytes(self) -> int:
        return self.records.read_bytes

    def identity(self) -> dict[str, Any]:
        """The identity of `records`, and a digest of which are chosen."""
        return {"of": self.records.identity(), "chosen": [self.num_samples, self.choice.digest]}

    def part_names(self, shard: int) -> Collection[str] | None:
        return self.records.part_names(self._shards[shard])

    def describe(self, index: int) -> str:
        return self.records.describe(self.choice.sample(index))

    def reader(self) -> RecordReader:
        """A reader of these samples; they keep their numbers and names of `records`."""
        return _ChosenReader(self)

    def number(self, index: int) -> int | None:
        """The number here of sample `index` of `records`; None if it is not chosen."""
        return self.choice.number(index)

    @property
    def tombstones(self) -> Sequence[Tombstones | None]:
        return self.records.tombstones if isinstance(self.records, Forgetting) else ()

    def forgotten(self, versions: Sequence[int]) -> Container[int]:
        assert isinstance(self.records, Forgetting)
        return _ChosenOf(self.records.forgotten(versions), self.choice)

    def verified(self) -> "ChosenRecords":
        return dataclasses.replace(self, records=self.records.verified())


@dataclasses.dataclass(frozen=True)
class _ChosenOf(Container[int]):
    """Numbers of `records`, by their numbers among the chosen ones."""

    numbers: Container[int]
    choice: Choice

    def __contains__(self, number: Any) -> bool:
        return self.choice.sample(number) in self.numbers


class _ChosenReader:
    """Reads samples by their number among those chosen."""

    def __init__(self, chosen: ChosenRecords) -> None:
        self._chosen, self._choice = chosen, chosen.choice
        self._reader = chosen.records.reader()

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        return self._reader.read(self._sample(index), parts)

    def byte_ranges(self, index: int, parts: Container[str] | None = None) -> Sequence[ByteRange]:
        return self._reader.byte_ranges(self._sample(index), parts)

    def read_in_blocks(self, blocks: OpenBlocks | None) -> None:
        if blocks is None:
            self._reader.read_in_blocks(None)
            return
        cut = _ChosenCut(blocks.cut, self._choice)
        self._reader.read_in_blocks(_ChosenBlocks(cut, blocks.parts, blocks.budget))

    def held(self, parts: Container[str] | None) -> None:
        """None: numbers among the chosen ones are not those of what is in memory."""

    def block(self, index: int) -> range | None:
        whole = self._reader.block(self._sample(index))
        return None if whole is None else range(self._choice.rank(whole.start), self._choice.rank(whole.stop))

    def block_bytes(self, block: range) -> ByteRange | None:
        first, last = self._sample(block[0]), self._sample(block[-1])
        return self._reader.block_bytes(range(first, last + 1))

    def _sample(self, index: int) -> int:
        chosen = self._chosen
        if not 0 <= index < chosen.num_samples:
            raise IndexError(f"{chosen.root} [{chosen.split_part}]: chosen sample {index} of {chosen.num_samples}")
        return self._choice.sample(index)


@dataclasses.dataclass(frozen=True, slots=True)
class _ChosenCut:
    """The cut of the chosen samples, in numbers of a data set of which number `start` is sample 0 of `choice`: a block
    reaches from its first chosen sample to its last, or is that one sample where few between them are chosen."""

    cut: Cut
    choice: Choice
    start: int = 0

    def block(self, index: int, first: int, count: int) -> range:
        choice, start = self.choice, self.start
        begin, end = choice.rank(max(0, first - start)), choice.rank(max(0, first + count - start))
        block = self.cut.block(choice.rank(index - start), begin, end - begin)
        whole = range(choice.sample(block[0]) + start, choice.sample(block[-1]) + start + 1)
        return whole if len(whole) <= MAX_READ_PER_CHOSEN * len(block) else range(index, index + 1)

    def within(self, start: int, end: int) -> Self:
        """The same cut, for the data set of which this source is the range `start` to `end` - 1."""
        return dataclasses.replace(self, start=self.start + start)

    def chosen(self, indices: range) -> set[int]:
        """Those that are chosen."""
        found = self.choice.between(max(0, indices.start - self.start), max(0, indices.stop - self.start))
        return {sample + self.start for sample in found}


class _ChosenBlocks(OpenBlocks):
    """The open blocks of the reader of all samples: what is not chosen is released at once."""

    cut: _ChosenCut

    def hold(self, indices: range, shard_name: str, samples: Samples, num_bytes: int) -> None:
        super().hold(indices, shard_name, samples, num_bytes)
        chosen = self.cut.chosen(indices)
        if len(chosen) < len(indices):
            others = [index for index in indices if index not in chosen]
            self.pass_over(others)
            self._singly.difference_update(others)

    def read_singly(self, indices: Iterable[int]) -> None:
        assert isinstance(indices, range)
        super().read_singly(self.cut.chosen(indices))
