"""Columns of tables: their parts of a sample, their values, and how much is decoded at once to read some.

Reads the Arrow schema of a file or data set. Returns a `Column` for each part of a sample; the values of some rows as
Python objects; the size of a block of rows. A column that is slow to decode is reported once for each file; raises
`ConfigError` for one that would take too much memory, before the first sample is read.

An `Image`, `Audio` or `Video` of `datasets`, a struct of `bytes` and `path`, becomes its bytes, as the part
`<column>.jpg`, `.wav` or `.mp4`: decoders go by the content, so a PNG is decoded, too. So does a column of bytes, or of
such structs of another writer, whose first value that is not empty has the magic number of a medium that is decoded,
unless the name of the column is already that of one (`jpg`, `photo.png`). Other bytes are decoded by the ending of the
name, if there is a decoder for it, and stay bytes otherwise. All others are values.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import logging
import threading
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar, TypeAlias

from bridge_data import storage
from bridge_data.data.blocks import OVERHEAD_BYTES
from bridge_data.data.records import READ_BYTES
from bridge_data.decode.media_kinds import SOUND_ENDINGS, kind_of_name, known_by_content
from bridge_data.errors import BridgeDataError, ConfigError, DatasetError
from bridge_data.extensions import needed_package

logger = logging.getLogger("bridge_data")

KEY = "__key__"
"""The column with the keys."""

ENDS_BYTES = 1 << 16
"""Bytes at either end of a file that tell it from another of the same sizes."""

_ENDINGS = {"Image": "jpg", "Audio": "wav", "Video": "mp4"}

MAX_FIRST_GROUPS, MAX_FIRST_ROWS = 4, 16
"""Maximum groups, and rows of each, in which a value is looked for that tells what a column holds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column `name` of a table, which becomes `part` of a sample. `leaf` is the column to read: itself, or for media
    the field with the bytes. With `is_bytes`, the values are the bytes of a file, for a decoder. With `is_whole`, it
    has lists or several fields, and rows may have to be read with the others of their group."""

    name: str
    part: str
    leaf: str
    is_bytes: bool = False
    is_whole: bool = False

    @property
    def may_be_medium(self) -> bool:
        """Whether it has bytes, and only their content tells of what."""
        return self.is_bytes and self.part == self.name and kind_of_name(self.name) is None

    @property
    def names(self) -> list[str]:
        """What a field map or filter may call it: by its own name, or by that of its part, which may not be known."""
        endings = _ENDINGS.values() if self.may_be_medium else ()
        return [self.name, self.part, *(f"{self.name}.{ending}" for ending in endings)]

    @property
    def is_media(self) -> bool:
        """Whether it is a struct of bytes and path."""
        return self.leaf != self.name

    @property
    def field(self) -> str:
        """For media, the field of the struct to read."""
        return self.leaf.rpartition("\0")[2]

    @property
    def path(self) -> Column:
        """For media, the column of their paths."""
        return dataclasses.replace(self, leaf=field_of(self.name, "path"), is_bytes=False)


def field_of(column: str, field: str) -> str:
    """The name of a field of a struct, as in `Column.leaf`: different from all columns, whose names may have dots."""
    return f"{column}\0{field}"


class TableFile(abc.ABC):
    """A file with a table, stored in groups of rows. `version` is the file's version when it was opened."""

    kind: ClassVar[str]
    group_name: ClassVar[str]
    schema: Any
    counts: list[int]
    without_types: Collection[str] = ()
    """Columns whose values have no Arrow type, so that conditions cannot name them."""
    is_alone: ClassVar[bool] = False
    """Whether the file itself says all that is found when it is opened, without an index beside it."""
    reads_rows = False
    """Whether rows are equally fast to read in any order."""

    def __init__(self, path: str, version: storage.Version | None) -> None:
        self.path = path
        found = self.found_version()
        self.version = found if version is None else version
        self.file = storage.PinnedFile(path, self.version)
        self.file.check(found)

    def found_version(self) -> storage.Version:
        """The version that is there now."""
        return storage.version(self.path)

    @abc.abstractmethod
    def identity(self) -> bytes:
        """A digest that differs if the rows, or how they are stored, differ; rows are not read for it."""

    def ends_checksum(self) -> int:
        """The CRC-32 of the first and last bytes of the file, which has rows: rows of the same sizes may have the same
        `identity`."""
        size = self.version.num_bytes
        num_bytes = min(ENDS_BYTES, size)
        return zlib.crc32(self.read_bytes(size - num_bytes, num_bytes), zlib.crc32(self.read_bytes(0, num_bytes)))

    @abc.abstractmethod
    def column_bytes(self, group: int, column: Column) -> int:
        """Bytes of a column of a group."""

    @abc.abstractmethod
    def unit_bytes(self, group: int, column: Column) -> int:
        """Approximate minimum bytes of a column that are read at once."""

    @abc.abstractmethod
    def values(self, column: Column, group: int, first: int, end: int) -> list[Any]:
        """The values of rows `first` to `end` - 1 of a group; None for missing ones.

        Raises:
            DatasetError: naming file, group and column, if they cannot be read.
        """

    def values_in_order(self, columns: Sequence[Column], group: int, first: int, end: int) -> list[list[Any]]:
        """The `values` of each of these columns, fast if all rows are read from the first to the last, however large
        their group is."""
        return [self.values(column, group, first, end) for column in columns]

    def read_bytes(self, start: int, num_bytes: int) -> bytes:
        """Bytes of the file, which must not have been replaced."""
        return self.file.read(start, num_bytes)

    @contextlib.contextmanager
    def as_dataset_error(self, what: str) -> Iterator[None]:
        """Turn exceptions of pyarrow, or from damaged bytes, into a `DatasetError` that names the file and `what`."""
        try:
            yield
        except (BridgeDataError, ImportError):
            raise
        except Exception as error:  # pyarrow raises many kinds, and damaged bytes may raise any
            raise DatasetError(f"{self.path}: {what}: {type(error).__name__}: {error}") from error


