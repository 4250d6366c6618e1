"""Tables as a source: the rows that are read in place, of Parquet, Arrow, `datasets`, Lance, MDS and litData.

Reads the files of a data set, see `table_files`, and columns to leave out. Returns a source with a record for each row:
media as `bytes` and `path`, arrays as lists. Raises `ConfigError`, before the first row is read, that names all columns
that a sample cannot hold (times, decimals, extension types), and for files with different columns.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Collection, Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from bridge_data.data.withheld import withheld
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan.declared import Clause
from bridge_data.plan.folder_contents import INDEX, KINDS
from bridge_data.plugins.tables.table_columns import Column, TableFile, columns_of, features_of, pyarrow_for
from bridge_data.plugins.tables.table_files import files_of, table_parts
from bridge_data.plugins.tables.table_records import KEY_COLUMN, TableReader, open_tables, records_of
from bridge_data.prepare.record_source import (
    BrokenRecord,
    RecordSource,
    SourceConfig,
    SourceRecord,
    chosen_of,
    digest_of_files,
    files_of_source,
    is_included,
)

BLOCK_BYTES = 4 << 20
BLOCK_ROWS = 64


class TableRows(RecordSource):
    """The rows of `files` (name, path) of the data set at `root`, without the columns in `dropped`."""

    def __init__(
        self, title: str, root: Path, files: Sequence[tuple[str, str]], *, dropped: Collection[str] = ()
    ) -> None:
        self.title = title
        tables = open_tables([path for _, path in files])
        for table in tables:
            _check_columns(tables[0], table, dropped)
        columns = [column for column in _columns(tables[0]) if column.name not in dropped]
        self.records = records_of(root, files, tables, "train", ())
        self._untyped = [column.name for column in columns if column.name in tables[0].without_types]
        self._class_names = _class_names(tables[0].schema)
        self._block_rows = [_block_rows(table, group) for table in tables for group in range(len(table.counts))]
        self.is_scattered = all(table.reads_rows for table in tables)
        self._paths = [table.path for table in tables]
        self._reader = TableReader(dataclasses.replace(self.records, columns=tuple(columns)))

    has_columns = True

    def __len__(self) -> int:
        return self.records.num_samples

    def blocks(self) -> Iterator[range]:
        for size, (first, end) in zip(self._block_rows, itertools.pairwise(self.records.starts), strict=True):
            for start in range(first, end, size):
                yield range(start, min(start + size, end))

    def read(self, numbers: Sequence[int]) -> Iterator[SourceRecord | BrokenRecord]:
        together = self._together(range(min(numbers), max(numbers) + 1))
        for number in numbers:
            file, row = self.records.file_of(number)
            where = f"{os.path.basename(self._paths[file])}, row {row}"
            try:
                one = together if number in together else self._read(range(number, number + 1), in_order=False)
                yield SourceRecord(number, where, self._named(one[number]))
            except (ConfigError, DatasetError) as error:
                yield BrokenRecord(number, where, str(error))

    def _together(self, samples: range) -> dict[int, dict[str, Any]]:
        """These rows, if they are few and in one group; none if one of them is damaged."""
        if len(samples) <= BLOCK_ROWS and samples[-1] < self.records.starts[self.records.group_of(samples[0]) + 1]:
            with contextlib.suppress(ConfigError, DatasetError):
                return self._read(samples, in_order=True)
        return {}

    def _read(self, samples: range, *, in_order: bool) -> dict[int, dict[str, Any]]:
        return dict(zip(samples, self._reader.rows(samples, in_order=in_order), strict=True))

    def _named(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with arrays as lists, and with the names of its classes added to their numbers."""
        for name, names in self._class_names.items():
            number = row.get(name)
            if isinstance(number, int) and 0 <= number < len(names) and f"{name}_name" not in row:
                row[f"{name}_name"] = names[number]
        for name in self._untyped:
            if hasattr(row.get(name), "tolist"):
                row[name] = row[name].tolist()
        return row

    def fingerprint(self) -> str:
        indexes = dict.fromkeys(os.path.join(os.path.dirname(path), INDEX) for path in self._paths)
        return digest_of_files([*filter(os.path.isfile, indexes), *self._paths])

    def chosen_numbers(self, clauses: Sequence[Clause]) -> Collection[int]:
        return chosen_of(self.records, clauses)

    def forgotten_numbers(self) -> Container[int]:
        return withheld(self.records)


