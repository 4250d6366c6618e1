"""The columns of the samples of a data set, known without reading the samples.

Reads `Records` of some kind: of a prepared data set its indexes, of others their own files; and Parquet files, such as
that of the user's columns. Returns columns by path (`("jpg", "width")`), with Arrow types, and the values of wanted
columns, in batches of rows, each with the number of its sample. Only wanted columns are read, front to back, and only
once; memory does not depend on the number of samples. Raises a `DatasetError` for what is damaged, or older than the
samples.

Fields of JSON parts, which `bridge-data prepare --columns` stores in `.nv-meta/columns.parquet`, are columns of a
prepared data set. That is a Parquet file with a row group for each shard, of all its samples, and columns named like
`json.score`. Its pages have checksums. Under `bridge_data`, its metadata hold the CRC-32 of the footer, with zeros
in the place of itself, the type of each column, and for each shard name, size, time of change and number of samples as
of when its fields were read, and for each column the types in it, each with the key of the first sample that has it and
their number. All of this depends on the shards alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

from bridge_data import storage
from bridge_data.data.index_file import IndexPage, ShardEntry
from bridge_data.data.metadata import INDEX_SQLITE, META_FOLDER
from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.storage import Location

if TYPE_CHECKING:
    from bridge_data.data.prepared import ShardSet
    from bridge_data.data.read_only_database import ReadOnlyDatabase
    from bridge_data.data.records import Records

ColumnPath: TypeAlias = tuple[str, ...]
"""The names on the path to a column: `jpg.width` is `("jpg", "width")`."""

ROWS_AT_ONCE = 1 << 14

KEY, SHARD, INDEX, BYTES = ("key",), ("shard",), ("index",), ("bytes",)
FULL_KEY = ("__key__",)
"""The key as batches have it: `SHARD/KEY`, or the key alone."""

COLUMNS_PARQUET = "columns.parquet"

ColumnValues: TypeAlias = dict[ColumnPath, Any]
"""Arrow arrays by column."""

ColumnBatch: TypeAlias = tuple[Any, ColumnValues]
"""The numbers of samples, an array of NumPy, and their values."""

BOOLEAN, INTEGER, NUMBER, TEXT = "boolean", "integer", "number", "text"
"""The types of values in stored columns."""

LIST = "[]"
"""Suffix of the type of a list, after that of its items, as in `text[]`."""

ValueTypes: TypeAlias = list[tuple[str, str, int]]
"""The types of values in a column, each with the key of the first sample that has it, and their number."""

_METADATA = b"bridge_data"
_NO_CHECKSUM = b"0" * 8


class KeyedTable(NamedTuple):
    """Rows for parts of samples by their key (`000017.jpg`), such as media metadata: `batches` yields the key and the
    values of the columns `paths` of each row."""

    paths: Sequence[ColumnPath]
    batches: Callable[[], Iterator[Any]]


class SampleColumns:
    """The columns of `records`; as they are here: key, shard and number of each sample.

    The user's columns are joined by the columns `key` and `shard`, which have other names if the data have their own
    columns of these names.
    """

    key: ColumnPath = KEY
    shard: ColumnPath = SHARD
    has_shard_in_full_key: bool = True

    def __init__(self, records: Records) -> None:
        self._records = records

    def types(self) -> dict[ColumnPath, Any]:
        """The Arrow types of all columns."""
        arrow = arrow_package()
        return {KEY: arrow.string(), SHARD: arrow.string(), INDEX: arrow.int64()}

    def batches(self, wanted: Collection[ColumnPath]) -> Iterator[ColumnBatch]:
        """The values of the columns `wanted`, or more, of all samples."""
        import numpy as np

        first = 0
        for name, count in zip(self._records.names, self._records.counts, strict=True):
            for start in range(first, first + count, ROWS_AT_ONCE):
                samples = range(start, min(start + ROWS_AT_ONCE, first + count))
                yield np.arange(samples.start, samples.stop), self._of_shard(name, samples, set(wanted))
            first += count

    def _of_shard(self, name: str, samples: range, wanted: set[ColumnPath]) -> ColumnValues:
        arrow, has_full_key = arrow_package(), FULL_KEY in wanted
        asked = wanted - {FULL_KEY} | ({self.key} if has_full_key else set())
        values, shard = self.values(samples, asked), arrow_texts([name])[0]
        for path in asked - values.keys():
            if path == INDEX:
                values[path] = arrow.array(samples)
            elif path in (SHARD, self.shard):
                values[path] = arrow.repeat(shard, len(samples))
            else:
                values[path] = arrow_texts([*self._records.keys(samples)])
        if has_full_key:
            join = arrow_package("pyarrow.compute").binary_join_element_wise
            values[FULL_KEY] = join(shard, values[self.key], "/") if self.has_shard_in_full_key else values[self.key]
        return values

    def values(self, samples: range, wanted: Collection[ColumnPath]) -> ColumnValues:
        """The values of those columns `wanted` that only these records have, of samples of one shard."""
        return {}

    def keyed(self, wanted: Collection[ColumnPath]) -> dict[str, KeyedTable]:
        """Those of the columns `wanted` that are in no batches but in tables of their own, by part."""
        return {}

    def identity(self) -> list[Any]:
        """Data that differ if the values do, in addition to the identity of the records."""
        return []

    def fix_text(self) -> str:
        """How to have more columns."""
        return "a column of your own comes from a Parquet file: `columns: scores.parquet`"


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


class OwnColumns(ParquetColumns):
    """The user's Parquet file at `path`, with rows for samples by key, and by shard if it has that column, too; the
    Arrow types of all columns are `types`.

    Raises:
        ConfigError: if there is no such file, or it has no column `key`, or several columns of one name.
    """

    def __init__(self, path: str) -> None:
        try:
            super().__init__(path, own_copy(path))
        except DatasetError as error:
            raise ConfigError(f"columns: {error}; expected a Parquet file") from error
        schema = self.file.schema_arrow
        self.types = {field.name: field.type for field in schema}
        twice = [name for name in self.types if schema.names.count(name) > 1]
        if twice:
            raise ConfigError(f"columns: {path}: has several columns {twice[0]!r}: rename all but one")
        if KEY[0] not in self.types:
            names = ", ".join(self.types)
            raise ConfigError(f"columns: {path}: has no column `key`, with the keys of samples; there is {names}")

    def batches(self, names: Collection[str]) -> Iterator[Any]:
        """The values of some columns, as Arrow batches.

        Raises:
            DatasetError: if the file is damaged.
        """
        with self.reading():
            yield from self.file.iter_batches(ROWS_AT_ONCE, columns=list(names))


def own_copy(path: str) -> Path:
    """The user's file at `path` on this machine.

    Raises:
        ConfigError: if there is none.
    """
    copy = storage.local_copy(path)
    if copy is None:
        raise ConfigError(f"columns: {path}: no such file; it is a Parquet file with a column `key` and others")
    return copy


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
        command = functools.partial(bridge_command, "prepare", root, "--tar-index-only", "--columns")
        self.fix = f"; run `{command('json.FIELD')}` with the names of all fields"
        super().__init__(root / META_FOLDER / COLUMNS_PARQUET, copy)
        with self.reading(), open(copy, "rb") as file:
            sealed = (self.file.metadata.metadata or {}).get(_METADATA)
            if sealed is None:
                raise ValueError("`prepare --columns` did not write it")
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


class ShardColumns(SampleColumns):
    """The columns of a prepared data set, from its indexes: keys, sizes of samples and parts; stored fields of JSON
    parts; media metadata, if `prepare-media` stored them."""

    def __init__(self, shards: ShardSet) -> None:
        super().__init__(shards)
        if shards.index is None:
            fix_command = bridge_command("prepare", shards.root, "--tar-index-only")
            raise ConfigError(f"{shards.root}: where: needs our index of the data set; run `{fix_command}`")
        self._shards, self._index = shards, shards.index
        self._copy = storage.local_copy(shards.root / META_FOLDER / COLUMNS_PARQUET)
        self._kept: tuple[Any, Any] = (None, None)
        """A shard and columns of it, and their values."""

    @functools.cached_property
    def _stored(self) -> StoredColumns | None:
        return None if self._copy is None else StoredColumns(self._shards.root, self._copy)

    @functools.cached_property
    def _names(self) -> dict[ColumnPath, str]:
        """The names of the stored columns."""
        return {} if self._stored is None else {column_path(name): name for name in self._stored.kinds}

    @functools.cached_property
    def _database(self) -> ReadOnlyDatabase | None:
        """The database, if it has media metadata."""
        from bridge_data.data.media_metadata import MEDIA_TABLE  # here: slow, and not needed for a prepared choice
        from bridge_data.data.read_only_database import ReadOnlyDatabase

        file = storage.local_copy(self._shards.root / META_FOLDER / INDEX_SQLITE)
        database = None if file is None else ReadOnlyDatabase(file, f"prepare {self._shards.root} again")
        return database if database is not None and database.has_table(MEDIA_TABLE) else None

    def identity(self) -> list[Any]:
        files = [self._copy, None if self._database is None else self._database.file]
        return [self._index.uuid, *(None if file is None else storage.version(file) for file in files)]

    @functools.cached_property
    def _media(self) -> dict[ColumnPath, Any]:
        """The Arrow types of media metadata of the parts that there are."""
        fields = {} if self._database is None else _media_types()
        return {(part, name): kind for part in self._parts for name, kind in fields.items()}

    @functools.cached_property
    def _parts(self) -> list[str]:
        return sorted({part for name in self._shards.names for part in self._index.segment(name).names})

    def types(self) -> dict[ColumnPath, Any]:
        size, kinds = arrow_package().int64(), {} if self._stored is None else self._stored.kinds
        sizes = dict.fromkeys((BYTES, *((part, *BYTES) for part in self._parts)), size)
        stored = {path: arrow_type(kinds[name]) for path, name in self._names.items()}
        found = super().types() | sizes | stored
        return found | self._media | found

    def keyed(self, wanted: Collection[ColumnPath]) -> dict[str, KeyedTable]:
        found: dict[str, KeyedTable] = {}
        for part in self._parts:
            paths = [path for path in wanted if path in self._media and path not in self._names and path[0] == part]
            if paths:
                found[part] = KeyedTable(paths, functools.partial(self._media_rows, part, [path[1] for path in paths]))
        return found

    def _media_rows(self, part: str, fields: Sequence[str]) -> Iterator[Any]:
        """The media metadata of all parts with one name, as Arrow batches."""
        from bridge_data.data.media_metadata import MEDIA_TABLE

        arrow, types = arrow_package(), _media_types()
        assert self._database is not None
        found = ", ".join(f"json_extract(metadata_json, '$.{name}')" for name in fields)
        query = f"SELECT entry_key, {found} FROM {MEDIA_TABLE} WHERE substr(entry_key, -{len(part) + 1}) = ?"
        rows = self._database.stream(query, f".{part}")
        while batch := list(itertools.islice(rows, ROWS_AT_ONCE)):
            keys, *columns = zip(*batch, strict=True)
            arrays = [arrow.array(column, types[name]) for name, column in zip(fields, columns, strict=True)]
            yield arrow.record_batch([arrow_texts(keys), *arrays], ["key", *fields])

    def fix_text(self) -> str:
        root, first = self._shards.root, ""
        if storage.is_remote(root):
            root, first = Path(root.name), "on a disk, before the data are copied to the store: "
        elif not (root / META_FOLDER).is_dir():
            as_they_are = ("--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset")
            prepared = bridge_command("prepare", root, *as_they_are, "--columns", "json.FIELD")
            return f"`{prepared}` prepares these tars, with fields of JSON parts; {super().fix_text()}"
        fields = bridge_command("prepare", root, "--tar-index-only", "--columns", "json.FIELD")
        sizes = bridge_command("prepare-media", root, "--media-metadata-by-extension")
        return (
            f"{first}`{fields}` adds fields of JSON parts, `{sizes}` sizes and durations of media; {super().fix_text()}"
        )

    def values(self, samples: range, wanted: Collection[ColumnPath]) -> ColumnValues:
        arrow, (shard, first) = arrow_package(), self._shards.locate(samples[0])
        name, end = self._shards.names[shard], self._shards.locate(samples[-1])[1] + 1
        kept = None
        if end - first > len(samples):
            excluded = set(self._shards.excluded_positions[shard])
            kept = arrow.array([position not in excluded for position in range(first, end)])

        def of_samples(array: Any, start: int) -> Any:
            """The values of the samples in those that begin at position `start`."""
            found = array.slice(first - start, end - first)
            return found if kept is None else found.filter(kept)

        stored = [path for path in wanted if path in self._names]
        values: ColumnValues = {}
        if stored and self._stored is not None:
            if self._kept[0] != (name, stored):
                columns = [self._names[path] for path in stored]
                self._kept = (name, stored), self._stored.table(self._index.entries[name], columns)
            for path in stored:
                values[path] = of_samples(self._kept[1].column(self._names[path]), 0).combine_chunks()
        sizes = [path for path in wanted if path[-1:] == BYTES and path not in stored]
        if KEY in wanted or sizes:
            segment = self._index.segment(name)
            page_samples = len(segment.read_page(0))
            pages = [segment.read_page(number) for number in range(first // page_samples, -(-end // page_samples))]
            start = first - first % page_samples
            if KEY in wanted:
                keys = [key for page in pages for key in page.keys(0, len(page) - 1)]
                values[KEY] = of_samples(arrow_texts(keys), start)
            for path in sizes:
                of_pages = arrow.concat_arrays([_sizes(page, segment.names, path) for page in pages])
                values[path] = of_samples(of_pages, start)
        return values


def _sizes(page: IndexPage, names: Sequence[str], path: ColumnPath) -> Any:
    """The sizes of the samples in a page, or of their parts of one name."""
    import numpy as np

    ends = np.frombuffer(page.part_ends, np.uint32)
    owners = np.repeat(np.arange(len(page)), np.diff(ends, prepend=0))
    part_sizes, missing = np.frombuffer(page.part_sizes, np.uint64).astype(np.int64), None
    if path != BYTES:
        number = names.index(path[0]) if path[0] in names else len(names)
        chosen = np.frombuffer(page.name_of_part, np.uint32) == number
        owners, part_sizes = owners[chosen], part_sizes[chosen]
        missing = np.bincount(owners, minlength=len(page)) == 0
    sizes = np.zeros(len(page), np.int64)
    np.add.at(sizes, owners, part_sizes)
    return arrow_package().array(sizes, mask=missing)


def _media_types() -> dict[str, Any]:
    """The Arrow types of the fields of media metadata."""
    from bridge_data.data.media_metadata import AVMetadata, ImageMetadata

    arrow = arrow_package()
    kinds = {"int": arrow.int64(), "float": arrow.float64(), "str": arrow.string()}
    fields = [field for kind in (ImageMetadata, AVMetadata) for field in dataclasses.fields(kind)]
    return {field.name: kinds[str(getattr(field.type, "__name__", field.type)).split(" ")[0]] for field in fields}


def arrow_package(name: str = "pyarrow") -> Any:
    """The package, or another one of the extra `where`.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f'the package {error.name} is missing: pip install "bridge-data[where]"') from error


def arrow_texts(names: Sequence[str]) -> Any:
    """Names as Arrow; bytes that are not UTF-8 are written with backslashes."""
    try:
        return arrow_package().array(names, arrow_package().string())
    except UnicodeEncodeError:
        return arrow_package().array([name.encode(errors="backslashreplace").decode() for name in names])
