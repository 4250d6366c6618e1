"""A Parquet file whose rows can be read without decoding a whole row group.

Reads the path of a file. Returns its schema and row groups, from the footer alone; and the values of rows `first` to
`end` - 1 of a column of a row group. A column is stored in pages, by most writers of about 1 MiB. pyarrow decodes the
pages with the wanted rows; from pages with large values, such as images, only the wanted values are read (see
`parquet_pages`). So memory and work depend on the size of a page, not on that of a row group.

Raises `DatasetError`, which names the file, the row group and the column, if the file is damaged or was replaced since
it was opened, and `ConfigError` if it is encrypted. Columns with lists or several fields are decoded by whole row
groups, unless their pages say how many rows they have. Data that would unpack to more than `MAX_DECODED_BYTES` are an
error.
"""

import bisect
import collections
import functools
import importlib
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

from bridge_data import storage
from bridge_data.errors import HEAD_BYTES, ConfigError, DatasetError, why_pointer
from bridge_data.plugins.tables.parquet_pages import (
    BYTE_ARRAY,
    MAGIC,
    SNAPPY,
    ColumnPages,
    Footer,
    Page,
    Piece,
    StoredValues,
    concatenated,
    find_pages,
    find_values,
    is_worth_while,
    numbering_page,
    small_file,
)
from bridge_data.plugins.tables.table_columns import (
    DECODED,
    SLOW_UNIT_BYTES,
    Column,
    TableFile,
    field_of,
    values_of_rows,
    warn_slow,
)

MAX_DECODED_BYTES = 1 << 28
"""Maximum bytes of pages, or of a row group's column, decoded at once."""

MAX_KNOWN_COLUMNS = 4096
"""Maximum columns of row groups whose pages a file remembers."""

MAX_KNOWN_VALUES = 1 << 20
"""Maximum large values whose position a file remembers; about 100 bytes each."""

PAGE_BYTES = 1 << 20
"""Approximate bytes of a page from common writers."""

BATCH_BYTES = 1 << 22
"""Approximate bytes of the rows that are decoded at once, if a row group is read in order."""

PAGE_ROWS = 1024
"""Minimum rows of a page from pyarrow, regardless of their size."""

_NUMBERS = itertools.count()


