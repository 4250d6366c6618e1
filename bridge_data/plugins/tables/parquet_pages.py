"""The footer and the pages of a Parquet file: finding those of a column, decoding some of them alone, and cutting
single large values out of one.

Reads a footer, and bytes of the file by a function. Returns its `Footer`; the `ColumnPages` of a column of a row group,
from their headers; a small Parquet file in memory with some of them, which pyarrow decodes; and the `StoredValues` of a
page. Raises `ValueError` for inconsistent data. pyarrow never sees the row groups of a file's own footer: it would
parse them 30 times as fast, but ends the process for some damaged ones.

Structs are in Thrift's compact protocol: damaged bytes are a `ValueError`, bytes that end too early a `TruncatedError`;
nesting is bounded, and lengths beyond the bytes are refused.

pyarrow writes images into one page for a whole row group, as it looks at sizes only every 1,024 rows. Such a page is
unpacked once, to find out where its values begin; from then on, a value is a read of its own bytes, as from a tar.
Snappy packs every 64 KiB separately, so only the pieces with the value are unpacked. Pieces that it cannot shrink, such
as JPEGs, it stores unchanged: then only the value is read, and nothing is unpacked.

Source: https://github.com/apache/parquet-format, `parquet.thrift`;
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md;
https://github.com/google/snappy/blob/main/format_description.txt
"""

import dataclasses
import importlib
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

BOOLEAN_TRUE, BOOLEAN_FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

MAX_DEPTH: Final = 16
"""Maximum nesting of structs and lists; Parquet needs 6."""

_STOP = b"\0"


class TruncatedError(ValueError):
    """The bytes end before the struct does."""


class StructReader:
    """Reads structs from `data`, from byte `position` on."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data, self.position = data, position

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The fields of the struct that starts here, by number. Lists are lists, texts are bytes."""
        fields: dict[int, Any] = {}
        number = 0
        while (head := self.field(number)) is not None:
            number, kind = head
            fields[number] = self.value(kind, depth + 1)
        return fields

    def field(self, before: int) -> tuple[int, int] | None:
        """(number, type) of the field that starts here, after the one numbered `before`; None at the struct's end."""
        head = self._byte()
        if not head:
            return None
        delta, kind = head >> 4, head & 15
        return (before + delta if delta else self._signed()), kind

    def value(self, kind: int, depth: int = 0) -> Any:
        """The value of type `kind` that starts here."""
        if depth > MAX_DEPTH:
            raise ValueError(f"structs are nested more than {MAX_DEPTH} times")
        if kind in (BOOLEAN_TRUE, BOOLEAN_FALSE):
            return kind == BOOLEAN_TRUE
        if kind in (I16, I32, I64):
            return self._signed()
        if kind == BYTE:
            return self._byte()
        if kind == DOUBLE:
            return self._bytes(8)
        if kind == BINARY:
            return self._bytes(self._unsigned())
        if kind == STRUCT:
            return self.struct(depth)
        if kind in (LIST, SET):
            return self._list(depth)
        raise ValueError(f"unknown type {kind}")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        size, kind = head >> 4, head & 15
        if size == 15:
            size = self._unsigned()
        if size > len(self.data) - self.position:
            raise TruncatedError(f"a list of {size} values")
        if kind in (BOOLEAN_TRUE, BOOLEAN_FALSE):
            return [self._byte() == BOOLEAN_TRUE for _ in range(size)]
        return [self.value(kind, depth + 1) for _ in range(size)]

    def _byte(self) -> int:
        if self.position >= len(self.data):
            raise TruncatedError("no more bytes")
        value = self.data[self.position]
        self.position += 1
        return value

    def _bytes(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise TruncatedError(f"{count} bytes are wanted")
        value = self.data[self.position : end]
        self.position = end
        return value

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number has more than 64 bits")

    def _signed(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)


def encoded_struct(*fields: tuple[int, int, bytes]) -> bytes:
    """A struct of fields (number, type, encoded value) in ascending order of their numbers, at most 15 apart."""
    pieces: list[bytes] = []
    before = 0
    for number, kind, value in fields:
        pieces += (bytes(((number - before) << 4 | kind,)), value)
        before = number
    return b"".join((*pieces, _STOP))


def encoded_integer(value: int) -> bytes:
    """An integer of any width."""
    return _varint(value << 1 ^ (value >> 63))


def encoded_text(text: bytes) -> bytes:
    """A text."""
    return _varint(len(text)) + text


def encoded_list(kind: int, values: list[bytes]) -> bytes:
    """A list of encoded values of one type."""
    size = len(values)
    head = bytes((size << 4 | kind,)) if size < 15 else bytes((0xF0 | kind,)) + _varint(size)
    return head + b"".join(values)


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)


