"""The rows of tables as samples: Parquet files, the Arrow files of `datasets`, Lance, MDS and litData.

Reads the files, in order. Returns `Records`: a group of rows (a row group, a record batch, a fragment) is a shard, a
column a part. Opening reads only footers and headers, once per file; of data with many groups, what they say is kept in
the user's cache, so other processes of the machine, and later runs, open one file. Of a group, only samples of open
blocks are held, as for any other data. Raises `DatasetError` if a file is replaced while it is in use.

The key of a sample is the value of the column `__key__`, else the number of the row in its file, from 0.
"""

import bisect
import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import logging
import operator
import os
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bridge_data import storage
from bridge_data.data.blocks import Block, ByteRange, RawSample, RecordReader, Samples
from bridge_data.data.paged_file import PagedFile, begin_index, finish_index
from bridge_data.data.records import Contents, contents_of, label_of, place_of, shard_identities
from bridge_data.data.sample_keys import find, fix_repeated_keys, join_problem, keys_of, number_of_key, scan_keys
from bridge_data.data.withheld import ShardStamp, StoredFiles, files_of
from bridge_data.errors import DatasetError, SampleError
from bridge_data.plugins.tables.parquet_pages import MAGIC
from bridge_data.plugins.tables.table_columns import (
    KEY,
    Column,
    TableFile,
    block_bytes,
    checked_unit,
    columns_of,
    pyarrow_for,
    with_kinds,
)
from bridge_data.prepare import sample_columns
from bridge_data.prepare.sample_columns import ColumnPath, ColumnValues, SampleColumns, arrow_package
from bridge_data.storage import Location, Version, is_remote
from bridge_data.storage.atomic import replacing
from bridge_data.storage.copies import cache_folder

logger = logging.getLogger("bridge_data")

TABLE_FILES = {
    ".parquet": "parquet_table.ParquetTable",
    ".arrow": "arrow_table.ArrowTable",
    ".lance": "lance_table.LanceTable",
    ".mds": "mds_table.MdsTable",
    ".bin": "litdata_table.open_chunk",
}
"""The suffixes of tables, and what opens the `TableFile` of each: a module of this plug-in, and a class or function."""

MAX_OPEN_TABLES = 32
"""Maximum files whose footers a reader keeps."""

MAX_OPENING = 16
"""Maximum files in an object store that are opened at the same time."""

MANY_GROUPS = 1000
"""Number of groups and files, as many in each as in the first, from which on what was found is kept in the cache."""

_MAGIC = b"BRIDGETB"
_VERSION = 2
"""Of what is kept in the cache, and of how blocks and kinds of columns are found."""

KEYS_AT_ONCE = 1 << 14
"""Maximum keys that are read at once, so that memory does not grow with the size of a row group."""

KEY_COLUMN = Column(KEY, KEY, KEY)

_MEDIUM = ("bytes", "path")
"""The fields of media."""

_MAX_DIGITS = 38
"""Maximum digits of a decimal number in DuckDB."""


@dataclasses.dataclass(frozen=True, slots=True)
class TableEntry:
    """A file: its name in the data set, its path, its version when it was opened, a digest of its footer or headers,
    and its number of groups."""

    name: str
    path: str
    version: Version
    digest: str
    num_groups: int

    def opened(self) -> TableFile:
        """The opened file, which must not have changed."""
        return open_table(self.path, self.version)


