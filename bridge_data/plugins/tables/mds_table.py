"""MDS shards, which MosaicML streaming writes, as tables whose rows can be read singly.

Reads a file `x.mds`, or one such as `x.mds.zstd` in its place; and the `index.json` that names the shards of a data
set. Values are texts, numbers, JSON and arrays of NumPy; images and bytes are bytes, and stored pixels the bytes of a
PNG.

Raises `ConfigError` for encodings that are not read, which are unknown ones and pickles; `DatasetError` for damaged
files.

Source: the format of https://github.com/mosaicml/streaming (`streaming/base/format/mds`), written from scratch.
"""

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

from bridge_data import storage
from bridge_data.data.plain_data import parse_json, parse_json_file
from bridge_data.errors import ConfigError
from bridge_data.later import numpy
from bridge_data.limits import DEFAULT_LIMITS, Limits
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
from bridge_data.plugins.tables.table_columns import MAX_UNIT_BYTES

PACKINGS = ("zstd", "gz", "bz2", "br", "snappy")
"""How shards may be compressed: the endings of their names."""

_NUMBERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_TYPES = {
    **dict.fromkeys(("bytes", "jpeg", "png", "pil"), "binary"),
    **dict.fromkeys(("str", "str_decimal"), "string"),
    **{name: name for name in _NUMBERS},
    "int": "int64",
    "float16": "halffloat",
    "str_float": "float64",
}
"""The Arrow types of values."""
_LISTS = {"list[pil]": "pil", "list[jpeg]": "jpeg", "list[png]": "png", "jpeg_array": "jpeg", "jpegarray": "jpeg"}
_ARRAY_TYPES = dict(
    zip(
        (8, 9, 16, 17, 18, 32, 33, 34, 64, 65, 66),
        ["uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64", "float64"],
        strict=True,
    )
)
"""Types of arrays that state theirs, by number."""


class MdsEntry(NamedTuple):
    """What the index says about a shard: its name, and its number of samples."""

    name: str
    num_samples: int


def read_index(data: bytes, path: str, limits: Limits = DEFAULT_LIMITS) -> list[MdsEntry]:
    """The shards that the index at `path` names.

    Raises:
        ConfigError: if it is not valid, or has other shards.
    """
    index = parse_json_file(data, path, limits)
    entries = index.get("shards") if isinstance(index, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}: expected an object with a list of shards, as in MDS")
    return [_entry(entry, f"{path}, shard {number}") for number, entry in enumerate(entries)]


def _entry(entry: Any, which: str) -> MdsEntry:
    try:
        found = MdsEntry(entry["raw_data"]["basename"], entry["samples"])
        kind = entry["format"], entry.get("version", 2)
        columns = zip(entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True)
        if kind != ("mds", 2):
            raise ConfigError(f"{which}: has the format {kind[0]!r} in version {kind[1]}; expected mds in version 2")
        if type(found.num_samples) is not int or not 0 <= 4 * found.num_samples < entry["raw_data"]["bytes"] < 2**32:
            raise ValueError("its sizes are impossible")
        _fields(columns, which)
        if not is_file_name(found.name, ".mds"):
            raise ConfigError(f"{which}: names {found.name[:300]!r}, which is not in its folder, or no file .mds")
    except ConfigError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{which}: is not valid MDS: {type(error).__name__}: {error}") from None
    return found


def stored_file(path: str) -> str:
    """The file that holds the shard at `path`: itself, or else a compressed one."""
    if storage.is_file(path):
        return path
    return next((file for packing in PACKINGS if storage.is_file(file := f"{path}.{packing}")), path)


class MdsTable(BinaryShard):
    """The shard at `path`, or the compressed one whose name has one more ending, if there is no file `path`."""

    kind: ClassVar[str] = "an MDS shard"

    def __init__(
        self, path: str, version: storage.Version | None = None, max_unpacked_bytes: int = MAX_UNIT_BYTES
    ) -> None:
        file = stored_file(path)
        super().__init__(file, version, file[len(path) + 1 :], max_unpacked_bytes)
        index = storage.location(path).with_name(INDEX)
        if index.is_file():  # of shards that a pattern names it may be missing
            check_count(self, os.path.basename(path), _counts_at(str(index), storage.version(index)))

    def found_fields(self, header: bytes) -> list[BinaryField]:
        config = parse_json(header)
        columns = zip(config["column_names"], config["column_encodings"], config["column_sizes"], strict=True)
        return _fields(columns, self.path)


@functools.lru_cache(maxsize=8)
def _counts_at(path: str, version: storage.Version) -> dict[str, int]:
    """The numbers of samples that the index says, by names of shards."""
    return dict(read_index(storage.read_all(path), path))


def _fields(columns: Iterable[tuple[str, str, int | None]], where: str) -> list[BinaryField]:
    """The fields of samples with these names, encodings and fixed sizes."""
    found = []
    for name, encoding, size in columns:
        if not (size is None or (type(size) is int and size >= 0)):
            raise ValueError(f"column {name!r} has the size {size!r}: its sizes are impossible")
        kind, _, details = encoding.partition(":")
        if kind == "pkl":
            raise ConfigError(
                f"{where}: column {name!r} holds pickles, which are never read, as they may run any code: write the "
                "data again with another encoding, such as json or ndarray"
            )
        try:
            found.append(BinaryField(str(name), size, _decoder(kind, details), _TYPES.get(kind)))
        except KeyError:
            raise ConfigError(f"{where}: column {name!r} has the encoding {encoding!r}, which is not known") from None
    return found


@functools.lru_cache(maxsize=64)
def _decoder(name: str, details: str) -> Callable[[bytes], Any]:
    """What makes a value of the bytes of a column; it raises any exception for bytes that do not fit.

    Raises:
        KeyError: for an unknown encoding.
    """
    if name in ("bytes", "jpeg", "png"):
        return bytes
    if name in ("str", "str_decimal"):
        return bytes.decode
    if name in _NUMBERS or name == "int":
        return functools.partial(number_of, "int64" if name == "int" else name)
    if name == "ndarray":
        return functools.partial(_array, details)
    if name in _LISTS:
        return functools.partial(list_of, _decoder(_LISTS[name], ""), 4 * name.startswith("list"))
    others: dict[str, Callable[[bytes], Any]] = {"json": parse_json, "str_int": int, "str_float": float}
    return (others | {"pil": png_of_pixels})[name]


def _array(details: str, data: bytes) -> Any:
    """An array, whose type and shape are in `details` (`int32:3,4`), or precede the numbers."""
    kind, _, shape = details.partition(":")
    at = 0
    if not kind:
        kind, at = _ARRAY_TYPES[data[0]], 1
    if shape:
        sizes = [int(size) for size in shape.split(",")]
    else:
        num_axes, width = data[at] >> 2, 1 << (data[at] & 3)
        sizes = numpy.frombuffer(data[at + 1 : at + 1 + num_axes * width], f"<u{width}").tolist()
        at += 1 + num_axes * width
    return numpy.frombuffer(data[at:], numpy.dtype(kind).newbyteorder("<")).reshape(sizes).copy()
