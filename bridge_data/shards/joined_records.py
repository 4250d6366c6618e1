"""Reading joins: each sample with the samples of other data sets that have the same key.

Enters: the index of a join, and the members. Leaves: `Records` whose samples hold those of all members. Guarantee: all
have the same key.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Container, Sequence
from typing import TYPE_CHECKING, Any

from bridge_data.errors import DatasetError
from bridge_data.samples import SourceInfo
from bridge_data.shards.blocks import READ_BYTES
from bridge_data.shards.records import ByteRange, Forgetting, RawSample, RecordReader, Records
from bridge_data.shards.tombstones import ForgetList, ListedFiles, Version
from bridge_data.storage import Location

if TYPE_CHECKING:
    from bridge_data.shards.joins import JoinIndex


@dataclasses.dataclass(slots=True)
class JoinedRawSample(RawSample):
    """The sample of the first member, with those of all `members`, including the first."""

    members: tuple[RawSample | None, ...]

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
        return self.members[0].split_part

    @property
    def names(self) -> Sequence[str]:
        return self.members[0].names

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

    def part_names(self, shard: int) -> Collection[str] | None:
        return self.members[0].part_names(shard)

    def describe(self, index: int) -> str:
        return self.members[0].describe(self.index.row(index)[0])

    def reader(self) -> JoinReader:
        return JoinReader(self)

    @property
    def tombstones(self) -> Sequence[ForgetList | None]:
        found = [own for member in self.members for own in _lists(member)]
        return found if any(found) else ()

    def forgotten(self, versions: Sequence[Version]) -> Container[int]:
        """A sample is forgotten if the sample of any member is."""
        left, by_member = iter(versions), {}
        for at, member in enumerate(self.members):
            own = list(itertools.islice(left, len(_lists(member))))
            if any(number for number, _ in own) and isinstance(member, Forgetting):
                by_member[at] = member.forgotten(own)
        return _ForgottenRows(self.index, by_member)

    def verified(self) -> JoinRecords:
        return dataclasses.replace(self, members=tuple(member.verified() for member in self.members))


def _lists(member: Records) -> Sequence[ForgetList | None]:
    """The lists of a member: as many with lists as without, as states have versions by their positions."""
    found = member.tombstones if isinstance(member, Forgetting) else ()
    return found or (None,) * (member.num_folders if isinstance(member, ListedFiles) else 1)


@dataclasses.dataclass(frozen=True)
class _ForgottenRows(Container[int]):
    """The rows of a join that have one of these samples of a member."""

    index: JoinIndex
    by_member: dict[int, Container[int]]

    def __contains__(self, number: Any) -> bool:
        row = self.index.row(number)
        return any(row[member] in forgotten for member, forgotten in self.by_member.items())


class JoinReader(RecordReader):
    """Reads the samples of all members of a join, singly: neighbours in it need not be neighbours in all members."""

    def __init__(self, records: JoinRecords) -> None:
        self._records = records
        self._readers = [member.reader() for member in records.members]
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

    def byte_ranges(self, index: int, parts: Container[str] | None = None) -> list[ByteRange]:
        return [
            byte_range
            for number, reader, wanted in zip(self._row(index), self._readers, self._records.parts, strict=True)
            if number >= 0
            for byte_range in reader.byte_ranges(number, _both(wanted, parts))
        ]

    def _row(self, index: int) -> Sequence[int]:
        records = self._records
        if not 0 <= index < records.num_samples:
            raise IndexError(f"join of {records.root} [{records.split_part}]: sample {index} of {records.num_samples}")
        row = records.index.row(index)
        sizes = [member.num_samples for member in records.members]
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
