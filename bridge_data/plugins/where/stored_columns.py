"""Fields of JSON parts that `bridge-data prepare --store-columns` stores in `.nv-meta/columns.parquet`.

Reads that file, or writes it. Returns the values of the samples of a shard. Raises a `DatasetError` for what is
damaged, or older than the samples.

It is a Parquet file with a row group for each shard, of all its samples, and columns named like `json.score`. Its pages
have checksums. Under `bridge_data`, its metadata hold the CRC-32 of the footer, with zeros in the place of itself, the
type of each column, and for each shard name, size, time of change and number of samples as of when its fields were
read, and for each column the types in it, each with the key of the first sample that has it and their number. All of
this depends on the shards alone.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from bridge_data.data.index_file import ShardEntry
from bridge_data.data.metadata import META_FOLDER
from bridge_data.errors import DatasetError, bridge_command
from bridge_data.prepare.sample_columns import ColumnPath, arrow_package
from bridge_data.storage import Location

COLUMNS_PARQUET = "columns.parquet"

BOOLEAN, INTEGER, NUMBER, TEXT = "boolean", "integer", "number", "text"
"""The types of values in stored columns."""

LIST = "[]"
"""Suffix of the type of a list, after that of its items, as in `text[]`."""

ValueTypes: TypeAlias = list[tuple[str, str, int]]
"""The types of values in a column, each with the key of the first sample that has it, and their number."""

_METADATA = b"bridge_data"
_NO_CHECKSUM = b"0" * 8


class ParquetColumns:
    """The columns in the Parquet file at `path`, of which `copy` is the one on this machine."""

    fix = ""
    """Ends the message if they are damaged."""

    def __init__(self, path: Location | str, copy: Path) -> None:
        self.path, parquet = path, arrow_package("pyarrow.parquet")
        with self.reading():
            self.file = parquet.ParquetFile(copy, page_checksum_verification=True)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Turn what the reader raises, which is of many kinds, into a `DatasetError`."""
        try:
            yield
        except Exception as error:
            raise DatasetError(f"{self.path}: cannot be read: {error}{self.fix}") from error


class StoredShard(NamedTuple):
    """A shard as of when its fields were read, and the types of values by column."""

    name: str
    num_bytes: int
    mtime_ns: int
    num_samples: int
    types: dict[str, ValueTypes]


class StoredColumns(ParquetColumns):
    """The stored fields of JSON parts of the data set at `root`, from the file `copy`: the types of the columns are
    `kinds`, and by shard there are the number of its row group and what was stored in `shards`.

    Raises:
        DatasetError: if the file is damaged.
    """

    def __init__(self, root: Location, copy: Path) -> None:
        command = functools.partial(bridge_command, "prepare", root, "--tar-index-only", "--store-columns")
        self.fix = f"; run `{command('json.FIELD')}` with the names of all fields"
        super().__init__(root / META_FOLDER / COLUMNS_PARQUET, copy)
        with self.reading(), open(copy, "rb") as file:
            sealed = (self.file.metadata.metadata or {}).get(_METADATA)
            if sealed is None:
                raise ValueError("`prepare --store-columns` did not write it")
            footer = _footer(file)[1].replace(sealed, _NO_CHECKSUM + sealed[8:], 1)
            if zlib.crc32(footer) != int(sealed[:8], 16):
                raise ValueError("its footer is not as written")
            kinds, rows = json.loads(sealed[8:])
        self.kinds: dict[str, str] = kinds
        self.shards = {row[0]: (number, StoredShard(*row)) for number, row in enumerate(rows)}
        self.fix = f"; run `{command(','.join(kinds))}`"

    def shard(self, entry: ShardEntry) -> tuple[int, StoredShard]:
        """The number of the row group of a shard, and what is stored of it.

        Raises:
            DatasetError: if that is not of this version of the shard.
        """
        number, found = self.shards.get(entry.name, (0, None))
        if found is None or found[1:4] != (entry.num_bytes, entry.mtime_ns, entry.count):
            stored = "no" if found is None else "older"
            raise DatasetError(f"{self.path}: has {stored} values of shard {entry.name}{self.fix}")
        return number, found

    def table(self, entry: ShardEntry, columns: Collection[str]) -> Any:
        """The values of all samples in a shard, as an Arrow table.

        Raises:
            DatasetError: if they are damaged, or not of this version of the shard.
        """
        number, _ = self.shard(entry)
        with self.reading():
            found = self.file.read_row_group(number, list(columns), use_threads=False)
            if len(found) != entry.count:  # no checksum covers the header of a page
                raise ValueError(f"it has {len(found)} rows of shard {entry.name}, not {entry.count}")
            return found


def write_stored_columns(file: BinaryIO, kinds: Mapping[str, str], shards: Iterable[tuple[StoredShard, Any]]) -> None:
    """Write stored columns of these types to an empty file: of each shard its description and an Arrow table, whose
    integers may become numbers. A column without values may have another type in the table."""
    schema = arrow_package().schema([(name, arrow_type(kind)) for name, kind in kinds.items()])
    how = {"write_page_checksum": True, "write_statistics": False, "store_schema": False}
    rows = []
    with arrow_package("pyarrow.parquet").ParquetWriter(file, schema, **how) as writer:
        for shard, table in shards:
            typed = [_cast(table.column(field.name), field.type) for field in schema]
            writer.write_table(arrow_package().table(typed, schema), max(1, len(table)))
            rows.append(shard)
        content = _NO_CHECKSUM + json.dumps([kinds, rows]).encode()  # ASCII, as names need not be UTF-8
        writer.add_key_value_metadata({_METADATA: content})
    start, footer = _footer(file)
    file.seek(start + footer.index(content))
    file.write(b"%08x" % zlib.crc32(footer))


def _cast(values: Any, kind: Any) -> Any:
    return (
        arrow_package().nulls(len(values), kind) if values.null_count == len(values) else values.cast(kind, safe=False)
    )


def _footer(file: BinaryIO) -> tuple[int, bytes]:
    """(first byte, content) of the footer of a Parquet file."""
    end = file.seek(-8, os.SEEK_END)
    start = file.seek(end - int.from_bytes(file.read(4), "little"))
    return start, file.read(end - start)


def arrow_type(kind: str) -> Any:
    """The Arrow type of a stored column."""
    arrow, inner = arrow_package(), kind.removesuffix(LIST)
    found = {BOOLEAN: arrow.bool_(), INTEGER: arrow.int64(), NUMBER: arrow.float64()}.get(inner, arrow.string())
    return arrow.list_(found) if inner != kind else found


def column_path(name: str) -> ColumnPath:
    """The path of a stored column: `info.json.meta.score` is the field `meta.score` of the part `info.json`."""
    names = name.split(".")
    at = names.index("json") + 1
    return (".".join(names[:at]), *names[at:])