def open_table(path: str, version: Version | None = None) -> TableFile:
    """The file or data set with a table at `path`. A file whose name says nothing is a Parquet file, or else of Arrow.

    Raises:
        ConfigError: without the package that reads it, or if it is encrypted.
        DatasetError: if it is damaged, or not of `version`.
    """
    pyarrow_for(path)
    suffix = os.path.splitext(path)[1]
    if suffix not in TABLE_FILES:
        suffix = ".parquet" if storage.read(path, 0, len(MAGIC)) == MAGIC else ".arrow"
    module, name = TABLE_FILES[suffix].split(".")
    opened: TableFile = getattr(importlib.import_module(f"bridge_data.plugins.tables.{module}"), name)(path, version)
    with opened.as_dataset_error("its columns cannot be read"):
        opened.schema.names  # noqa: B018  which need not be UTF-8 in a damaged file
    return opened


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TableRecords:
    """The rows of `files`, concatenated; `counts` are the rows of each group, `first_groups` the number of each file's
    first group. Samples have the parts of `columns`. `read_bytes` is the size of a block. With `has_keys`, there is a
    column of keys. `ends` is the `ends_checksum` of the first file with rows."""

    root: Location
    split_part: str
    files: tuple[TableEntry, ...]
    counts: list[int]
    columns: tuple[Column, ...]
    has_keys: bool
    join_problem: str | None
    sample_bytes: float | None
    read_bytes: int
    ends: int

    @property
    def num_samples(self) -> int:
        return self.starts[-1]

    @functools.cached_property
    def starts(self) -> list[int]:
        """The number of the first sample of each group, and the number of all samples."""
        return [0, *itertools.accumulate(self.counts)]

    @functools.cached_property
    def first_groups(self) -> list[int]:
        """The number of the first group of each file, and the number of all groups."""
        return [0, *itertools.accumulate(file.num_groups for file in self.files)]

    @functools.cached_property
    def shards(self) -> list[tuple[str, int]]:
        """The groups, by the names of their files."""
        names = (file.name for file in self.files for _ in range(file.num_groups))
        return list(zip(names, self.counts, strict=True))

    def identity(self) -> dict[str, Any]:
        """Name, size, and a digest of the footer of each file."""
        return {"tables": [[file.name, file.version.num_bytes, file.digest] for file in self.files]}

    def stamp(self, file: int) -> ShardStamp:
        """What is known of a file, to notice that it was rewritten."""
        entry = self.files[file]
        return ShardStamp(entry.version.num_bytes, len(self.rows_of(file)), entry.digest)

    def file_of(self, index: int) -> tuple[int, int]:
        """(number of the file, number of the row in it) of a sample."""
        file = bisect.bisect_right(self.first_groups, self.group_of(index)) - 1
        return file, index - self.starts[self.first_groups[file]]

    def group_of(self, index: int) -> int:
        """The number of the group that a sample is in."""
        if not 0 <= index < self.num_samples:
            raise IndexError(f"{label_of(self)}: sample {index} of {self.num_samples}")
        return bisect.bisect_right(self.starts, index) - 1

    def rows_of(self, file: int) -> range:
        """The numbers of the samples of a file."""
        return range(*(self.starts[group] for group in self.first_groups[file : file + 2]))

    def keys(self, samples: range) -> Iterator[str]:
        """From the column of keys, of which `KEYS_AT_ONCE` are read at once; without one, the numbers of the rows."""
        return itertools.chain.from_iterable(self._key_runs(samples))

    def _key_runs(self, samples: range) -> Iterator[Iterable[str]]:
        first = samples.start
        while first < samples.stop:
            file, row = self.file_of(first)
            own = range(first, min(self.rows_of(file).stop, samples.stop))
            yield from self._stored_keys(file, own) if self.has_keys else [map(str, range(row, row + len(own)))]
            first = own.stop

    def _stored_keys(self, file: int, samples: range) -> Iterator[list[str]]:
        """The keys of samples of a file, out of the column."""
        table, first = self.files[file].opened(), samples.start
        while first < samples.stop:
            group = self.group_of(first)
            start = self.starts[group]
            end = min(first + KEYS_AT_ONCE, self.starts[group + 1], samples.stop)
            keys = table.values(KEY_COLUMN, group - self.first_groups[file], first - start, end - start)
            yield _checked_keys(keys, table.path, self.file_of(first)[1])
            first = end

    def reader(self) -> RecordReader:
        return TableReader(self)


@keys_of.register
def _keys(records: TableRecords, samples: range) -> Iterator[str]:
    return records.keys(samples)


