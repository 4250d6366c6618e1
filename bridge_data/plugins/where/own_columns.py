"""A Parquet file of the user, with more columns for samples, by their keys."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.where.stored_columns import ParquetColumns
from bridge_data.prepare.sample_columns import KEY, ROWS_AT_ONCE


class OwnColumns(ParquetColumns):
    """The user's Parquet file at `path`, with rows for samples by key, and by shard if it has that column, too; the
    Arrow types of all columns are `types`.

    Raises:
        ConfigError: if there is no such file, or it has no column `key`, or several columns of one name.
    """

    def __init__(self, path: str) -> None:
        try:
            super().__init__(path, own_copy(path))
        except DatasetError as error:
            raise ConfigError(f"columns: {error}; expected a Parquet file") from error
        schema = self.file.schema_arrow
        self.types = {field.name: field.type for field in schema}
        twice = [name for name in self.types if schema.names.count(name) > 1]
        if twice:
            raise ConfigError(f"columns: {path}: has several columns {twice[0]!r}: rename all but one")
        if KEY[0] not in self.types:
            names = ", ".join(self.types)
            raise ConfigError(f"columns: {path}: has no column `key`, with the keys of samples; there is {names}")

    def batches(self, names: Collection[str]) -> Iterator[Any]:
        """The values of some columns, as Arrow batches.

        Raises:
            DatasetError: if the file is damaged.
        """
        with self.reading():
            yield from self.file.iter_batches(ROWS_AT_ONCE, columns=list(names))


def own_copy(path: str) -> Path:
    """The user's file at `path` on this machine.

    Raises:
        ConfigError: if there is none.
    """
    copy = storage.local_copy(path)
    if copy is None:
        raise ConfigError(f"columns: {path}: no such file; it is a Parquet file with a column `key` and others")
    return copy
