"""`.nv-meta/index.bridge`: the segments of all shards in one memory-mapped file, which Energon ignores.

Enters: segments, when a data set is prepared; a path, when it is read. Leaves: the segment of a shard, of which only
the pages that are used are ever loaded, once a machine. Guarantee: a file that is not of this data set as it is
described now (another preparation, another version, damaged) is taken for absent; nothing else depends on it.

Layout: a header (magic, byte-order mark, version, place and checksum of the table), the segments, then a JSON table:
the preparation's uuid and, for each shard, its name, size and time of change, its number of samples and its segment.
"""

import dataclasses
import json
import mmap
import operator
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.segment import Segment
from bridge_data.storage import Location

VERSION = 1

_HEADER = struct.Struct("=8sIIQQQ")
_MAGIC = b"BRIDGEIX"
_BYTE_ORDER = 0x01020304


@dataclasses.dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard as it was when it was indexed, and where its segment lies."""

    name: str
    num_bytes: int
    mtime_ns: int
    count: int
    segment_start: int
    segment_bytes: int


class _Entries(Mapping[str, ShardEntry]):
    """The entries by name, out of the rows of the table, each made when it is asked for: there may be a hundred
    thousand shards, of which a process reads some."""

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


class BridgeIndexWriter:
    """Writes an index to an open file, segment by segment; nothing of it is valid before `finish`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._entries: list[ShardEntry] = []
        file.write(bytes(_HEADER.size))

    def add(self, name: str, num_bytes: int, mtime_ns: int, segment: bytes | memoryview) -> None:
        """Append the segment of shard `name`."""
        start, count = self._file.tell(), len(Segment(segment))
        self._file.write(segment)
        self._entries.append(ShardEntry(name, num_bytes, mtime_ns, count, start, len(segment)))

    def finish(self, uuid: str) -> None:
        """Write the table and then the header, which makes the file valid."""
        start = self._file.tell()
        row_of = operator.attrgetter(*(field.name for field in dataclasses.fields(ShardEntry)))
        rows = [row_of(entry) for entry in self._entries]
        table = json.dumps({"uuid": uuid, "shards": rows}, ensure_ascii=False).encode()
        self._file.write(table)
        self._file.seek(0)
        self._file.write(_HEADER.pack(_MAGIC, _BYTE_ORDER, VERSION, start, len(table), zlib.crc32(table)))


class BridgeIndex:
    """An index that was found valid. It travels to other processes as its path, and is mapped where it is used."""

    def __init__(self, path: Path, uuid: str, rows: list[list[Any]], checksum: int) -> None:
        self.path, self.uuid, self._rows = path, uuid, rows
        self.entries = _Entries(rows)
        self._checksum = checksum
        self._map: mmap.mmap | None = None

    @classmethod
    def open(cls, path: Location) -> "BridgeIndex | None":
        """The index at `path`; None if there is none, or none that can be used here. That of an object store is copied
        to the disk first, once a machine.

        Raises:
            ConfigError, DatasetError: if it cannot be copied.
        """
        copy = storage.local_copy(path)
        return None if copy is None else cls._open_local(copy)

    @classmethod
    def _open_local(cls, path: Path) -> "BridgeIndex | None":
        try:
            with open(path, "rb") as file:
                magic, order, version, start, num_bytes, checksum = _HEADER.unpack(file.read(_HEADER.size))
                if (magic, order, version) != (_MAGIC, _BYTE_ORDER, VERSION):
                    return None
                if start + num_bytes > os.fstat(file.fileno()).st_size:
                    return None
                file.seek(start)
                table = file.read(num_bytes)
            if zlib.crc32(table) != checksum:
                return None
            content: dict[str, Any] = json.loads(table)
            return cls(path, content["uuid"], content["shards"], checksum)
        except (OSError, struct.error, ValueError, KeyError, TypeError):
            return None

    def describes(self, shard_counts: dict[str, int], uuid: str | None) -> bool:
        """Whether this index was made by the preparation that wrote `shard_counts` and `uuid` (None: not known)."""
        if uuid is not None and uuid != self.uuid:
            return False
        return shard_counts == {name: count for name, _, _, count, _, _ in self._rows}

    def sizes_bytes(self, shards: Iterable[str]) -> list[int]:
        """The sizes of these shards."""
        rows = self.entries.rows
        return [rows[name][1] for name in shards]

    def segment(self, shard: str) -> Segment:
        """The segment of `shard`.

        Raises:
            DatasetError: if the file was replaced since it was opened.
        """
        entry = self.entries[shard]
        return Segment(self.segment_bytes(entry))

    def segment_bytes(self, entry: ShardEntry) -> memoryview:
        """The bytes of a segment, in the map."""
        if self._map is None:
            self._map = self._mapped()
        return memoryview(self._map)[entry.segment_start : entry.segment_start + entry.segment_bytes]

    def _mapped(self) -> mmap.mmap:
        changed = DatasetError(
            f"{self.path}: was replaced or removed while it was in use: the data set was prepared again. Start again."
        )
        try:
            with open(self.path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise changed from error
        if len(mapped) < _HEADER.size or _HEADER.unpack_from(mapped)[5] != self._checksum:
            raise changed
        return mapped

    def __reduce__(self) -> tuple[Any, ...]:
        """Rows are pickled many times as fast as entries, of which there may be a hundred thousand."""
        return BridgeIndex, (self.path, self.uuid, self._rows, self._checksum)
