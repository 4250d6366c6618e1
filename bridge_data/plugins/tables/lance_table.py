"""A Lance data set, a folder `x.lance` on a disk, whose rows are read where they are, through the package `lance`.

Reads the version of the data set that is current when it is first opened, and the same one wherever these records go:
what is added, deleted or rewritten later is not seen. A fragment is a group of rows; a column or a field of it is read
alone, and rows that follow each other at once. Blob columns are their bytes. Opening reads the manifest.

Raises `DatasetError`, naming data set, fragment and column, if files are damaged, or the version was removed or
replaced. Handles are opened again in another process, which must not be forked from one that has read Lance: its
threads are missing there, and reads may wait for them forever.

Source: https://lance.org/format/table/
"""

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any, ClassVar

from bridge_data import storage
from bridge_data.counts import COUNTS
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.extensions import needed_package
from bridge_data.plugins.tables.table_columns import Column, TableFile, checked_rows, field_of, values_of_rows

NUM_FIRST_ROWS = 4
"""Rows whose size is looked at when a column is opened, as it may be packed on the disk."""


class LanceTable(TableFile):
    """The Lance data set at `path`, in `version` (None: the current one)."""

    kind: ClassVar[str] = "Lance data set"
    group_name: ClassVar[str] = "fragment"

    def __init__(self, path: str, version: storage.Version | None = None) -> None:
        self._opened: tuple[int, list[Any]] = (0, [])
        """The process, and the fragments that it has opened."""
        self._unit_bytes: dict[str, int] = {}
        self._number: int | None = None if version is None else int(str(version.changed).partition("-")[0])
        super().__init__(path, version)
        with self.as_dataset_error("its fragments cannot be read"):
            self.counts = [fragment.count_rows() for fragment in self._fragments()]

    def found_version(self) -> storage.Version:
        """The size of the files with rows; number and digest of the version."""
        with self.as_dataset_error("cannot be opened as a Lance data set"):
            dataset = self._dataset()
            self._number, self.schema = dataset.version, dataset.schema
            files = [file for fragment in self._fragments() for file in json.loads(self._metadata(fragment))["files"]]
        num_bytes = sum(file["file_size_bytes"] or 0 for file in files)
        digest = hashlib.blake2b(self.identity(), digest_size=8).hexdigest()
        return storage.Version(num_bytes, f"{self._number}-{digest}")

    def identity(self) -> bytes:
        """The schema, and of each fragment its files and deleted rows. Indexes do not change it."""
        return "\n".join([self.schema.to_string(), *map(self._metadata, self._fragments())]).encode()

    def ends_checksum(self) -> int:
        """0: the names of fragments' files differ where rows do."""
        return 0

    def column_bytes(self, group: int, column: Column) -> int:
        return self.unit_bytes(group, column) * self.counts[group]

    def unit_bytes(self, group: int, column: Column) -> int:
        """Mean bytes of a row on the disk, or of the first rows unpacked, if that is more."""
        if column.leaf not in self._unit_bytes:
            with self.as_dataset_error(f"column {column.name!r}: cannot be read"):
                first = self._rows(column, 0, 0, min(NUM_FIRST_ROWS, self.counts[0]))
                self._unit_bytes[column.leaf] = max(self._stored_bytes.get(column.leaf, 0), first.nbytes // len(first))
        return self._unit_bytes[column.leaf]

    def values(self, column: Column, group: int, first: int, end: int) -> list[Any]:
        place = f"fragment {group}, column {column.name!r}"
        with self.as_dataset_error(f"{place}: cannot be read, rows {first} to {end - 1}"):
            if first == end:
                return []
            rows = self._rows(column, group, first, end)
            COUNTS.bytes_read += rows.nbytes
            return values_of_rows(checked_rows(rows))

    @contextlib.contextmanager
    def as_dataset_error(self, what: str) -> Iterator[None]:
        with super().as_dataset_error(what):
            try:
                yield
            except BaseException as error:
                if type(error).__name__ != "PanicException":
                    raise
                raise ValueError(str(error)) from error  # which Rust code raises for damaged files

    def _rows(self, column: Column, group: int, first: int, end: int) -> Any:
        """The values of these rows as an Arrow array."""
        if column.name not in self.schema.names:
            raise DatasetError(f"{self.path}: there is no column {column.name!r}")
        name = f"{column.name}.{column.field}" if column.is_media else column.name
        settings = {"columns": [name], "offset": first, "limit": end - first, "blob_handling": "all_binary"}
        rows = self._fragments()[group].scanner(**settings).to_table().column(0).combine_chunks()
        if len(rows) != end - first:
            raise ValueError(f"it has {len(rows)} rows from row {first} on")
        return rows

    def _dataset(self) -> Any:
        return _package(self.path).dataset(self.path, version=self._number)

    def _fragments(self) -> list[Any]:
        if self._opened[0] != os.getpid():
            self._opened = os.getpid(), self._dataset().get_fragments()
        return self._opened[1]

    def _metadata(self, fragment: Any) -> str:
        return json.dumps(fragment.metadata.to_json(), sort_keys=True)

    @functools.cached_property
    def _stored_bytes(self) -> dict[str, int]:
        """Mean bytes of a row on the disk, of each column and each field of one."""
        dataset = self._dataset()
        stored = {field.id: field.bytes_on_disk for field in dataset.stats.data_stats().fields}
        num_rows, found = max(1, dataset.count_rows()), {}

        def num_bytes(field: Any) -> int:
            return int(stored.get(field.id(), 0)) + sum(map(num_bytes, field.children()))

        for field in dataset.lance_schema.fields():
            found[field.name()] = num_bytes(field) // num_rows
            for child in field.children():
                found[field_of(field.name(), child.name())] = num_bytes(child) // num_rows
        return found


def _package(path: str) -> Any:
    """The package `lance`, which reads `path`.

    Raises:
        ConfigError: if it is not installed, or `path` is in a store.
    """
    if storage.is_remote(path):
        raise ConfigError(f"{path}: Lance data sets are read from disks only: copy it to one, or mount the store")
    return needed_package("lance", f"{path}: reading it")
