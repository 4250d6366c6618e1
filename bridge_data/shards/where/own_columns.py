"""Columns of the user's: a Parquet file with a row for each sample, by its key.

Enters: the path of the file, which has a column `key`, and perhaps `shard`. Leaves: its other columns, in batches.
Guarantee: only the wanted columns are read, front to back.
"""

import importlib
from collections.abc import Collection, Iterator
from typing import Any

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.shards.where.sample_columns import ROWS_AT_ONCE

KEY_COLUMN, SHARD_COLUMN = "key", "shard"


class OwnColumns:
    """The Parquet file at `path`, with rows for samples by key, and by shard if it has that column, too.

    Raises:
        ConfigError: if there is no such file, or no column `key` in it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        copy = storage.local_copy(path)
        if copy is None:
            raise ConfigError(f"columns: {path}: no such file; it is a Parquet file with a column `key` and others")
        self._copy = str(copy)
        self.version = storage.version(copy)

    def types(self) -> dict[str, Any]:
        """The Arrow types of all columns."""
        schema = self._opened().schema_arrow
        found = {field.name: field.type for field in schema}
        twice = [name for name in found if schema.names.count(name) > 1]
        if twice:
            raise ConfigError(f"columns: {self.path}: has several columns {twice[0]!r}: rename all but one")
        if KEY_COLUMN not in found:
            raise ConfigError(
                f"columns: {self.path}: has no column `key`, with the keys of samples; there is {', '.join(found)}"
            )
        return found

    def batches(self, names: Collection[str]) -> Iterator[Any]:
        """The values of some columns, as Arrow batches.

        Raises:
            DatasetError: if the file is damaged.
        """
        try:
            yield from self._opened().iter_batches(ROWS_AT_ONCE, columns=list(names))
        except (OSError, ValueError) as error:
            raise DatasetError(f"{self.path}: cannot be read: {error}") from error

    def _opened(self) -> Any:
        parquet = importlib.import_module("pyarrow.parquet")
        try:
            return parquet.ParquetFile(self._copy)
        except (OSError, ValueError) as error:
            raise ConfigError(f"columns: {self.path}: is no Parquet file: {error}") from error
