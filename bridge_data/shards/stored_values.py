"""Large values in a page of a Parquet file: where each one is, to read it without unpacking the page.

pyarrow writes images into one page for a whole row group, as it checks sizes only every 1,024 rows. Such a page is
unpacked only once, to find where its values start; afterwards, a value is a read of its own bytes, as from a tar.
Snappy packs every 64 KiB separately, so only the pieces with the value are unpacked. Pieces that it cannot make
smaller, such as those of JPEGs, are stored unpacked: then only the value is read, and nothing is unpacked.

Enters: the bytes of a page of `BYTE_ARRAY` values in plain encoding. Leaves: a `StoredValues`, or None if a value
cannot be read alone: for other codecs, for content that is packed well, and if values are missing.
Guarantee: the tables are checked against the page when they are made.

Source: https://github.com/google/snappy/blob/main/format_description.txt
"""

import dataclasses
import importlib
import struct
from collections.abc import Callable

from bridge_data.shards.parquet_pages import SNAPPY, UNCOMPRESSED

PIECE_BYTES = 1 << 16
"""Unpacked bytes that Snappy packs separately."""

MIN_VALUE_BYTES = 1 << 12
"""Minimum mean size of values for which it pays off."""

MIN_ELEMENT_BYTES = 512
"""A page is packed well if Snappy's elements unpack to less than this on average."""

_LENGTH = struct.Struct("<I")


@dataclasses.dataclass(frozen=True, slots=True)
class StoredValues:
    """The values of a page: value n is bytes `starts[n]` to `ends[n]` of the unpacked page. The page starts at byte
    `at` of the file. Piece n of a packed page starts at its byte `pieces[n]`; there are none if it is not packed. If
    the piece is stored unpacked, its content starts at byte `stored[n]`; else that is 0."""

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
    """The bytes that Snappy's elements `packed`, without a length before them, unpack to."""
    head = bytearray()
    left = num_bytes
    while left > 127:
        head.append(left & 127 | 128)
        left >>= 7
    head.append(left)
    codec = importlib.import_module("pyarrow").Codec("snappy")
    return bytes(codec.decompress(bytes(head) + packed, num_bytes, asbytes=True))


def _pieces(packed: bytes, unpacked_bytes: int) -> tuple[list[int], list[int]] | None:
    """Where each piece of `PIECE_BYTES` starts, and the end; and where the content of each is, if stored unpacked, else
    0. None if a piece depends on an earlier one, or there are too many elements to scan."""
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