@find.register
def _find(records: TableRecords, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    if records.has_keys:
        return scan_keys(records, keys)
    files = [records.rows_of(file) for file in range(len(records.files))]
    rows = ((row, key) for key in keys if (row := number_of_key(key)) is not None)
    return ((samples[row], key) for row, key in rows for samples in files if row < len(samples))


@join_problem.register
def _problem(records: TableRecords) -> str | None:
    return records.join_problem


@fix_repeated_keys.register
def _fix(records: TableRecords) -> str:
    return f"Write the tables again with one row for each {KEY}." if records.has_keys else ""


@sample_columns.columns_of.register
def _columns(records: TableRecords) -> SampleColumns:
    return _RowColumns(records)


def open_records(
    root: Location, files: Sequence[tuple[str, str]], split_part: str, choose: Callable[[list[Column]], list[Column]]
) -> TableRecords:
    """The rows of `files` (name, path), with the columns that `choose` selects.

    Raises:
        ConfigError: without pyarrow, or for columns that cannot be read.
        DatasetError: if a file is damaged, or has other columns than the first.
    """
    paths = [path for _, path in files]
    first = open_table(paths[0])
    chosen = choose(columns_of(first.schema, first.path))
    path, versions = None, [first.version]
    if first.is_alone and len(files) * (1 + len(first.counts)) >= MANY_GROUPS:
        versions += storage.versions(paths[1:])
        path = _cached_at(files, versions, chosen)
    found = None if path is None else PagedFile.open(path, _MAGIC)
    if found is None or found[1]["files"][0][0] != _digest(first.identity()):
        tables = [first, *open_tables(paths[1:])]
        records = records_of(root, files, tables, split_part, with_kinds(chosen, tables))
        if path is not None and [table.version for table in tables] == versions:
            _keep(records, path)
        return records
    known = found[1]
    entries = zip(files, versions, known["files"], strict=True)
    return TableRecords(
        root=root,
        split_part=split_part,
        files=tuple(TableEntry(*file, version, *described) for file, version, described in entries),
        counts=known["counts"],
        columns=tuple(Column(*column) for column in known["columns"]),
        has_keys=KEY in first.schema.names,
        join_problem=_join_problem(first),
        sample_bytes=known["sample_bytes"],
        read_bytes=known["read_bytes"],
        ends=known["ends"],
    )


def _cached_at(files: Sequence[tuple[str, str]], versions: Sequence[Version], columns: Sequence[Column]) -> Path | None:
    """Where the cache has what this version of the code found in the files about these columns; None without a cache.
    A file that was written again has another name there, also if its size and time were kept."""
    code = [metadata.version("bridge_data"), metadata.version("pyarrow"), _VERSION]
    changed = [None if is_remote(path) else os.stat(path).st_ctime_ns for _, path in files]
    content = [code, list(zip(files, versions, changed, strict=True)), list(map(dataclasses.astuple, columns))]
    name = _digest(json.dumps(content).encode(errors="surrogateescape"))
    try:
        return cache_folder() / "tables" / f"{name}.tables"
    except RuntimeError:  # the user has no home
        return None


def _keep(records: TableRecords, path: Path) -> None:
    """Write what was found in the files to `path`, for the next opening, which else opens all of them again."""
    table = {
        "files": [(file.digest, file.num_groups) for file in records.files],
        "counts": records.counts,
        "columns": [dataclasses.astuple(column) for column in records.columns],
        "sample_bytes": records.sample_bytes,
        "read_bytes": records.read_bytes,
        "ends": records.ends,
    }
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "wb") as file:
            begin_index(file)
            finish_index(file, _MAGIC, table)


def open_tables(paths: Sequence[str]) -> list[TableFile]:
    """The opened tables; in parallel, if they are in an object store. See `open_table`."""
    if any(map(is_remote, paths)):
        with concurrent.futures.ThreadPoolExecutor(MAX_OPENING) as threads:
            return list(threads.map(open_table, paths))
    return [*map(open_table, paths)]