MAGIC = b"PAR1"

HEADER_BYTES = 512
"""Bytes first read for a page's header; one with long statistics is longer."""

MAX_HEADER_BYTES = 1 << 24

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
BYTE_ARRAY = 6
UNCOMPRESSED, SNAPPY = 0, 1
_PLAIN, _RLE = 0, 3
_DICTIONARY_ENCODINGS = (2, 8)
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
    most = max(piece.num_values for piece in pieces)
    columns = [_missing_column(most)] * len(footer.columns[0])
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


def _missing_column(num_values: int) -> bytes:
    """What stands for a column that is not read. pyarrow up to 22 takes the number of rows to read of the columns asked
    for from as many of the first ones, whichever these are."""
    fields = [
        (1, I32, encoded_integer(BYTE_ARRAY)),
        (2, LIST, encoded_list(I32, [])),
        (3, LIST, encoded_list(BINARY, [])),
        (4, I32, encoded_integer(UNCOMPRESSED)),
        (5, I64, encoded_integer(num_values)),
        *((number, I64, encoded_integer(0)) for number in (6, 7, 9)),
    ]
    return encoded_struct((2, I64, encoded_integer(0)), (3, STRUCT, encoded_struct(*fields)))


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


PIECE_BYTES = 1 << 16
"""The size of the pieces that Snappy packs separately."""

MIN_VALUE_BYTES = 1 << 12
"""Minimum mean size of values that makes this worthwhile."""

MIN_ELEMENT_BYTES = 512
"""A page whose Snappy elements produce less than this on average is packed well."""

_LENGTH = struct.Struct("<I")


@dataclasses.dataclass(frozen=True, slots=True)
class StoredValues:
    """The values of a page: value n is bytes `starts[n]` to `ends[n]` of the unpacked page, whose bytes begin at byte
    `at` of the file. Piece n of a packed one begins at byte `pieces[n]` of it; there are none if it is not packed. If
    the piece is stored unchanged, its content begins at byte `stored[n]`; else that is 0."""

    at: int
    starts: list[int]
    ends: list[int]
    pieces: list[int]
    stored: list[int]
    unpacked_bytes: int

    def value(self, number: int, read: Callable[[int, int], bytes]) -> bytes:
        """Value `number`, which `read` reads (offset in the file, number of bytes)."""
        start, end = self.starts[number], self.ends[number]
        if not self.pieces:
            return read(self.at + start, end - start)
        if start == end:
            return b""
        first, last = start // PIECE_BYTES, -(-end // PIECE_BYTES)
        begin = first * PIECE_BYTES
        if all(self.stored[first:last]):
            at = self.stored[first] + start - begin
            data = read(self.at + at, self.stored[last - 1] + end - (last - 1) * PIECE_BYTES - at)
            if last - first == 1:
                return data
            cuts = [(self.stored[n] - at, n * PIECE_BYTES) for n in range(first, last)]
            return b"".join([data[max(0, own) : own + min(PIECE_BYTES, end - piece)] for own, piece in cuts])
        packed = read(self.at + self.pieces[first], self.pieces[last] - self.pieces[first])
        unpacked = _unpack(packed, min(last * PIECE_BYTES, self.unpacked_bytes) - begin)
        return unpacked[start - begin : end - begin]


