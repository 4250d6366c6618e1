"""Joins: samples of several data sets that have the same key, by an index in one file.

Reads the members of a join, and the folder with the index that preparing the metadataset made. Returns for number i the
number of the sample of each member, -1 where one has no match. Order and shards are those of the first member. An index
is found only by members that have not changed since it was made; the error about an outdated index says why.

Layout of the index: see `paged_file`. The data are the rows (i64): for each member the number of its sample, -1 for
none. The table holds the members, the number of rows of each shard of the first, and the CRC-32 of each page of
`PAGE_ROWS` rows. Damage is an error: the rows are stored nowhere else. Without such an index, one that Energon made is
read; see `energon_joins`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeGuard, overload

from bridge_data import storage
from bridge_data.data.metadata import meta_folder, read_uuid
from bridge_data.data.paged_file import HEADER_BYTES, PagedFile, kept_page, warn_unusable
from bridge_data.data.prepared import tars_of
from bridge_data.data.records import Records, count_samples, split_part_of
from bridge_data.data.shard_set import ShardSet
from bridge_data.errors import DatasetError, bridge_command, counted
from bridge_data.plugins.joins.energon_joins import (
    CACHE_SUFFIX,
    ENERGON_SUFFIX,
    EnergonRows,
    find_energon_rows,
    has_energon_index,
)
from bridge_data.storage import AnyLocation, Location

MAGIC = b"BRIDGEJN"
FOLDER_SUFFIX = ".joins"
FILE_SUFFIX = ".join"

PAGE_ROWS = 2048
"""Rows that are read, and checked, at once."""

Nonmatch = Literal["error", "skip", "none"]
"""What to do with a sample of the first member that has no match in another."""


@dataclasses.dataclass(frozen=True, slots=True)
class JoinMember:
    """A data set in a join: the first, whose samples are those of the join, or one that is joined to it. Its records
    are tars, tables, or a JSONL file or a range of one."""

    records: Records
    nonmatch: Nonmatch


@dataclasses.dataclass(frozen=True, slots=True)
class MemberEntry:
    """A member as it was when the index was made; `path` is relative to the folder of the metadataset.

    `num_missing` counts the samples of the first member without a match in it; 0 if Energon made the index, which does
    not store it: see `JoinIndex.lacks_some`.
    """

    path: str
    split_part: str
    nonmatch: Nonmatch
    fingerprint: str
    num_samples: int
    num_missing: int


class PagedRows:
    """The rows in an index file. They are pickled as its path, and read by each process."""

    def __init__(self, file: PagedFile, num_rows: int, num_members: int, checksums: list[int]) -> None:
        self._file, self._num_rows, self._num_members, self._checksums = file, num_rows, num_members, checksums

    @property
    def path(self) -> Path:
        """The file on this machine."""
        return Path(self._file.path)

    def row(self, index: int) -> list[int]:
        """See `JoinIndex.row`."""
        page, at = divmod(index, PAGE_ROWS)
        width = self._num_members
        return kept_page(self, page)[at * width : (at + 1) * width].tolist()

    def read_page(self, number: int) -> memoryview:
        """The numbers in the rows of page `number`, row after row."""
        start, row_bytes = number * PAGE_ROWS, 8 * self._num_members
        num_bytes = min(PAGE_ROWS, self._num_rows - start) * row_bytes
        return memoryview(self._file.read(HEADER_BYTES + start * row_bytes, num_bytes, self._checksums[number])).cast(
            "q"
        )


class JoinIndex:
    """A valid index: its members, its rows, and the number of rows for each shard of the first member."""

    def __init__(self, rows: PagedRows | EnergonRows, members: list[MemberEntry], counts: list[int]) -> None:
        self._rows, self.members, self.counts = rows, members, counts

    @classmethod
    def open(cls, path: Location) -> JoinIndex | None:
        """The index at `path`; None if there is none, or none that can be used here. One in an object store is copied
        to the disk first."""
        opened = PagedFile.open(path, MAGIC, ". Run `bridge-data prepare` on the metadataset again.")
        if opened is None:
            return None
        file, table = opened
        rows, counts, checksums = table.get("members"), table.get("counts"), table.get("checksums")
        if not (_are_members(rows) and _are_integers(counts) and _are_integers(checksums)):
            warn_unusable(file.path, "is damaged: its table is not one of a join")
            return None
        num_rows, num_members = sum(counts), len(rows)
        end = HEADER_BYTES + num_rows * num_members * 8
        if end > file.table_offset or len(checksums) != -(-num_rows // PAGE_ROWS):
            warn_unusable(file.path, "is damaged: its table has other rows than the file")
            return None
        return cls(PagedRows(file, num_rows, num_members, checksums), [MemberEntry(*row) for row in rows], counts)

    def in_words(self) -> list[str]:
        """A line for the join, and one for each member but the first."""
        first = self.members[0]
        lines = [f"join on {first.path} [{first.split_part}]: {counted(self.num_rows, 'sample')}"]
        if self.num_left_out:
            lines[0] += f", {self.num_left_out:,} left out"
        for member in self.members[1:]:
            missing = f", none for {member.num_missing:,} (nonmatch: {member.nonmatch})" if member.num_missing else ""
            lines.append(f"  {member.path} [{member.split_part}]: {counted(member.num_samples, 'sample')}{missing}")
        return lines

    @property
    def path(self) -> Path:
        """The file on this machine."""
        return self._rows.path

    @property
    def is_energon(self) -> bool:
        """Whether Energon made it: within a shard, its rows may be in another order."""
        return isinstance(self._rows, EnergonRows)

    @functools.cached_property
    def num_rows(self) -> int:
        """Samples of the join."""
        return sum(self.counts)

    @property
    def num_left_out(self) -> int:
        """Samples of the first member that are not in the join."""
        return self.members[0].num_samples - self.num_rows

    def lacks_some(self, member: int) -> bool:
        """Whether member number `member` has no sample for some row. Of an index that Energon made, rows are read up to
        the first such one."""
        entry = self.members[member]
        if isinstance(self._rows, EnergonRows):
            return entry.nonmatch == "none" and self._rows.lacks_some(member)
        return entry.nonmatch == "none" and entry.num_missing > 0

    def row(self, index: int) -> list[int]:
        """The numbers of the members' samples in row `index`, -1 for none.

        Raises:
            DatasetError: if the index is damaged, or was replaced.
        """
        return self._rows.row(index)


def _are_members(rows: Any) -> TypeGuard[list[list[Any]]]:
    types = [str, str, str, str, int, int]
    return isinstance(rows, list) and all(isinstance(row, list) and list(map(type, row)) == types for row in rows)


def _are_integers(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and set(map(type, values)) <= {int} and min(values, default=0) >= 0


@overload
def join_folder(metadataset: Path) -> Path: ...
@overload
def join_folder(metadataset: str | Location) -> Location: ...
def join_folder(metadataset: str | Location) -> Location:
    """The folder of the join indexes of the file `metadataset`."""
    path = storage.location(metadataset)
    return path.with_name(path.name + FOLDER_SUFFIX)


def join_path(folder: AnyLocation, members: Sequence[JoinMember]) -> AnyLocation:
    """The path in `folder` of the index of the join of these members; its name is a digest of their current state."""
    parts = [[_fingerprint(member.records), member.nonmatch] for member in members]
    return folder / f"{_digest(parts)}{FILE_SUFFIX}"


def entry_of(folder: Location, member: JoinMember, num_missing: int) -> MemberEntry:
    """The entry of a member for an index in `folder`."""
    root = member.records.root
    return MemberEntry(
        path=os.path.relpath(root, folder.parent) if isinstance(root, Path) and isinstance(folder, Path) else str(root),
        split_part=split_part_of(member.records),
        nonmatch=member.nonmatch,
        fingerprint=_fingerprint(member.records),
        num_samples=count_samples(member.records),
        num_missing=num_missing,
    )


def open_join(folder: Location, members: Sequence[JoinMember]) -> JoinIndex:
    """The index of the join of these members.

    Raises:
        DatasetError: if there is none, or an outdated one, saying since when.
    """
    index = JoinIndex.open(join_path(folder, members))
    if index is not None:
        return index
    metadataset = str(folder).removesuffix(FOLDER_SUFFIX)
    energon = folder.with_name(folder.name.removesuffix(FOLDER_SUFFIX) + CACHE_SUFFIX)
    reason = "this join has no index yet"
    try:
        tars = [(one.records, one.nonmatch) for one in members if isinstance(one.records, ShardSet)]
        rows = find_energon_rows(energon, tars) if len(tars) == len(members) else None
        if rows is not None:
            return _of_energon(folder, rows, members)
    except DatasetError as error:
        reason = str(error)
    else:
        if len(tars) == len(members) and has_energon_index(energon):
            reason = (
                f"Energon's index of this join in {energon} is out of date: one of its data sets has been prepared "
                "again, or its exclusions or nonmatch have changed"
            )
        if isinstance(folder, Path):
            reason = _out_of_date(folder, members) or reason
    raise DatasetError(f"{reason}; run `{bridge_command('prepare', metadataset)}`")


def open_join_at(path: Location, shard_sets: Sequence[ShardSet]) -> JoinIndex:
    """The index at `path`, which must be of the join of these data sets.

    Raises:
        DatasetError: if there is none, or it is of other data sets, or of earlier versions of these.
    """
    index = JoinIndex.open(path)
    if index is None and path.suffix == ENERGON_SUFFIX and (copy := storage.local_copy(path)) is not None:
        rows = EnergonRows(copy, shard_sets)
        nonmatch: Nonmatch = "skip" if rows.num_rows < shard_sets[0].num_samples else "none"
        members = [JoinMember(shards, nonmatch) for shards in shard_sets[1:]]
        return _of_energon(path.parent, rows, [JoinMember(shard_sets[0], "error"), *members])
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


def _of_energon(folder: Location, rows: EnergonRows, members: Sequence[JoinMember]) -> JoinIndex:
    """The index with these rows; what is missing is not counted."""
    return JoinIndex(rows, [entry_of(folder, member, 0) for member in members], rows.counts)


def _out_of_date(folder: Path, members: Sequence[JoinMember]) -> str | None:
    """Why an older index of the join of these data sets cannot be used, if there is one."""
    entries = [entry_of(folder, member, 0) for member in members]
    for path in sorted(folder.glob(f"*{FILE_SUFFIX}")):
        old = JoinIndex.open(path)
        if old is None or [(m.path, m.split_part) for m in old.members] != [(m.path, m.split_part) for m in entries]:
            continue
        for before, now, member in zip(old.members, entries, members, strict=True):
            if before.fingerprint != now.fingerprint:
                return (
                    f"the index of this join, {path.name}, is out of date: {now.path} [{now.split_part}] has been "
                    f"{_changes(member.records)} have changed"
                )
            if before.nonmatch != now.nonmatch:
                return (
                    f"the index of this join, {path.name}, is out of date: it was made with nonmatch: "
                    f"{before.nonmatch} for {now.path}, which has nonmatch: {now.nonmatch} now"
                )
    return None


def _changes(records: Records) -> str:
    """What makes another fingerprint of a member, for messages."""
    if tars_of(records) is not None:
        return "prepared again, or its split or exclusions"
    return "written again, or its files or split"


def _fingerprint(records: Records) -> str:
    """A digest of the samples of a member: of tars their preparation, the shards of the split part, the exclusions; of
    other files their identity, which has the footers of tables."""
    prepared = [read_uuid(meta_folder(records.root))] if tars_of(records) is not None else []
    return _digest([*prepared, records.identity()])


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
