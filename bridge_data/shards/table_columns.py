"""Columns of tables: their parts of a sample, their values, and how much is decoded at once to read some.

Enters: the Arrow schema of a Parquet file or of a Hugging Face data set. Leaves: a `Column` for each part of a sample;
the values of some rows as Python objects; the size of a block of rows. Guarantee: texts, bytes, numbers and lists of
these are cut out of Arrow's buffers, not converted one by one. A column that is slow to decode is reported once for
each file; one that would take too much memory is an error before the first sample is read.

An `Image`, `Audio` or `Video` of `datasets`, a struct of `bytes` and `path`, becomes its bytes, as the part
`<column>.jpg`, `.wav` or `.mp4`: decoders go by the content, so a PNG is decoded, too. A column of bytes stays bytes,
and is decoded by the ending of its name, if that is one of a file (`jpg`, `photo.png`). All others are values.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from bridge_data import storage
from bridge_data.errors import BridgeDataError, ConfigError, DatasetError
from bridge_data.shards.blocks import OVERHEAD_BYTES, READ_BYTES

logger = logging.getLogger("bridge_data")

KEY = "__key__"
"""The column with the keys."""

_ENDINGS = {"Image": "jpg", "Audio": "wav", "Video": "mp4"}


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column `name` of a table, which becomes `part` of a sample. `leaf` is the column to read: itself, or for media
    the field with the bytes. With `is_bytes`, the values are the bytes of a file, for a decoder. With `is_whole`, it
    has lists or several fields, and rows may have to be read with the others of their group. `problem` is why it cannot
    be read."""

    name: str
    part: str
    leaf: str
    is_bytes: bool = False
    is_whole: bool = False
    problem: str | None = None

    @property
    def is_media(self) -> bool:
        """Whether it is a struct of bytes and path."""
        return self.leaf != self.name

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

    def __init__(self, path: str, version: storage.Version | None) -> None:
        self.path = path
        found = storage.version(path)
        self.version = found if version is None else version
        self._check(found)

    @abc.abstractmethod
    def identity(self) -> bytes:
        """A digest that differs if the rows, or how they are stored, differ; rows are not read for it."""

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

    def read_bytes(self, start: int, num_bytes: int) -> bytes:
        """Bytes of the file, which must not have been replaced."""
        data, version = storage.read_with_version(self.path, start, num_bytes)
        if version is not self.version:
            self._check(version)
        return data

    def _check(self, version: storage.Version) -> None:
        if version != self.version:
            raise DatasetError(
                f"{self.path}: was replaced while it was in use: its size and time of change, or in a store the ETag, "
                f"were {self.version.num_bytes} and {self.version.changed}, and are {version.num_bytes} and "
                f"{version.changed}. Restore it, or start again."
            )

    @contextlib.contextmanager
    def told(self, *what: str) -> Iterator[None]:
        """Turn exceptions of pyarrow, or from damaged bytes, into a `DatasetError` that names the file and `what`."""
        try:
            yield
        except (BridgeDataError, ImportError):
            raise
        except Exception as error:  # pyarrow raises many kinds, and damaged bytes may raise any
            where = ", ".join(what)
            raise DatasetError(f"{self.path}: {where}: {type(error).__name__}: {error}") from error


