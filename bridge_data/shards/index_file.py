"""Our own index files, those of data sets (`.nv-meta/index.bridge`) and of joins: a table, and checked ranges of data.

Enters: the path of an index. Leaves: its table, and ranges of its data, read when they are needed; of a `BridgeIndex`,
the segment of a shard, which gives key, offset and size of every part of sample number i. Guarantee: a file of another
kind, version or byte order, a damaged or unfinished one, or one that does not fit the current data set, is treated as
absent, with a warning, as nothing else depends on it; a range is what was written, or an error. Nothing is mapped into
memory: a file truncated or overwritten during use is an error, too.

Layout: magic (8 bytes), byte-order mark and version (u32), offset and size of the table and its CRC-32 (u64), in native
byte order; the data follow, and the table, in JSON, comes last. The header is written at the end, which makes the file
valid. The checksums of the data are in the table, or in data that the table has a checksum of.

In `index.bridge` the data are the segments; see `segment`. The table holds the preparation's uuid and, for each shard,
its name, size and modification time, its number of samples, offset and size of its segment, and size and CRC-32 of the
segment's directory, which has the checksums of its pages.
"""

import array
import dataclasses
import functools
import json
import logging
import operator
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, TypeGuard, TypeVar

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.segment import DamagedIndexError, Segment, directory_size
from bridge_data.storage import Location

T = TypeVar("T")

HEADER_BYTES = 40
"""The data of an index file begin here."""

_HEADER = struct.Struct("=8sIIQQQ")
_BYTE_ORDER = 0x01020304
_VERSION = 2

MAGIC = b"BRIDGEIX"

MAX_SEGMENTS = 1024
"""Directories that a process keeps; that of 100,000 samples takes 5 KB."""

logger = logging.getLogger("bridge_data")


class IndexFile:
    """An index file with a valid table: its path on this machine, and the header's data about the table."""

    def __init__(self, path: str, magic: bytes, table_offset: int, checksum: int) -> None:
        self.path, self.magic, self.table_offset, self.checksum = path, magic, table_offset, checksum

    @classmethod
    def open(cls, path: Location, magic: bytes) -> "tuple[IndexFile, dict[str, Any]] | None":
        """(the file at `path`, its table); None if there is none, or, with a warning, none that can be used here. One
        in an object store is copied to the disk first, once per machine."""
        copy = storage.local_copy(path)
        if copy is None:
            return None
        try:
            with open(copy, "rb") as file:
                found, order, version, offset, num_bytes, checksum = _HEADER.unpack(file.read(HEADER_BYTES))
                if found == magic and (order, version) != (_BYTE_ORDER, _VERSION):
                    warn_unusable(copy, f"is of version {version}, not {_VERSION}")
                    return None
                is_whole = found == magic and offset + num_bytes == os.fstat(file.fileno()).st_size
                file.seek(offset if is_whole else 0)
                content = file.read(num_bytes if is_whole else 0)
            table = json.loads(content) if is_whole and zlib.crc32(content) == checksum else None
        except (OSError, struct.error, ValueError, RecursionError):
            table = None
        if not isinstance(table, dict):
            warn_unusable(copy, "is damaged")
            return None
        return cls(str(copy), magic, offset, checksum), table

    def read(self, start: int, num_bytes: int, checksum: int) -> bytes:
        """A range of the data, whose CRC-32 is `checksum`.

        Raises:
            DamagedIndexError: if the checksum differs. DatasetError: if the file at the path was replaced or removed.
        """
        for _ in range(2):
            try:
                data = storage.read(self.path, start, num_bytes)
            except DatasetError:
                data = b""
            if len(data) == num_bytes and zlib.crc32(data) == checksum:
                return data
            storage.close_file(self.path)  # perhaps of an earlier file at this path
        self._check_same()
        raise DamagedIndexError(f"{self.path}: is damaged: bytes {start} to {start + num_bytes} are not as written")

    def _check_same(self) -> None:
        try:
            with open(self.path, "rb") as file:
                magic, _, _, offset, _, checksum = _HEADER.unpack(file.read(HEADER_BYTES))
            if (magic, offset, checksum) == (self.magic, self.table_offset, self.checksum):
                return
        except (OSError, struct.error):
            pass
        raise DatasetError(
            f"{self.path}: was replaced or removed while it was in use: the data was prepared again. Start again."
        )