def records_of(
    root: Location,
    files: Sequence[tuple[str, str]],
    tables: Sequence[TableFile],
    split_part: str,
    columns: Sequence[Column],
) -> TableRecords:
    """The rows of `files` (name, path), which were opened as `tables`, with these columns; see `open_records`."""
    has_keys = KEY in tables[0].schema.names
    wanted = [*columns, *([KEY_COLUMN] if has_keys else [])]
    for table in tables[1:]:
        _check_schema(tables[0], table, wanted, has_keys)
    counts = [count for table in tables for count in table.counts]
    num_bytes = unit_bytes = 0
    for table in tables:
        for group, count in enumerate(table.counts):
            if count:
                num_bytes += sum(table.column_bytes(group, column) for column in columns)
                unit_bytes = max(unit_bytes, checked_unit(table, group, columns))
    sample_bytes = num_bytes / sum(counts) if sum(counts) else None
    return TableRecords(
        root=root,
        split_part=split_part,
        files=tuple(
            TableEntry(name, path, table.version, _digest(table.identity()), len(table.counts))
            for (name, path), table in zip(files, tables, strict=True)
        ),
        counts=counts,
        columns=tuple(columns),
        has_keys=has_keys,
        join_problem=_join_problem(tables[0]),
        sample_bytes=sample_bytes,
        read_bytes=block_bytes(unit_bytes, sample_bytes),
        ends=next((table.ends_checksum() for table in tables if sum(table.counts)), 0),
    )


def _check_schema(first: TableFile, other: TableFile, columns: Sequence[Column], has_keys: bool) -> None:
    """Check that `other` has the `columns` of the `first` file, and no more if these are all of it."""
    for column in columns:
        kinds = [
            file.schema.field(column.name).type if column.name in file.schema.names else None for file in (first, other)
        ]
        if kinds[0] != kinds[1]:
            raise DatasetError(
                f"{other.path}: its column {column.name!r} has the type {kinds[1] or '(it is missing)'}, but in "
                f"{first.path} it has {kinds[0]}: all files of a data set have the same columns. Rewrite them, or "
                "name the others as another data set."
            )
    if not has_keys and KEY in other.schema.names:
        raise DatasetError(f"{other.path}: has a column {KEY!r}, but {first.path} has none")
    more = sorted({*other.schema.names} - {*first.schema.names})
    if more and {column.name for column in columns} >= {*first.schema.names} - {KEY}:  # none is left out by choice
        raise DatasetError(
            f"{other.path}: has the columns {', '.join(map(repr, more))}, which {first.path} lacks: all files of a "
            "data set have the same columns. Rewrite them, name the others as another data set, or name the columns "
            "that are read, in a field_map or part_filter."
        )


def _join_problem(first: TableFile) -> str | None:
    """Why rows of files with the columns of the `first` one cannot be joined by their keys; None if they can."""
    if KEY not in first.schema.names:
        return (
            f"{first.path}: has no column {KEY!r}, so its rows have only their numbers as keys: for a join, write the "
            "keys into a column of this name"
        )
    kind, types = first.schema.field(KEY).type, pyarrow_for(first.path).types
    value = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_string(value) or types.is_large_string(value) or types.is_integer(value):
        return None
    return f"{first.path}: its column {KEY!r} has the type {kind}; for a join, write it as texts, or as whole numbers"


def _checked_keys(keys: Sequence[Any], path: str, first: int) -> list[str]:
    """The keys as texts; row `first` is that of the first one, for messages."""
    if _has_none(keys):
        raise DatasetError(f"{path}: row {first + keys.index(None)} has no {KEY}")
    return [str(key) for key in keys]


def _has_none(values: Sequence[Any]) -> bool:
    """Whether a value is None; arrays are not compared."""
    return any(map(functools.partial(operator.is_, None), values))


def _digest(content: bytes) -> str:
    import hashlib  # here: it is slow to import, and most data are no tables

    return hashlib.blake2b(content, digest_size=8).hexdigest()


@contents_of.register
def _contents(records: TableRecords) -> Contents:
    return Contents(records.ends)


