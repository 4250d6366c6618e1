"""Our own index files, and `.nv-meta/index.bridge` among them: key, offset and size of every part of a data set.

Enters: the path of an index. Leaves: its table; of `index.bridge` the segment of a shard, which gives key and parts of
sample number i by arithmetic, in about a microsecond. The file is memory-mapped: only the pages that are used are ever
loaded, once a machine. Guarantee: a file of another kind, version or byte order, or one that is damaged or unfinished,
or not of this data set as it is described now, is taken for absent, as nothing else depends on it; one that was
replaced since it was opened is an error.

Layout of an index file: magic (8 bytes), byte-order mark and version (u32), offset and size of the table and its CRC-32
(u64), in native byte order; the data follow, and the table, in JSON, comes last. The header is written at the end,
which makes the file valid. Of `index.bridge`, the data are the segments; the table holds the preparation's uuid and,
for each shard, its name, size and time of change, its number of samples, and offset and size of its segment.

Layout of a segment, in native byte order: four counts (u64), then sample offsets (u64, one more than samples: the row
is that of `.tar.idx`), part offsets and sizes (u64), then per sample the end of its parts and of its key (u32), per
part its name (u32), then the part names as a JSON list, then the keys, one after the other.
"""

import dataclasses
import json
import mmap
import operator
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count, pairwise, repeat
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.storage import Location

HEADER_BYTES = 40
"""The data of an index file begin here."""

_HEADER = struct.Struct("=8sIIQQQ")
_BYTE_ORDER = 0x01020304
_VERSION = 1

MAGIC = b"BRIDGEIX"

COUNTS = struct.Struct("=QQQQ")
"""How a segment begins: samples, parts, bytes of the part names, bytes of the keys."""

Part = tuple[str, int, int]
"""Name, offset of the content in the shard, its size."""


