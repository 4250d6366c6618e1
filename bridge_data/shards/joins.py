"""Joins: samples of several data sets that have the same key, by an index in one memory-mapped file.

Enters: the members of a join, and the folder with the index that preparing the metadataset made. Leaves: for number i
the sample of each member, None where one has no match. Order, shards and key are those of the first member. Guarantee:
an index is found only by members that have not changed since it was made; for one that is out of date, the error says
why.

Layout of the index: see `bridge_index`. The data are the rows (i64): for each member the number of its sample, -1 for
none. The table holds the members, and the number of rows of each shard of the first.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Collection, Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.later import numpy as np
from bridge_data.samples import SourceInfo
from bridge_data.shards.blocks import OpenBlocks
from bridge_data.shards.bridge_index import HEADER_BYTES, IndexFile
from bridge_data.shards.metadata import meta_folder, read_uuid
from bridge_data.shards.prepared import ShardSet
from bridge_data.shards.records import ByteRange, RawSample
from bridge_data.storage import AnyLocation, Location

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"BRIDGEJN"
FOLDER_SUFFIX = ".joins"
FILE_SUFFIX = ".join"

Nonmatch = Literal["error", "skip", "none"]
"""What to do with a sample of the first member that has no match in another."""


@dataclasses.dataclass(frozen=True, slots=True)
class JoinMember:
    """A data set in a join: the first, whose samples are those of the join, or one that is joined to it."""

    shards: ShardSet
    nonmatch: Nonmatch


@dataclasses.dataclass(frozen=True, slots=True)
class MemberEntry:
    """A member as it was when the index was made; `path` is relative to the folder of the metadataset.

    `num_missing` counts the samples of the first member that had no match in it.
    """

    path: str
    split_part: str
    nonmatch: Nonmatch
    fingerprint: str
    num_samples: int
    num_missing: int


class JoinIndex:
    """An index that was found valid. It travels to other processes as its path, and is mapped where it is used."""

    def __init__(self, file: IndexFile, members: list[MemberEntry], counts: list[int]) -> None:
        self._file, self.members, self.counts = file, members, counts

    @classmethod
    def open(cls, path: Location) -> JoinIndex | None:
        """The index at `path`; None if there is none, or none that can be used here. One in an object store is copied
        to the disk first."""
        opened = IndexFile.open(path, MAGIC)
        try:
            return opened and cls(opened[0], [MemberEntry(*row) for row in opened[1]["members"]], opened[1]["counts"])
        except (KeyError, TypeError):
            return None

    @property
    def path(self) -> Path:
        """The file on this machine."""
        return self._file.path

    @functools.cached_property
    def num_rows(self) -> int:
        """Samples of the join."""
        return sum(self.counts)

    @property
    def num_left_out(self) -> int:
        """Samples of the first member that are not in the join."""
        return self.members[0].num_samples - self.num_rows

    def row(self, index: int) -> list[int]:
        """The numbers of the members' samples in row `index`, -1 for none."""
        numbers: list[int] = self._rows[index].tolist()
        return numbers

    @functools.cached_property
    def _rows(self) -> NDArray[np.int64]:
        shape = (self.num_rows, len(self.members))
        return np.frombuffer(self._file.mapped(), np.int64, shape[0] * shape[1], HEADER_BYTES).reshape(shape)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_rows"}


@overload
def join_folder(metadataset: Path) -> Path: ...
@overload
def join_folder(metadataset: str | Location) -> Location: ...
def join_folder(metadataset: str | Location) -> Location:
    """The folder of the join indexes of the file `metadataset`."""
    path = storage.location(metadataset)
    return path.with_name(path.name + FOLDER_SUFFIX)


def join_path(folder: AnyLocation, members: Sequence[JoinMember]) -> AnyLocation:
    """The path in `folder` of the index of the join of these members; its name is a digest of their present state."""
    parts = [[_fingerprint(member.shards), member.nonmatch] for member in members]
    return folder / f"{_digest(parts)}{FILE_SUFFIX}"


def entry_of(folder: Location, member: JoinMember, num_missing: int) -> MemberEntry:
    """The entry of a member for an index in `folder`."""
    root = member.shards.root
    return MemberEntry(
        path=os.path.relpath(root, folder.parent) if isinstance(root, Path) and isinstance(folder, Path) else str(root),
        split_part=member.shards.split_part,
        nonmatch=member.nonmatch,
        fingerprint=_fingerprint(member.shards),
        num_samples=member.shards.num_samples,
        num_missing=num_missing,
    )


