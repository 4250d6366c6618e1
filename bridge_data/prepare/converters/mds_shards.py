"""MosaicML streaming shards: `index.json` and `.mds` files.

Enters: a folder. Leaves: a record for each sample, its columns decoded: text, numbers and JSON as such, images and
bytes as bytes. Shards compressed with gz or bz2, or with zstd, br or snappy if pyarrow is installed, are unpacked
one at a time. Guarantee: a shard whose table does not fit its size is a `DatasetError`, and nothing is unpickled.

A shard holds, in little-endian order: the number of samples (u32); the offset of each, and of the end (u32); a JSON
object about the columns; the samples. A sample holds the size (u32) of each column without a fixed size, then the
columns in the order of their names.

Source: the format of https://github.com/mosaicml/streaming (`streaming/base/format/mds`), written from scratch.
"""

import bz2
import functools
import gzip
import io
import itertools
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.later import Image, numpy
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.prepare.converters.source_records import (
    BrokenRecord,
    LastOpened,
    SourceRecord,
    digest_of_files,
    even_blocks,
)
from bridge_data.shards.plain_data import parse_json, parse_json_file

INDEX = "index.json"
BLOCK_RECORDS = 32

_NUMBERS = {"int", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"}
_FLOATS = {"float16", "float32", "float64"}
_AS_BYTES = {"bytes", "jpeg", "png"}
_LISTS = {"list[pil]": "pil", "list[jpeg]": "jpeg", "list[png]": "png", "jpeg_array": "jpeg", "jpegarray": "jpeg"}
_ARRAY_TYPES = dict(
    zip(
        (8, 9, 16, 17, 18, 32, 33, 34, 64, 65, 66),
        ["uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64", "float64"],
        strict=True,
    )
)
"""Types of arrays that state theirs, by number."""


class _MdsShard:
    """What the index says about a shard."""

    def __init__(self, folder: Path, entry: Any, which: str) -> None:
        try:
            if entry["format"] != "mds":
                raise ConfigError(f"{which}: has the format {entry['format']!r}; expected mds")
            raw, packed = entry["raw_data"], entry.get("zip_data")
            self.compression: str | None = entry.get("compression")
            self.num_bytes, self.count = int(raw["bytes"]), int(entry["samples"])
            name = str((raw if self.compression is None else packed)["basename"])
            plain = str(raw["basename"])
            columns = zip(entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True)
            self.columns = [(str(name), str(encoding), size) for name, encoding, size in columns]
            if not 0 <= 4 * self.count < self.num_bytes < 2**32 or not all(
                size is None or (type(size) is int and size >= 0) for _, _, size in self.columns
            ):
                raise ValueError("its sizes are impossible")
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{which}: is not valid MDS: {type(error).__name__}: {error}") from None
        if any(Path(one).is_absolute() or ".." in Path(one).parts for one in (name, plain)):
            raise ConfigError(f"{which}: names {name!r}, which is not in its folder")
        if (folder / plain).is_file():
            self.compression, name = None, plain
        self.path = folder / name


class MdsShards:
    """The samples of MDS shards."""

    title = "MDS shards"
    has_parts = False
    definition = None
    notes = ()
    is_scattered = True

    def __init__(self, folder: Path, limits: Limits = DEFAULT_LIMITS) -> None:
        path = folder / INDEX
        try:
            index = parse_json_file(path.read_bytes(), str(path), limits)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        entries = index.get("shards") if isinstance(index, dict) else None
        if not isinstance(entries, list) or not entries:
            raise ConfigError(f"{path}: expected an object with a list of shards, as in MDS")
        self._index, self._limits = path, limits
        self._shards = [_MdsShard(folder, entry, f"{path}, shard {number}") for number, entry in enumerate(entries)]
        self.is_scattered = all(shard.compression is None for shard in self._shards)
        self._firsts = [0]
        for shard in self._shards:
            _check_encodings(shard, path)
            self._firsts.append(self._firsts[-1] + shard.count)
        self._last: LastOpened[_Table] = LastOpened()

    def __len__(self) -> int:
        return self._firsts[-1]

    def blocks(self) -> Iterator[range]:
        for shard, first in zip(self._shards, self._firsts, strict=False):
            for block in even_blocks(shard.count, BLOCK_RECORDS):
                yield range(first + block.start, first + block.stop)

    def read(self, numbers: Sequence[int]) -> Iterator[SourceRecord | BrokenRecord]:
        for number in numbers:
            which = bisect_right(self._firsts, number) - 1
            shard = self._shards[which]
            position = number - self._firsts[which]
            where = f"{shard.path.name}, sample {position}"
            try:
                yield SourceRecord(number, where, self._last.get(which, self._table).sample(position))
            except (ValueError, IndexError, struct.error, SyntaxError, OverflowError, DatasetError) as error:
                yield BrokenRecord(number, where, f"cannot be decoded: {error}")

    def _table(self, which: int) -> "_Table":
        return _Table(self._shards[which], self._limits)

    def fingerprint(self) -> str:
        return digest_of_files([self._index, *(shard.path for shard in self._shards)])


class _Table:
    """An open shard: where each sample is."""

    def __init__(self, shard: _MdsShard, limits: Limits) -> None:
        self._shard = shard
        self._read = _reader(shard, limits)
        (count,) = struct.unpack("<I", self._read(0, 4))
        head = self._read(4, 4 * (shard.count + 1)) if count == shard.count else b""
        self._offsets = struct.unpack(f"<{len(head) // 4}I", head)
        first = 4 + len(head)
        if count != shard.count or self._offsets[-1] != shard.num_bytes or self._offsets[0] < first:
            raise DatasetError(
                f"{shard.path}: holds {count} samples, expected {shard.count} in {shard.num_bytes} bytes: it is "
                "truncated or was replaced"
            )

    def sample(self, position: int) -> dict[str, Any]:
        """The columns of a sample."""
        start, end = self._offsets[position], self._offsets[position + 1]
        if not start <= end <= self._shard.num_bytes:
            raise ValueError(f"its bytes are {start} to {end} of {self._shard.num_bytes}")
        data = self._read(start, end - start)
        num_sizes = sum(size is None for _, _, size in self._shard.columns)
        sizes = iter(struct.unpack_from(f"<{num_sizes}I", data))
        at = 4 * num_sizes
        values = {}
        for name, encoding, size in self._shard.columns:
            num_bytes = next(sizes) if size is None else size
            if at + num_bytes > len(data):
                raise ValueError(f"column {name!r} goes beyond its end")
            values[name] = decode_value(encoding, data[at : at + num_bytes])
            at += num_bytes
        if at != len(data):
            raise ValueError(f"has {len(data)} bytes, of which its columns are {at}")
        return values


def _reader(shard: _MdsShard, limits: Limits) -> Callable[[int, int], bytes]:
    """A function from (offset, size) to bytes of the uncompressed shard."""
    try:
        file: Any = open(shard.path, "rb")  # noqa: SIM115  closed with what reads it
        if shard.compression is not None:
            if shard.num_bytes > limits.max_unpacked_bytes:
                raise DatasetError(
                    f"{shard.path}: has {shard.num_bytes} bytes when unpacked, more than the "
                    f"{limits.max_unpacked_bytes} allowed (Limits(max_unpacked_bytes))"
                )
            with file:
                unpacked = _unpacking(shard.compression, file).read(shard.num_bytes + 1)
            file = io.BytesIO(unpacked)
        num_bytes = file.seek(0, io.SEEK_END)
    except OSError as error:
        raise DatasetError(f"{shard.path}: cannot be read: {error.strerror or error}") from None
    except (EOFError, ValueError) as error:
        raise DatasetError(f"{shard.path}: cannot be unpacked: {error}") from None
    if num_bytes != shard.num_bytes:
        raise DatasetError(f"{shard.path}: has {num_bytes} bytes; {INDEX} says {shard.num_bytes}")

    def read(offset: int, count: int) -> bytes:
        file.seek(offset)
        data: bytes = file.read(count)
        if len(data) < count:
            raise DatasetError(f"{shard.path}: ends within its table")
        return data

    return read


def _unpacking(compression: str, file: Any) -> Any:
    """A file of what `file` unpacks to."""
    name = compression.partition(":")[0]
    if name == "gz":
        return gzip.GzipFile(fileobj=file)
    if name == "bz2":
        return bz2.BZ2File(file)
    pyarrow_name = {"zstd": "zstd", "br": "brotli"}.get(name)
    if pyarrow_name is None:
        raise ValueError(f"the compression {compression!r} is none of gz, bz2, zstd, br")
    from bridge_data.prepare.converters.columnar_tables import arrow  # imported here: slow

    return arrow().CompressedInputStream(file, pyarrow_name)


def _check_encodings(shard: _MdsShard, path: Path) -> None:
    for name, encoding, _ in shard.columns:
        if encoding == "pkl":
            raise ConfigError(f"{path}: column {name!r} holds pickles, which are never read")
        try:
            decode_value(encoding, None)
        except KeyError:
            raise ConfigError(f"{path}: column {name!r} has the encoding {encoding!r}, which is not known") from None


def decode_value(encoding: str, data: bytes | None) -> Any:
    """The value of a column; None of None.

    Raises:
        KeyError: for an unknown encoding. ValueError: for bytes that do not fit it.
    """
    name, _, details = encoding.partition(":")
    decode = _decoder(name, details)
    return None if data is None else decode(data)


@functools.lru_cache(maxsize=64)
def _decoder(name: str, details: str) -> Callable[[bytes], Any]:
    if name in _AS_BYTES:
        return bytes
    if name in ("str", "str_decimal"):
        return lambda data: data.decode()
    if name == "json":
        return parse_json
    if name in _NUMBERS:
        kind = "int64" if name == "int" else name
        return lambda data: _single(data, kind)
    if name in _FLOATS:
        return lambda data: float(_single(data, name))
    if name in ("str_int", "str_float"):
        return lambda data: int(data) if name == "str_int" else float(data)
    if name == "pil":
        return _picture
    if name == "ndarray":
        return functools.partial(_array, details)
    if name in _LISTS:
        return functools.partial(_list, _decoder(_LISTS[name], ""), 4 * name.startswith("list"))
    raise KeyError(name)


def _single(data: bytes, kind: str) -> Any:
    (value,) = numpy.frombuffer(data, f"<{numpy.dtype(kind).str[1:]}")
    return value.item()


def _picture(data: bytes) -> bytes:
    """The PNG of an image whose pixels are stored."""
    width, height, mode_bytes = struct.unpack_from("<3I", data)
    mode = data[12 : 12 + mode_bytes].decode()
    if width * height > DEFAULT_LIMITS.max_image_pixels:
        raise ValueError(f"has {width} x {height} pixels, more than are allowed (Limits(max_image_pixels))")
    stream = io.BytesIO()
    Image.frombytes(mode, (width, height), data[12 + mode_bytes :]).save(stream, "PNG")
    return stream.getvalue()


def _array(details: str, data: bytes) -> Any:
    """The numbers of an array as lists; type and shape are in `details` (`int32:3,4`), or precede the numbers."""
    kind, _, shape = details.partition(":")
    at = 0
    if not kind:
        if data[:1] and data[0] not in _ARRAY_TYPES:
            raise ValueError(f"an array has the type {data[0]}, which is not known")
        kind, at = _ARRAY_TYPES[data[0]], 1
    if shape:
        sizes = [int(size) for size in shape.split(",")]
    else:
        num_axes, width = data[at] >> 2, 1 << (data[at] & 3)
        sizes = numpy.frombuffer(data[at + 1 : at + 1 + num_axes * width], f"<u{width}").tolist()
        at += 1 + num_axes * width
    return numpy.frombuffer(data[at:], numpy.dtype(kind).newbyteorder("<")).reshape(sizes).tolist()


def _list(decode: Callable[[bytes], Any], start: int, data: bytes) -> list[Any]:
    """Images, whose count and sizes (u32) are at byte `start`."""
    (count,) = struct.unpack_from("<I", data, start)
    sizes = struct.unpack_from(f"<{min(count, len(data))}I", data, start + 4)
    ends = list(itertools.accumulate(sizes, initial=start + 4 + 4 * count))
    if ends[-1] != len(data):
        raise ValueError(f"a list of images has {len(data)} bytes; expected {ends[-1]}")
    return [decode(data[begin:end]) for begin, end in itertools.pairwise(ends)]


def is_mds(folder: Path) -> bool:
    """Whether the folder holds MDS shards, judged by the start of its index."""
    try:
        with open(folder / INDEX, "rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return False
    return b'"mds"' in head and b'"shards"' in head and head.lstrip()[:1] == b"{"