class ParquetTable(TableFile):
    """The Parquet file at `path`, in `version` (None: the current one)."""

    kind: ClassVar[str] = "Parquet file"
    group_name: ClassVar[str] = "row group"
    is_alone: ClassVar[bool] = True

    def __init__(self, path: str, version: storage.Version | None = None) -> None:
        super().__init__(path, version)
        self._footer = self._read_footer()
        with self.as_dataset_error("the footer cannot be read: it is damaged or encrypted"):
            self._parsed = Footer.parse(self._footer)
            empty = self._parsed.empty_file()
            self._schema = empty.schema
            self.schema = empty.schema_arrow.with_metadata(self._parsed.metadata)
            self.counts = self._parsed.counts
            if self.counts and len(self._parsed.columns[0]) != len(self._schema):
                raise ValueError("it has more or fewer columns than its schema")
        self._pages: collections.OrderedDict[tuple[int, int], ColumnPages] = collections.OrderedDict()
        self._number = next(_NUMBERS)
        """The number of this table, unique in the process."""
        self._large: collections.OrderedDict[int, StoredValues | None] = collections.OrderedDict()
        """Stored values by the start of their page."""
        self._num_large = 0
        self._stream: _RowStream | None = None
        """The rows that are read in order."""

    def identity(self) -> bytes:
        return self._footer

    def column_bytes(self, group: int, column: Column) -> int:
        return sum(self._parsed.columns[group][leaf].unpacked_bytes for leaf in self._leaves(column))

    def unit_bytes(self, group: int, column: Column) -> int:
        num_bytes, num_rows = self.column_bytes(group, column), max(1, self.counts[group])
        if self._has_large(group, column):
            return num_bytes // num_rows
        return num_bytes if column.is_whole else min(num_bytes, max(PAGE_BYTES, PAGE_ROWS * num_bytes // num_rows))

    def values(self, column: Column, group: int, first: int, end: int) -> list[Any]:
        place = f"row group {group}, column {column.name!r}"
        with self.as_dataset_error(f"{place}: cannot be decoded, rows {first} to {end - 1}"):
            leaves = self._leaves(column)
            if first == end:
                return []
            if self._has_large(group, column):
                found = self._large_values(group, leaves[0], first, end)
                if found is not None:
                    return found
            part = self._rows(group, leaves, first, end, column.name)
            if len(part) != end - first:
                raise ValueError(f"it has {len(part)} rows from row {first} on")
            return values_of_rows(part.flatten()[0] if column.is_media else part)

    def values_in_order(self, columns: Sequence[Column], group: int, first: int, end: int) -> list[list[Any]]:
        names = list(dict.fromkeys(column.name for column in columns))
        with self.as_dataset_error(f"row group {group}: cannot be decoded, rows {first} to {end - 1}"):
            stream, self._stream = self._stream, None  # after an error, none
            if stream is None or (stream.group, stream.names) != (group, names) or stream.first > first:
                stream = _RowStream(self, group, names)
            rows = stream.rows(first, end)
            values = []
            for column in columns:
                pieces = (_field_of(piece, column).to_pylist() for piece in rows.column(column.name).chunks)
                values.append(list(itertools.chain.from_iterable(pieces)))
            self._stream = stream
        return values

    def _rows(self, group: int, leaves: list[int], first: int, end: int, name: str) -> Any:
        """The values of these rows, or of those that exist."""
        pages = self._known_pages(group, leaves[0]) if len(leaves) == 1 else None
        if pages is None or not pages.data:
            whole = self._number, group, -1, *leaves
            _, array = DECODED.get(whole) or DECODED.keep(whole, (0, self._whole(group, leaves, name)))
            return array.slice(first, end - first)
        begin = bisect.bisect_right(pages.first_rows, first) - 1
        stop = bisect.bisect_left(pages.first_rows, end)
        step = 1 if stop - begin <= 2 else stop - begin  # small pages are decoded together
        parts = []
        for at in range(begin, stop, step):
            key = self._number, group, leaves[0], at, at + step
            chosen = pages.data[at : at + step]
            found = DECODED.get(key)
            if found is None:
                values = self._of_pages(group, leaves[0], pages.dictionary, chosen)
                found = DECODED.keep(key, (chosen[0].first_row, values))
            start, array = found
            parts.append(array.slice(max(0, first - start), end - max(first, start)))
        return concatenated(parts)

    def _of_pages(self, group: int, leaf: int, dictionary: Page | None, chosen: Sequence[Page]) -> Any:
        """The values of consecutive data pages."""
        start = chosen[0].start
        content = b""
        needed = dictionary if any(page.uses_dictionary for page in chosen) else None
        size = sum(page.unpacked_bytes for page in [*([needed] if needed else []), *chosen])
        self._check_size(size, "its pages with these rows have")
        if needed is not None:
            content = self.read_bytes(needed.start, needed.num_bytes)
        data = self.read_bytes(start, chosen[-1].start + chosen[-1].num_bytes - start)
        return self._array(group, leaf, chosen, data, content)

    def _array(self, group: int, leaf: int, pages: Sequence[Page], data: bytes, dictionary: bytes = b"") -> Any:
        """The values of data pages with the bytes `data`; some refer to the page `dictionary`."""
        column, num_values = self._parsed.columns[group][leaf], sum(page.num_values for page in pages)
        piece = Piece(leaf, column, dictionary + data, len(dictionary), num_values)
        shared = [column.path[0].decode()] if dictionary and column.kind == BYTE_ARRAY and len(column.path) == 1 else []
        return _column(small_file(self._parsed, [piece], sum(page.num_rows for page in pages), shared), [leaf])

    def _whole(self, group: int, leaves: list[int], name: str) -> Any:
        """The column of a whole row group."""
        columns = [self._parsed.columns[group][leaf] for leaf in leaves]
        size = sum(
            max(column.unpacked_bytes, self._shared_bytes(group, leaf))
            for leaf, column in zip(leaves, columns, strict=True)
        )
        self._check_size(size, "has lists or several fields, for which the row group is decoded at once, which has")
        pieces = []
        for leaf, column in zip(leaves, columns, strict=True):
            dictionary = self._known_pages(group, leaf).dictionary
            content = self.read_bytes(column.start, column.num_bytes)
            data_at = 0 if dictionary is None else dictionary.start + dictionary.num_bytes - column.start
            pieces.append(Piece(leaf, column, content, data_at, column.num_values))
        return _column(small_file(self._parsed, pieces, self.counts[group]), leaves)

    def _shared_bytes(self, group: int, leaf: int) -> int:
        """Approximate bytes of the values of a column of a row group, if they are in its dictionary."""
        dictionary = self._known_pages(group, leaf).dictionary
        if dictionary is None or self._parsed.columns[group][leaf].kind != BYTE_ARRAY:
            return 0
        return self._parsed.columns[group][leaf].num_values * dictionary.unpacked_bytes // max(1, dictionary.num_values)

    def _check_size(self, num_bytes: int, what: str) -> None:
        if num_bytes > MAX_DECODED_BYTES:
            raise ValueError(
                f"{what} {num_bytes >> 20} MiB unpacked, more than the {MAX_DECODED_BYTES >> 20} MiB that are decoded "
                "at once. Write the file with smaller row groups, or convert it: `bridge-data convert`"
            )

    def _large_values(self, group: int, leaf: int, first: int, end: int) -> list[bytes | None] | None:
        """The values of these rows, each read alone; None if that is not possible."""
        pages = self._known_pages(group, leaf)
        values: list[bytes | None] = []
        begin = bisect.bisect_right(pages.first_rows, first) - 1
        for page in pages.data[begin : bisect.bisect_left(pages.first_rows, end)]:
            stored_in = pages.dictionary if page.uses_dictionary else page
            if stored_in is None:
                raise ValueError("it refers to a dictionary, but has none")
            stored = self._stored(group, leaf, stored_in)
            if stored is None:
                return None
            rows = range(max(first, page.first_row), min(end, page.first_row + page.num_rows))
            if not page.uses_dictionary:
                if len(stored.starts) != page.num_rows:
                    return None  # some values are missing
                values += [stored.value(row - page.first_row, self.read_bytes) for row in rows]
                continue
            numbers = self._numbers(group, leaf, page, len(stored.starts))
            for at in values_of_rows(numbers.slice(rows.start - page.first_row, len(rows))):
                number = None if at is None else int.from_bytes(at, "little")
                values.append(None if number is None else stored.value(number, self.read_bytes))
        return values

    def _numbers(self, group: int, leaf: int, page: Page, num_values: int) -> Any:
        """For each row of a page, the number of its value in the dictionary, as 4 bytes."""
        key = self._number, group, leaf, page.start, -1
        if (kept := DECODED.get(key)) is not None:
            return kept[1]
        data = self.read_bytes(page.start, page.num_bytes)
        numbers = numbering_page(num_values, self._parsed.columns[group][leaf].codec)
        array = self._array(group, leaf, [page], data, numbers)
        while array.type.num_fields:
            array = array.flatten()[0]
        return DECODED.keep(key, (page.first_row, array))[1]

    def _stored(self, group: int, leaf: int, page: Page) -> StoredValues | None:
        """Where the values of a page are; the result is remembered."""
        if page.start not in self._large:
            is_data = bool(page.num_rows)
            self._check_size(page.unpacked_bytes, "a page has")
            at = page.start + page.header_bytes
            found = None
            if page.is_plain:
                content = self.read_bytes(at, page.num_bytes - page.header_bytes)
                page.check(content)
                found = find_values(
                    at,
                    content,
                    page.unpacked_bytes,
                    is_packed=self._parsed.columns[group][leaf].codec == SNAPPY,
                    has_levels=is_data and self._schema.column(leaf).max_definition_level > 0,
                )
            elif page.unpacked_bytes > SLOW_UNIT_BYTES:
                warn_slow(self, group, self._parsed.columns[group][leaf].path[0].decode(), page.unpacked_bytes)
            self._large[page.start] = found
            self._num_large += 1 if found is None else len(found.starts)
            while self._num_large > MAX_KNOWN_VALUES and len(self._large) > 1:
                _, dropped = self._large.popitem(last=False)
                self._num_large -= 1 if dropped is None else len(dropped.starts)
        return self._large[page.start]

    def _has_large(self, group: int, column: Column) -> bool:
        if not column.is_bytes:
            return False
        (leaf, *_) = self._leaves(column)
        stored = self._parsed.columns[group][leaf]
        if self._schema.column(leaf).max_repetition_level or stored.kind != BYTE_ARRAY:
            return False
        return is_worth_while(stored.unpacked_bytes, stored.num_values, stored.codec)

    def _leaves(self, column: Column) -> list[int]:
        """The numbers of the leaves to read for a column."""
        found = self._leaves_by_name.get(column.leaf)
        if found is None:
            raise DatasetError(f"{self.path}: there is no column {column.name!r}")
        return found

    @functools.cached_property
    def _leaves_by_name(self) -> dict[str, list[int]]:
        """The leaves of each column, and of each field of a struct."""
        found: dict[str, list[int]] = {}
        leaf = 0
        for field in self.schema:
            inner = leaf
            for child in _fields(field.type):
                found[field_of(field.name, child.name)] = list(range(inner, inner + _num_leaves(child.type)))
                inner += _num_leaves(child.type)
            num_leaves = _num_leaves(field.type)
            found[field.name] = list(range(leaf, leaf + num_leaves))
            leaf += num_leaves
        if leaf != len(self._schema):
            raise ValueError(f"{leaf} columns were expected, and there are {len(self._schema)}")
        return found

    def _known_pages(self, group: int, leaf: int) -> ColumnPages:
        key = group, leaf
        if key not in self._pages:
            self._pages[key] = find_pages(
                self.read_bytes,
                self._parsed.columns[group][leaf],
                self.counts[group],
                is_flat=self._schema.column(leaf).max_repetition_level == 0,
                file_bytes=self.version.num_bytes,
            )
            if len(self._pages) > MAX_KNOWN_COLUMNS:
                self._pages.popitem(last=False)
        return self._pages[key]

    def _read_footer(self) -> bytes:
        size = self.version.num_bytes
        tail = self.read_bytes(size - 8, 8) if size >= 12 else b""
        if tail[4:] == b"PARE":
            raise ConfigError(f"{self.path}: is encrypted; decrypt it first")
        footer_bytes = int.from_bytes(tail[:4], "little")
        if tail[4:] != MAGIC or footer_bytes + 12 > size:
            complaint = why_pointer(self.read_bytes(0, min(size, HEAD_BYTES)))
            no_footer = "is no Parquet file, or is cut off: it does not end with a footer. Copy it again."
            raise DatasetError(f"{self.path}: {complaint or no_footer}")
        return self.read_bytes(size - 8 - footer_bytes, footer_bytes)


class _RowStream:
    """Columns of a row group, decoded from its first row on, in batches of a few megabytes."""

    def __init__(self, table: ParquetTable, group: int, names: list[str]) -> None:
        self._pyarrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
        table.file.check(storage.version(table.path))
        source: Any = table.path  # pyarrow reads files on a disk itself, without a copy
        if storage.is_remote(table.path):
            content = storage.RangeFile(table.read_bytes, 0, table.version.num_bytes)
            source = self._pyarrow.PythonFile(content, "r")
        file = parquet.ParquetFile(source, pre_buffer=False)
        num_rows = BATCH_BYTES * table.counts[group] // max(1, file.metadata.row_group(group).total_byte_size)
        at_once = max(1, min(PAGE_ROWS, num_rows))
        self._batches = file.iter_batches(at_once, row_groups=[group], columns=names, use_threads=False)
        self.group, self.names, self.first = group, names, 0
        self._held = self._pyarrow.Table.from_batches([next(self._batches)])
        """The rows from number `first` on that were decoded."""

    def rows(self, first: int, end: int) -> Any:
        """These rows, as a table; none is before those of an earlier call."""
        while end > self.first + len(self._held):
            batch = self._pyarrow.Table.from_batches([next(self._batches)])
            kept = self._held.slice(first - self.first)
            self.first += len(self._held) - len(kept)
            self._held = self._pyarrow.concat_tables([kept, batch])
        return self._held.slice(first - self.first, end - first)


def _field_of(array: Any, column: Column) -> Any:
    """The values of a column: of media, those of the field to read."""
    return array.flatten()[array.type.get_field_index(column.field)] if column.is_media else array


def _column(file: Any, leaves: list[int]) -> Any:
    """The column with these leaves, as one array."""
    return concatenated(file.reader.read_row_group(0, column_indices=leaves, use_threads=False).column(0).chunks)


def _fields(kind: Any) -> list[Any]:
    is_struct = importlib.import_module("pyarrow").types.is_struct(kind)
    return [kind.field(number) for number in range(kind.num_fields)] if is_struct else []


def _num_leaves(kind: Any) -> int:
    if not kind.num_fields:
        return 1
    return sum(_num_leaves(kind.field(number).type) for number in range(kind.num_fields))
