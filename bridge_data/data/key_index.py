"""`index.sqlite`: a database that is read only, and in it the shard, offset and size of a sample's parts, by key.

Reads keys, and names of their parts. Returns offsets. Each look-up is one search of an SQL index, in a data set of any
size; no list of keys is loaded. Splits and exclusions do not matter. Raises `DatasetError`, which says how to fix it,
for a damaged database, and for any error of SQLite. All classes here may be pickled, forked and used by any thread.
Names that are not UTF-8 have surrogates.

Source: the tables `samples` and `sample_parts` are those of Megatron-Energon 7.4; older versions wrote only the first.
"""

import contextlib
import functools
import os
import sqlite3
import threading
import weakref
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bridge_data import storage
from bridge_data.data.index_file import split_name
from bridge_data.data.metadata import INDEX_SQLITE, META_FOLDER, meta_folder, read_shard_counts
from bridge_data.data.tar_files import CompressedTar, FileTar, is_gzip, open_compressed, walk
from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.storage import Location, RecentlyUsed

GZIP_CACHE_BYTES = 256 << 20
"""What the compressed shards that an index keeps open may take: each about 1% of its size."""

_JOINED = """
FROM samples s JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index
"""
_RANGE = "p.tar_file_id, p.content_byte_offset, p.content_byte_size"
_TEXT = "CAST(? AS TEXT)"  # also of bytes that are not UTF-8
_PART = f"SELECT {_RANGE} {_JOINED} WHERE s.sample_key = {_TEXT} AND p.part_name = {_TEXT} ORDER BY p.tar_file_id"
_PARTS = (
    f"SELECT p.part_name, {_RANGE} {_JOINED} WHERE s.sample_key = {_TEXT} ORDER BY p.tar_file_id, p.content_byte_offset"
)
_IN_ORDER = "ORDER BY s.tar_file_id, s.sample_index, p.content_byte_offset"
_NAMES = f"SELECT s.tar_file_id, s.sample_key, p.part_name {_JOINED}{_IN_ORDER}"
_SAMPLE = f"SELECT tar_file_id, sample_index, byte_offset, byte_size FROM samples WHERE sample_key = {_TEXT}"
_KEYS = "SELECT sample_key FROM samples WHERE tar_file_id = ? ORDER BY sample_index"
_SPANS = (
    "SELECT sample_key, byte_offset, byte_offset + byte_size FROM samples WHERE tar_file_id = ? ORDER BY sample_index"
)
_KEY_RANGE = (
    f"SELECT sample_key FROM samples WHERE sample_key >= {_TEXT} AND sample_key < {_TEXT} ORDER BY sample_key LIMIT ?"
)
_KEY_INDEX = "SELECT sql FROM sqlite_master WHERE name = 'idx_samples_sample_key'"
_SHARED = (
    "SELECT COUNT(*), MIN(sample_key) FROM (SELECT sample_key FROM samples GROUP BY sample_key HAVING COUNT(*) > 1)"
)


