"""The keys of tables: the column `__key__`.

Enters: the rows of tables that have this column. Leaves: their keys as texts, in runs of `KEYS_AT_ONCE`, so that
memory does not grow with the size of a row group. Guarantee: a row without a key is an error that names file and row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bridge_data.errors import DatasetError
from bridge_data.shards.table_columns import KEY, Column, TableFile

if TYPE_CHECKING:
    from bridge_data.shards.table_records import TableRecords

KEYS_AT_ONCE = 1 << 14
KEY_COLUMN = Column(KEY, KEY, KEY)


def keys_of_rows(records: TableRecords, samples: range) -> Iterator[tuple[int, list[str]]]:
    """(number of the first sample, keys) of runs of these samples; only the column of keys is read.

    Raises:
        DatasetError: if it is damaged, or has no key in a row.
    """
    opened: tuple[int, TableFile] | None = None
    first = samples.start
    while first < samples.stop:
        group, (file, row) = records.group_of(first), records.file_of(first)
        if opened is None or opened[0] != file:
            opened = file, records.files[file].opened()
        table, start = opened[1], records.starts[group]
        end = min(first + KEYS_AT_ONCE, records.starts[group + 1], samples.stop)
        keys = table.values(KEY_COLUMN, group - records.first_groups[file], first - start, end - start)
        yield first, checked_keys(keys, table.path, row)
        first = end


def checked_keys(keys: Sequence[Any], path: str, first: int) -> list[str]:
    """The keys as texts; row `first` is that of the first one, for messages."""
    if None in keys:
        raise DatasetError(f"{path}: row {first + keys.index(None)} has no {KEY}")
    return [str(key) for key in keys]
