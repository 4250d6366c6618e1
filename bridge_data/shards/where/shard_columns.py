"""The columns of a prepared data set: what its indexes say about each sample.

Enters: a `ShardSet` with our index. Leaves: its `SampleColumns`: keys, shards, sizes of samples and parts; fields of
JSON parts, if `prepare --columns` stored them; media metadata, if `prepare-media` did. Guarantee: the index is read in
its order, and only files with wanted columns are read.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge_data import storage
from bridge_data.errors import ConfigError, bridge_command
from bridge_data.shards.index_file import IndexPage
from bridge_data.shards.media_metadata import MEDIA_TABLE, AVMetadata, ImageMetadata
from bridge_data.shards.metadata import INDEX_SQLITE, META_FOLDER
from bridge_data.shards.read_only_database import ReadOnlyDatabase
from bridge_data.shards.where.json_columns import BOOLEAN, INTEGER, NUMBER, JsonColumns
from bridge_data.shards.where.sample_columns import (
    BYTES,
    INDEX,
    KEY,
    ROWS_AT_ONCE,
    SHARD,
    ColumnBatch,
    ColumnPath,
    ColumnValues,
    KeyedTable,
    SampleColumns,
    arrow_package,
    arrow_texts,
)

if TYPE_CHECKING:
    from bridge_data.shards.prepared import ShardSet

FIRST_SHARDS = 16
"""Shards that are searched for parts before all others."""


class ShardColumns(SampleColumns):
    """The columns of a prepared data set, from its indexes."""

    def __init__(self, shards: "ShardSet") -> None:
        if shards.index is None:
            way_out = bridge_command("prepare", shards.root, "--tar-index-only")
            raise ConfigError(f"{shards.root}: where: needs our index of the data set; run `{way_out}`")
        self._shards, self._index = shards, shards.index
        self._json = JsonColumns.find(shards.root)
        stored = enumerate(shards.names)
        entries = self._index.entries.rows
        self._order = [number for number, _ in sorted(stored, key=lambda one: entries[one[1]][4])]
        """The numbers of the shards in the order of the index."""

    def types(self, *, of_all: bool) -> dict[ColumnPath, Any]:
        arrow, index = arrow_package(), self._index
        found: dict[ColumnPath, Any] = {KEY: arrow.string(), SHARD: arrow.string(), INDEX: arrow.int64()}
        found[BYTES] = arrow.int64()
        names: dict[str, None] = {}
        for name in self._shards.names if of_all else self._shards.names[:FIRST_SHARDS]:
            names.update(dict.fromkeys(index.segment(name).names))
        found |= {(name, *BYTES): arrow.int64() for name in sorted(names)}
        if self._json is not None:
            found |= {_path_of(name): _arrow_type(kind) for name, kind in self._json.types.items()}
        return found

    def identity(self) -> list[Any]:
        media = self._media()
        seen = [] if media is None else [*storage.version(media.file)]
        return [self._index.uuid, None if self._json is None else self._json.checksum, seen]

    def way_out(self) -> str:
        root, first = self._shards.root, ""
        if storage.is_remote(root):
            root, first = Path(root.name), "on a disk, before the data are copied to the store: "
        elif not (root / META_FOLDER).is_dir():
            as_they_are = ("--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset")
            prepared = bridge_command("prepare", root, *as_they_are, "--columns", "json.FIELD")
            return f"`{prepared}` prepares these tars, with fields of JSON parts; {super().way_out()}"
        fields = bridge_command("prepare", root, "--tar-index-only", "--columns", "json.FIELD")
        sizes = bridge_command("prepare-media", root, "--media-metadata-by-extension")
        return (
            f"{first}`{fields}` adds fields of JSON parts, `{sizes}` sizes and durations of media; {super().way_out()}"
        )

    def batches(self, wanted: Collection[ColumnPath]) -> Iterator[ColumnBatch]:
        import numpy as np

        arrow = arrow_package()
        held: list[tuple[Any, ColumnValues]] = []
        num_held = 0
        for shard in self._order:
            for position, count, values in self._pieces(shard, set(wanted)):
                indices = self._shards.starts[shard] + position + np.arange(count)
                excluded = self._shards.excluded_positions.get(shard, ())
                if excluded:
                    positions = position + np.arange(count)
                    kept = ~np.isin(positions, excluded)
                    indices = self._shards.starts[shard] + (positions - np.searchsorted(excluded, positions))[kept]
                    values = {path: array.filter(arrow.array(kept)) for path, array in values.items()}
                if INDEX in wanted:
                    values[INDEX] = arrow.array(indices)
                held.append((indices, values))
                num_held += len(indices)
                if num_held >= ROWS_AT_ONCE:
                    yield _joined(held)
                    held, num_held = [], 0
        if held:
            yield _joined(held)

    def _pieces(self, shard: int, wanted: set[ColumnPath]) -> Iterator[tuple[int, int, ColumnValues]]:
        """(first position, samples, values) of pieces of a shard, including excluded samples."""
        arrow, index, name = arrow_package(), self._index, self._shards.names[shard]
        kinds = {} if self._json is None else {_path_of(column): kind for column, kind in self._json.types.items()}
        stored: ColumnValues = {}
        if self._json is not None and not wanted.isdisjoint(kinds):
            read = zip(kinds.items(), self._json.values(name, index).values(), strict=True)
            stored = {path: arrow.array(row, _arrow_type(kind)) for (path, kind), row in read if path in wanted}
        sizes = [path for path in wanted if path[-1] == BYTES[0] and path not in kinds]
        position = 0
        if KEY in wanted or sizes:
            for page in index.segment(name).pages():
                values = {path: array.slice(position, len(page)) for path, array in stored.items()}
                if KEY in wanted:
                    values[KEY] = arrow_texts(page.keys(0, len(page) - 1))
                values |= _part_sizes(page, index.segment(name).names, sizes)
                yield position, len(page), self._with_shard(values, name, len(page), wanted)
                position += len(page)
            return
        count = self._shards.stored_counts[shard]
        for position in range(0, count, ROWS_AT_ONCE):
            num_rows = min(ROWS_AT_ONCE, count - position)
            values = {path: array.slice(position, num_rows) for path, array in stored.items()}
            yield position, num_rows, self._with_shard(values, name, num_rows, wanted)

    def _with_shard(self, values: ColumnValues, name: str, count: int, wanted: set[ColumnPath]) -> ColumnValues:
        return values | ({SHARD: arrow_package().array([name] * count)} if SHARD in wanted else {})

    def _media(self) -> ReadOnlyDatabase | None:
        """The database, if it has media metadata."""
        file = storage.local_copy(self._shards.root / META_FOLDER / INDEX_SQLITE)
        if file is None:
            return None
        database = ReadOnlyDatabase(file, f"prepare {self._shards.root} again")
        return database if database.has_table(MEDIA_TABLE) else None

    def keyed(self, part: str) -> KeyedTable | None:
        database = self._media()
        return None if database is None else KeyedTable(part, _media_types(), _MediaRows(database, part))


@dataclasses.dataclass(frozen=True)
class _MediaRows:
    """The media metadata of all parts with one name, as Arrow batches."""

    database: ReadOnlyDatabase
    part: str

    def __call__(self, fields: Collection[str]) -> Iterator[Any]:
        arrow, types = arrow_package(), _media_types()
        found = ", ".join(f"json_extract(metadata_json, '$.{name}')" for name in fields)
        query = f"SELECT entry_key, {found} FROM {MEDIA_TABLE} WHERE substr(entry_key, -{len(self.part) + 1}) = ?"
        rows = self.database.stream(query, f".{self.part}")
        while batch := list(itertools.islice(rows, ROWS_AT_ONCE)):
            keys, *columns = zip(*batch, strict=True)
            arrays = [arrow.array(column, types[name]) for name, column in zip(fields, columns, strict=True)]
            yield arrow.record_batch([arrow_texts(keys), *arrays], ["key", *fields])


def _media_types() -> dict[str, Any]:
    """The Arrow types of the fields of media metadata."""
    arrow = arrow_package()
    kinds = {"int": arrow.int64(), "float": arrow.float64(), "str": arrow.string()}
    fields = [field for kind in (ImageMetadata, AVMetadata) for field in dataclasses.fields(kind)]
    return {field.name: kinds[str(getattr(field.type, "__name__", field.type)).split(" ")[0]] for field in fields}


def _path_of(column: str) -> ColumnPath:
    """The path of a JSON column: `info.json.meta.score` is the field `meta.score` of the part `info.json`."""
    names = column.split(".")
    at = names.index("json") + 1
    return (".".join(names[:at]), *names[at:])


def _arrow_type(kind: str) -> Any:
    arrow = arrow_package()
    inner = kind.removesuffix("[]")
    found = {BOOLEAN: arrow.bool_(), INTEGER: arrow.int64(), NUMBER: arrow.float64()}.get(inner, arrow.string())
    return arrow.list_(found) if inner != kind else found


def _part_sizes(page: IndexPage, names: Sequence[str], wanted: Sequence[ColumnPath]) -> ColumnValues:
    """The sizes of samples and of parts in a page."""
    import numpy as np

    if not wanted:
        return {}
    ends = np.frombuffer(page.part_ends, np.uint32)
    owners = np.repeat(np.arange(len(page)), np.diff(ends, prepend=0))
    part_sizes = np.frombuffer(page.part_sizes, np.uint64).astype(np.int64)
    of_part = np.frombuffer(page.name_of_part, np.uint32)
    found: ColumnValues = {}
    for path in wanted:
        sizes, is_missing = np.zeros(len(page), np.int64), None
        if path == BYTES:
            np.add.at(sizes, owners, part_sizes)
        else:
            number = names.index(path[0]) if path[0] in names else len(names)
            chosen = of_part == number
            is_missing = np.ones(len(page), bool)
            sizes[owners[chosen]], is_missing[owners[chosen]] = part_sizes[chosen], False
        found[path] = arrow_package().array(sizes, mask=is_missing)
    return found


def _joined(pieces: Sequence[ColumnBatch]) -> ColumnBatch:
    import numpy as np

    indices = np.concatenate([indices for indices, _ in pieces])
    paths = pieces[0][1]
    return indices, {path: arrow_package().concat_arrays([values[path] for _, values in pieces]) for path in paths}