def pyarrow_for(path: str) -> Any:
    """The package pyarrow, which reads `path`.

    Raises:
        ConfigError: if it is not installed.
    """
    return needed_package("pyarrow", f"{path}: reading it")


def columns_of(schema: Any, path: str) -> list[Column]:
    """The columns of a table, without the column of keys.

    Raises:
        ConfigError: if two become the same part.
    """
    features = features_of(schema)
    found: dict[str, Column] = {}
    for field in schema:
        if field.name == KEY:
            continue
        column = _column(field, features.get(field.name), path)
        if column.part in found:
            raise ConfigError(f"{path}: columns {found[column.part].name!r} and {column.name!r} have the same name")
        found[column.part] = column
    return list(found.values())


def with_kinds(columns: Sequence[Column], tables: Sequence[TableFile]) -> list[Column]:
    """The columns, with the parts of media for those whose first value that is not empty is one. Only the first rows of
    the first groups are looked at; if they have no such value, or a damaged one, or another column has the name, the
    bytes stay bytes."""
    taken = {column.part for column in columns}
    found = [_with_kind(column, tables) if column.may_be_medium else column for column in columns]
    return [old if new.part in taken else new for old, new in zip(columns, found, strict=True)]


def _with_kind(column: Column, tables: Sequence[TableFile]) -> Column:
    groups = ((table, group) for table in tables for group, count in enumerate(table.counts) if count)
    for table, group in itertools.islice(groups, MAX_FIRST_GROUPS):
        for row in range(min(MAX_FIRST_ROWS, table.counts[group])):
            try:
                (value,) = table.values(column, group, row, row + 1)
            except DatasetError:
                return column  # told when it is read
            if value:
                found = known_by_content(value, by_magic=True)
                if found is None or kind_of_name(f"x.{found[0]}") is None:  # none, or one without a decoder
                    return column
                ending = "jpg" if found[1] == "image" else "wav" if found[0] in SOUND_ENDINGS else "mp4"
                return dataclasses.replace(column, part=f"{column.name}.{ending}")
    return column


def _column(field: Any, feature: Any, path: str) -> Column:
    types = pyarrow_for(path).types
    kind, name = field.type, field.name
    if _is_binary(kind):
        return Column(name, name, name, is_bytes=True)
    is_media = types.is_struct(kind) and {child.name for child in _fields(kind)} == {"bytes", "path"}
    if is_media and _is_binary(kind.field("bytes").type):
        ending = _ENDINGS.get(feature.get("_type", "")) if isinstance(feature, dict) else None
        return Column(name, f"{name}.{ending}" if ending else name, field_of(name, "bytes"), is_bytes=True)
    return Column(name, name, name, is_whole=kind.num_fields > 0)


def _fields(kind: Any) -> list[Any]:
    return [kind.field(number) for number in range(kind.num_fields)]


def _is_binary(kind: Any) -> bool:
    types = importlib.import_module("pyarrow").types
    checks = types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view
    return any(check(kind) for check in checks)


