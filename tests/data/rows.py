"""Tables of columns of every kind, and whether the rows that are read of a file are those of a table."""

import datetime
import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from bridge_data.plugins.tables.table_columns import TableFile, columns_of
from bridge_data.plugins.tables.table_records import open_table
from tests.tables import table_of

SIZE = 3000
WORDS = [f"text {number} {'é' if number % 11 == 0 else ''}{'x' * (number % 400)}" for number in range(SIZE)]
DATE = datetime.date(2024, 2, 29)


def mixed(size: int = SIZE) -> pa.Table:
    """A table with columns of every kind that is read, with and without missing values."""
    numbers = range(size)
    return table_of(
        {
            "text": WORDS[:size],
            "label": pa.array([None if n % 5 == 0 else f"class {n % 3}" for n in numbers]),
            "number": list(numbers),
            "maybe": pa.array([None if n % 7 == 0 else n / 3 for n in numbers], pa.float32()),
            "yes": [n % 3 == 0 for n in numbers],
            "day": [DATE + datetime.timedelta(n) for n in numbers],
            "tokens": pa.array([list(range(n % 6)) for n in numbers], pa.list_(pa.int32())),
            "turns": [[{"role": "user", "text": str(n)}] * (n % 3) for n in numbers],
            "meta": [{"a": n, "b": {"c": str(n)}} for n in numbers],
            "raw": pa.array([random.Random(n).randbytes(n % 50) for n in numbers], pa.large_binary()),
        }
    )


def stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without a type that is registered by its package alone."""
    is_own = isinstance(column.type, pa.ExtensionType)
    return column.cast(column.type.storage_type) if is_own else column


def compare(file: Path, table: pa.Table, rounds: int = 1) -> TableFile:
    """See that runs of rows of every column of `file` are those of `table`. Returns the opened file."""
    found, chosen, first = open_table(str(file)), random.Random(1), 0
    assert sum(found.counts) == len(table)
    for group, count in enumerate(found.counts):
        for column in [*columns_of(found.schema, str(file))] * rounds:
            begin = chosen.randrange(count)
            end = min(count, begin + chosen.randrange(1, 40))
            wanted: list[Any] = stored(table[column.name].slice(first + begin, end - begin)).to_pylist()
            wanted = [value and value["bytes"] for value in wanted] if column.is_media else wanted
            assert found.values(column, group, begin, end) == wanted, (column, group, begin, end)
            assert found.column_bytes(group, column) >= 0
        first += count
    return found