def pyarrow_for(path: str) -> Any:
    """The package pyarrow, which reads `path`.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(f'{path}: needs pyarrow to be read: pip install "bridge-data[parquet]"') from error


def columns_of(schema: Any, path: str) -> list[Column]:
    """The columns of a table, without the column of keys.

    Raises:
        ConfigError: if two become the same part.
    """
    features = _features(schema)
    found: dict[str, Column] = {}
    for field in schema:
        if field.name == KEY:
            continue
        column = _column(field, features.get(field.name), path)
        if column.part in found:
            raise ConfigError(f"{path}: columns {found[column.part].name!r} and {column.name!r} have the same name")
        found[column.part] = column
    return list(found.values())


def _column(field: Any, feature: Any, path: str) -> Column:
    types = pyarrow_for(path).types
    kind, name = field.type, field.name
    if _is_binary(kind):
        return Column(name, name, name, is_bytes=True)
    is_media = types.is_struct(kind) and {child.name for child in _fields(kind)} == {"bytes", "path"}
    if is_media and _is_binary(kind.field("bytes").type):
        ending = _ENDINGS.get(feature.get("_type", "")) if isinstance(feature, dict) else None
        return Column(name, f"{name}.{ending}" if ending else name, field_of(name, "bytes"), is_bytes=True)
    problem = None
    if not is_understood(kind):
        problem = (
            f"{path}: column {name!r} has the type {kind}, which is not supported: leave it out (`field_map`, "
            "`part_filter`), or store it as text, numbers, bytes, or lists or structs of these"
        )
    return Column(name, name, name, is_whole=kind.num_fields > 0, problem=problem)


def is_understood(kind: Any) -> bool:
    """Whether an Arrow type can be read: it neither is nor contains a union, view or run-end encoding."""
    types = importlib.import_module("pyarrow").types
    return not any(types.is_union(one) or types.is_run_end_encoded(one) or _is_view(one) for one in _nested(kind))


def _fields(kind: Any) -> list[Any]:
    return [kind.field(number) for number in range(kind.num_fields)]


def _nested(kind: Any) -> Iterator[Any]:
    """The type and all types nested in it."""
    yield kind
    for field in _fields(kind):
        yield from _nested(field.type)


def _is_view(kind: Any) -> bool:
    return str(kind).endswith("_view") or "list_view" in str(kind)


def _is_binary(kind: Any) -> bool:
    types = importlib.import_module("pyarrow").types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _features(schema: Any) -> dict[str, Any]:
    """The features of `datasets` by column, from the schema's metadata; empty if there are none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def values_of_rows(array: Any) -> list[Any]:
    """The values of an Arrow array as Python objects; None for missing ones."""
    types = importlib.import_module("pyarrow").types
    kind = array.type
    values: list[Any]
    if types.is_string(kind) or types.is_large_string(kind):
        values = _texts(array)
    elif types.is_dictionary(kind):
        used = array.indices.unique().drop_null()
        values = values_of_rows(array.dictionary.take(used))
        by_index = dict(zip(used.to_pylist(), values, strict=True))
        return [by_index.get(index) for index in array.indices.to_pylist()]
    elif types.is_binary(kind) or types.is_large_binary(kind):
        offsets, data = _cuts(array)
        values = [data[start:end] for start, end in itertools.pairwise(offsets)]
    elif (types.is_integer(kind) or types.is_floating(kind)) and not array.null_count:
        return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    elif (types.is_list(kind) or types.is_large_list(kind)) and not array.null_count:
        inner = values_of_rows(array.flatten())
        ends = array.value_lengths().to_numpy(zero_copy_only=False).cumsum().tolist()
        return [inner[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    else:
        return array.to_pylist()  # type: ignore[no-any-return]
    if array.null_count:
        values = [value if is_there else None for value, is_there in zip(values, _validity(array), strict=True)]
    return values


def _validity(array: Any) -> list[bool]:
    return array.is_valid().to_pylist()  # type: ignore[no-any-return]


def _cuts(array: Any) -> tuple[list[int], bytes]:
    """(offsets of the values, the bytes they are in) of texts or bytes."""
    import numpy as np

    width = "<i8" if str(array.type).startswith("large") else "<i4"
    _, offsets, data = array.buffers()
    size = np.dtype(width).itemsize
    found = np.frombuffer(offsets, width, len(array) + 1, array.offset * size)
    first, last = (int(found[0]), int(found[-1])) if len(found) else (0, 0)
    content = b"" if data is None else data.slice(first, last - first).to_pybytes()
    return (found - first).tolist(), content


def _texts(array: Any) -> list[Any]:
    offsets, data = _cuts(array)
    text = str(data, "utf-8")
    if len(text) == len(data):  # only ASCII: characters are bytes
        return [text[start:end] for start, end in itertools.pairwise(offsets)]
    return [str(data[start:end], "utf-8") for start, end in itertools.pairwise(offsets)]


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
"""Maximum size of a small sample, as in `lanes.read_ahead`."""


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
        where = f"{table.path}: {table.group_name} {group}, column {column.name!r}"
        warning = f"{where}: {unit >> 20} MiB are decoded at once"
        if column.is_whole and unit > MAX_UNIT_BYTES:
            raise ConfigError(
                f"{warning}, more than the {MAX_UNIT_BYTES >> 20} MiB allowed: its lists cannot be read one by one. "
                "Write the file with row groups of up to 16 MiB, or `bridge-data convert` it."
            )
        _warn_once(table.path, warning)
    return largest


@functools.lru_cache(maxsize=1024)
def _warn_once(path: str, warning: str) -> None:
    logger.warning(
        "%s for each block of samples, which is slow: write the file with row groups of up to %d MiB",
        warning,
        SLOW_UNIT_BYTES >> 20,
    )