@shard_identities.register
def _shard_identities(records: TableRecords) -> list[Any]:
    files = zip(records.identity()["tables"], records.files, strict=True)
    return [[table, group] for table, file in files for group in range(file.num_groups)]


@files_of.register
def _files(records: TableRecords) -> StoredFiles:
    names, paths = zip(*((file.name, file.path) for file in records.files), strict=True)

    def number_in(file: int, position: int) -> int:
        return records.rows_of(file)[position]

    return StoredFiles(records.root, names, paths, records.stamp, number_in)


class TableReader(RecordReader):
    """Reads the samples of `records`. It opens files on demand, and can be pickled."""

    has_blocks = True

    def __init__(self, records: TableRecords) -> None:
        self._records = records
        self.dataset_path = str(records.root)
        self._tables: collections.OrderedDict[int, TableFile] = collections.OrderedDict()

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        block = self.read_block(range(index, index + 1), parts)
        (key,) = block.keys
        if key is None:
            raise self._without_content(index, parts)
        (content,) = block.contents
        found = {block.name: content} if block.name else content
        return RawSample(key, block.shard_name, index, found, self.dataset_path)

    def byte_ranges(self, block: range, parts: Container[str] | None = None) -> list[ByteRange]:
        """None: the pages with a sample are known only when they are read."""
        self._records.group_of(block[0])
        return []

    def part_names(self, shard: int) -> Collection[str]:
        return [column.part for column in self._records.columns]

    def read_block(self, block: range, parts: Container[str] | None) -> Block:
        """The samples of a block, whose bytes are estimated. Missing values are left out; a sample whose media are not
        stored in the table has the key None."""
        records = self._records
        group = records.group_of(block[0])
        file = bisect.bisect_right(records.first_groups, group) - 1
        table, own_group = self._table(file), group - records.first_groups[file]
        first = block[0] - records.starts[group]
        rows = own_group, first, first + len(block)
        columns = [column for column in records.columns if parts is None or column.part in parts]
        values = [table.values(column, *rows) for column in columns]
        if records.has_keys:
            found = table.values(KEY_COLUMN, *rows)
            keys: list[str | None] = [*_checked_keys(found, table.path, self._row(block[0]))]
        else:
            keys = list(map(str, range(self._row(block[0]), self._row(block[0]) + len(block))))
        num_bytes = int(len(block) * (records.sample_bytes or 0))
        names = [column.part for column in columns]
        if len(names) == 1 and not _has_none(values[0]):
            return Block(records.files[file].name, block, keys, values[0], names[0], num_bytes)
        contents = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
        contents = contents or [{} for _ in block]
        for column, found in zip(columns, values, strict=True):
            if _has_none(found):
                self._leave_out(table, column, rows, Samples(keys, contents))
        return Block(records.files[file].name, block, keys, contents, None, num_bytes)

    def rows(self, samples: range, *, in_order: bool) -> list[dict[str, Any]]:
        """The values of all columns of consecutive rows of a group; None for missing ones. Those of media are their
        `bytes` and their `path`. With `in_order`, it is fast if all rows are read from the first to the last.

        Raises:
            DatasetError: if they cannot be read.
        """
        records = self._records
        file, group = records.file_of(samples[0])[0], records.group_of(samples[0])
        first = samples[0] - records.starts[group]
        table, rows = self._table(file), (group - records.first_groups[file], first, first + len(samples))
        columns = [*records.columns, *(column.path for column in records.columns if column.is_media)]
        if in_order:
            values = table.values_in_order(columns, *rows)
        else:
            values = [table.values(column, *rows) for column in columns]
        found = dict(zip([column.name for column in records.columns], values, strict=False))
        for column, paths in zip(columns[len(found) :], values[len(found) :], strict=True):
            both = zip(found[column.name], paths, strict=True)
            found[column.name] = [None if one == (None, None) else dict(zip(_MEDIUM, one, strict=True)) for one in both]
        contents = zip(*found.values(), strict=True) if found else ((),) * len(samples)
        return [dict(zip(found, row, strict=True)) for row in contents]

    def _leave_out(self, table: TableFile, column: Column, rows: tuple[int, int, int], samples: Samples) -> None:
        """Remove the missing values of a column from the samples."""
        paths = table.values(column.path, *rows) if column.is_media else [None] * len(samples.contents)
        for number, (content, path) in enumerate(zip(samples.contents, paths, strict=True)):
            if content[column.part] is None:
                del content[column.part]
                if path is not None:
                    samples.keys[number] = None

    def _without_content(self, index: int, parts: Container[str] | None) -> SampleError:
        """The error for a sample of which the table stores only the path of a file."""
        records = self._records
        names = [c.name for c in records.columns if c.is_media and (parts is None or c.part in parts)]
        return SampleError(
            f"{place_of(records, index)}: column {' or '.join(map(repr, names))} has only the path of a file, not its "
            "content: save the data set with its media (`dataset.save_to_disk` after `cast_column(..., Image())`)"
        )

    def _row(self, index: int) -> int:
        return self._records.file_of(index)[1]

    def _table(self, file: int) -> TableFile:
        table = self._tables.get(file)
        if table is None:
            entry = self._records.files[file]
            table = entry.opened()
            if _digest(table.identity()) != entry.digest:
                raise DatasetError(f"{entry.path}: was replaced while it was in use: restore it, or start again")
            self._tables[file] = table
            if len(self._tables) > MAX_OPEN_TABLES:
                self._tables.popitem(last=False)
        return table

    def __reduce__(self) -> tuple[type["TableReader"], tuple[TableRecords]]:
        return TableReader, (self._records,)


