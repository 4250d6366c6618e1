"""Chunks that litData writes (`optimize`), as tables whose rows can be read singly.

Reads a file `chunk-0-0.bin`, also compressed as a whole, and the `index.json` beside it, which names the chunks and the
formats of their fields. A field is named by its path in the sample: `image`, `box.0`; the only one of a sample without
any is `value`. Values are texts, numbers, arrays of NumPy and tensors; images, other media and bytes are bytes. Tokens
that were written for a `TokensLoader` are a sample for each item that was written.

Raises `ConfigError` for formats that are not read, which are unknown ones, pickles, encrypted chunks and those that are
compressed in parts; `DatasetError` for damaged files.

Source: the format of https://github.com/Lightning-AI/litData (`litdata/streaming`), written from scratch.
"""

import functools
import importlib
import itertools
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

from bridge_data import storage
from bridge_data.data.plain_data import parse_json, parse_json_file
from bridge_data.data.sample_offsets import DIGESTED_BYTES
from bridge_data.errors import ConfigError
from bridge_data.later import numpy, torch
from bridge_data.plan.folder_contents import INDEX
from bridge_data.plugins.tables.binary_shard import (
    BinaryField,
    BinaryShard,
    check_count,
    is_file_name,
    list_of,
    number_of,
    png_of_pixels,
)
from bridge_data.plugins.tables.table_columns import (
    DECODED,
    Column,
    TableFile,
    checked_rows,
    pyarrow_for,
    values_of_rows,
)

_BYTES = ("bytes", "jpeg", "pil", "image", "video", "audio", "file", "tifffile", "tiff", "pdf", "nifti", "mesh")
_TYPES = {
    **dict.fromkeys(_BYTES, "binary"),
    **dict.fromkeys(("str", "text"), "string"),
    "int": "int64",
    "float": "float64",
    "bool": "bool",
}
"""The Arrow types of values."""
_ARRAYS = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bool",
)
_TENSORS = (
    "float32",
    "float32",
    "float64",
    "float64",
    "complex64",
    "complex64",
    "complex128",
    "complex128",
    "float16",
    "float16",
    "bfloat16",
    "uint8",
    "int8",
    "int16",
    "int16",
    "int32",
    "int32",
    "int64",
    "int64",
    "bool",
    "uint16",
)
"""Types of arrays and of tensors, by their numbers."""


class LitDataIndex(NamedTuple):
    """What the index says: the number of samples of each chunk; names and formats of the fields; and whether the chunks
    hold tokens."""

    counts: dict[str, int]
    fields: list[tuple[str, str]]
    has_tokens: bool


_PACKED = ".zstd.bin"
"""The end of the names of compressed chunks."""

_MAGIC = b"LDARW01\0"
"""The end of a chunk whose rows are Arrow record batches, before it their size (u32)."""

_BATCH_ROWS = 256
"""Rows of each record batch but the last."""

_NUMBERS = itertools.count()


def read_index(data: bytes, path: str) -> LitDataIndex:
    """The index at `path`.

    Raises:
        ConfigError: if it is not valid, or names data that are not read.
    """
    index = parse_json_file(data, path)
    try:
        config, chunks = index["config"], index["chunks"]
        counts = {str(chunk["filename"]): chunk["chunk_size"] for chunk in chunks}
        _check_read(config, path)
        has_tokens = config.get("item_loader") == "TokensLoader"
        names = ["tokens"] if has_tokens else list(_names(parse_json(config["data_spec"])[1]))
        fields = list(zip(names, map(str, config["data_format"]), strict=True))
        if not counts or any(type(count) is not int or count < 0 for count in counts.values()):
            raise ValueError("expected a list of chunks with their numbers of samples")
    except ConfigError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: is not the index of litData: {type(error).__name__}: {error}") from None
    for name in counts:
        if os.path.basename(name) != name or not is_file_name(name, ".bin"):
            raise ConfigError(f"{path}: names {name[:300]!r}, which is not in its folder, or no file .bin")
    return LitDataIndex(counts, fields, has_tokens)


