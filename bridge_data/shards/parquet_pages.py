"""The footer and the pages of a Parquet file: finding those of a column, and decoding some of them alone.

Enters: a footer, and a function that reads bytes of the file. Leaves: its `Footer`; the `ColumnPages` of a column of a
row group, from their headers; a small Parquet file in memory with some of them, which pyarrow decodes. Guarantee:
inconsistent data are a `ValueError`. pyarrow never sees the row groups of a file's own footer: damaged ones can crash
the process.

Source: https://github.com/apache/parquet-format, `parquet.thrift`
"""

import dataclasses
import importlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from bridge_data.shards.thrift_structs import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    StructReader,
    TruncatedError,
    encoded_integer,
    encoded_list,
    encoded_struct,
    encoded_text,
)

MAGIC = b"PAR1"

HEADER_BYTES = 512
"""Bytes first read for a page's header; one with long statistics is longer."""

MAX_HEADER_BYTES = 1 << 24

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
BYTE_ARRAY = 6
UNCOMPRESSED, SNAPPY = 0, 1
_PLAIN, _RLE = 0, 3
_DICTIONARY_ENCODINGS = (2, 8)
_NO_COLUMN = encoded_struct((2, I64, encoded_integer(0)))
"""Placeholder for a column that is not read."""

Read: TypeAlias = Callable[[int, int], bytes]
"""(offset in the file, number of bytes) -> the bytes."""


class Page(NamedTuple):
    """A page: its header, of `header_bytes`, starts at byte `start`. `num_bytes` counts header and content;
    `first_row` and `num_rows` are rows of the row group, and 0 for a dictionary. With `is_plain`, its content is the
    values one after another, after levels in the form of the first version. `crc` is the checksum of the content, if
    the writer stored one."""

    start: int
    header_bytes: int
    num_bytes: int
    unpacked_bytes: int
    num_values: int
    first_row: int = 0
    num_rows: int = 0
    uses_dictionary: bool = False
    is_plain: bool = False
    crc: int | None = None

    def check(self, content: bytes) -> None:
        """Compare the content with the checksum. pyarrow does so for the pages that it decodes."""
        if self.crc is not None and zlib.crc32(content) != self.crc & 0xFFFFFFFF:
            raise ValueError(f"the page at byte {self.start} has another checksum than when it was written")


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnPages:
    """The pages of a column of a row group. `data` is empty if pages do not say how many rows they have."""

    dictionary: Page | None
    data: Sequence[Page]
    first_rows: Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of a row group, from the footer; `start` and `num_bytes` are the range of its pages in the file."""

    kind: int
    codec: int
    path: Sequence[bytes]
    num_values: int
    unpacked_bytes: int
    num_bytes: int
    start: int

    @classmethod
    def of(cls, fields: dict[int, Any]) -> "StoredColumn":
        """The column described by a `ColumnChunk`."""
        if 8 in fields or 3 not in fields:
            raise ValueError("a column is encrypted, or in another file")
        found = fields[3]
        start = min(found[9], found.get(11) or found[9])
        return cls(found[1], found[4], found[3], found[5], found[6], found[7], start)


@dataclasses.dataclass(frozen=True, slots=True)
class Footer:
    """What is read from a footer: the encoded schema, the texts of the file's metadata, and for each row group the
    number of rows and the columns."""

    schema: bytes
    metadata: dict[bytes, bytes]
    counts: list[int]
    columns: list[list[StoredColumn]]

    @classmethod
    def parse(cls, content: bytes) -> "Footer":
        """The footer with the bytes `content`."""
        reader = StructReader(content)
        number, schema = 0, b""
        groups: list[dict[int, Any]] = []
        metadata: dict[bytes, bytes] = {}
        while (head := reader.field(number)) is not None:
            number, kind = head
            start = reader.position
            value = reader.value(kind)
            if number == 2:
                schema = content[start : reader.position]
            elif number == 4:
                groups = value
            elif number == 5:
                metadata = {entry[1]: entry.get(2, b"") for entry in value}
        counts = [group[3] for group in groups]
        columns = [[StoredColumn.of(column) for column in group[1]] for group in groups]
        if min(counts, default=0) < 0 or len({len(of_group) for of_group in columns}) > 1:
            raise ValueError("its row groups do not fit together")
        return cls(schema, metadata, counts, columns)

    def empty_file(self) -> Any:
        """A Parquet file with this schema and no rows."""
        return _file(self.schema, [], 0, b"")


def find_pages(read: Read, column: StoredColumn, num_rows: int, *, is_flat: bool, file_bytes: int) -> ColumnPages:
    """The pages of `column`, whose row group has `num_rows` rows. Their headers are read in sequence. With `is_flat`,
    each row has one value."""
    at, dictionary = column.start, None
    end = at + column.num_bytes
    if not 0 <= at <= end <= file_bytes:
        raise ValueError("it is beyond the end of the file")
    pages: list[Page] = []
    values = rows = 0
    while at < end and values < column.num_values:
        fields, header_bytes = _page_header(read, at, end)
        kind, unpacked_bytes, packed_bytes = fields[1], fields[2], fields[3]
        num_bytes = header_bytes + packed_bytes
        if packed_bytes < 0 or unpacked_bytes < 0 or at + num_bytes > end:
            raise ValueError(f"the page at byte {at} has a wrong size")
        sizes = at, header_bytes, num_bytes, unpacked_bytes
        if kind == _DICTIONARY_PAGE:
            is_plain = fields[7].get(2, _PLAIN) in (_PLAIN, _DICTIONARY_ENCODINGS[0])
            dictionary = Page(*sizes, num_values=fields[7][1], is_plain=is_plain, crc=fields.get(4))
        elif kind in (_DATA_PAGE, _DATA_PAGE_V2):
            is_v2 = kind == _DATA_PAGE_V2
            head = fields[8 if is_v2 else 5]
            num_values, encoding = head[1], head[4 if is_v2 else 2]
            page_rows = num_values if is_flat else (head[3] if is_v2 else 0)
            if num_values < 0 or page_rows < 0:
                raise ValueError(f"the page at byte {at} has a wrong number of values")
            uses_dictionary = encoding in _DICTIONARY_ENCODINGS
            is_plain = not is_v2 and encoding == _PLAIN and head[3] == _RLE
            pages.append(Page(*sizes, num_values, rows, page_rows, uses_dictionary, is_plain, fields.get(4)))
            values += num_values
            rows += page_rows
        at += num_bytes
    if rows == num_rows and values == column.num_values:
        return ColumnPages(dictionary, pages, [page.first_row for page in pages])
    if is_flat:
        raise ValueError(f"its pages have {rows} rows, but the row group has {num_rows}")
    return ColumnPages(dictionary, (), ())


def _page_header(read: Read, at: int, end: int) -> tuple[dict[int, Any], int]:
    """(fields of the header of the page at byte `at`, number of its bytes)."""
    num_bytes = HEADER_BYTES
    while True:
        reader = StructReader(read(at, min(num_bytes, end - at)))
        try:
            return reader.struct(), reader.position
        except TruncatedError:
            if num_bytes >= min(end - at, MAX_HEADER_BYTES):
                raise
            num_bytes *= 32


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Pages of a column, leaf number `leaf`, to decode: their bytes, after those of a dictionary page if `data_at` is
    not 0; and their number of values."""

    leaf: int
    column: StoredColumn
    content: bytes
    data_at: int
    num_values: int


