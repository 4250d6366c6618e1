"""Look-up by key in `index.sqlite`: the shard, offset and size of a sample's parts.

Enters: keys, or names of parts as their shard has them, `0001.jpg`. Leaves: offsets, and the bytes of parts. Each
look-up is one search of an SQL index, in a data set of any size; no list of keys is loaded. Splits and exclusions do
not matter. Guarantee: the bytes that the shard holds under this
name, or an error that says whether the name is wrong or the data.

Source: the tables `samples` and `sample_parts` are those of Megatron-Energon 7.4; older versions wrote the first only.
"""

import collections
import contextlib
import functools
import os
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.shards.metadata import INDEX_SQLITE, meta_folder, read_shard_counts, split_name, without_shard
from bridge_data.shards.tar_bytes import GzipTar, is_gzip, open_tar
from bridge_data.shards.tar_headers import BLOCK, header_is_intact, walk
from bridge_data.storage import Location

MAX_KNOWN_SHARDS = 64
"""Shards that a reader keeps open; a compressed one holds about 1% of its size and a buffer of 1 MiB."""

_JOINED = """
FROM samples s JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index
"""
_PART_COLUMNS = "s.sample_key, p.part_name, p.tar_file_id, p.content_byte_offset, p.content_byte_size"
_PART = f"SELECT {_PART_COLUMNS} {_JOINED} WHERE s.sample_key = ? AND p.part_name = ?"
_PARTS = f"SELECT {_PART_COLUMNS} {_JOINED} WHERE s.sample_key = ? ORDER BY p.content_byte_offset"
_NAMES = (
    f"SELECT s.sample_key || '.' || p.part_name {_JOINED}ORDER BY s.tar_file_id, s.sample_index, p.content_byte_offset"
)
_SAMPLE = "SELECT tar_file_id, sample_index, byte_offset, byte_size FROM samples WHERE sample_key = ?"
_KEYS = "SELECT sample_key FROM samples WHERE tar_file_id = ? ORDER BY sample_index"
_SPANS = (
    "SELECT sample_key, byte_offset, byte_offset + byte_size FROM samples WHERE tar_file_id = ? ORDER BY sample_index"
)
_KEY_RANGE = "SELECT sample_key FROM samples WHERE sample_key >= ? AND sample_key < ? ORDER BY sample_key LIMIT ?"