def _check_read(config: dict[str, Any], path: str) -> None:
    """Raise an error for chunks that are not read."""
    level, loader = config.get("compression_level"), config.get("item_loader") or "PyTreeLoader"
    problem = None
    if config.get("encryption"):
        problem = "are encrypted"
    elif level not in (None, "chunk"):
        problem = f"are compressed by the {level}"
    elif config.get("compression") and not config["compression"].startswith("zstd"):
        problem = f"are compressed by {config['compression']}"
    elif loader not in ("PyTreeLoader", "TokensLoader"):
        problem = f"are for a {loader}"
    if problem:
        raise ConfigError(
            f"{path}: its chunks {problem}, which is not read: run litData's `optimize` again without that, or write "
            "its samples with `bridge_data.write`"
        )


def _names(node: dict[str, Any], path: str = "") -> Iterator[str]:
    """The names of the fields below a node of the tree that a sample is."""
    if node["type"] is None:
        yield path or "value"
        return
    keys, children = parse_json(node["context"]), node["children_spec"]
    if not isinstance(keys, list) or len(keys) != len(children):
        keys = range(len(children))
    for key, child in zip(keys, children, strict=True):
        yield from _names(child, f"{path}.{key}" if path else str(key))


def open_chunk(path: str, version: storage.Version | None = None) -> TableFile:
    """The chunk at `path`, whichever way it stores its rows; a compressed one that is not there may be unpacked beside,
    as litData leaves it."""
    if path.endswith(_PACKED) and not storage.is_file(path):
        path = f"{path.removesuffix(_PACKED)}.bin"
    num_bytes = storage.version(path).num_bytes
    is_arrow = num_bytes > len(_MAGIC) and storage.read(path, num_bytes - len(_MAGIC), len(_MAGIC)) == _MAGIC
    return LitDataRows(path, version) if is_arrow else LitDataTable(path, version)


class LitDataTable(BinaryShard):
    """The chunk at `path`, with the fields of each sample one after the other."""

    kind: ClassVar[str] = "a chunk of litData"

    def __init__(self, path: str, version: storage.Version | None = None) -> None:
        self._index = _index_beside(path)
        self.is_bare = self._index.has_tokens
        name = os.path.basename(path)
        super().__init__(path, version, "zstd" if name.endswith(_PACKED) else "")
        check_count(self, name, self._index.counts)

    def found_fields(self, header: bytes) -> list[BinaryField]:
        if header:
            raise ValueError(f"its samples begin {len(header)} bytes after their offsets")
        found = []
        for name, kind in self._index.fields:
            found.append(BinaryField(name, None, _decoder(name, kind, self.path), _TYPES.get(kind.partition(":")[0])))
        return found

    def identity(self) -> bytes:
        """Also the names and formats of the fields."""
        return super().identity() + str(self._index.fields).encode()