def as_text(name: str) -> str | bytes:
    """`name` as a value for `CAST(? AS TEXT)`: with surrogates, the bytes that it stands for."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogateescape")
    return name


def text_of(data: bytes) -> str:
    """A name that is stored as `data`, with surrogates if that is not UTF-8."""
    return data.decode("utf-8", "surrogateescape")


class ReadOnlyDatabase:
    """The SQLite file at `file`, which no one writes to. `fix` ends the message if it cannot be read."""

    def __init__(self, file: Path, fix: str) -> None:
        self.file, self.fix = file, fix
        self.after_fork()
        forgetting_after_fork(self)

    def after_fork(self) -> None:
        """In a forked child: reconnect, with a lock that no thread of the parent can hold."""
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def rows(self, query: str, *values: object) -> list[Any]:
        """All rows that answer `query`."""
        with self._lock, self._reporting():
            if self._connection is None:
                self._connection = self._connect()
            return self._connection.execute(query, _bound(values)).fetchall()

    def stream(self, query: str, *values: object) -> Generator[Any, None, None]:
        """The rows that answer `query`, one by one, over a separate connection."""
        with self._reporting(), contextlib.closing(self._connect()) as connection:
            yield from connection.execute(query, _bound(values))

    def has_table(self, name: str) -> bool:
        """Whether there is a table called `name`."""
        return bool(self.rows("SELECT 1 FROM sqlite_master WHERE name = ?", name))

    def _connect(self) -> sqlite3.Connection:
        """A connection that cannot write, takes no locks and may be used by any thread."""
        uri = f"{self.file.absolute().as_uri()}?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        connection.text_factory = text_of
        return connection

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter if a message names damaged text
            raise DatasetError(f"{self.file}: cannot be read: {error}; {self.fix}") from error

    def __reduce__(self) -> tuple[type["ReadOnlyDatabase"], tuple[Path, str]]:
        return ReadOnlyDatabase, (self.file, self.fix)


def _bound(values: tuple[object, ...]) -> list[object]:
    return [as_text(value) if isinstance(value, str) else value for value in values]


class _Forked(Protocol):
    def after_fork(self) -> None:
        """Reopen what a child must not share with its parent."""


_in_use: "weakref.WeakSet[_Forked]" = weakref.WeakSet()


def forgetting_after_fork(one: _Forked) -> None:
    """Call `one.after_fork()` in each forked child."""
    _in_use.add(one)


def _after_fork() -> None:
    for each in list(_in_use):
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class SharedKeys(NamedTuple):
    """Keys that occur in several shards: how many, and one of them with the numbers of its shards."""

    num_keys: int
    key: str
    shards: tuple[int, ...]

    @classmethod
    def find(cls, database: ReadOnlyDatabase) -> "SharedKeys | None":
        """The shared keys of the index in `database`; None if all keys are unique."""
        created = database.rows(_KEY_INDEX)
        if not created or "UNIQUE" in created[0][0]:  # or there are no samples in it
            return None
        ((num_keys, key),) = database.rows(_SHARED)
        return cls(num_keys, key, tuple(row[0] for row in database.rows(_SAMPLE, key))) if num_keys else None

    def in_words(self, shard_names: Sequence[str]) -> str:
        """`2 keys occur in several shards, such as '0001' in a.tar and b.tar`."""
        first, *_, last = self.shards
        more = f" and {len(self.shards) - 2} more" if len(self.shards) > 2 else ""
        what = "1 key occurs" if self.num_keys == 1 else f"{self.num_keys:,} keys occur"
        return f"{what} in several shards, such as {self.key!r} in {shard_names[first]} and {shard_names[last]}{more}"


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
        self.database = ReadOnlyDatabase(file, _fix(root))
        self.after_fork()
        forgetting_after_fork(self)

    def after_fork(self) -> None:
        """In a forked child: reopen compressed shards, as a thread of the parent may have been reading one."""
        self._compressed: RecentlyUsed[int, CompressedTar] = RecentlyUsed(GZIP_CACHE_BYTES)

    @classmethod
    def find(cls, root: Location) -> "KeyIndex | None":
        """The index of the folder `root`; None if it has no `index.sqlite`, or is other data. One in an object store is
        copied to the disk."""
        file = storage.local_copy(root / META_FOLDER / INDEX_SQLITE)
        return None if file is None else cls(root, file)

    @classmethod
    def open(cls, root: Location) -> "KeyIndex":
        """The index of the folder `root`.

        Raises:
            ConfigError: if there is no prepared data set, or it has no `index.sqlite`.
        """
        meta_folder(root)
        index = cls.find(root)
        if index is None:
            raise ConfigError(f"{root}: has no index of its keys, {INDEX_SQLITE}; {_fix(root)}")
        return index

    @functools.cached_property
    def shard_names(self) -> list[str]:
        """The paths of the shards, relative to the folder, by their numbers."""
        return list(read_shard_counts(meta_folder(self.root)))

    def shard_path(self, shard: int) -> str:
        """The path or URL of shard number `shard`."""
        return f"{self.root}/{self.shard_names[shard]}"

    def compressed(self, shard: int) -> CompressedTar:
        """The tar in shard number `shard`, which is compressed. It is kept open, as finding a sample in it is slow."""
        tar = self._compressed.get(shard)
        if tar is None:
            tar = open_compressed(self.shard_path(shard))
            tar.warn_if_slow()
            self._compressed.put(shard, tar, tar.held_bytes)
        return tar

    @functools.cached_property
    def knows_parts(self) -> bool:
        """Whether there is a table of parts; in an older index there is none, and headers are read instead."""
        return self.database.has_table("sample_parts")

    def part(self, key: str, part: str) -> list[StoredPart]:
        """The part `part` of the sample `key`; several if samples of several shards have this key."""
        if self.knows_parts:
            return [self._stored(key, part, *row) for row in self.database.rows(_PART, key, part)]
        return [found for found in self.parts(key) if found.part == part]

    def parts(self, key: str) -> list[StoredPart]:
        """The parts of the sample `key`, by shard and offset; none if there is no such sample."""
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
        """A row, if its values are valid for a part: the database has no checksum."""
        are_numbers = all(type(number) is int and number >= 0 for number in (shard, offset, num_bytes))
        if not (are_numbers and isinstance(part, str) and shard < len(self.shard_names)):
            raise DatasetError(
                f"{self.database.file}: is damaged: it has part {part!r} of {key!r} in shard number {shard!r}, at byte "
                f"{offset!r}, {num_bytes!r} bytes; {self.database.fix} --rescan"
            )
        return StoredPart(key, part, shard, offset, num_bytes)

    def part_names(self) -> Iterator[tuple[int, str, str]]:
        """(number of the shard, key, part) of all parts, in the order of the data set."""
        return self.database.stream(_NAMES)

    def positions(self, key: str) -> dict[int, int]:
        """The position of the sample `key` in each shard that has one, by the number of the shard, in their order."""
        positions = {}
        for shard, position, offset, num_bytes in self.database.rows(_SAMPLE, key):
            self._stored(key, "", shard, offset, num_bytes)
            if type(position) is not int or position < 0:
                raise DatasetError(
                    f"{self.database.file}: is damaged: it has {key!r} at position {position!r} of shard number "
                    f"{shard!r}; {self.database.fix} --rescan"
                )
            positions[shard] = position
        return dict(sorted(positions.items()))

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


def _fix(root: Location) -> str:
    return f"run `{bridge_command('prepare', root, '--tar-index-only')}`"