class _RowColumns(SampleColumns):
    """The columns of Parquet and Arrow files, which take precedence over `key`, `shard` and `index` of samples."""

    key, shard = ("__sample_key__",), ("__shard__",)

    def __init__(self, records: TableRecords) -> None:
        super().__init__(records)
        self._rows = records
        self._opened: tuple[int, TableFile] | None = None
        """The last file that was read."""

    def _table(self, file: int) -> TableFile:
        if self._opened is None or self._opened[0] != file:
            self._opened = file, self._rows.files[file].opened()
        return self._opened[1]

    @functools.cached_property
    def _columns(self) -> dict[ColumnPath, tuple[Column, Any]]:
        table = self._table(0)
        return {
            (column.name,): (column, _known_type(table.schema.field(column.name).type))
            for column in columns_of(table.schema, table.path)
            if not column.is_bytes and column.name not in table.without_types
        }

    def types(self) -> dict[ColumnPath, Any]:
        return super().types() | {path: kind for path, (_, kind) in self._columns.items()}

    def identity(self) -> list[Any]:
        return [list(file.version) for file in self._rows.files]

    def values(self, samples: range, wanted: Collection[ColumnPath]) -> ColumnValues:
        arrow, records = arrow_package(), self._rows
        group, (file, _) = records.group_of(samples[0]), records.file_of(samples[0])
        first = samples.start - records.starts[group]
        rows = group - records.first_groups[file], first, first + len(samples)
        own = {path: found for path, found in self._columns.items() if path in wanted}
        values = {path: arrow.array(self._table(file).values(one, *rows), kind) for path, (one, kind) in own.items()}
        for path in (sample_columns.KEY, self.key) if records.has_keys else ():
            if path in wanted and path not in own:
                values[path] = arrow.array(map(str, self._table(file).values(KEY_COLUMN, *rows)))
        return values


def _known_type(kind: Any) -> Any:
    """The type as which DuckDB takes the values of a column of this type, which it may not know."""
    arrow = arrow_package()
    if isinstance(kind, arrow.BaseExtensionType) and not isinstance(kind, arrow.UuidType):
        return arrow.bool_() if isinstance(kind, arrow.Bool8Type) else kind.storage_type
    if arrow.types.is_float16(kind):
        return arrow.float32()
    if arrow.types.is_decimal256(kind) and kind.precision <= _MAX_DIGITS:
        return arrow.decimal128(kind.precision, kind.scale)
    return kind
