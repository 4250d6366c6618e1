"""The chosen samples of a data set as a data set of their own.

Enters: `Records`, and a `Choice`. Leaves: `Records` of the chosen samples alone, numbered from 0, in the same order;
shards without any are skipped. Guarantee: a sample keeps its key and its stored number; neighbours are read together,
including samples between them that are not chosen, unless there are too many of these.
"""

import dataclasses
import functools
from collections.abc import Container, Iterable, Sequence
from typing import Any, Self

from bridge_data.shards.blocks import Cut, OpenBlocks, Samples
from bridge_data.shards.records import ByteRange, RecordReader, RecordsView, ViewReader
from bridge_data.shards.where.choices import Choice

MAX_READ_PER_CHOSEN = 8
"""Maximum samples read together per chosen one; beyond it, samples are read singly."""


@dataclasses.dataclass(frozen=True, eq=False)
class ChosenRecords(RecordsView):
    """The samples of `records` in `choice`."""

    choice: Choice

    @property
    def num_samples(self) -> int:
        return self.choice.num_chosen

    def sample(self, index: int) -> int:
        return self.choice.sample(index)

    def number(self, sample: int) -> int | None:
        return self.choice.number(sample)

    def shard(self, number: int) -> int:
        return self._shards[number]

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

    def identity(self) -> dict[str, Any]:
        """The identity of `records`, and a digest of the choice."""
        return {"of": self.records.identity(), "chosen": [self.num_samples, self.choice.digest]}

    def reader(self) -> RecordReader:
        return _ChosenReader(self)


class _ChosenReader(ViewReader):
    """Reads chosen samples; neighbours together, even if others are between them."""

    def __init__(self, chosen: ChosenRecords) -> None:
        super().__init__(chosen)
        self._choice = chosen.choice

    def read_in_blocks(self, blocks: OpenBlocks | None) -> None:
        if blocks is None:
            self._reader.read_in_blocks(None)
            return
        cut = _ChosenCut(blocks.cut, self._choice)
        self._reader.read_in_blocks(_ChosenBlocks(cut, blocks.parts, blocks.budget))

    def held(self, parts: Container[str] | None) -> None:
        """None: samples in memory have other numbers than chosen ones."""

    def block(self, index: int) -> range | None:
        whole = self._reader.block(self._sample(index))
        return None if whole is None else range(self._choice.rank(whole.start), self._choice.rank(whole.stop))

    def block_bytes(self, block: range) -> ByteRange | None:
        first, last = self._sample(block[0]), self._sample(block[-1])
        return self._reader.block_bytes(range(first, last + 1))


@dataclasses.dataclass(frozen=True, slots=True)
class _ChosenCut:
    """The cut of the chosen samples, in numbers of a data set whose number `start` is sample 0 of `choice`: a block
    reaches from its first chosen sample to its last, or is a single sample if few between them are chosen."""

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
        """The same cut, for a data set whose range `start` to `end` - 1 is this source."""
        return dataclasses.replace(self, start=self.start + start)

    def chosen(self, indices: range) -> set[int]:
        """Those that are chosen."""
        found = self.choice.between(max(0, indices.start - self.start), max(0, indices.stop - self.start))
        return {sample + self.start for sample in found}


class _ChosenBlocks(OpenBlocks):
    """The open blocks of the reader of all samples: those that are not chosen are released at once."""

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
