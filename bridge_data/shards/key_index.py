"""Look-up by key in `index.sqlite`: the shard, offset and size of a sample's parts.

Enters: keys, or names of parts as their shard has them, `0001.jpg`. Leaves: offsets, and the bytes of parts. Each
look-up is one search of an SQL index, in a data set of any size; no list of keys is loaded. Splits and exclusions do
not matter. Guarantee: the bytes that the shard holds under this name, or an error that says whether the name is wrong
or the data. All classes here may be pickled, forked and used by any thread.

Source: the tables `samples` and `sample_parts` are those of Megatron-Energon 7.4; older versions wrote the first only.
"""

import collections
import contextlib
import functools
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.shards.metadata import INDEX_SQLITE, meta_folder, read_shard_counts, split_name, without_shard
from bridge_data.shards.tar_bytes import FileTar, GzipTar, MemoryTar, is_gzip
from bridge_data.shards.tar_headers import BLOCK, read_member, walk
from bridge_data.storage import Location

MAX_KNOWN_COMPRESSED = 64
"""Compressed shards that an index keeps open; each holds about 1% of its size and a buffer of 1 MiB."""

TOGETHER_BYTES = 1 << 16
"""Contents up to this size are read together with their headers; in a store, all are, to save a request."""

MAX_CHECKED = 1 << 16
"""Parts that are remembered as checked."""

MAX_HEADER_BLOCKS = 8
"""Blocks before a content that are searched for its name."""

