"""The columns of the samples of a data set, known without reading the samples.

Enters: `Records` of some kind. Leaves: their columns by path (`("jpg", "width")`), with Arrow types; and the values of
wanted columns, in batches of rows, each with the number of its sample. Guarantee: only wanted columns are read, front
to back, only once; memory does not depend on the number of samples. Rows come in any order.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from bridge_data.shards.records import Records

ColumnPath: TypeAlias = tuple[str, ...]
"""The names on the path to a column: `jpg.width` is `("jpg", "width")`."""

ROWS_AT_ONCE = 1 << 14

KEY, SHARD, INDEX, BYTES = ("key",), ("shard",), ("index",), ("bytes",)
FULL_KEY = ("__key__",)
"""The key as batches have it: `SHARD/KEY`, or the key alone."""

ColumnValues: TypeAlias = dict[ColumnPath, Any]
"""Arrow arrays by column."""

ColumnBatch: TypeAlias = tuple[Any, ColumnValues]
"""The numbers of samples, an array of NumPy, and their values."""


@dataclasses.dataclass(frozen=True)
class KeyedTable:
    """Rows for the samples that have the `key` in their part `part` (`000017.jpg`): media metadata of these files.
    `batches` yields a key and values for each row, by the names in `types`."""

    part: str
    types: Mapping[str, Any]
    batches: Callable[[Collection[str]], Iterator[Any]]


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

    def types(self, *, of_all: bool) -> dict[ColumnPath, Any]:
        """The Arrow types of the columns in batches; unless `of_all`, only of the first shards."""
        arrow = arrow_package()
        return {KEY: arrow.string(), SHARD: arrow.string(), INDEX: arrow.int64()}

    def batches(self, wanted: Collection[ColumnPath]) -> Iterator[ColumnBatch]:
        """The values of the columns `wanted`, of all samples."""
        import numpy as np

        arrow, first = arrow_package(), 0
        for name, count in zip(self._records.names, self._records.counts, strict=True):
            for start in range(first, first + count, ROWS_AT_ONCE):
                samples = range(start, min(start + ROWS_AT_ONCE, first + count))
                indices = np.arange(samples.start, samples.stop)
                values = self.values(samples, wanted)
                for path in wanted:
                    if path in values:
                        continue
                    if path == INDEX:
                        values[path] = arrow.array(indices)
                    elif path in (SHARD, self.shard):
                        values[path] = arrow.array([name] * len(indices))
                    else:
                        values[path] = arrow.array(self._records.keys(samples), arrow.string())
                yield indices, values
            first += count

    def values(self, samples: range, wanted: Collection[ColumnPath]) -> ColumnValues:
        """The values of those columns `wanted` that only these records have, of samples of one shard."""
        return {}

    def keyed(self, part: str) -> KeyedTable | None:
        """More columns of the part of this name, by key; None if there are none."""
        return None

    def identity(self) -> list[Any]:
        """Data that differ if the values do, in addition to the identity of the records."""
        return []

    def way_out(self) -> str:
        """How to have more columns."""
        return "a column of your own comes from a Parquet file: `columns: scores.parquet`"


def arrow_package() -> Any:
    return importlib.import_module("pyarrow")


def arrow_texts(names: Sequence[str]) -> Any:
    """Names as Arrow; bytes that are not UTF-8 are written with backslashes."""
    try:
        return arrow_package().array(names)
    except UnicodeEncodeError:
        return arrow_package().array([name.encode(errors="backslashreplace").decode() for name in names])