def _columns(table: TableFile) -> list[Column]:
    """All columns, in their order."""
    known = {column.name: column for column in columns_of(table.schema, table.path)}
    return [known.get(name, KEY_COLUMN) for name in table.schema.names]


def _block_rows(table: TableFile, group: int) -> int:
    """Rows of a group that are read together."""
    num_bytes = sum(table.column_bytes(group, column) for column in _columns(table))
    return max(1, min(BLOCK_ROWS, BLOCK_BYTES * table.counts[group] // max(num_bytes, 1)))


def _shown(schema: Any) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def _check_columns(first: TableFile, table: TableFile, dropped: Collection[str]) -> None:
    """Check that a sample can hold the columns of the `first` table, and that the other one has the same."""
    own, others = ([field for field in one.schema if field.name not in dropped] for one in (first, table))
    if [(field.name, field.type) for field in own] != [(field.name, field.type) for field in others]:
        raise ConfigError(
            f"{table.path}: has other columns than {first.path}, or in another order: {_shown(table.schema)}; there "
            f"{_shown(first.schema)}. Convert them one by one, or leave columns out with --drop"
        )
    unknown = sorted(set(dropped) - {*first.schema.names})
    if unknown:
        raise ConfigError(f"--drop {', '.join(unknown)}: {first.path} has the columns {', '.join(first.schema.names)}")
    types = pyarrow_for(first.path).types
    odd = [field for field in own if not _is_plain(field.type, types, at_top=True)]
    if odd:
        raise ConfigError(
            f"{first.path}: columns that a sample cannot hold: {_shown(odd)}. Leave them out with --drop "
            f"{','.join(field.name for field in odd)}, or cast them to text or numbers first"
        )


def _is_plain(kind: Any, types: Any, *, at_top: bool = False) -> bool:
    """Whether values of a column are JSON values, or media: bytes, or dicts of bytes and a path."""
    if types.is_dictionary(kind):
        return _is_plain(kind.value_type, types)
    if types.is_struct(kind):
        if {field.name for field in kind} == {"bytes", "path"}:
            return at_top
        return all(_is_plain(field.type, types) for field in kind)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type, types, at_top=at_top)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return at_top
    kinds = "integer", "floating", "boolean", "string", "large_string", "null"
    return any(getattr(types, f"is_{name}")(kind) for name in kinds)


def _class_names(schema: Any) -> dict[str, list[str]]:
    """The names of classes by column, as `datasets` stores them in the schema."""
    features = features_of(schema).items()
    found = {name: feature.get("names") for name, feature in features if isinstance(feature, dict)}
    return {
        name: names
        for name, names in found.items()
        if isinstance(names, list) and all(isinstance(one, str) for one in names)
    }


def open_files(path: Path, config: SourceConfig, *, title: str, kind: str) -> TableRows:
    """The rows of tables that are files beside each other, at or below `path`."""
    root = path if path.is_dir() else path.parent
    files = files_of_source(path, config, KINDS[kind].endings)
    named = [(file.relative_to(root).as_posix(), str(file)) for file in files]
    return TableRows(title, path.absolute(), named, dropped=config.dropped)


def open_rows(path: Path, config: SourceConfig, *, title: str) -> TableRows:
    """The rows of other tables, whose files are those that are read in place, of one split part."""
    of_parts = {part: files_of(str(path), part) for part in sorted(table_parts(str(path)))}
    found = {part: [file for file in files if is_included(file[0], config.include)] for part, files in of_parts.items()}
    parts = [part for part, files in found.items() if files]
    if not parts:
        raise ConfigError(f"{path}: holds no files that match --include {config.include}")
    if len(parts) > 1:
        one = path / parts[0] if (path / parts[0]).is_dir() else f"--include '{parts[0]}*'"
        raise ConfigError(f"{path}: holds the splits {', '.join(parts)}; convert each by itself, such as {one}")
    return TableRows(title, path.absolute(), found[parts[0]], dropped=config.dropped)


open_parquet = functools.partial(open_files, title="Parquet", kind="parquet")
open_arrow = functools.partial(open_files, title="Arrow", kind="arrow")
open_datasets = functools.partial(open_rows, title="Hugging Face data set")
open_mds = functools.partial(open_rows, title="MDS shards")
open_litdata = functools.partial(open_rows, title="litData chunks")
open_lance = functools.partial(open_rows, title="Lance data set")
open_several = functools.partial(open_rows, title="tables")
"""What opens the sources of each format of tables."""
