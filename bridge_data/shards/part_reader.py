"""Reading parts by name, wherever in a prepared data set they lie.

Enters: the folder and the name of a part as its shard has it, `0001.jpg`. Leaves: the part's bytes, and where it lies.
A name is found by the indexes of `index.sqlite`: one look-up, whatever the size of the data set; no key is loaded
before. Splits and exclusions do not matter. Guarantee: the bytes that the shard holds under this name, or an error that
says whether the name is wrong or the data.
"""

import collections
import contextlib
import functools
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any, NamedTuple

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.shards.gzip_tar import GzipTar, is_gzip
from bridge_data.shards.media_metadata import read_only
from bridge_data.shards.metadata import meta_folder, read_shard_counts
from bridge_data.shards.names import INDEX_SQLITE, split_name, without_shard
from bridge_data.shards.tar_bytes import MemoryTar
from bridge_data.shards.tar_headers import BLOCK, header_is_intact, walk

MAX_KNOWN_SHARDS = 64
"""Shards that a reader keeps at hand; a compressed one holds about 1% of its size and a buffer of 1 MiB."""

_PART = """
SELECT p.tar_file_id, p.content_byte_offset, p.content_byte_size FROM samples s
JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index
WHERE s.sample_key = ? AND p.part_name = ?
"""
_SAMPLE = "SELECT tar_file_id, byte_offset, byte_size FROM samples WHERE sample_key = ?"
_PARTS = """
SELECT p.part_name FROM samples s
JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index WHERE s.sample_key = ?
"""
_ALL = """
SELECT s.sample_key || '.' || p.part_name FROM samples s
JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index
ORDER BY s.tar_file_id, s.sample_index, p.content_byte_offset
"""


class PartPlace(NamedTuple):
    """Where a part lies: the number of its shard, and the range of its content there."""

    name: str
    shard: int
    offset: int
    num_bytes: int


class PartReader:
    """Reads parts of the data set in the folder `root`. It may be pickled, and used by several threads.

    Raises:
        ConfigError: if there is no prepared data set, or it has no index of its keys.
    """

    def __init__(self, root: str | PathLike[str]) -> None:
        self.root = storage.location(root).absolute()
        path = storage.local_copy(meta_folder(self.root) / INDEX_SQLITE)
        if path is None:
            raise ConfigError(
                f"{self.root}: has no index of its keys, {INDEX_SQLITE}, so its parts cannot be found by their names; "
                f"run `bridge-data prepare {self.root} --tar-index-only`"
            )
        self._path = path
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._connection: tuple[int, sqlite3.Connection] | None = None
        self._contents: collections.OrderedDict[int, Callable[[int, int], bytes]] = collections.OrderedDict()

    @functools.cached_property
    def shard_names(self) -> list[str]:
        """The paths of the shards, relative to the folder, by their numbers."""
        return list(read_shard_counts(meta_folder(self.root)))

    def find(self, name: str) -> PartPlace:
        """Where the part `name` lies; a name that begins with that of a shard is also found without it.

        Raises:
            SampleError: if there is no such part. DatasetError: if the index cannot be read.
        """
        for candidate in (name, without_shard(name)):
            split = None if candidate is None else split_name(candidate)
            if split is not None and candidate is not None:
                place = self._place(*split)
                if place is not None:
                    return PartPlace(candidate, *place)
        raise SampleError(self._complaint(name))

    def read(self, place: PartPlace) -> bytes:
        """The content of a part.

        Raises:
            DatasetError: if it cannot be read, or is not there any more.
        """
        return self._content(place)(place.offset, place.num_bytes)

    def names(self) -> Iterator[str]:
        """The names of all parts, in the order of the data set.

        Raises:
            DatasetError: if the index cannot be read, or is of an older layout, without parts.
        """
        with self._reporting(), contextlib.closing(read_only(self._path)) as database:
            for (name,) in database.execute(_ALL):
                yield name

    def _place(self, key: str, part: str) -> tuple[int, int, int] | None:
        """(shard, offset, size) of a part."""
        if self._knows_parts:
            return next(iter(self._rows(_PART, key, part)), None)
        for shard, start, num_bytes in self._rows(_SAMPLE, key):
            path = str(self.root / self.shard_names[shard])
            sample = MemoryTar(_content_of(path)(start, num_bytes), start)
            for member in walk(sample, start, start + num_bytes, file=path):
                if member.is_file and split_name(member.name) == (key, part):
                    return shard, member.content_offset, member.num_bytes
        return None

    def _complaint(self, name: str) -> str:
        split = split_name(without_shard(name) or name)
        if split is None:
            return f"{self.root}: {name!r} names no part of a sample; expected a key, a dot and a part, as in 0001.jpg."
        key, part = split
        parts = sorted(row[0] for row in self._rows(_PARTS, key)) if self._knows_parts else []
        if parts:
            return f"{self.root}: sample {key!r} has no part {part!r}; it has {', '.join(parts)}."
        return f"{self.root}: there is no part {name!r}: no sample has the key {key!r}. Add it, or mend the name."

    @functools.cached_property
    def _knows_parts(self) -> bool:
        return bool(self._rows("SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'"))

    def _rows(self, query: str, *arguments: str) -> list[Any]:
        with self._lock, self._reporting():
            if self._connection is None or self._connection[0] != os.getpid():
                self._connection = os.getpid(), read_only(self._path)
            return self._connection[1].execute(query, arguments).fetchall()

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise DatasetError(
                f"{self._path}: cannot be read: {error}; run `bridge-data prepare {self.root} --tar-index-only`"
            ) from error

    def _content(self, place: PartPlace) -> Callable[[int, int], bytes]:
        """What reads the shard of `place`; the first time, it is checked that the part still lies there."""
        with self._lock:
            content = self._contents.get(place.shard)
            if content is None:
                path = str(self.root / self.shard_names[place.shard])
                content = _content_of(path)
                header = content(place.offset - BLOCK, BLOCK)
                if not (header_is_intact(header) and _size_in(header) in (place.num_bytes, None)):
                    raise DatasetError(
                        f"{path}: does not hold {place.name!r} at byte {place.offset}, where the index has it. The "
                        f"shard was replaced: restore it, or run `bridge-data prepare {self.root}` again."
                    )
                while len(self._contents) >= MAX_KNOWN_SHARDS:
                    self._contents.popitem(last=False)
                self._contents[place.shard] = content
            return content

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "_path": self._path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()


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