class ReadOnlyDatabase:
    """The SQLite file at `file`, which nobody writes to. It may be pickled, forked and used by any thread; each process
    connects by itself. `way_out` ends the message where it cannot be read."""

    def __init__(self, file: Path, way_out: str) -> None:
        self.file, self.way_out = file, way_out
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._connection: tuple[int, sqlite3.Connection] | None = None

    def rows(self, query: str, *values: object) -> list[Any]:
        """All rows that answer `query`.

        Raises:
            DatasetError: if the database cannot be read.
        """
        with self._lock, self._reporting():
            if self._connection is None or self._connection[0] != os.getpid():
                self._connection = os.getpid(), self._connect()
            return self._connection[1].execute(query, values).fetchall()

    def stream(self, query: str, *values: object) -> Generator[Any, None, None]:
        """The same rows, one by one, over a connection of their own."""
        with self._reporting(), contextlib.closing(self._connect()) as connection:
            yield from connection.execute(query, values)

    def has_table(self, name: str) -> bool:
        """Whether there is a table called `name`."""
        return bool(self.rows("SELECT 1 FROM sqlite_master WHERE name = ?", name))

    def _connect(self) -> sqlite3.Connection:
        """A connection that cannot write, takes no locks and may be used by any thread."""
        uri = f"{self.file.absolute().as_uri()}?mode=ro&immutable=1"
        return sqlite3.connect(uri, uri=True, check_same_thread=False)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise DatasetError(f"{self.file}: cannot be read: {error}; {self.way_out}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self.file, "way_out": self.way_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()


class StoredPart(NamedTuple):
    """A part of a sample: the number of its shard, and the range of its content there."""

    key: str
    part: str
    shard: int
    offset: int
    num_bytes: int

    @property
    def name(self) -> str:
        """The name that the part has in its shard."""
        return f"{self.key}.{self.part}"


class KeyIndex:
    """The samples of the prepared data set in the folder `root`, by key. It may be pickled, and used by any thread."""

    def __init__(self, root: Location, file: Path) -> None:
        self.root = root
        self.database = ReadOnlyDatabase(file, _way_out(root))

    @classmethod
    def find(cls, root: Location) -> "KeyIndex | None":
        """That of the folder `root`; None if it has no `index.sqlite`. One in an object store is copied to the disk.

        Raises:
            ConfigError: if there is no prepared data set. DatasetError: if the index cannot be copied.
        """
        file = storage.local_copy(meta_folder(root) / INDEX_SQLITE)
        return None if file is None else cls(root, file)

    @classmethod
    def open(cls, root: Location) -> "KeyIndex":
        """That of the folder `root`.

        Raises:
            ConfigError: if there is no prepared data set, or it has no `index.sqlite`.
        """
        index = cls.find(root)
        if index is None:
            raise ConfigError(f"{root}: has no index of its keys, {INDEX_SQLITE}; {_way_out(root)}")
        return index

    @functools.cached_property
    def shard_names(self) -> list[str]:
        """The paths of the shards, relative to the folder, by their numbers."""
        return list(read_shard_counts(meta_folder(self.root)))

    @functools.cached_property
    def knows_parts(self) -> bool:
        """Whether there is a table of parts; in an older index there is none, and headers are read instead."""
        return self.database.has_table("sample_parts")

    def part(self, key: str, part: str) -> StoredPart | None:
        """The part `part` of the sample `key`; None if there is none."""
        if self.knows_parts:
            return next((StoredPart(*row) for row in self.database.rows(_PART, key, part)), None)
        return next((found for found in self.parts(key) if found.part == part), None)

    def parts(self, key: str) -> list[StoredPart]:
        """The parts of the sample `key`, by offset; none if there is no such sample."""
        if self.knows_parts:
            return [StoredPart(*row) for row in self.database.rows(_PARTS, key)]
        found = []
        for shard, _, offset, num_bytes in self.database.rows(_SAMPLE, key):
            path = str(self.root / self.shard_names[shard])
            for member in walk(open_tar(path), offset, offset + num_bytes, file=path):
                name = split_name(member.name) if member.is_file else None
                if name is not None and name[0] == key:
                    found.append(StoredPart(*name, shard, member.content_offset, member.num_bytes))
        return found

    def part_names(self) -> Iterator[str]:
        """The names of all parts, in the order of the data set."""
        return (name for (name,) in self.database.stream(_NAMES))

    def position(self, key: str) -> tuple[int, int] | None:
        """(number of its shard, position in it) of the sample `key`; None if there is no such sample."""
        return next((row[:2] for row in self.database.rows(_SAMPLE, key)), None)

    def keys(self, shard: int) -> list[str]:
        """The keys of the samples in shard number `shard`, in their order."""
        return [key for (key,) in self.database.rows(_KEYS, shard)]

    def spans(self, shard: int) -> Generator[tuple[str, int, int], None, None]:
        """(key, first byte, end) of each sample of shard number `shard`, in their order."""
        return self.database.stream(_SPANS, shard)

    def sorted_keys(self, start: str, end: str, limit: int) -> list[str]:
        """The first `limit` keys from `start` on and before `end`, sorted."""
        return [key for (key,) in self.database.rows(_KEY_RANGE, start, end, limit)]

    def size(self) -> tuple[int, int]:
        """(bytes, number) of all samples."""
        ((num_bytes, num_samples),) = self.database.rows("SELECT SUM(byte_size), COUNT(*) FROM samples")
        return num_bytes or 0, num_samples

    def __reduce__(self) -> tuple[type["KeyIndex"], tuple[Location, Path]]:
        return KeyIndex, (self.root, self.database.file)


class PartReader:
    """Reads parts of the data set in the folder `root` by name. It may be pickled, and used by several threads.

    Raises:
        ConfigError: if there is no prepared data set, or it has no index of its keys.
    """

    def __init__(self, root: str | PathLike[str]) -> None:
        self.root = storage.location(root).absolute()
        self.index = KeyIndex.open(self.root)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._contents: collections.OrderedDict[int, Callable[[int, int], bytes]] = collections.OrderedDict()

    def find(self, name: str) -> StoredPart:
        """Where the part `name` is stored; a name that begins with that of a shard is also found without it.

        Raises:
            SampleError: if there is no such part. DatasetError: if the index cannot be read.
        """
        for candidate in (name, without_shard(name)):
            split = None if candidate is None else split_name(candidate)
            part = None if split is None else self.index.part(*split)
            if part is not None:
                return part
        raise SampleError(self._complaint(name))

    def read(self, part: StoredPart, offset: int = 0, num_bytes: int | None = None) -> bytes:
        """The content of a part, or a range of it, fewer bytes at its end.

        Raises:
            DatasetError: if it cannot be read, or is not there any more.
        """
        available = max(0, part.num_bytes - offset)
        wanted = available if num_bytes is None else min(num_bytes, available)
        return self._content(part)(part.offset + offset, wanted)

    def _complaint(self, name: str) -> str:
        split = split_name(without_shard(name) or name)
        if split is None:
            return f"{self.root}: {name!r} names no part of a sample; expected a key, a dot and a part, as in 0001.jpg."
        key, part = split
        parts = sorted(found.part for found in self.index.parts(key)) if self.index.knows_parts else []
        if parts:
            return f"{self.root}: sample {key!r} has no part {part!r}; it has {', '.join(parts)}."
        return f"{self.root}: there is no part {name!r}: no sample has the key {key!r}. Add it, or correct the name."

    def _content(self, part: StoredPart) -> Callable[[int, int], bytes]:
        """What reads the shard of `part`; the first time, it is checked that the part is still stored there."""
        with self._lock:
            content = self._contents.get(part.shard)
            if content is None:
                path = str(self.root / self.index.shard_names[part.shard])
                content = _content_of(path)
                header = content(part.offset - BLOCK, BLOCK)
                if not (header_is_intact(header) and _size_in(header) in (part.num_bytes, None)):
                    raise DatasetError(
                        f"{path}: does not hold {part.name!r} at byte {part.offset}, where the index has it. The "
                        f"shard was replaced: restore it, or run `bridge-data prepare {self.root}` again."
                    )
                while len(self._contents) >= MAX_KNOWN_SHARDS:
                    self._contents.popitem(last=False)
                self._contents[part.shard] = content
            return content

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "index": self.index}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()


def _way_out(root: Location) -> str:
    return f"run `bridge-data prepare {root} --tar-index-only`"


def _content_of(path: str) -> Callable[[int, int], bytes]:
    """What reads ranges of the tar at, or in the compressed file at, `path`."""
    if not is_gzip(path):
        return functools.partial(storage.read, path)
    tar, lock = GzipTar(path), threading.Lock()
    tar.warn_if_slow()

    def read(offset: int, num_bytes: int) -> bytes:
        with lock:
            return tar.read_exactly(offset, num_bytes)

    return read


def _size_in(header: bytes) -> int | None:
    """The size that a header gives; None if it is written in another way than in octal digits."""
    try:
        return int(header[124:136].rstrip(b"\0 "), 8)
    except ValueError:
        return None