def features_of(schema: Any) -> dict[str, Any]:
    """The features of `datasets` by column, from the schema's metadata; empty if there are none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


@functools.cache
def _pyarrow() -> Any:
    return importlib.import_module("pyarrow")


def checked_rows(array: Any) -> Any:
    """The same values, after checking that they are consistent, as damaged offsets would crash the process: of nested
    arrays, only what belongs to these rows is touched. Values of an extension type are those that are stored, so that
    they do not depend on which packages are imported.

    Raises:
        ValueError, or pyarrow's `ArrowInvalid`: if they are not.
    """
    pyarrow, kind, count = _pyarrow(), array.type, len(array)
    types = pyarrow.types
    is_extension = isinstance(kind, pyarrow.BaseExtensionType)
    if not (kind.num_fields or is_extension or types.is_dictionary(kind)):
        array.validate(full=True)
        return array
    import numpy as np

    if is_extension:
        stored = checked_rows(array.storage)
        return kind.wrap_array(stored) if isinstance(kind, (pyarrow.UuidType, pyarrow.Bool8Type)) else stored
    if types.is_dictionary(kind):
        array.indices.validate(full=True)
        limits = importlib.import_module("pyarrow.compute").min_max(array.indices).as_py()
        if limits["min"] is not None and not 0 <= limits["min"] <= limits["max"] < len(array.dictionary):
            raise ValueError(f"it refers to values {limits['min']} to {limits['max']} of {len(array.dictionary)}")
        return array
    offsets = None
    if types.is_struct(kind):
        children = [array.field(number) for number in range(kind.num_fields)]
    elif types.is_fixed_size_list(kind):
        children = [array.values.slice(array.offset * kind.list_size, count * kind.list_size)]
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        width = "<i8" if types.is_large_list(kind) else "<i4"
        buffer = array.buffers()[1]
        offsets = np.zeros(1, width)
        if buffer is not None and count:
            offsets = np.frombuffer(buffer, width, count + 1, array.offset * offsets.itemsize)
        if offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any() or offsets[-1] > len(array.values):
            raise ValueError("its offsets do not ascend, or end beyond its values")
        children = [array.values.slice(offsets[0], offsets[-1] - offsets[0])]
    else:
        array.validate(full=True)
        return array
    found = [checked_rows(child) for child in children]
    if all(new.type.equals(old.type) for new, old in zip(found, children, strict=True)):
        return array
    validity = None
    if array.null_count:
        bits = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
        validity = pyarrow.py_buffer(bits)
    buffers = [validity] if offsets is None else [validity, pyarrow.py_buffer(offsets - offsets[0])]
    return pyarrow.Array.from_buffers(_with_children(kind, found), count, buffers, children=found)


def _with_children(kind: Any, children: Sequence[Any]) -> Any:
    """The nested type with the types of these arrays in it."""
    pyarrow = _pyarrow()
    if pyarrow.types.is_map(kind):
        return pyarrow.map_(*[field.type for field in _fields(children[0].type)])
    fields = [field.with_type(child.type) for field, child in zip(_fields(kind), children, strict=True)]
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct(fields)
    if pyarrow.types.is_fixed_size_list(kind):
        return pyarrow.list_(fields[0], kind.list_size)
    return (pyarrow.large_list if pyarrow.types.is_large_list(kind) else pyarrow.list_)(fields[0])


def values_of_rows(array: Any) -> list[Any]:
    """The values of an Arrow array as Python objects; None for missing ones. Those of a dictionary are made once,
    also of one in lists."""
    types, kind = _pyarrow().types, array.type
    if types.is_dictionary(kind):
        used, known = array.indices.unique().drop_null(), array.dictionary
        if types.is_string_view(known.type) or types.is_binary_view(known.type):  # pyarrow cannot take from these
            values = [known[number].as_py() for number in used.to_pylist()]
        else:
            values = values_of_rows(known.take(used))
        by_index = dict(zip(used.to_pylist(), values, strict=True))
        return [by_index.get(index) for index in array.indices.to_pylist()]
    is_list = types.is_list(kind) or types.is_large_list(kind)
    if is_list and types.is_dictionary(kind.value_type) and not array.null_count:
        inner = values_of_rows(array.flatten())
        ends = array.value_lengths().to_numpy(zero_copy_only=False).cumsum().tolist()
        return [inner[start:end] for start, end in itertools.pairwise([0, *ends])]
    if (types.is_integer(kind) or types.is_floating(kind)) and not array.null_count:
        return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    return array.to_pylist()  # type: ignore[no-any-return]


MAX_KEPT_BYTES = 1 << 26
"""Bytes of decoded values that a process keeps, from the last used pages, row groups or batches of any file."""

MAX_KEPT_UNIT_BYTES = 1 << 23
"""Maximum size of decoded values that are kept."""

_Decoded: TypeAlias = tuple[int, Any]
"""The first row, and the values from it on, as an Arrow array or batch."""


class DecodedValues:
    """The last used decoded values, up to `max_bytes`, by number of the table and position in it. Thread-safe. Values
    of tables that no one uses any more are evicted in their turn."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes, self._lock = max_bytes, 0, threading.Lock()
        self._kept: collections.OrderedDict[tuple[int, ...], _Decoded] = collections.OrderedDict()

    def get(self, key: tuple[int, ...]) -> _Decoded | None:
        """The values kept under `key`; None if they are gone."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key]

    def keep(self, key: tuple[int, ...], decoded: _Decoded) -> _Decoded:
        """Keep `decoded`, if it is not too large; return it."""
        num_bytes = decoded[1].nbytes
        if num_bytes <= MAX_KEPT_UNIT_BYTES:
            with self._lock:
                _, replaced = self._kept.pop(key, (0, None))
                self._kept[key] = decoded
                self._num_bytes += num_bytes - (0 if replaced is None else replaced.nbytes)
                while self._num_bytes > self._max_bytes:
                    _, (_, dropped) = self._kept.popitem(last=False)
                    self._num_bytes -= dropped.nbytes
        return decoded


DECODED = DecodedValues(MAX_KEPT_BYTES)

MAX_READ_BYTES = 1 << 20
"""Maximum size of a block: a page, which is decoded for it, is about as large."""

MAX_HELD_BYTES = 1 << 18
"""Maximum memory of a block of small samples, so that the windows of 8 lanes, each of up to 128 blocks, fit into the
default `max_open_bytes`. Samples that did not fit would be read one by one, a page for each."""

SLOW_UNIT_BYTES = 1 << 24
"""If more must be decoded for one sample, a warning says so."""

MAX_UNIT_BYTES = 1 << 28
"""Maximum bytes decoded at once; more is an error."""

MAX_SMALL_BYTES = 1 << 14
"""Maximum size of a small sample, as in `lanes.reading`."""


def block_bytes(unit_bytes: int, sample_bytes: float | None) -> int:
    """Bytes of a block, if `unit_bytes` are decoded for one sample: as many samples per decoding as memory allows."""
    if unit_bytes <= READ_BYTES or sample_bytes is None:
        return READ_BYTES
    if sample_bytes > MAX_SMALL_BYTES:
        return min(MAX_READ_BYTES, unit_bytes)
    num_samples = MAX_HELD_BYTES / (sample_bytes + OVERHEAD_BYTES)
    return min(MAX_READ_BYTES, unit_bytes, int(num_samples * sample_bytes) + 1)


def checked_unit(table: TableFile, group: int, columns: Sequence[Column]) -> int:
    """The maximum bytes decoded at once for any of these columns."""
    largest = 0
    for column in columns:
        unit = table.unit_bytes(group, column)
        largest = max(largest, unit)
        if unit <= SLOW_UNIT_BYTES:
            continue
        if column.is_whole and unit > MAX_UNIT_BYTES:
            raise ConfigError(
                f"{_decoded(table, group, column.name, unit)}, more than the {MAX_UNIT_BYTES >> 20} MiB allowed: its "
                "lists cannot be read one by one. Write the file with "
                f"{table.group_name}s of up to {SLOW_UNIT_BYTES >> 20} MiB, or `bridge-data convert` it."
            )
        warn_slow(table, group, column.name, unit)
    return largest


def _decoded(table: TableFile, group: int, column: str, num_bytes: int) -> str:
    return f"{table.path}: {table.group_name} {group}, column {column!r}: {num_bytes >> 20} MiB are decoded at once"


def warn_slow(table: TableFile, group: int, column: str, num_bytes: int) -> None:
    """Warn, once a file, that so many bytes are decoded for each block of samples."""
    _warn_once(table.path, table.group_name, _decoded(table, group, column, num_bytes))


@functools.lru_cache(maxsize=1024)
def _warn_once(path: str, group_name: str, warning: str) -> None:
    logger.warning(
        "%s for each block of samples, which is slow: write the file with %ss of up to %d MiB",
        warning,
        group_name,
        SLOW_UNIT_BYTES >> 20,
    )
