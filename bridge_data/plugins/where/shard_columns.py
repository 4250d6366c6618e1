"""The columns of prepared folders and JSONL files, which their indexes and stored fields say of samples; of a part of
some data, those of the whole.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge_data import storage
from bridge_data.data import ShardSet, Subset
from bridge_data.data.index_file import IndexPage
from bridge_data.data.jsonl_file import JsonlLines
from bridge_data.data.metadata import INDEX_SQLITE, META_FOLDER
from bridge_data.errors import ConfigError, bridge_command
from bridge_data.plugins.where.stored_columns import (
    COLUMNS_PARQUET,
    StoredColumns,
    arrow_type,
    column_path,
)
from bridge_data.prepare.sample_columns import (
    BYTES,
    INDEX,
    KEY,
    ROWS_AT_ONCE,
    ColumnBatch,
    ColumnPath,
    ColumnValues,
    KeyedTable,
    SampleColumns,
    arrow_package,
    arrow_texts,
    columns_of,
)

if TYPE_CHECKING:
    from bridge_data.data.key_index import ReadOnlyDatabase


class ShardColumns(SampleColumns):
    """The columns of a prepared data set, from its indexes: keys, sizes of samples and parts; stored fields of JSON
    parts; media metadata, if `prepare --media` stored them."""

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
        from bridge_data.data.key_index import ReadOnlyDatabase
        from bridge_data.decode.media_metadata import MEDIA_TABLE  # here: slow, and not needed for a prepared choice

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
        from bridge_data.decode.media_metadata import MEDIA_TABLE

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
            prepared = bridge_command("prepare", root, *as_they_are, "--store-columns", "json.FIELD")
            return f"`{prepared}` prepares these tars, with fields of JSON parts; {super().fix_text()}"
        fields = bridge_command("prepare", root, "--tar-index-only", "--store-columns", "json.FIELD")
        sizes = bridge_command("prepare", root, "--media", "extension")
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
    from bridge_data.decode.media_metadata import AVMetadata, ImageMetadata

    arrow = arrow_package()
    kinds = {"int": arrow.int64(), "float": arrow.float64(), "str": arrow.string()}
    fields = [field for kind in (ImageMetadata, AVMetadata) for field in dataclasses.fields(kind)]
    return {field.name: kinds[str(getattr(field.type, "__name__", field.type)).split(" ")[0]] for field in fields}


class _LineColumns(SampleColumns):
    """The columns of a JSONL file, whose index says where each line starts."""

    has_shard_in_full_key = False

    def types(self) -> dict[ColumnPath, Any]:
        return super().types() | {BYTES: arrow_package().int64()}

    def identity(self) -> list[Any]:
        return [*storage.version(self._records.root)]

    def values(self, samples: range, wanted: Collection[ColumnPath]) -> ColumnValues:
        if BYTES not in wanted:
            return {}
        reader = self._records.reader()
        ranges = (reader.byte_ranges(range(index, index + 1)) for index in samples)
        # Each includes the byte before the line, except for the first line.
        return {BYTES: arrow_package().array([num_bytes - bool(start) for ((_, start, num_bytes),) in ranges])}


class _RangeColumns(SampleColumns):
    """The columns of the data set that `subset` is of, with numbers of its own."""

    def __init__(self, subset: Subset) -> None:
        super().__init__(subset)
        self._of_all = columns = columns_of(subset.records)
        self._start, self._end = subset.start, subset.end
        self.key, self.shard = columns.key, columns.shard
        self.has_shard_in_full_key = columns.has_shard_in_full_key

    def types(self) -> dict[ColumnPath, Any]:
        return self._of_all.types()

    def keyed(self, wanted: Collection[ColumnPath]) -> dict[str, KeyedTable]:
        return self._of_all.keyed(wanted)

    def identity(self) -> list[Any]:
        return self._of_all.identity()

    def fix_text(self) -> str:
        return self._of_all.fix_text()

    def batches(self, wanted: Collection[ColumnPath]) -> Iterator[ColumnBatch]:
        arrow = arrow_package()
        for indices, values in self._of_all.batches([path for path in wanted if path != INDEX]):
            kept = (indices >= self._start) & (indices < self._end)
            numbers = indices[kept] - self._start
            found = {path: array.filter(arrow.array(kept)) for path, array in values.items()}
            if INDEX in wanted:
                found[INDEX] = arrow.array(numbers)
            yield numbers, found


for _kind, _columns in ((ShardSet, ShardColumns), (JsonlLines, _LineColumns), (Subset, _RangeColumns)):
    columns_of.register(_kind, _columns)
