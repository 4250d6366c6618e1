"""`.nv-meta/index.bridge`: key, offset and size of every part of a data set.

Enters: the path of the index. Leaves: its table, and the segment of a shard, which gives key and parts of sample number
i. Only what is used is ever read. Guarantee: an index that is not of this data set as it is described now, or cannot be
used, is taken for absent, as nothing else depends on it; what is read of it is as it was written, or an error.

Layout: that of an `IndexFile`, whose data are the segments; see `segment`. The table holds the preparation's uuid and,
for each shard, its name, size and time of change, its number of samples, offset and size of its segment, and size and
CRC-32 of the segment's directory, which has the checksums of its pages.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeGuard, TypeVar

from bridge_data.shards.index_file import HEADER_BYTES, DamagedIndexError, IndexFile, warn_unusable
from bridge_data.shards.segment import Segment
from bridge_data.storage import Location

T = TypeVar("T")

MAGIC = b"BRIDGEIX"

MAX_SEGMENTS = 1024
"""Directories that a process keeps; that of 100,000 samples takes 5 KB."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard as it was when it was indexed, and where its segment is stored."""

    name: str
    num_bytes: int
    mtime_ns: int
    count: int
    segment_start: int
    segment_bytes: int
    directory_bytes: int
    checksum: int


class _Entries(Mapping[str, ShardEntry]):
    """The entries by name. Each is made from its row of the table when it is asked for: there may be a hundred thousand
    shards, of which a process reads some."""

    def __init__(self, rows: list[list[Any]]) -> None:
        self.rows = {row[0]: row for row in rows}

    def __getitem__(self, name: str) -> ShardEntry:
        return ShardEntry(*self.rows[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        return name in self.rows


class BridgeIndex:
    """An index that was found valid. It travels to other processes as its path, and is read where it is used."""

    def __init__(self, file: IndexFile, uuid: str, has_digests: bool, rows: list[list[Any]]) -> None:
        self.uuid, self.has_digests, self._rows, self._file = uuid, has_digests, rows, file
        self.entries = _Entries(rows)

    @classmethod
    def open(cls, path: Location) -> "BridgeIndex | None":
        """The index at `path`, as `IndexFile.open` finds it."""
        opened = IndexFile.open(path, MAGIC)
        if opened is None:
            return None
        file, table = opened
        uuid, has_digests, rows = table.get("uuid"), table.get("digests"), table.get("shards")
        if not (isinstance(uuid, str) and isinstance(has_digests, bool) and _are_entries(rows, file.table_offset)):
            warn_unusable(file.path, "is damaged: its table is not one of shards")
            return None
        return cls(file, uuid, has_digests, rows)

    @property
    def path(self) -> str:
        """The file on this machine."""
        return self._file.path

    def describes(self, shard_counts: dict[str, int], uuid: str | None) -> bool:
        """Whether this index was made by the preparation that wrote `shard_counts` and `uuid` (None: unknown)."""
        if uuid is not None and uuid != self.uuid:
            return False
        return shard_counts == {row[0]: row[3] for row in self._rows}

    def sizes_bytes(self, shards: Iterable[str]) -> list[int]:
        """The sizes of these shards."""
        rows = self.entries.rows
        return [rows[name][1] for name in shards]

    def segment(self, shard: str) -> Segment:
        """The segment of `shard`.

        Raises:
            DamagedIndexError: if it cannot be read. DatasetError: if the index was replaced.
        """
        return _segment(self._file, self.entries[shard])

    def segment_if_intact(self, shard: str) -> Segment | None:
        """The same; None, after a warning, if it is damaged."""
        return self._unless_damaged(shard, lambda: self.segment(shard))

    def keys_if_intact(self, shard: str) -> list[str] | None:
        """The keys of the samples in `shard`; None, after a warning, if they are damaged."""
        return self._unless_damaged(shard, lambda: self.segment(shard).keys())

    def _unless_damaged(self, shard: str, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except DamagedIndexError as error:
            warn_unusable(self.path, f"is damaged where shard {shard} is described ({error})")
            return None

    def segment_bytes(self, shard: str) -> bytes:
        """The bytes of the segment of `shard`, every page of which is checked.

        Raises:
            DamagedIndexError: if they are not as they were written.
        """
        entry = self.entries[shard]
        segment = self.segment(shard)
        directory = self._file.read(entry.segment_start, entry.directory_bytes, entry.checksum)
        return b"".join((directory, *segment.pages_bytes()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle rows: that is many times as fast as pickling entries, of which there may be a hundred thousand."""
        return BridgeIndex, (self._file, self.uuid, self.has_digests, self._rows)


@functools.lru_cache(maxsize=MAX_SEGMENTS)
def _segment(file: IndexFile, entry: ShardEntry) -> Segment:
    directory = file.read(entry.segment_start, entry.directory_bytes, entry.checksum)
    return Segment(directory, file.read, entry.segment_start + entry.directory_bytes)


def _are_entries(rows: Any, end: int) -> TypeGuard[list[list[Any]]]:
    """Whether these are rows of entries whose segments are stored before byte `end`."""
    fields = dataclasses.fields(ShardEntry)
    if not (isinstance(rows, list) and set(map(type, rows)) <= {list} and set(map(len, rows)) <= {len(fields)}):
        return False
    if not rows:
        return True
    columns = list(zip(*rows, strict=True))
    for field, column in zip(fields, columns, strict=True):
        if set(map(type, column)) != {field.type}:
            return False
        if field.type is int and min(column) < 0:
            return False
    names, _, _, _, starts, sizes, directories, _ = columns
    return (
        len(set(names)) == len(names)
        and min(starts) >= HEADER_BYTES
        and max(map(operator.add, starts, sizes)) <= end
        and all(map(operator.le, directories, sizes))
    )