class IndexFile(NamedTuple):
    """An index file that was found valid: its path on this machine, its kind, and what its header says of the table."""

    path: Path
    magic: bytes
    table_offset: int
    checksum: int

    @classmethod
    def open(cls, path: Location, magic: bytes) -> "tuple[IndexFile, dict[str, Any]] | None":
        """(the file at `path`, its table); None if there is none that can be used here. One in an object store is
        copied to the disk first, once a machine."""
        copy = storage.local_copy(path)
        if copy is None:
            return None
        try:
            with open(copy, "rb") as file:
                found, order, version, offset, num_bytes, checksum = _HEADER.unpack(file.read(HEADER_BYTES))
                if (found, order, version) != (magic, _BYTE_ORDER, _VERSION):
                    return None
                if offset + num_bytes > os.fstat(file.fileno()).st_size:
                    return None
                file.seek(offset)
                table = file.read(num_bytes)
            if zlib.crc32(table) != checksum:
                return None
            return cls(copy, magic, offset, checksum), json.loads(table)
        except (OSError, struct.error, ValueError):
            return None

    def mapped(self) -> mmap.mmap:
        """The file in memory.

        Raises:
            DatasetError: if another file is at `path` now, or none.
        """
        try:
            with open(self.path, "rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            magic, _, _, offset, _, checksum = _HEADER.unpack_from(data)
            if (magic, offset, checksum) == self[1:] and len(data) >= offset:
                return data
        except (OSError, ValueError, struct.error):
            pass
        raise DatasetError(
            f"{self.path}: was replaced or removed while it was in use: the data was prepared again. Start again."
        )


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


class Segment:
    """A view of the bytes of a segment, without a copy."""

    __slots__ = (
        "_key_ends",
        "_keys",
        "_name_of_part",
        "_part_ends",
        "_part_offsets",
        "_part_sizes",
        "names",
        "offsets",
    )

    def __init__(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        num_samples, num_parts, names_bytes, keys_bytes = COUNTS.unpack_from(view)
        at = COUNTS.size

        def take(num_bytes: int) -> memoryview:
            nonlocal at
            at += num_bytes
            return view[at - num_bytes : at]

        self.offsets = take(8 * (num_samples + 1)).cast("Q")
        self._part_offsets = take(8 * num_parts).cast("Q")
        self._part_sizes = take(8 * num_parts).cast("Q")
        self._part_ends = take(4 * num_samples).cast("I")
        self._key_ends = take(4 * num_samples).cast("I")
        self._name_of_part = take(4 * num_parts).cast("I")
        self.names: list[str] = json.loads(bytes(take(names_bytes)))
        self._keys = take(keys_bytes)

    def __len__(self) -> int:
        return len(self._part_ends)

    def key(self, number: int) -> str:
        """The key of sample `number`."""
        start = self._key_ends[number - 1] if number else 0
        return str(self._keys[start : self._key_ends[number]], "utf-8", "surrogateescape")

    def keys(self) -> list[str]:
        """All keys."""
        return self._keys_of(0, len(self) - 1) if len(self) else []

    def sample(self, number: int) -> tuple[str, list[Part]]:
        """Key and parts of sample `number`."""
        if not number:
            return self.key(0), self.parts(0)
        key = str(self._keys[self._key_ends[number - 1] : self._key_ends[number]], "utf-8", "surrogateescape")
        start, end = self._part_ends[number - 1], self._part_ends[number]
        if end - start == 1:
            return key, [(self.names[self._name_of_part[start]], self._part_offsets[start], self._part_sizes[start])]
        return key, self.parts(number)

    def columns(self, first: int, last: int) -> tuple[list[str], list[int], list[int]] | None:
        """Keys, offsets and sizes of the one part of samples `first` to `last`; None if not all have one part."""
        start, stop = self._part_ends[first - 1] if first else 0, self._part_ends[last]
        if len(self.names) > 1 or stop - start != last + 1 - first:
            return None
        return (
            self._keys_of(first, last),
            self._part_offsets[start:stop].tolist(),
            self._part_sizes[start:stop].tolist(),
        )

    def _keys_of(self, first: int, last: int) -> list[str]:
        ends = [self._key_ends[first - 1] if first else 0, *self._key_ends[first : last + 1].tolist()]
        start = ends[0]
        text = str(self._keys[start : ends[-1]], "utf-8", "surrogateescape")
        if len(text) < ends[-1] - start:  # bytes are not characters
            return [self.key(number) for number in range(first, last + 1)]
        return [text[begin - start : end - start] for begin, end in pairwise(ends)]

    def parts(self, number: int) -> list[Part]:
        """The parts of sample `number`, with their offsets in the shard."""
        start, end = self._part_ends[number - 1] if number else 0, self._part_ends[number]
        names, name_of = self.names, self._name_of_part
        offsets, sizes = self._part_offsets, self._part_sizes
        return [(names[name_of[i]], offsets[i], sizes[i]) for i in range(start, end)]

    def rows(self) -> Iterator[tuple[int, str, int, int]]:
        """All parts: the number of the sample, name, offset and size of each."""
        ends = self._part_ends.tolist()
        numbers = chain.from_iterable(map(repeat, count(), map(operator.sub, ends, chain((0,), ends))))
        names = map(self.names.__getitem__, self._name_of_part)
        return zip(numbers, names, self._part_offsets, self._part_sizes, strict=True)


@dataclasses.dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard as it was when it was indexed, and where its segment is stored."""

    name: str
    num_bytes: int
    mtime_ns: int
    count: int
    segment_start: int
    segment_bytes: int


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
    """An index that was found valid. It travels to other processes as its path, and is mapped where it is used."""

    def __init__(self, file: IndexFile, uuid: str, rows: list[list[Any]]) -> None:
        self.uuid, self._rows, self._file = uuid, rows, file
        self.entries = _Entries(rows)
        self._map: mmap.mmap | None = None

    @classmethod
    def open(cls, path: Location) -> "BridgeIndex | None":
        """The index at `path`, as `IndexFile.open` finds it."""
        opened = IndexFile.open(path, MAGIC)
        try:
            return None if opened is None else cls(opened[0], opened[1]["uuid"], opened[1]["shards"])
        except (KeyError, TypeError):
            return None

    def describes(self, shard_counts: dict[str, int], uuid: str | None) -> bool:
        """Whether this index was made by the preparation that wrote `shard_counts` and `uuid` (None: unknown)."""
        if uuid is not None and uuid != self.uuid:
            return False
        return shard_counts == {name: count for name, _, _, count, _, _ in self._rows}

    def sizes_bytes(self, shards: Iterable[str]) -> list[int]:
        """The sizes of these shards."""
        rows = self.entries.rows
        return [rows[name][1] for name in shards]

    def segment(self, shard: str) -> Segment:
        """The segment of `shard`."""
        return Segment(self.segment_bytes(self.entries[shard]))

    def segment_bytes(self, entry: ShardEntry) -> memoryview:
        """The bytes of a segment, in the map."""
        if self._map is None:
            self._map = self._file.mapped()
        return memoryview(self._map)[entry.segment_start : entry.segment_start + entry.segment_bytes]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle rows: that is many times as fast as pickling entries, of which there may be a hundred thousand."""
        return BridgeIndex, (self._file, self.uuid, self._rows)
