"""The seam of what is known of samples without reading them: columns, each with an Arrow type.

Reads records. Returns columns by path (`("jpg", "width")`), with Arrow types, and the values of wanted columns, in
batches of rows, each with the number of its sample. Only wanted columns are read, front to back, and only once; memory
does not depend on the number of samples. Raises a `ConfigError` for data that have none, and a `DatasetError` for what
is damaged, or older than the samples.

Each kind of data registers its own with `columns_of`: tables do, and for prepared folders and JSONL files the plug-in
that chooses samples by columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from bridge_data.data import Records
from bridge_data.data.sample_keys import keys_of
from bridge_data.errors import ConfigError
from bridge_data.extensions import needed_package

ROWS_AT_ONCE = 1 << 14

KEY, SHARD, INDEX, BYTES = ("key",), ("shard",), ("index",), ("bytes",)
FULL_KEY = ("__key__",)
"""The key as batches have it: `SHARD/KEY`, or the key alone."""

ColumnPath: TypeAlias = tuple[str, ...]
"""The names on the path to a column: `jpg.width` is `("jpg", "width")`."""

ColumnValues: TypeAlias = dict[ColumnPath, Any]
"""Arrow arrays by column."""

ColumnBatch: TypeAlias = tuple[Any, ColumnValues]
"""The numbers of samples, an array of NumPy, and their values."""


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
        for name, count in self._records.shards:
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
                values[path] = arrow_texts([*keys_of(self._records, samples)])
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


@functools.singledispatch
def columns_of(records: Records) -> SampleColumns:
    """The columns of `records`.

    Raises:
        ConfigError: if they have none.
    """
    raise ConfigError(
        f"{records.root}: where: is for prepared data sets, JSONL files, Parquet files and data sets of Hugging Face"
    )


def arrow_package(name: str = "pyarrow") -> Any:
    """The package, or another one, that columns need.

    Raises:
        ConfigError: if it is not installed.
    """
    return needed_package(name, "reading or writing columns of samples")


def arrow_texts(names: Sequence[str]) -> Any:
    """Names as Arrow; bytes that are not UTF-8 are written with backslashes."""
    try:
        return arrow_package().array(names, arrow_package().string())
    except UnicodeEncodeError:
        return arrow_package().array([name.encode(errors="backslashreplace").decode() for name in names])