def find_values(
    at: int, content: bytes, unpacked_bytes: int, *, is_packed: bool, has_levels: bool
) -> StoredValues | None:
    """The values of the page whose bytes, without its header, are `content`, from byte `at` of the file on. It is
    packed by Snappy or not at all; with `has_levels`, those come first. None: see the module.

    Raises:
        ValueError: if the page is damaged.
    """
    found = _pieces(content, unpacked_bytes) if is_packed else ([], [])
    if found is None:
        return None
    pieces, stored = found
    unpacked = _unpack(content[pieces[0] :], unpacked_bytes) if is_packed else content
    position = _LENGTH.size + _LENGTH.unpack_from(unpacked)[0] if has_levels else 0
    starts, ends = [], []
    while position < len(unpacked):
        if position + _LENGTH.size > len(unpacked):
            raise ValueError("a value has no length")
        begin = position + _LENGTH.size
        position = begin + _LENGTH.unpack_from(unpacked, position)[0]
        starts.append(begin)
        ends.append(position)
    if position != len(unpacked):
        raise ValueError("its values do not fill the page")
    return StoredValues(at, starts, ends, pieces, stored, unpacked_bytes)


def _unpack(packed: bytes, num_bytes: int) -> bytes:
    """The unpacked content of Snappy's elements `packed`, without a length before them."""
    codec = importlib.import_module("pyarrow").Codec("snappy")
    return bytes(codec.decompress(_varint(num_bytes) + packed, num_bytes, asbytes=True))


def _pieces(packed: bytes, unpacked_bytes: int) -> tuple[list[int], list[int]] | None:
    """Where each piece of `PIECE_BYTES` begins, and the end; and where the content of each is, if stored unchanged,
    else 0. None if a piece refers to earlier bytes, or there are too many elements."""
    at = 0
    while at < len(packed) and packed[at] > 127:
        at += 1
    at += 1  # after the length
    pieces: list[int] = []
    stored: list[int] = []
    position = 0
    most, num_elements = 64 + unpacked_bytes // MIN_ELEMENT_BYTES, 0
    size = len(packed)
    while at < size:
        if position == len(pieces) * PIECE_BYTES:
            pieces.append(at)
        num_elements += 1
        tag = packed[at]
        kind = tag & 3
        if kind == 0:
            length = tag >> 2
            if length < 60:
                at += 1
            else:
                extra = length - 59
                length = int.from_bytes(packed[at + 1 : at + 1 + extra], "little")
                at += 1 + extra
            length += 1
            is_whole = position % PIECE_BYTES == 0 and length == min(PIECE_BYTES, unpacked_bytes - position)
            stored += [at] * is_whole
            at += length
        else:
            extra = (0, 1, 2, 4)[kind]
            distance = int.from_bytes(packed[at + 1 : at + 1 + extra], "little")
            length = (tag >> 2) + 1
            if kind == 1:
                length = (tag >> 2 & 7) + 4
                distance |= tag >> 5 << 8
            at += 1 + extra
            if distance > position - (len(pieces) - 1) * PIECE_BYTES:
                return None
        position += length
        stored += [0] * (len(pieces) - len(stored))
        if position > len(pieces) * PIECE_BYTES or num_elements > most:
            return None
    if at != size or position != unpacked_bytes:
        raise ValueError("its packed bytes have another size")
    return [*pieces, size], stored


def is_worth_while(num_bytes: int, num_values: int, codec: int) -> bool:
    """Whether the values of a column, `num_bytes` unpacked, should be read one by one."""
    return codec in (UNCOMPRESSED, SNAPPY) and num_values > 0 and num_bytes >= MIN_VALUE_BYTES * num_values
