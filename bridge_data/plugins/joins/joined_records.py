"""Reading joins: each sample with the samples of other data sets that have the same key.

Reads the index of a join, and the members. Returns `Records` whose samples hold those of all members, which have the
same key.
"""

from __future__ import annotations

import bisect
import dataclasses
import zlib
from collections.abc import Collection, Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bridge_data.data.blocks import ByteRange, RawSample, RecordReader
from bridge_data.data.records import (
    READ_BYTES,
    Contents,
    Derivation,
    Records,
    contents_of,
    count_samples,
    derivation_of,
    label_of,
    names_of,
    shard_at,
    split_part_of,
    verified,
)
from bridge_data.data.sample_keys import find
from bridge_data.errors import DatasetError
from bridge_data.samples import SourceInfo
from bridge_data.storage import Location

if TYPE_CHECKING:
    from bridge_data.plugins.joins.joins import JoinIndex


@dataclasses.dataclass(slots=True)
class JoinedRawSample(RawSample):
    """The sample of the first member, with those of all `members`, including the first."""

    members: tuple[RawSample | None, ...]

    @property
    def made_of(self) -> tuple[RawSample | None, ...]:
        return self.members

    @property
    def full_key(self) -> str:
        """The key of the first member's sample."""
        first = self.members[0]
        assert first is not None
        return first.full_key

    @property
    def __sources__(self) -> tuple[SourceInfo, ...]:
        return tuple(member.source_info() for member in self.members if member is not None)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class JoinRecords:
    """The samples of a join; `parts` of each member are read (None: all)."""

    index: JoinIndex
    members: tuple[Records, ...]
    parts: tuple[Container[str] | None, ...]
    read_bytes = READ_BYTES

    @property
    def root(self) -> Location:
        return self.members[0].root

    @property
    def split_part(self) -> str:
        """That of the first member."""
        return split_part_of(self.members[0])

    @property
    def shards(self) -> list[tuple[str, int]]:
        """Those of the first member, with their samples that are in the join."""
        return list(zip(names_of(self.members[0]), self.counts, strict=True))

    @property
    def counts(self) -> Sequence[int]:
        """Samples of each of these shards that are in the join."""
        return self.index.counts

    @property
    def num_samples(self) -> int:
        return self.index.num_rows

    @property
    def sample_bytes(self) -> float | None:
        """The sum over the members."""
        sizes = [member.sample_bytes for member in self.members]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def identity(self) -> dict[str, Any]:
        """The identities of the members, their nonmatch settings, the samples of each shard, and who made the index."""
        return {
            "join": [member.identity() for member in self.members],
            "nonmatch": [entry.nonmatch for entry in self.index.members],
            "counts": self.index.counts,
            **({"index": "energon"} if self.index.is_energon else {}),
        }

    def reader(self) -> JoinReader:
        return JoinReader(self)

    def row_of(self, first: int) -> int | None:
        """The row with sample `first` of the first member; None if there is none. Rows are in the order of that member,
        except within a shard of an index that Energon made."""
        shard = shard_at(self.members[0], first)
        start = sum(self.counts[:shard])
        rows, index = range(start, start + self.counts[shard]), self.index
        if index.is_energon:
            return next((row for row in rows if index.row(row)[0] == first), None)
        at = bisect.bisect_left(rows, first, key=lambda row: index.row(row)[0])
        return rows[at] if at < len(rows) and index.row(rows[at])[0] == first else None


@find.register
def _find(records: JoinRecords, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    """By the keys of the first member."""
    found = ((records.row_of(number), key) for number, key in find(records.members[0], keys))
    return ((row, key) for row, key in found if row is not None)


@verified.register
def _verified(records: JoinRecords) -> Records:
    return dataclasses.replace(records, members=tuple(map(verified, records.members)))


@derivation_of.register
def _derivation(records: JoinRecords) -> Derivation:
    return Derivation(records.members, records.index.row)


@contents_of.register
def _contents(records: JoinRecords) -> Contents:
    starts, found = zip(*map(contents_of, records.members), strict=True)
    kinds, _, digests = zip(*(more.partition(":") for more in found), strict=True)
    return Contents(zlib.crc32(repr(starts).encode()), f"{'+'.join(kinds)}:{'+'.join(digests)}")


class JoinReader(RecordReader):
    """Reads the samples of all members of a join, singly: neighbours in it need not be neighbours in all members."""

    def __init__(self, records: JoinRecords) -> None:
        self._records = records
        self._readers = [member.reader() for member in records.members]
        self._sizes = [count_samples(member) for member in records.members]
        self.dataset_path = str(records.root)

    def read(self, index: int, parts: Container[str] | None = None) -> JoinedRawSample:
        members = [
            None if number < 0 else reader.read(number, _both(wanted, parts))
            for number, reader, wanted in zip(self._row(index), self._readers, self._records.parts, strict=True)
        ]
        first = members[0]
        assert first is not None
        for member in members:
            if member is not None and member.key != first.key:
                raise DatasetError(
                    f"{self._records.index.path}: row {index} joins {first.origin} with {member.origin} of "
                    f"{member.dataset_path}, which has another key: the index was made for other data. Run "
                    "`bridge-data prepare` on the metadataset"
                )
        return JoinedRawSample(
            first.key, first.shard_name, first.index, first.parts, first.dataset_path, tuple(members)
        )

    def byte_ranges(self, block: range, parts: Container[str] | None = None) -> list[ByteRange]:
        if len(block) > 1:
            return []
        return [
            byte_range
            for number, reader, wanted in zip(self._row(block[0]), self._readers, self._records.parts, strict=True)
            if number >= 0
            for byte_range in reader.byte_ranges(range(number, number + 1), _both(wanted, parts))
        ]

    def part_names(self, shard: int) -> Collection[str] | None:
        return self._readers[0].part_names(shard)

    def _row(self, index: int) -> Sequence[int]:
        records = self._records
        if not 0 <= index < records.num_samples:
            raise IndexError(f"join of {label_of(records)}: sample {index} of {records.num_samples}")
        row = records.index.row(index)
        sizes = self._sizes
        if row[0] < 0 or not all(-1 <= number < size for number, size in zip(row, sizes, strict=True)):
            raise DatasetError(
                f"{records.index.path}: row {index} of the index of the join is {row}, of data sets of {sizes} "
                "samples. It is damaged: delete it, and prepare the metadataset again."
            )
        return row


def _both(wanted: Container[str] | None, parts: Container[str] | None) -> Container[str] | None:
    return parts if wanted is None else wanted if parts is None else _Both(wanted, parts)


@dataclasses.dataclass(frozen=True, slots=True)
class _Both:
    """The intersection of two containers."""

    one: Container[str]
    other: Container[str]

    def __contains__(self, part: object) -> bool:
        return part in self.one and part in self.other