class LitDataRows(TableFile):
    """The chunk at `path`, with the rows in an Arrow IPC file in it, which litData writes for samples of texts, numbers
    and lists alone. Of a record batch all is read."""

    kind: ClassVar[str] = "a chunk of litData"
    group_name: ClassVar[str] = "chunk"

    def __init__(self, path: str, version: storage.Version | None = None) -> None:
        self._number = next(_NUMBERS)
        super().__init__(path, version)
        with self.as_dataset_error(f"cannot be read as {self.kind}"):
            end = self.version.num_bytes - len(_MAGIC) - 4
            ((count,), (num_bytes,)) = (struct.unpack("<I", self.read_bytes(at, 4)) for at in (0, end))
            if not 4 <= end - num_bytes <= end:
                raise ValueError(f"its rows have {num_bytes} bytes of {end}")
            ipc = importlib.import_module("pyarrow.ipc")
            rows = storage.RangeFile(self.read_bytes, end - num_bytes, num_bytes)
            self._reader = ipc.open_file(pyarrow_for(path).PythonFile(rows, "r"))
            if self._reader.num_record_batches != -(-count // _BATCH_ROWS):
                raise ValueError(f"it has {self._reader.num_record_batches} record batches for {count} rows")
            self.schema = self._reader.schema
            self._digested = self.read_bytes(max(0, end - DIGESTED_BYTES), min(end, DIGESTED_BYTES))
        self.counts = [count]
        check_count(self, os.path.basename(path), _index_beside(path).counts)

    def identity(self) -> bytes:
        """The end of the rows, which says where they are."""
        return self._digested

    def column_bytes(self, group: int, column: Column) -> int:
        """An estimate: all columns of all record batches are as those of the first."""
        batch = self._batch(0)
        return int(batch.column(column.name).nbytes * self.counts[0] // batch.num_rows)

    def unit_bytes(self, group: int, column: Column) -> int:
        """The size of the first record batch."""
        return int(self._batch(0).nbytes)

    def values(self, column: Column, group: int, first: int, end: int) -> list[Any]:
        found: list[Any] = []
        with self.as_dataset_error(f"column {column.name!r}: cannot be read, rows {first} to {end - 1}"):
            for number in range(first // _BATCH_ROWS, -(-end // _BATCH_ROWS)):
                start, batch = number * _BATCH_ROWS, self._batch(number)
                begin, stop = max(first - start, 0), min(end - start, batch.num_rows)
                found += values_of_rows(checked_rows(batch.column(column.name).slice(begin, stop - begin)))
        return found

    def _batch(self, number: int) -> Any:
        key = (-1, self._number, number)
        if (kept := DECODED.get(key)) is not None:
            return kept[1]
        with self.as_dataset_error(f"record batch {number}: cannot be read"):
            batch = self._reader.get_batch(number)
            if batch.num_rows != min(_BATCH_ROWS, self.counts[0] - number * _BATCH_ROWS):
                raise ValueError(f"it has {batch.num_rows} rows")
            return DECODED.keep(key, (0, batch))[1]


def _index_beside(path: str) -> LitDataIndex:
    """The index beside the chunk at `path`."""
    file = storage.location(path).with_name(INDEX)
    return _index_at(str(file), storage.version(file))


@functools.lru_cache(maxsize=8)
def _index_at(path: str, version: storage.Version) -> LitDataIndex:
    return read_index(storage.read_all(path), path)


def _decoder(name: str, kind: str, path: str) -> Callable[[bytes], Any]:
    """What makes a value of the bytes of the field `name`, whose format is `kind`; it raises any exception for bytes
    that do not fit."""
    start, _, details = kind.partition(":")
    if start == "pil":
        return png_of_pixels
    if start in _BYTES:
        return bytes
    if start in ("no_header_numpy", "no_header_tensor"):
        types = _ARRAYS if start == "no_header_numpy" else _TENSORS
        return functools.partial(_array, start == "no_header_tensor", types[int(details)], None, 0)
    decoders: dict[str, Callable[[bytes], Any]] = {
        "str": bytes.decode,
        "text": bytes.decode,
        "int": functools.partial(number_of, "int64"),
        "float": functools.partial(number_of, "float64"),
        "bool": functools.partial(number_of, "bool"),
        "numpy": functools.partial(_shaped, _ARRAYS),
        "tensor": functools.partial(_shaped, _TENSORS),
        "jpeg_array": functools.partial(list_of, bytes, 0),
    }
    if start not in decoders:
        raise ConfigError(
            f"{path}: field {name!r} holds "
            + ("pickles, which are never read, as they may run any code" if start == "pickle" else f"{kind!r}")
            + ": run litData's `optimize` again with a field of text, numbers, bytes, an array or a tensor instead"
        )
    return decoders[start]


def _shaped(types: tuple[str, ...], data: bytes) -> Any:
    """The array whose type, number of axes and shape precede its numbers: big-endian in tensors of newer versions."""
    order = "<" if data[0] or data[4] else ">"
    kind, num_axes = struct.unpack_from(f"{order}2I", data)
    shape = struct.unpack_from(f"{order}{num_axes}I", data, 8)
    return _array(types is _TENSORS, types[kind], shape, 8 + 4 * num_axes, data)


def _array(is_tensor: bool, kind: str, shape: tuple[int, ...] | None, start: int, data: bytes) -> Any:
    found = numpy.frombuffer(data[start:], numpy.dtype(kind).newbyteorder("<")).copy()
    found = found if shape is None else found.reshape(shape)
    return torch.from_numpy(found) if is_tensor else found
