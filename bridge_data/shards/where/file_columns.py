"""The columns of data sets that are not folders of tars, and of parts of data sets.

Enters: `Records` of any kind. Leaves: their `SampleColumns`: for Parquet and Arrow files their own columns, for JSONL
files numbers and sizes of lines, for ranges those of the underlying data set, renumbered.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from bridge_data import storage
from bridge_data.errors import ConfigError
from bridge_data.shards.jsonl_file import JsonlLines
from bridge_data.shards.prepared import ShardSet
from bridge_data.shards.records import Records
from bridge_data.shards.subset import Subset
from bridge_data.shards.table_columns import Column, columns_of
from bridge_data.shards.table_records import KEY_COLUMN, TableRecords
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
)
from bridge_data.shards.where.shard_columns import ShardColumns

_MAX_DIGITS = 38
"""Maximum digits of a decimal number in DuckDB."""


def columns_of_records(records: Records) -> SampleColumns:
    """The columns of `records`.

    Raises:
        ConfigError: if they have none.
    """
    if isinstance(records, Subset):
        return _RangeColumns(columns_of_records(records.records), records.start, records.end)
    if isinstance(records, ShardSet):
        return ShardColumns(records)
    if isinstance(records, JsonlLines):
        return _LineColumns(records)
    if isinstance(records, TableRecords):
        return _TableColumns(records)
    raise ConfigError(
        f"{records.root}: where: is for prepared data sets, JSONL files, Parquet files and data sets of Hugging Face"
    )


class _RangeColumns(SampleColumns):
    """The columns of samples `start` to `end` - 1 of the data set with `columns`, numbered from 0."""

    def __init__(self, columns: SampleColumns, start: int, end: int) -> None:
        self._columns, self._start, self._end = columns, start, end
        self.key, self.shard = columns.key, columns.shard
        self.has_shard_in_full_key = columns.has_shard_in_full_key

    def types(self, *, of_all: bool) -> dict[ColumnPath, Any]:
        return self._columns.types(of_all=of_all)

    def keyed(self, part: str) -> KeyedTable | None:
        return self._columns.keyed(part)

    def identity(self) -> list[Any]:
        return self._columns.identity()

    def way_out(self) -> str:
        return self._columns.way_out()

    def batches(self, wanted: Collection[ColumnPath]) -> Iterator[ColumnBatch]:
        arrow = arrow_package()
        for indices, values in self._columns.batches([path for path in wanted if path != INDEX]):
            kept = (indices >= self._start) & (indices < self._end)
            numbers = indices[kept] - self._start
            found = {path: array.filter(arrow.array(kept)) for path, array in values.items()}
            if INDEX in wanted:
                found[INDEX] = arrow.array(numbers)
            yield numbers, found


class _LineColumns(SampleColumns):
    """The columns of a JSONL file, whose index says where each line starts."""

    has_shard_in_full_key = False

    def __init__(self, lines: JsonlLines) -> None:
        self._lines = lines

    def types(self, *, of_all: bool) -> dict[ColumnPath, Any]:
        arrow = arrow_package()
        return {KEY: arrow.string(), SHARD: arrow.string(), INDEX: arrow.int64(), BYTES: arrow.int64()}

    def identity(self) -> list[Any]:
        return [*storage.version(self._lines.root)]

    def batches(self, wanted: Collection[ColumnPath]) -> Iterator[ColumnBatch]:
        import numpy as np

        arrow, reader, count = arrow_package(), self._lines.reader(), self._lines.num_samples
        for first in range(0, count, ROWS_AT_ONCE):
            indices = np.arange(first, min(first + ROWS_AT_ONCE, count))
            values: ColumnValues = {INDEX: arrow.array(indices)}
            values[KEY] = arrow.array(list(map(str, indices.tolist())))
            values[SHARD] = arrow.array([self._lines.root.name] * len(indices))
            if BYTES in wanted:
                values[BYTES] = arrow.array([_line_bytes(reader.byte_ranges(index)) for index in indices.tolist()])
            yield indices, {path: values[path] for path in wanted}


def _line_bytes(ranges: Sequence[tuple[str, int, int]]) -> int:
    """The bytes of a line; its range includes the byte before it, except for the first line."""
    ((_, start, num_bytes),) = ranges
    return num_bytes - (1 if start else 0)


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


class _TableColumns(SampleColumns):
    """The columns of Parquet and Arrow files, which take precedence over `key`, `shard` and `index` of samples."""

    key, shard = ("__sample_key__",), ("__shard__",)

    def __init__(self, records: TableRecords) -> None:
        self._records = records

    def _columns(self) -> dict[ColumnPath, tuple[Column, Any]]:
        table = self._records.files[0].opened()
        found = columns_of(table.schema, table.path)
        return {
            (column.name,): (column, _known_type(table.schema.field(column.name).type))
            for column in found
            if not column.is_bytes
        }

    def types(self, *, of_all: bool) -> dict[ColumnPath, Any]:
        arrow = arrow_package()
        own = {KEY: arrow.string(), SHARD: arrow.string(), INDEX: arrow.int64()}
        return own | {path: kind for path, (_, kind) in self._columns().items()}

    def identity(self) -> list[Any]:
        return [list(file.version) for file in self._records.files]

    def batches(self, wanted: Collection[ColumnPath]) -> Iterator[ColumnBatch]:
        import numpy as np

        arrow, records = arrow_package(), self._records
        own = {path: found for path, found in self._columns().items() if path in wanted}
        others = [path for path in wanted if path not in own]
        for number, entry in enumerate(records.files):
            table, first_group = entry.opened(), records.first_groups[number]
            for group in range(first_group, records.first_groups[number + 1]):
                for first in range(0, records.counts[group], ROWS_AT_ONCE):
                    end = min(first + ROWS_AT_ONCE, records.counts[group])
                    rows = group - first_group, first, end
                    indices = np.arange(first, end) + records.starts[group]
                    values = {path: arrow.array(table.values(one, *rows), kind) for path, (one, kind) in own.items()}
                    for path in others:
                        if path == INDEX:
                            values[path] = arrow.array(indices)
                        elif path in (SHARD, self.shard):
                            values[path] = arrow.array([entry.name] * len(indices))
                        elif records.has_keys:
                            values[path] = arrow.array(map(str, table.values(KEY_COLUMN, *rows)))
                        else:
                            in_file = indices - records.starts[first_group]
                            values[path] = arrow.array(map(str, in_file.tolist()))
                    yield indices, values
