"""Fields of JSON parts stored by `bridge-data prepare --columns` in `.nv-meta/columns.bridge`.

Enters: the folder of a data set, its index. Leaves: the names and types of the columns, and the values of a shard.
Guarantee: values are those of the shards that the index describes, or a `DatasetError` that says how to fix it; a
missing value is None.

Layout: an index file (see `paged_file`). The data are a segment for each shard: zlib of a JSON list with a list of
values for each column. The table holds the columns as `[name, type]` and for each shard its name, size, time of change
and number of samples, offset, size and CRC-32 of its segment, and for each column the types in it, each with the key of
the first sample that has it and their number. All of this depends on the shards alone.
"""

import dataclasses
import json
import zlib
from collections.abc import Sequence
from typing import Any, BinaryIO

from bridge_data.errors import DatasetError, bridge_command
from bridge_data.shards.index_file import BridgeIndex, ShardEntry
from bridge_data.shards.metadata import META_FOLDER
from bridge_data.shards.paged_file import PagedFile, begin_index, finish_index
from bridge_data.storage import Location

COLUMNS_BRIDGE = "columns.bridge"

COLUMNS_MAGIC = b"BRIDGECO"

BOOLEAN, INTEGER, NUMBER, TEXT = "boolean", "integer", "number", "text"

LIST = "[]"
"""Suffix of the type of a list, after that of its items, as in `text[]`."""

Types = list[tuple[str, str, int]]
"""The types of values in a column, each with the key of the first sample that has it, and their number."""


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnsEntry:
    """A shard as of when its values were read, and where these are stored."""

    name: str
    num_bytes: int
    mtime_ns: int
    count: int
    start: int
    segment_bytes: int
    checksum: int
    types: list[Types]


class JsonColumns:
    """The stored columns of a data set: `types` by name, such as `json.score`."""

    def __init__(self, file: PagedFile, types: dict[str, str], entries: dict[str, ColumnsEntry]) -> None:
        self.types, self.entries, self._file = types, entries, file

    @classmethod
    def open(cls, path: Location) -> "JsonColumns | None":
        """The columns in the file at `path`; None if there is none, or, with a warning, no usable one."""
        opened = PagedFile.open(path, COLUMNS_MAGIC)
        if opened is None:
            return None
        file, table = opened
        entries = {row[0]: ColumnsEntry(*row) for row in table["shards"]}
        return cls(file, dict(table["columns"]), entries)

    @classmethod
    def find(cls, root: Location) -> "JsonColumns | None":
        """The stored columns of the data set at `root`."""
        return cls.open(root / META_FOLDER / COLUMNS_BRIDGE)

    @property
    def checksum(self) -> int:
        """A number that differs if the values do."""
        return self._file.checksum

    def segment_bytes(self, shard: str) -> bytes:
        """The stored values of a shard.

        Raises:
            DatasetError: if they are damaged.
        """
        entry = self.entries[shard]
        return self._file.read(entry.start, entry.segment_bytes, entry.checksum)

    def knows(self, shard: ShardEntry) -> bool:
        """Whether the values of this version of a shard are stored."""
        entry = self.entries.get(shard.name)
        return entry is not None and (entry.num_bytes, entry.mtime_ns, entry.count) == (
            shard.num_bytes,
            shard.mtime_ns,
            shard.count,
        )

    def values(self, shard: str, index: BridgeIndex) -> dict[str, list[Any]]:
        """The values of the samples stored in a shard, by column.

        Raises:
            DatasetError: if they are damaged, or from another version of the shard than in `index`.
        """
        if not self.knows(index.entries[shard]):
            root = self._file.path.rpartition(f"/{META_FOLDER}/")[0]
            way_out = bridge_command("prepare", root, "--tar-index-only", "--columns", ",".join(self.types))
            raise DatasetError(
                f"{self._file.path}: has {'older' if shard in self.entries else 'no'} values of shard {shard}; run "
                f"`{way_out}`"
            )
        columns = zip(self.types.items(), decode_values(self.segment_bytes(shard)), strict=True)
        return {name: _as_numbers(row) if kind.startswith(NUMBER) else row for (name, kind), row in columns}


class ColumnsWriter:
    """Writes columns to an open file, shard by shard; the file is not valid before `finish`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rows: list[tuple[Any, ...]] = []
        begin_index(file)

    def add(self, shard: ShardEntry, segment: bytes, types: list[Types]) -> None:
        """Append the values of a shard, encoded by `encode_values`."""
        entry = ColumnsEntry(
            shard.name,
            shard.num_bytes,
            shard.mtime_ns,
            shard.count,
            self._file.tell(),
            len(segment),
            zlib.crc32(segment),
            types,
        )
        self._file.write(segment)
        self._rows.append(dataclasses.astuple(entry))

    def finish(self, types: dict[str, str]) -> None:
        """Write the table, with the type of each column."""
        finish_index(self._file, COLUMNS_MAGIC, {"columns": list(types.items()), "shards": self._rows})


def encode_values(columns: Sequence[list[Any]]) -> bytes:
    """The segment that holds these values."""
    return zlib.compress(json.dumps(columns, ensure_ascii=False, separators=(",", ":")).encode())


def decode_values(segment: bytes) -> list[list[Any]]:
    """The values in a segment."""
    found: list[list[Any]] = json.loads(zlib.decompress(segment))
    return found


def _as_numbers(row: list[Any]) -> list[Any]:
    """`row` with integers among numbers, or in lists of numbers, as numbers."""
    return [_as_numbers(one) if isinstance(one, list) else None if one is None else float(one) for one in row]