def open_join(folder: Location, members: Sequence[JoinMember]) -> JoinIndex:
    """The index of the join of these members.

    Raises:
        DatasetError: if there is none, or one that is out of date, saying since when.
    """
    index = JoinIndex.open(join_path(folder, members))
    if index is not None:
        return index
    metadataset = str(folder).removesuffix(FOLDER_SUFFIX)
    reason = None
    if isinstance(folder, Path):
        reason = _out_of_date(folder, [entry_of(folder, member, 0) for member in members])
    raise DatasetError(f"{reason or 'this join has no index yet'}; run `bridge-data prepare {metadataset}`")


def open_join_at(path: Location, shard_sets: Sequence[ShardSet]) -> JoinIndex:
    """The index at `path`, which must be that of the join of these data sets.

    Raises:
        DatasetError: if there is none, or it is of other data sets, or of these as they were before.
    """
    index = JoinIndex.open(path)
    if index is None:
        raise DatasetError(f"{path}: no index of a join; run `bridge-data prepare` on a metadataset that has the join")
    if len(index.members) != len(shard_sets):
        raise DatasetError(f"{path}: joins {len(index.members)} data sets, but {len(shard_sets)} are given")
    for entry, shards in zip(index.members, shard_sets, strict=True):
        if entry.fingerprint != _fingerprint(shards):
            raise DatasetError(
                f"{path}: joins {entry.path} [{entry.split_part}] as it was when it was made; {shards.root} "
                f"[{shards.split_part}] is other data, or has been prepared again: run `bridge-data prepare` on the "
                "metadataset"
            )
    return index


@dataclasses.dataclass(slots=True)
class JoinedRawSample(RawSample):
    """The sample of the first member, with those of all `members`, including the first."""

    members: tuple[RawSample | None, ...]

    @property
    def __sources__(self) -> tuple[SourceInfo, ...]:
        return tuple(member.source_info() for member in self.members if member is not None)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class JoinRecords:
    """The samples of a join; of each member's, `parts` are read (None: all)."""

    index: JoinIndex
    members: tuple[ShardSet, ...]
    parts: tuple[Container[str] | None, ...]

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
        """The identities of the members, their nonmatch settings, and the samples of each shard."""
        return {
            "join": [member.identity() for member in self.members],
            "nonmatch": [entry.nonmatch for entry in self.index.members],
            "counts": self.index.counts,
        }

    def part_names(self, shard: int) -> Collection[str] | None:
        return self.members[0].part_names(shard)

    def describe(self, index: int) -> str:
        return self.members[0].describe(self.index.row(index)[0])

    def reader(self) -> JoinReader:
        return JoinReader(self)


class JoinReader:
    """Reads the samples of all members of a join."""

    def __init__(self, records: JoinRecords) -> None:
        self._records = records
        self._readers = [member.reader() for member in records.members]

    def read(self, index: int, parts: Container[str] | None = None) -> JoinedRawSample:
        members = [
            None if number < 0 else reader.read(number, _both(wanted, parts))
            for number, reader, wanted in zip(self._row(index), self._readers, self._records.parts, strict=True)
        ]
        first = members[0]
        assert first is not None
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

    def read_in_blocks(self, blocks: OpenBlocks | None) -> None:
        """Do nothing: samples are read singly, as neighbours in the join need not be neighbours in all members."""

    def block(self, index: int) -> range | None:
        return None

    def block_bytes(self, block: range) -> ByteRange | None:
        return None

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


def _out_of_date(folder: Path, members: Sequence[MemberEntry]) -> str | None:
    """Why an older index of the join of these data sets cannot be used, if there is one."""
    for path in sorted(folder.glob(f"*{FILE_SUFFIX}")):
        old = JoinIndex.open(path)
        if old is None or [(m.path, m.split_part) for m in old.members] != [(m.path, m.split_part) for m in members]:
            continue
        for before, now in zip(old.members, members, strict=True):
            if before.fingerprint != now.fingerprint:
                return (
                    f"the index of this join, {path.name}, is out of date: {now.path} [{now.split_part}] has been "
                    "prepared again, or its split or exclusions have changed"
                )
            if before.nonmatch != now.nonmatch:
                return (
                    f"the index of this join, {path.name}, is out of date: it was made with nonmatch: "
                    f"{before.nonmatch} for {now.path}, which has nonmatch: {now.nonmatch} now"
                )
    return None


def _fingerprint(shards: ShardSet) -> str:
    """A digest of the samples of a member: their preparation, the shards of the split part, the exclusions."""
    return _digest([read_uuid(meta_folder(shards.root)), shards.identity()])


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