_JOINED = """
FROM samples s JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index
"""
_RANGE = "p.tar_file_id, p.content_byte_offset, p.content_byte_size"
_PART = f"SELECT {_RANGE} {_JOINED} WHERE s.sample_key = ? AND p.part_name = ?"
_PARTS = f"SELECT p.part_name, {_RANGE} {_JOINED} WHERE s.sample_key = ? ORDER BY p.content_byte_offset"
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
    """The SQLite file at `file`, which nobody writes to. `way_out` ends the message where it cannot be read."""

    def __init__(self, file: Path, way_out: str) -> None:
        self.file, self.way_out = file, way_out
        self.after_fork()
        _in_use.add(self)

    def after_fork(self) -> None:
        """In a forked child: connect anew, with a lock that no thread of the parent can hold."""
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def rows(self, query: str, *values: object) -> list[Any]:
        """All rows that answer `query`."""
        with self._lock, self._reporting():
            if self._connection is None:
                self._connection = self._connect()
            return self._connection.execute(query, values).fetchall()

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
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where a message names damaged text
            raise DatasetError(f"{self.file}: cannot be read: {error}; {self.way_out}") from error

    def __reduce__(self) -> tuple[type["ReadOnlyDatabase"], tuple[Path, str]]:
        return ReadOnlyDatabase, (self.file, self.way_out)


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
    """The samples of the prepared data set in the folder `root`, by key; `file` is its `index.sqlite`."""

    def __init__(self, root: Location, file: Path) -> None:
        self.root = root
        self.database = ReadOnlyDatabase(file, _way_out(root))
        self.after_fork()
        _in_use.add(self)

    def after_fork(self) -> None:
        """In a forked child: open compressed shards anew, as a thread of the parent may have been reading one."""
        self._compressed: collections.OrderedDict[int, GzipTar] = collections.OrderedDict()

    @classmethod
    def find(cls, root: Location) -> "KeyIndex | None":
        """The index of the folder `root`; None if it has no `index.sqlite`. One in an object store is copied to the
        disk."""
        file = storage.local_copy(meta_folder(root) / INDEX_SQLITE)
        return None if file is None else cls(root, file)

    @classmethod
    def open(cls, root: Location) -> "KeyIndex":
        """The index of the folder `root`.

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

    def shard_path(self, shard: int) -> str:
        """The path or URL of shard number `shard`."""
        return f"{self.root}/{self.shard_names[shard]}"

    def compressed(self, shard: int) -> GzipTar:
        """The tar in shard number `shard`, which is compressed. It is kept open: to find a sample in it takes long."""
        tar = self._compressed.get(shard)
        if tar is None:
            tar = GzipTar(self.shard_path(shard))
            tar.warn_if_slow()
            while len(self._compressed) >= MAX_KNOWN_COMPRESSED:
                self._compressed.popitem(last=False)
            self._compressed[shard] = tar
        return tar

    @functools.cached_property
    def knows_parts(self) -> bool:
        """Whether there is a table of parts; in an older index there is none, and headers are read instead."""
        return self.database.has_table("sample_parts")

    def part(self, key: str, part: str) -> StoredPart | None:
        """The part `part` of the sample `key`; None if there is none."""
        if self.knows_parts:
            rows = self.database.rows(_PART, key, part)
            return self._stored(key, part, *rows[0]) if rows else None
        return next((found for found in self.parts(key) if found.part == part), None)

    def parts(self, key: str) -> list[StoredPart]:
        """The parts of the sample `key`, by offset; none if there is no such sample."""
        if self.knows_parts:
            return [self._stored(key, *row) for row in self.database.rows(_PARTS, key)]
        found = []
        for row in self.database.rows(_SAMPLE, key):
            _, _, shard, offset, num_bytes = self._stored(key, "", row[0], *row[2:])
            path = self.shard_path(shard)
            tar = self.compressed(shard) if is_gzip(path) else FileTar(path, offset + num_bytes)
            for member in walk(tar, offset, offset + num_bytes, file=path):
                name = split_name(member.name) if member.is_file else None
                if name is not None and name[0] == key:
                    found.append(StoredPart(*name, shard, member.content_offset, member.num_bytes))
        return found

    def _stored(self, key: str, part: Any, shard: Any, offset: Any, num_bytes: Any) -> StoredPart:
        """A row, if its values can be those of a part: the database has no checksum."""
        are_numbers = all(type(number) is int and number >= 0 for number in (shard, offset, num_bytes))
        if not (are_numbers and isinstance(part, str) and shard < len(self.shard_names)):
            raise DatasetError(
                f"{self.database.file}: is damaged: it has part {part!r} of {key!r} in shard number {shard!r}, at byte "
                f"{offset!r}, {num_bytes!r} bytes; {self.database.way_out} --rescan"
            )
        return StoredPart(key, part, shard, offset, num_bytes)

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
    """Reads parts of the data set in the folder `root` by name.

    Raises:
        ConfigError: if there is no prepared data set, or it has no index of its keys.
    """

    def __init__(self, root: str | PathLike[str]) -> None:
        self.root = storage.location(root).absolute()
        self.index = KeyIndex.open(self.root)
        self._checked: set[StoredPart] = set()
        """Parts of which ranges are read, and that were found where the index has them."""

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

    def read(self, part: StoredPart) -> bytes:
        """The content of a part.

        Raises:
            DatasetError: if it cannot be read, or is not stored where the index has it.
        """
        path = self.index.shard_path(part.shard)
        if part.num_bytes > TOGETHER_BYTES and (is_gzip(path) or not storage.is_remote(path)):
            return self.read_range(part, 0, part.num_bytes)
        if storage.is_remote(path) and part.offset + part.num_bytes > storage.size_bytes(path):
            raise self._misplaced(part)
        before = min(BLOCK, part.offset)
        data = self._reading(part)(part.offset - before, before + part.num_bytes)
        self._check(part, data[:BLOCK])
        return data[before:]

    def read_range(self, part: StoredPart, offset: int, num_bytes: int) -> bytes:
        """A range of the content of a part, fewer bytes at its end."""
        wanted = max(0, min(num_bytes, part.num_bytes - offset))
        if part not in self._checked:
            self._check(part, self._reading(part)(part.offset - BLOCK, BLOCK) if part.offset >= BLOCK else b"")
            if len(self._checked) >= MAX_CHECKED:
                self._checked.clear()
            self._checked.add(part)
        return self._reading(part)(part.offset + offset, wanted) if wanted else b""

    def _complaint(self, name: str) -> str:
        split = split_name(without_shard(name) or name)
        if split is None:
            return f"{self.root}: {name!r} names no part of a sample; expected a key, a dot and a part, as in 0001.jpg."
        key, part = split
        parts = sorted(found.part for found in self.index.parts(key)) if self.index.knows_parts else []
        if parts:
            return f"{self.root}: sample {key!r} has no part {part!r}; it has {', '.join(parts)}."
        return f"{self.root}: there is no part {name!r}: no sample has the key {key!r}. Add it, or correct the name."

    def _reading(self, part: StoredPart) -> Callable[[int, int], bytes]:
        """The function that reads the shard of `part`."""
        path = self.index.shard_path(part.shard)
        if is_gzip(path):
            return self.index.compressed(part.shard).read_exactly
        return functools.partial(storage.read, path)

    def _check(self, part: StoredPart, header: bytes) -> None:
        """Check that the member at the offset of `part`, whose last header this is, has its name and size."""
        path, wanted = self.index.shard_path(part.shard), (part.name, part.offset, part.num_bytes)
        for num_blocks in range(1, MAX_HEADER_BLOCKS + 1):
            start = part.offset - num_blocks * BLOCK
            if start < 0:
                break
            if num_blocks > 1:  # it has a long name, in an extended header before
                header = self._reading(part)(start, num_blocks * BLOCK)
            with contextlib.suppress(DatasetError):
                member = read_member(MemoryTar(header, start), start, file=path)
                if member is not None and (member.name, member.content_offset, member.num_bytes) == wanted:
                    return
        raise self._misplaced(part)

    def _misplaced(self, part: StoredPart) -> DatasetError:
        return DatasetError(
            f"{self.index.shard_path(part.shard)}: does not hold {part.name!r} at byte {part.offset}, where the index "
            "has it. The shard was replaced, or the index is damaged: restore it, or run `bridge-data prepare "
            f"{self.root} --rescan`."
        )


def _way_out(root: Location) -> str:
    return f"run `bridge-data prepare {root} --tar-index-only`"


_in_use: "weakref.WeakSet[ReadOnlyDatabase | KeyIndex]" = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_in_use):
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)
