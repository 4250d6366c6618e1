"""The columns of data sets that are not folders of tars, and of parts of data sets.

Enters: `Records` of any kind. Leaves: their `SampleColumns`: of Parquet and Arrow files their own columns, of JSONL
files numbers and sizes of lines; of ranges and joins those of the data set below, with the numbers of their samples.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from bridge_data import storage
from bridge_data.errors import ConfigError
from bridge_data.shards.joined_records import JoinRecords
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
    SampleColumns,
    arrow_package,
)
from bridge_data.shards.where.shard_columns import ShardColumns


def columns_of_records(records: Records) -> SampleColumns:
    """The columns of `records`.

    Raises:
        ConfigError: if they have none.
    """
    if isinstance(records, Subset):
        start, end = records.start, records.end
        return _Renumbered(columns_of_records(records.records), lambda of: _shifted(of, start, end))
    if isinstance(records, JoinRecords):
        return _Renumbered(ShardColumns(records.members[0]), _Rows(records))
    if isinstance(records, ShardSet):
        return ShardColumns(records)
    if isinstance(records, JsonlLines):
        return _LineColumns(records)
    if isinstance(records, TableRecords):
        return _TableColumns(records)
    raise ConfigError(
        f"{records.root}: where: is for prepared data sets, JSONL files, Parquet files and data sets of Hugging Face"
    )


class _Renumbered(SampleColumns):
    """Those of `columns` under other numbers: `renumber` gives that of each sample, below 0 where it has none."""

    def __init__(self, columns: SampleColumns, renumber: Callable[[Any], Any]) -> None:
        self._columns, self._renumber = columns, renumber
        self.keyed, self.identity, self.way_out = columns.keyed, columns.identity, columns.way_out  # type: ignore[method-assign]

    def types(self, *, of_all: bool) -> dict[ColumnPath, Any]:
        return self._columns.types(of_all=of_all)

    def batches(self, wanted: Collection[ColumnPath]) -> Iterator[ColumnBatch]:
        arrow = arrow_package()
        for indices, values in self._columns.batches([path for path in wanted if path != INDEX]):
            numbers = self._renumber(indices)
            kept = numbers >= 0
            found = {path: array.filter(arrow.array(kept)) for path, array in values.items()}
            if INDEX in wanted:
                found[INDEX] = arrow.array(numbers[kept])
            yield numbers[kept], found


def _shifted(indices: Any, start: int, end: int) -> Any:
    import numpy as np

    return np.where(indices < end, indices - start, -1)


class _Rows:
    """The rows of a join that have a sample of the first member."""

    def __init__(self, records: JoinRecords) -> None:
        self._records = records
        self._rows: Any = None

    def __call__(self, indices: Any) -> Any:
        if self._rows is None:
            import numpy as np

            records = self._records
            self._rows = np.full(records.members[0].num_samples, -1, np.int64)
            for row in range(records.num_samples):
                self._rows[records.index.row(row)[0]] = row
        return self._rows[indices]


class _LineColumns(SampleColumns):
    """Those of a JSONL file: its index has where each line begins."""

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
    """The bytes of a line whose range has the byte before it, unless it is the first."""
    ((_, start, num_bytes),) = ranges
    return num_bytes - (1 if start else 0)


class _TableColumns(SampleColumns):
    """Those of Parquet and Arrow files: their own."""

    def __init__(self, records: TableRecords) -> None:
        self._records = records

    def _columns(self) -> dict[ColumnPath, tuple[Column, Any]]:
        table = self._records.files[0].opened()
        found = columns_of(table.schema, table.path)
        return {
            (column.name,): (column, table.schema.field(column.name).type)
            for column in found
            if column.problem is None and not column.is_bytes
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
                        if path == KEY and records.has_keys:
                            values[path] = arrow.array(map(str, table.values(KEY_COLUMN, *rows)))
                        elif path == KEY:
                            in_file = indices - records.starts[first_group]
                            values[path] = arrow.array(map(str, in_file.tolist()))
                        else:
                            values[path] = arrow.array([entry.name] * len(indices) if path == SHARD else indices)
                    yield indices, values
