"""A file of Arrow record batches, as `datasets` writes them (`save_to_disk`), whose rows can be read singly.

Reads an Arrow IPC stream or an Arrow IPC file. Opening reads only the headers of the batches. pyarrow maps a file on a
disk into memory, and cuts batches, columns and rows out of it without copying: a row costs what its own bytes cost. A
batch that is compressed, or in an object store, is read as a whole.

Raises `DatasetError`, naming the file, the batch and the column, if the file is damaged, or was replaced since it was
opened. Sizes are checked before bytes of the map are touched; only a file that is truncated in place in the midst of a
read ends the process, as with every map.

Source: https://arrow.apache.org/docs/format/Columnar.html, `Message.fbs` and `File.fbs`
"""

import functools
import importlib
import itertools
import mmap
import struct
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from bridge_data import storage
from bridge_data.counts import COUNTS
from bridge_data.data.records import READ_BYTES
from bridge_data.errors import DatasetError
from bridge_data.plugins.tables.table_columns import (
    DECODED,
    MAX_UNIT_BYTES,
    Column,
    TableFile,
    checked_rows,
    values_of_rows,
)
from bridge_data.storage import RangeFile

pyarrow: Any = importlib.import_module("pyarrow")
importlib.import_module("pyarrow.ipc")

MAX_MAPPED = 128
"""Maximum files that a process keeps mapped; each takes a descriptor."""

_FILE_MAGIC = b"ARROW1"
_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_MAX_HEADER_BYTES = 1 << 26

_ONE, _TWO = struct.Struct("<I"), struct.Struct("<II")
_SIZE = struct.Struct("<q")
_BUFFER = struct.Struct("<qq")
_BLOCK = struct.Struct("<qi4xq")

_NUMBERS = itertools.count()


class Message(NamedTuple):
    """A message of the file: its kind, its first byte, its header, and the bytes of its body, from `body` to `end`."""

    kind: int
    start: int
    header: bytes
    body: int
    end: int


class RowBatch(NamedTuple):
    """A record batch: its message is bytes `start` to `end` of the file; its body begins at `body`. `unpacked_bytes` is
    its size if it is compressed, else 0; `num_before` the number of dictionaries that it may use."""

    header: bytes
    start: int
    body: int
    end: int
    num_rows: int
    unpacked_bytes: int
    num_before: int