def small_file(footer: Footer, pieces: Sequence[Piece], num_rows: int, dictionaries: Sequence[str] = ()) -> Any:
    """A Parquet file with only these pieces, of `num_rows` rows; the other columns are missing. Columns with names in
    `dictionaries` become Arrow's dictionaries: a long text shared by many rows is decoded once."""
    columns = [_NO_COLUMN] * len(footer.columns[0])
    at = len(MAGIC)
    for piece in pieces:
        column, num_bytes = piece.column, encoded_integer(len(piece.content))
        fields = [
            (1, I32, encoded_integer(column.kind)),
            (2, LIST, encoded_list(I32, [encoded_integer(number) for number in (0, 3, 8)])),
            (3, LIST, encoded_list(BINARY, [encoded_text(name) for name in column.path])),
            (4, I32, encoded_integer(column.codec)),
            (5, I64, encoded_integer(piece.num_values)),
            (6, I64, num_bytes),
            (7, I64, num_bytes),
            (9, I64, encoded_integer(at + piece.data_at)),
            *([(11, I64, encoded_integer(at))] if piece.data_at else []),
        ]
        columns[piece.leaf] = encoded_struct((2, I64, encoded_integer(at)), (3, STRUCT, encoded_struct(*fields)))
        at += len(piece.content)
    return _file(footer.schema, columns, num_rows, b"".join(piece.content for piece in pieces), dictionaries)


def concatenated(arrays: Sequence[Any]) -> Any:
    """One array of these values of a column. Writers put texts into a dictionary until it is full, and store the rest
    plainly, so some may be Arrow's dictionaries."""
    if len(arrays) == 1:
        return arrays[0]
    pyarrow = importlib.import_module("pyarrow")
    if any(array.type != arrays[0].type for array in arrays):
        arrays = [one.dictionary_decode() if pyarrow.types.is_dictionary(one.type) else one for one in arrays]
    return pyarrow.concat_arrays(arrays)


def _file(schema: bytes, columns: list[bytes], num_rows: int, content: bytes, dictionaries: Sequence[str] = ()) -> Any:
    """A Parquet file of one row group; of none, if there are no columns."""
    rows = encoded_integer(num_rows)
    size = encoded_integer(len(content))
    group = encoded_struct((1, LIST, encoded_list(STRUCT, columns)), (2, I64, size), (3, I64, rows))
    footer = encoded_struct(
        (1, I32, encoded_integer(2)),
        (2, LIST, schema),
        (3, I64, rows),
        (4, LIST, encoded_list(STRUCT, [group] if columns else [])),
    )
    source = b"".join((MAGIC, content, footer, len(footer).to_bytes(4, "little"), MAGIC))
    return importlib.import_module("pyarrow.parquet").ParquetFile(
        importlib.import_module("pyarrow").BufferReader(source),
        read_dictionary=list(dictionaries),
        page_checksum_verification=True,
    )


def numbering_page(num_values: int, codec: int) -> bytes:
    """A dictionary page whose value n is the number n as 4 bytes: decoding with it gives, for each row, the number of
    its value in the real dictionary."""
    content = b"".join(b"\4\0\0\0" + number.to_bytes(4, "little") for number in range(num_values))
    packed = content
    if codec == SNAPPY:
        packed = importlib.import_module("pyarrow").Codec("snappy").compress(content, asbytes=True)
    head = encoded_struct((1, I32, encoded_integer(num_values)), (2, I32, encoded_integer(0)))
    sizes = (2, I32, encoded_integer(len(content))), (3, I32, encoded_integer(len(packed)))
    return encoded_struct((1, I32, encoded_integer(_DICTIONARY_PAGE)), *sizes, (7, STRUCT, head)) + packed
