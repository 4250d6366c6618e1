"""Structs in Thrift's compact protocol, as far as Parquet's headers need them.

Enters: bytes. Leaves: the fields of a struct by number; or, to write one, its bytes. Guarantee: damaged bytes are a
`ValueError`, bytes that end too early a `TruncatedError`; nesting is bounded, and lengths beyond the bytes are refused.

Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from typing import Any, Final

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
