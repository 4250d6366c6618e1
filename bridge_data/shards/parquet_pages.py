"""The pages of a Parquet file: where those of a column are, and decoding some of them alone.

Enters: metadata of a column of a row group, and a function that reads bytes of the file. Leaves: its `ColumnPages`,
from their headers; and a small Parquet file in memory with some of them, which pyarrow decodes. Guarantee: sizes that
do not fit together are a `ValueError`.

Source: https://github.com/apache/parquet-format, `parquet.thrift`
"""

import dataclasses
import importlib
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
"""What is read of a page's header at first; it is longer where it has long statistics."""

MAX_HEADER_BYTES = 1 << 24

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "LZ4_HADOOP": 5, "ZSTD": 6, "LZ4": 7}
_DICTIONARY_ENCODINGS = (2, 8)
_NO_COLUMN = encoded_struct((2, I64, encoded_integer(0)))
"""Stands for a column that is not read."""

Read: TypeAlias = Callable[[int, int], bytes]
"""(offset in the file, number of bytes) -> the bytes."""


class Page(NamedTuple):
    """A page: its header, in `header_bytes`, begins at byte `start`. `num_bytes` counts both; `first_row` and
    `num_rows` are of the row group, and 0 of a dictionary."""

    start: int
    header_bytes: int
    num_bytes: int
    unpacked_bytes: int
    num_values: int
    first_row: int = 0
    num_rows: int = 0
    uses_dictionary: bool = False
    is_v2: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnPages:
    """The pages of a column of a row group. There are no `data` pages if they do not say how many rows they have."""

    dictionary: Page | None
    data: Sequence[Page]
    first_rows: Sequence[int]


def find_pages(read: Read, chunk: Any, num_rows: int, *, is_flat: bool, file_bytes: int) -> ColumnPages:
    """The pages of the column that pyarrow's metadata `chunk` describe, whose row group has `num_rows` rows. Their
    headers are read, one after the other. With `is_flat`, each row has one value."""
    at, dictionary = chunk.data_page_offset, None
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        at = min(at, chunk.dictionary_page_offset)
    end = at + chunk.total_compressed_size
    if not 0 <= at <= end <= file_bytes:
        raise ValueError("it is beyond the end of the file")
    pages: list[Page] = []
    values = rows = 0
    while at < end and values < chunk.num_values:
        fields, header_bytes = _page_header(read, at, end)
        kind, unpacked_bytes, packed_bytes = fields[1], fields[2], fields[3]
        num_bytes = header_bytes + packed_bytes
        if packed_bytes < 0 or unpacked_bytes < 0 or at + num_bytes > end:
            raise ValueError(f"the page at byte {at} has a wrong size")
        sizes = at, header_bytes, num_bytes, unpacked_bytes
        if kind == _DICTIONARY_PAGE:
            dictionary = Page(*sizes, num_values=fields[7][1])
        elif kind in (_DATA_PAGE, _DATA_PAGE_V2):
            is_v2 = kind == _DATA_PAGE_V2
            head = fields[8 if is_v2 else 5]
            num_values, encoding = head[1], head[4 if is_v2 else 2]
            page_rows = num_values if is_flat else (head[3] if is_v2 else 0)
            if num_values < 0 or page_rows < 0:
                raise ValueError(f"the page at byte {at} has a wrong number of values")
            pages.append(Page(*sizes, num_values, rows, page_rows, encoding in _DICTIONARY_ENCODINGS, is_v2))
            values += num_values
            rows += page_rows
        at += num_bytes
    if rows == num_rows and values == chunk.num_values:
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


def schema_of(footer: bytes) -> bytes:
    """The schema in a footer, as it stands there."""
    reader = StructReader(footer)
    number = 0
    while (head := reader.field(number)) is not None:
        number, kind = head
        start = reader.position
        reader.value(kind)
        if number == 2:
            return footer[start : reader.position]
    raise ValueError("the footer has no schema")


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnPlace:
    """A column for which small files are made: leaf number `leaf` of `num_leaves` in a file with `schema`; `chunk` is
    pyarrow's metadata of it."""

    schema: bytes
    num_leaves: int
    leaf: int
    chunk: Any

    def small_file(self, pages: Sequence[Page], content: bytes, dictionary: bytes = b"") -> Any:
        """A Parquet file with these data pages alone, whose bytes are `content`, after those of a dictionary page."""
        chunk = self.chunk
        if chunk.compression not in _CODECS:
            raise ValueError(f"it is compressed by {chunk.compression}, which is not supported")
        start = len(MAGIC)
        num_bytes = encoded_integer(len(dictionary) + len(content))
        num_rows = encoded_integer(sum(page.num_rows for page in pages))
        path = [encoded_text(name.encode()) for name in chunk.path_in_schema.split(".")]
        fields = [
            (1, I32, encoded_integer(_TYPES.index(chunk.physical_type))),
            (2, LIST, encoded_list(I32, [encoded_integer(number) for number in (0, 3, 8)])),
            (3, LIST, encoded_list(BINARY, path)),
            (4, I32, encoded_integer(_CODECS[chunk.compression])),
            (5, I64, encoded_integer(sum(page.num_values for page in pages))),
            (6, I64, num_bytes),
            (7, I64, num_bytes),
            (9, I64, encoded_integer(start + len(dictionary))),
            *([(11, I64, encoded_integer(start))] if dictionary else []),
        ]
        columns = [_NO_COLUMN] * self.num_leaves
        columns[self.leaf] = encoded_struct((2, I64, encoded_integer(start)), (3, STRUCT, encoded_struct(*fields)))
        row_group = encoded_struct((1, LIST, encoded_list(STRUCT, columns)), (2, I64, num_bytes), (3, I64, num_rows))
        footer = encoded_struct(
            (1, I32, encoded_integer(2)),
            (2, LIST, self.schema),
            (3, I64, num_rows),
            (4, LIST, encoded_list(STRUCT, [row_group])),
        )
        ending = footer + len(footer).to_bytes(4, "little") + MAGIC
        return importlib.import_module("pyarrow").BufferReader(b"".join((MAGIC, dictionary, content, ending)))


def numbering_page(num_values: int, codec: str) -> bytes:
    """A dictionary page whose value n is the number n as 4 bytes: what is decoded with it says which value of the real
    dictionary each row has."""
    content = b"".join(b"\4\0\0\0" + number.to_bytes(4, "little") for number in range(num_values))
    packed = content
    if codec != "UNCOMPRESSED":
        packed = importlib.import_module("pyarrow").Codec(codec.lower()).compress(content, asbytes=True)
    head = encoded_struct((1, I32, encoded_integer(num_values)), (2, I32, encoded_integer(0)))
    sizes = (2, I32, encoded_integer(len(content))), (3, I32, encoded_integer(len(packed)))
    return encoded_struct((1, I32, encoded_integer(_DICTIONARY_PAGE)), *sizes, (7, STRUCT, head)) + packed