class ArrowTable(TableFile):
    """The Arrow file at `path`, in `version` (None: the current one)."""

    kind: ClassVar[str] = "Arrow file"
    group_name: ClassVar[str] = "record batch"
    is_alone: ClassVar[bool] = True
    _outlined: ClassVar[tuple[tuple[int, int], Any]] = (-1, -1), None
    """(number of the table, group) and outline of the batch that was outlined last: one in the process, as it takes
    address space."""

    _unpacked: ClassVar[tuple[tuple[int, int], Any]] = (-1, -1), None
    """The same of the compressed batch that was last read in order, and the batch: one in the process, as it may be
    large."""

    def __init__(self, path: str, version: storage.Version | None = None) -> None:
        super().__init__(path, version)
        self._number = next(_NUMBERS)
        """The number of this table, unique in the process."""
        self._headers: list[bytes] = []
        self._head = 0, 0
        """The bytes of the schema's message in a stream."""
        self._dictionaries: list[tuple[int, int]] = []
        """The bytes of each message with values of a dictionary."""
        self._batches: list[RowBatch] = []
        self._checked_dictionaries: set[int] = set()
        with self.as_dataset_error("cannot be read as an Arrow stream: it is damaged, or cut off"):
            size = self.version.num_bytes
            self._is_file = self.read_bytes(0, min(len(_FILE_MAGIC), size)) == _FILE_MAGIC
            for message in self._of_file() if self._is_file else self._of_stream():
                self._add(message)
            if not self._headers:
                raise ValueError("it has no schema")
            self.counts = [batch.num_rows for batch in self._batches]

    def identity(self) -> bytes:
        """The headers of all batches."""
        return b"".join(self._headers)

    def column_bytes(self, group: int, column: Column) -> int:
        with self.as_dataset_error(f"record batch {group}, column {column.name!r}: cannot be read"):
            batch = self._batches[group]
            if batch.unpacked_bytes or (self._is_remote and self._dictionaries):
                return (batch.unpacked_bytes or batch.end - batch.body) // len(self.schema)  # reading it would tell
            array = self._column(self._outline(group) if self._is_remote else self._batch(group), column)
            if column.is_media:
                array = array.field(column.field)
            return int(array.get_total_buffer_size())

    def unit_bytes(self, group: int, column: Column) -> int:
        unpacked_bytes = self._batches[group].unpacked_bytes
        return unpacked_bytes or self.column_bytes(group, column) // max(1, self.counts[group])

    def values(self, column: Column, group: int, first: int, end: int) -> list[Any]:
        place = f"record batch {group}, column {column.name!r}"
        with self.as_dataset_error(f"{place}: cannot be read, rows {first} to {end - 1}"):
            if not 0 <= first <= end <= self.counts[group]:
                raise IndexError(f"there are {self.counts[group]} rows")
            batch = self._batch(group)
            array = self._column(batch, column)
            rows = array.slice(first, end - first)
            if column.is_media:
                rows = rows.flatten()[rows.type.get_field_index(column.field)]
            if not self._is_remote:
                COUNTS.bytes_read += rows.get_total_buffer_size() * len(rows) // max(1, len(array))
            return values_of_rows(checked_rows(rows))

    def values_in_order(self, columns: Sequence[Column], group: int, first: int, end: int) -> list[list[Any]]:
        key = self._number, group
        if self._batches[group].unpacked_bytes and ArrowTable._unpacked[0] != key:
            ArrowTable._unpacked = key, self._batch(group)
        return super().values_in_order(columns, group, first, end)

    @property
    def _is_remote(self) -> bool:
        return storage.is_remote(self.path)

    def _column(self, batch: Any, column: Column) -> Any:
        at = self.schema.get_field_index(column.name)
        if at < 0:
            raise DatasetError(f"{self.path}: there is no column {column.name!r}")
        return batch.column(at)

    def _batch(self, group: int) -> Any:
        """Record batch `group`; its bytes are in the map, or in memory."""
        key, (last_unpacked, batch) = (self._number, group), ArrowTable._unpacked
        if last_unpacked == key:
            return batch
        opened = None if self._is_remote else self._mapped()
        if opened is None or self._batches[group].unpacked_bytes:
            return (DECODED.get(key) or DECODED.keep(key, (0, self._read(group, opened))))[1]
        last = opened.last
        if last is None or last[0] != group:
            last = opened.last = group, self._read(group, opened)
        return last[1]

    def _read(self, group: int, opened: "MappedFile | None") -> Any:
        """Record batch `group`, whose nodes and buffers are as long as its columns need."""
        batch = self._batches[group]
        if self._is_file:
            found = (self._reader if opened is None else opened.reader).get_batch(group)
        elif not batch.num_before:
            found = pyarrow.ipc.read_record_batch(self._bytes(opened, batch.start, batch.end), self.schema)
        else:
            needed = [self._head, *self._dictionaries[: batch.num_before], (batch.start, batch.end)]
            buffers = [self._bytes(opened, *one) for one in needed]
            found = pyarrow.ipc.open_stream(_in_sequence(buffers)).read_next_batch()
        if found.num_rows != batch.num_rows:
            raise ValueError(f"it has {found.num_rows} rows, and its header says {batch.num_rows}")
        found.validate()
        if self._dictionaries and batch.num_before not in self._checked_dictionaries:
            found.validate(full=True)  # once, as batches share them
            self._checked_dictionaries.add(batch.num_before)
        return found

    def _bytes(self, opened: "MappedFile | None", start: int, end: int) -> Any:
        """Bytes of the file as a buffer."""
        if opened is None:
            return pyarrow.py_buffer(self.read_bytes(start, end - start))
        return opened.content.slice(start, end - start)

    def _mapped(self) -> "MappedFile":
        """The mapped file, which is as long as it was: to touch a page beyond its end would end the process."""
        self.file.check(storage.version(self.path))
        return _mapped_file(self.path, self.version, self._is_file)

    @functools.cached_property
    def _reader(self) -> Any:
        """pyarrow's reader of a file in the file format, by ranges."""
        return pyarrow.ipc.open_file(pyarrow.PythonFile(RangeFile(self.read_bytes, 0, self.version.num_bytes), "r"))

    def _outline(self, group: int) -> Any:
        """Record batch `group` with its header alone, for the sizes of its buffers."""
        key, (last, outline) = (self._number, group), ArrowTable._outlined
        if last != key:
            batch = self._batches[group]
            head = _TWO.pack(_CONTINUATION, len(batch.header)) + batch.header
            memory = mmap.mmap(-1, len(head) + batch.end - batch.body)  # pages that no one touches take no memory
            memory[: len(head)] = head
            outline = pyarrow.ipc.read_record_batch(pyarrow.py_buffer(memory), self.schema)
            ArrowTable._outlined = key, outline
        return outline

    def _add(self, message: Message) -> None:
        """Note a message; the first one is the schema's."""
        kind, start, header, body, end = message
        if (kind == _SCHEMA) != (not self._headers) or kind not in (_SCHEMA, _DICTIONARY, _BATCH):
            raise ValueError(f"the message at byte {start} is of an unexpected kind, {kind}")
        self._headers.append(header)
        if kind == _SCHEMA:
            self._head = start, end
            if not self._is_file:
                prefix = _TWO.pack(_CONTINUATION, len(header))
                self.schema = pyarrow.ipc.read_schema(pyarrow.BufferReader(prefix + header))
        elif kind == _DICTIONARY:
            self._dictionaries.append((start, end))
        else:
            table = FlatTable.root(header).table(2)
            num_rows = table.integer(0, "q")
            if num_rows < 0:
                raise ValueError(f"the batch at byte {start} has {num_rows} rows")
            unpacked = self._unpacked_bytes(table, body) if table.has(3) else 0
            self._batches.append(RowBatch(header, start, body, end, num_rows, unpacked, len(self._dictionaries)))

    def _unpacked_bytes(self, batch: "FlatTable", body: int) -> int:
        """The size of a compressed batch, whose buffers each begin with their own. In a store, sizes that are near one
        another are read at once: a request takes longer than the bytes between them."""
        buffers = sorted((body + at, length) for at, length in batch.structs(2, _BUFFER) if length)
        window, num_bytes = READ_BYTES if self._is_remote else 1, 0
        for _, group in itertools.groupby(buffers, lambda buffer: buffer[0] // window):
            near = list(group)
            first = near[0][0]
            data = self.read_bytes(first, near[-1][0] + _SIZE.size - first)
            for start, length in near:
                (size,) = _SIZE.unpack_from(data, start - first)
                num_bytes += length if size < 0 else size
        if num_bytes > MAX_UNIT_BYTES:
            raise ValueError(
                f"a compressed batch unpacks to {num_bytes >> 20} MiB, more than the {MAX_UNIT_BYTES >> 20} MiB that "
                "are held at once: write it in smaller batches, or without compression"
            )
        return max(1, num_bytes)

    def _of_stream(self) -> Iterator[Message]:
        """The messages of a stream."""
        at, size = 0, self.version.num_bytes
        while at + _TWO.size <= size and (message := self._message(at)) is not None:
            yield message
            at = message.end

    def _of_file(self) -> Iterator[Message]:
        """The messages that the footer of a file names: the schema's, dictionaries, batches. In the place of the first,
        which some writers leave out, is then the footer."""
        reader = self._reader if self._is_remote else self._mapped().reader
        self.schema = reader.schema
        size = self.version.num_bytes
        (footer_bytes,) = _ONE.unpack(self.read_bytes(size - len(_FILE_MAGIC) - _ONE.size, _ONE.size))
        end = size - len(_FILE_MAGIC) - _ONE.size
        footer = self.read_bytes(end - footer_bytes, footer_bytes)
        is_stream = self.read_bytes(8, 4) == _ONE.pack(_CONTINUATION)
        yield (self._message(8) if is_stream else None) or Message(_SCHEMA, 0, footer, 0, 0)
        for number, kind in ((2, _DICTIONARY), (3, _BATCH)):
            for start, _, _ in FlatTable.root(footer).structs(number, _BLOCK):
                message = self._message(start)
                if message is None or message.kind != kind:
                    raise ValueError(f"the message at byte {start} is not what the footer says")
                yield message

    def _message(self, at: int) -> Message | None:
        """The message at byte `at`; None if it is the end of the stream."""
        size = self.version.num_bytes
        marker, header_bytes = _TWO.unpack(self.read_bytes(at, _TWO.size))
        start = at + _TWO.size
        if marker != _CONTINUATION:  # as before Arrow 0.15
            header_bytes, start = marker, at + _ONE.size
        if not header_bytes:
            return None
        body = start + header_bytes
        if header_bytes > _MAX_HEADER_BYTES or body > size:
            raise ValueError(f"there is no message at byte {at}, or it has a header of {header_bytes} bytes")
        header = self.read_bytes(start, header_bytes)
        message = FlatTable.root(header)
        body_bytes = message.integer(3, "q")
        if body_bytes < 0 or body + body_bytes > size:
            raise ValueError(f"the message at byte {at} has a body of {body_bytes} bytes; the file has {size}")
        return Message(message.integer(1, "B"), at, header, body, body + body_bytes)


class MappedFile:
    """A file mapped into memory; pyarrow's reader of it, for the file format; number and content of the batch that was
    read last."""

    def __init__(self, path: str, num_bytes: int, is_file: bool) -> None:
        with pyarrow.memory_map(path) as source:
            self.content = source.read_buffer()
        if self.content.size != num_bytes:
            raise ValueError(f"it has {self.content.size} bytes, and had {num_bytes} when it was opened")
        self.reader: Any = pyarrow.ipc.open_file(self.content) if is_file else None
        self.last: tuple[int, Any] | None = None


@functools.lru_cache(maxsize=MAX_MAPPED)
def _mapped_file(path: str, version: storage.Version, is_file: bool) -> MappedFile:
    """Also valid in forked children, as a map has no position."""
    return MappedFile(path, version.num_bytes, is_file)


def _in_sequence(buffers: Sequence[Any]) -> Any:
    """A file of pyarrow with the content of these buffers, one after the other."""
    starts = [0, *itertools.accumulate(buffer.size for buffer in buffers)]

    class MessageSource:
        """Never read across two messages."""

        closed = False
        position = 0

        def read_buffer(self, num_bytes: int) -> Any:
            number = next((at for at, end in enumerate(starts[1:]) if self.position < end), len(buffers) - 1)
            part = buffers[number].slice(self.position - starts[number], num_bytes)
            self.position += part.size
            return part

        read = read_buffer

        def close(self) -> None:
            self.closed = True

    return pyarrow.PythonFile(MessageSource(), "r")


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
        return bool(self._offset(number))

    def integer(self, number: int, code: str) -> int:
        """An integer of the type `code` of `struct`; 0 if it is absent."""
        offset = self._offset(number)
        return self._read(code, offset) if offset else 0

    def table(self, number: int) -> "FlatTable":
        """A nested table."""
        offset = self._offset(number)
        if not offset:
            raise ValueError("a header is incomplete")
        return FlatTable(self._data, offset + self._read("I", offset))

    def structs(self, number: int, form: struct.Struct) -> list[tuple[int, ...]]:
        """A vector of structs."""
        offset = self._offset(number)
        if not offset:
            return []
        start = offset + self._read("I", offset)
        count = self._read("I", start)
        return list(form.iter_unpack(self._data[start + 4 : start + 4 + count * form.size]))

    def _offset(self, number: int) -> int:
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
