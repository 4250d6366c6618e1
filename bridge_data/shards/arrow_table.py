"""A file of Arrow record batches, as `datasets` writes them (`save_to_disk`), whose rows can be read singly.

Enters: the path of an Arrow IPC stream, or of an Arrow IPC file, which holds one. Leaves: its schema and the rows of
each batch, from the headers of the batches; and the values of rows `first` to `end` - 1 of a column, reading only their
own bytes. The file is not mapped into memory, so truncating it during a read is an error rather than a crash.

Guarantee: a file that is damaged, or was replaced since it was opened, is a `DatasetError` that names it, the batch and
the column.

Source: https://arrow.apache.org/docs/format/Columnar.html, `Message.fbs`
"""

import dataclasses
import functools
import importlib
import struct
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.table_columns import Column, TableFile, field_of, is_understood, values_of_rows

_FILE_MAGIC = b"ARROW1\0\0"
_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_MAX_HEADER_BYTES = 1 << 26

_TWO = struct.Struct("<II")
_NODE = struct.Struct("<qq")


@dataclasses.dataclass(frozen=True, slots=True)
class RowBatch:
    """A record batch: its rows; for each array (missing values), for each buffer (offset in the file, bytes)."""

    num_rows: int
    missing: tuple[int, ...]
    buffers: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Where an array is in a batch: the numbers of its node and first buffer; and its child arrays."""

    kind: Any
    node: int
    buffer: int
    children: tuple["Layout", ...]


class ArrowTable(TableFile):
    """The Arrow file at `path`, in `version` (None: the current one)."""

    kind: ClassVar[str] = "Arrow file"
    group_name: ClassVar[str] = "record batch"

    def __init__(self, path: str, version: storage.Version | None = None) -> None:
        super().__init__(path, version)
        self._headers: list[bytes] = []
        self._batches: list[RowBatch] = []
        with self.told("cannot be read as an Arrow stream: it is damaged, or cut off"):
            for kind, header, body in self._messages():
                if kind == _SCHEMA:
                    pyarrow = importlib.import_module("pyarrow")
                    prefix = _TWO.pack(_CONTINUATION, len(header))
                    self.schema = pyarrow.ipc.read_schema(pyarrow.BufferReader(prefix + header))
                elif kind == _BATCH:
                    self._batches.append(self._batch(header, body))
                self._headers.append(header)
            self.counts = [batch.num_rows for batch in self._batches]
            if not self._headers:
                raise ValueError("it has no schema")

    def identity(self) -> bytes:
        """The headers of all batches."""
        return b"".join(self._headers)

    def column_bytes(self, group: int, column: Column) -> int:
        buffers = self._batches[group].buffers
        return sum(buffers[number][1] for number in _numbers(self._layout(column)))

    def unit_bytes(self, group: int, column: Column) -> int:
        return self.column_bytes(group, column) // max(1, self.counts[group])

    def values(self, column: Column, group: int, first: int, end: int) -> list[Any]:
        with self.told(f"record batch {group}, column {column.name!r}: cannot be read", f"rows {first} to {end - 1}"):
            layout, batch = self._layout(column), self._batches[group]
            if not 0 <= first <= end <= batch.num_rows:
                raise IndexError(f"there are {batch.num_rows} rows")
            array = self._array(layout, batch, first, end)
            array.validate(full=True)
            values = values_of_rows(array)
            parent = self._layouts[column.name]
            if column.is_media and batch.missing[parent.node]:
                there = int.from_bytes(self._bits(batch, parent.buffer, first, end), "little")
                values = [value if there >> number & 1 else None for number, value in enumerate(values)]
            return values

    def _layout(self, column: Column) -> Layout:
        found = self._layouts.get(column.leaf)
        if found is None:
            raise DatasetError(
                f"{self.path}: there is no column {column.name!r}, or it follows one of a type that is not supported "
                "(a union, view, or run-end encoding): save the data set without that"
            )
        return found

    @functools.cached_property
    def _layouts(self) -> dict[str, Layout]:
        """The layout of each column, and of each field of a struct. Columns after one of an unsupported type are
        missing."""
        types = importlib.import_module("pyarrow").types
        found = {}
        node = buffer = 0
        for field in self.schema:
            if not is_understood(field.type):
                break
            layout, node, buffer = _laid_out(field.type, node, buffer)
            found[field.name] = layout
            if types.is_struct(field.type):
                for number, child in enumerate(layout.children):
                    found[field_of(field.name, field.type.field(number).name)] = child
        if any(len(batch.missing) < node or len(batch.buffers) < buffer for batch in self._batches):
            raise DatasetError(f"{self.path}: a batch has fewer buffers than its schema: it is damaged, copy it again")
        return found

    def _array(self, layout: Layout, batch: RowBatch, first: int, end: int) -> Any:
        """Rows `first` to `end` - 1 of an array; only their bytes are read."""
        pyarrow = importlib.import_module("pyarrow")
        types, kind, count = pyarrow.types, layout.kind, end - first
        if types.is_null(kind):
            return pyarrow.nulls(count)
        buffer = pyarrow.py_buffer
        validity = None
        if batch.missing[layout.node]:
            validity = buffer(self._bits(batch, layout.buffer, first, end))
        if types.is_struct(kind):
            children = [self._array(child, batch, first, end) for child in layout.children]
            return pyarrow.StructArray.from_buffers(kind, count, [validity], children=children)
        if types.is_fixed_size_list(kind):
            size = kind.list_size
            child = self._array(layout.children[0], batch, first * size, end * size)
            return pyarrow.Array.from_buffers(kind, count, [validity], children=[child])
        if types.is_boolean(kind):
            bits = buffer(self._bits(batch, layout.buffer + 1, first, end))
            return pyarrow.Array.from_buffers(kind, count, [validity, bits])
        if not _has_offsets(kind):
            width = kind.bit_width // 8
            data = self._part(batch, layout.buffer + 1, first * width, count * width)
            return pyarrow.Array.from_buffers(kind, count, [validity, buffer(data)])
        code, width = ("q", 8) if "large" in str(kind).partition("<")[0] else ("i", 4)
        offsets: tuple[int, ...] = (0,)
        if count:
            packed = self._part(batch, layout.buffer + 1, first * width, (count + 1) * width)
            offsets = struct.unpack(f"<{count + 1}{code}", packed)
        start, stop = offsets[0], offsets[-1]
        if not 0 <= start <= stop:
            raise ValueError("its offsets do not ascend")
        moved = buffer(struct.pack(f"<{count + 1}{code}", *[offset - start for offset in offsets]))
        if layout.children:
            child = self._array(layout.children[0], batch, start, stop)
            return pyarrow.Array.from_buffers(kind, count, [validity, moved], children=[child])
        data = self._part(batch, layout.buffer + 2, start, stop - start)
        return pyarrow.Array.from_buffers(kind, count, [validity, moved, buffer(data)])

    def _part(self, batch: RowBatch, number: int, start: int, num_bytes: int) -> bytes:
        """Bytes of a buffer of a batch."""
        at, size = batch.buffers[number]
        if not 0 <= start <= start + num_bytes <= size:
            raise ValueError(f"bytes {start} to {start + num_bytes} of a buffer of {size} are wanted")
        return self.read_bytes(at + start, num_bytes) if num_bytes else b""

    def _bits(self, batch: RowBatch, number: int, first: int, end: int) -> bytes:
        """Bits `first` to `end` - 1 of a buffer, moved to start at bit 0."""
        begin = first // 8
        packed = self._part(batch, number, begin, -(-end // 8) - begin)
        count = end - first
        shifted = int.from_bytes(packed, "little") >> (first - begin * 8) & ((1 << count) - 1)
        return shifted.to_bytes(-(-count // 8), "little")

    def _messages(self) -> Iterator[tuple[int, bytes, int]]:
        """(kind, header, offset of the body) of every message."""
        size = self.version.num_bytes
        at = len(_FILE_MAGIC) if self.read_bytes(0, min(8, size)) == _FILE_MAGIC else 0
        while at + 8 <= size:
            marker, header_bytes = _TWO.unpack(self.read_bytes(at, 8))
            if marker != _CONTINUATION:
                raise ValueError(f"there is no message at byte {at}")
            if not header_bytes:
                return
            body = at + 8 + header_bytes
            if header_bytes > _MAX_HEADER_BYTES or body > size:
                raise ValueError(f"the message at byte {at} has a header of {header_bytes} bytes")
            header = self.read_bytes(at + 8, header_bytes)
            message = FlatTable.root(header)
            body_bytes = message.integer(3, "q")
            if body_bytes < 0 or body + body_bytes > size:
                raise ValueError(f"the message at byte {at} has a body of {body_bytes} bytes; the file has {size}")
            kind = message.integer(1, "B")
            if kind == _DICTIONARY:
                raise ValueError("it has dictionaries, which are not supported: save it with plain columns")
            if (kind == _SCHEMA) != (not self._headers) or kind not in (_SCHEMA, _BATCH):
                raise ValueError(f"the message at byte {at} is of an unexpected kind, {kind}")
            yield kind, header, body
            at = body + body_bytes

    def _batch(self, header: bytes, body: int) -> RowBatch:
        batch = FlatTable.root(header).table(2)
        if batch.has(3):
            raise ValueError("its batches are compressed, which is not supported: save it without compression")
        num_rows = batch.integer(0, "q")
        nodes = list(batch.pairs(1))
        buffers = list(batch.pairs(2))
        size = self.version.num_bytes
        if num_rows < 0 or any(start < 0 or length < 0 or body + start + length > size for start, length in buffers):
            raise ValueError("a batch has a buffer outside the file")
        return RowBatch(
            num_rows, tuple(missing for _, missing in nodes), tuple((body + at, length) for at, length in buffers)
        )


class FlatTable:
    """The table at byte `at` of the FlatBuffer `data`."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - self._read("i", at)
        self._size = self._read("H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> "FlatTable":
        """The outermost table."""
        return cls(data, struct.unpack_from("<I", data)[0])

    def has(self, number: int) -> bool:
        """Whether there is a field with this number."""
        return bool(self._place(number))

    def integer(self, number: int, code: str) -> int:
        """An integer of the type `code` of `struct`; 0 if it is absent."""
        place = self._place(number)
        return self._read(code, place) if place else 0

    def table(self, number: int) -> "FlatTable":
        """A nested table."""
        place = self._place(number)
        if not place:
            raise ValueError("a header is incomplete")
        return FlatTable(self._data, place + self._read("I", place))

    def pairs(self, number: int) -> Iterator[tuple[int, int]]:
        """A vector of structs of two 64-bit integers."""
        place = self._place(number)
        if not place:
            return iter(())
        start = place + self._read("I", place)
        count = self._read("I", start)
        return iter(list(_NODE.iter_unpack(self._data[start + 4 : start + 4 + count * _NODE.size])))

    def _place(self, number: int) -> int:
        """The offset of the field; 0 if it is absent."""
        entry = 4 + 2 * number
        if entry + 2 > self._size:
            return 0
        offset = self._read("H", self._fields + entry)
        return self._at + offset if offset else 0

    def _read(self, code: str, at: int) -> int:
        if at < 0:
            raise ValueError("a header refers to what is before it")
        return int(struct.unpack_from(f"<{code}", self._data, at)[0])


def _has_offsets(kind: Any) -> bool:
    """Whether the array has a buffer of offsets."""
    types = importlib.import_module("pyarrow").types
    checks: tuple[Callable[[Any], bool], ...] = (
        *(types.is_string, types.is_large_string, types.is_binary, types.is_large_binary),
        *(types.is_list, types.is_large_list, types.is_map),
    )
    return any(check(kind) for check in checks)


def _laid_out(kind: Any, node: int, buffer: int) -> tuple[Layout, int, int]:
    """(layout of an array of this type, number of the next node, of the next buffer)."""
    types = importlib.import_module("pyarrow").types
    if types.is_null(kind):
        own_buffers = 0
    elif types.is_struct(kind) or types.is_fixed_size_list(kind):
        own_buffers = 1
    else:
        own_buffers = 3 if _has_offsets(kind) and not kind.num_fields else 2
    own = node, buffer
    node, buffer = node + 1, buffer + own_buffers
    children = []
    for number in range(kind.num_fields):
        child, node, buffer = _laid_out(kind.field(number).type, node, buffer)
        children.append(child)
    return Layout(kind, *own, tuple(children)), node, buffer


def _numbers(layout: Layout) -> Iterator[int]:
    """The numbers of the buffers of an array and its children."""
    types = importlib.import_module("pyarrow").types
    kind = layout.kind
    if types.is_null(kind):
        return
    num_own = (
        1
        if types.is_struct(kind) or types.is_fixed_size_list(kind)
        else 2 + (_has_offsets(kind) and not kind.num_fields)
    )
    yield from range(layout.buffer, layout.buffer + num_own)
    for child in layout.children:
        yield from _numbers(child)
