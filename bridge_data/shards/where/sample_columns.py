"""The columns of the samples of a data set, known without reading the samples.

Enters: `Records` of some kind. Leaves: the columns that there are, by their paths (`("jpg", "width")`), with Arrow
types; and the values of those that are wanted, in batches of rows, each with the number of its sample. Guarantee: only
what is wanted is read, front to back, once; memory does not depend on the number of samples. Rows come in any order.
"""

import abc
import dataclasses
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

ColumnPath: TypeAlias = tuple[str, ...]
"""The names on the way to a column: `jpg.width` is `("jpg", "width")`."""

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


class SampleColumns(abc.ABC):
    """The columns of some records. What the user's columns are joined by is in the columns `key` and `shard`: where the
    data have columns of their own that are called so, these have other names."""

    key: ColumnPath = KEY
    shard: ColumnPath = SHARD
    has_shard_in_full_key: bool = True

    @abc.abstractmethod
    def types(self, *, of_all: bool) -> dict[ColumnPath, Any]:
        """The Arrow types of the columns that batches have; unless `of_all`, those of the first shards."""

    @abc.abstractmethod
    def batches(self, wanted: Collection[ColumnPath]) -> Iterator[ColumnBatch]:
        """The values of the columns `wanted`, of all samples."""

    def keyed(self, part: str) -> KeyedTable | None:
        """What there is besides of the part of this name, by key; None if nothing."""
        return None

    def identity(self) -> list[Any]:
        """What differs, besides the identity of the records, where values do."""
        return []

    def way_out(self) -> str:
        """How to have more columns."""
        return "a column of your own comes from a Parquet file: `columns: scores.parquet`"


def arrow_package() -> Any:
    return importlib.import_module("pyarrow")


def arrow_texts(names: Sequence[str]) -> Any:
    """Names as Arrow; what is no UTF-8 in them is written with backslashes."""
    try:
        return arrow_package().array(names)
    except UnicodeEncodeError:
        return arrow_package().array([name.encode(errors="backslashreplace").decode() for name in names])