def warn_unusable(path: str | os.PathLike[str], why: str) -> None:
    """Warn that the index at `path` is not used."""
    logger.warning(
        "%s: %s, and is not used; its content is found in another, slower way, if there is one. To rebuild it, "
        "run `bridge-data prepare`, with --tar-index-only for a data set; delete a copy in the cache",
        path,
        why,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard as indexed, and where its segment is stored."""

    name: str
    num_bytes: int
    mtime_ns: int
    count: int
    segment_start: int
    segment_bytes: int
    directory_bytes: int
    checksum: int


class _Entries(Mapping[str, ShardEntry]):
    """The entries by name. Each is made from its table row on demand: there may be 100,000 shards, of which a process
    reads some."""

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
    """A valid index. It is pickled as its path, and read by each process."""

    def __init__(self, file: IndexFile, uuid: str, has_digests: bool, rows: list[list[Any]]) -> None:
        self.uuid, self.has_digests, self._rows, self._file = uuid, has_digests, rows, file
        self.entries = _Entries(rows)
        self.notes: dict[str, Any] = {}
        """Remarks by shard, in the results of a scan."""
        self._is_told = False

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
        index = cls(file, uuid, has_digests, rows)
        notes = table.get("notes")
        index.notes = notes if isinstance(notes, dict) else {}
        return index

    def describes(self, shard_counts: dict[str, int], uuid: str | None) -> bool:
        """Whether this index was made by the preparation that wrote `shard_counts` and `uuid` (None: unknown)."""
        if uuid is not None and uuid != self.uuid:
            return False
        return shard_counts == {row[0]: row[3] for row in self._rows}

    def sizes_bytes(self, shards: Iterable[str]) -> list[int]:
        """The sizes of these shards."""
        rows = self.entries.rows
        return [rows[name][1] for name in shards]

    def digest(self, shard: str) -> str:
        """The kind of the segment of `shard`, a colon, and a digest of its keys, parts and offsets."""
        return f"{_VERSION}{'d' if self.has_digests else ''}:{self.entries[shard].checksum:08x}"

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

    def offsets_if_intact(self, shard: str) -> "array.array[int] | None":
        """Where each sample begins in `shard`, and where the last one ends; None, after a warning, if they are
        damaged."""
        return self._unless_damaged(shard, lambda: self.segment(shard).offsets())

    def _unless_damaged(self, shard: str, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except DamagedIndexError as error:
            self.tell_damage(shard, error)
            return None

    def tell_damage(self, shard: str, damage: DamagedIndexError) -> None:
        """Warn that another way is taken for `shard`; of one index only once in a process."""
        if not self._is_told:
            self._is_told = True
            warn_unusable(self._file.path, f"is damaged where shard {shard} is described ({damage})")

    def segment_bytes(self, shard: str) -> bytes:
        """The bytes of the segment of `shard`, every page of which is checked.

        Raises:
            DamagedIndexError: if they differ from what was written.
        """
        entry = self.entries[shard]
        segment = self.segment(shard)
        directory = self._file.read(entry.segment_start, entry.directory_bytes, entry.checksum)
        return b"".join((directory, *segment.pages_bytes()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle rows, which is many times faster than pickling entries; there may be 100,000."""
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


class PageWriter:
    """Appends data to an index file in pages of `page_bytes`, and keeps their checksums."""

    def __init__(self, file: BinaryIO, page_bytes: int) -> None:
        self._file, self._page_bytes = file, page_bytes
        self._checksum = self._filled = 0
        self._checksums: list[int] = []

    def write(self, data: memoryview) -> None:
        """Append bytes."""
        self._file.write(data)
        rest = data.cast("B") if data.nbytes else memoryview(b"")
        while rest:
            piece = rest[: self._page_bytes - self._filled]
            rest = rest[len(piece) :]
            self._checksum = zlib.crc32(piece, self._checksum)
            self._filled += len(piece)
            if self._filled == self._page_bytes:
                self._end_page()

    def finish(self) -> list[int]:
        """The CRC-32 of each page; the last one may be shorter."""
        if self._filled:
            self._end_page()
        return self._checksums

    def _end_page(self) -> None:
        self._checksums.append(self._checksum)
        self._checksum = self._filled = 0


def begin_index(file: BinaryIO) -> None:
    """Leave the space of the header free; nothing of the file is valid before `finish_index`."""
    file.write(bytes(HEADER_BYTES))


def finish_index(file: BinaryIO, magic: bytes, table: dict[str, Any]) -> None:
    """Write the table behind the data, and then the header."""
    offset = file.tell()
    content = json.dumps(table, ensure_ascii=False).encode()
    file.write(content)
    file.seek(0)
    file.write(_HEADER.pack(magic, _BYTE_ORDER, _VERSION, offset, len(content), zlib.crc32(content)))


class BridgeIndexWriter:
    """Writes an index of shards to an open file, segment by segment; nothing of it is valid before `finish`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rows: list[tuple[Any, ...]] = []
        self._has_digests = True
        begin_index(file)

    def add(self, name: str, num_bytes: int, mtime_ns: int, segment: bytes) -> None:
        """Append the segment of shard `name`."""
        start, read = self._file.tell(), Segment.of(segment)
        self._file.write(segment)
        self._has_digests = self._has_digests and read.has_digests
        directory = segment[: directory_size(segment)]
        checksum = zlib.crc32(directory)
        self._rows.append((name, num_bytes, mtime_ns, len(read), start, len(segment), len(directory), checksum))

    def content_uuid(self) -> str:
        """A uuid of the content: the same for the same shards, regardless of how and when they were indexed."""
        import hashlib  # imported here: readers do without
        import uuid

        rows = [(name, num_bytes, *rest) for name, num_bytes, _, *rest in self._rows]
        return str(uuid.UUID(bytes=hashlib.blake2b(json.dumps(rows).encode(), digest_size=16).digest()))

    def finish(self, uuid: str, notes: dict[str, Any] | None = None) -> None:
        """Write the table, with `notes` by shard, and then the header, which makes the file valid."""
        table = {"uuid": uuid, "digests": self._has_digests, "shards": self._rows}
        finish_index(self._file, MAGIC, table if notes is None else table | {"notes": notes})
