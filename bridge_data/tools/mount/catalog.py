"""Which samples a prepared data set has, by key: look-ups in its `index.sqlite`, whatever its size.

Enters: keys, beginnings of keys. Leaves: places of samples and of their parts. Little is held in memory.
"""

import bisect
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.shards.gzip_tar import GzipTar, is_gzip
from bridge_data.shards.media_metadata import read_only
from bridge_data.shards.metadata import meta_folder, read_shard_counts
from bridge_data.shards.names import INDEX_SQLITE, split_name
from bridge_data.shards.tar_bytes import open_tar
from bridge_data.shards.tar_headers import walk

MAX_LISTED = 8
"""Shards whose keys are held in memory, while their folders are looked at."""

_LAST = "\U0010ffff"


class StoredPart(NamedTuple):
    """A part of a sample: the number of its shard, and where it lies in it."""

    name: str
    shard: int
    offset: int
    num_bytes: int


class Catalog:
    """The samples of the data set in the folder `root`, whose shards are `shards`. Any thread may ask.

    Raises:
        ConfigError: if it is not prepared, or without an index of keys.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        meta = meta_folder(root)
        self.shards = list(read_shard_counts(meta))
        self.path = meta / INDEX_SQLITE
        if not self.path.is_file():
            raise ConfigError(f"{root}: has no {INDEX_SQLITE}; run `bridge-data prepare {root} --tar-index-only`")
        self._lock = threading.Lock()
        self._db = read_only(self.path)
        self._knows_parts = bool(self._ask("SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'"))
        self._tars: dict[int, GzipTar] = {}
        self._keys: dict[int, list[str]] = {}

    def parts(self, key: str, shard: int | None = None) -> list[StoredPart]:
        """The parts of the sample `key` (if it is in `shard`, where that is given); none if there is no such sample."""
        rows = self._ask(
            "SELECT tar_file_id, sample_index, byte_offset, byte_size FROM samples WHERE sample_key = ?", (key,)
        )
        if not rows or (shard is not None and rows[0][0] != shard):
            return []
        number, index, offset, num_bytes = rows[0]
        if self._knows_parts:
            places = self._ask(
                "SELECT part_name, content_byte_offset, content_byte_size FROM sample_parts "
                "WHERE tar_file_id = ? AND sample_index = ? ORDER BY content_byte_offset",
                (number, index),
            )
            return [StoredPart(name, number, *place) for name, *place in places]
        path = str(self.root / self.shards[number])
        tar = self._gzip_tar(number) if is_gzip(path) else open_tar(path)
        members = walk(tar, offset, offset + num_bytes, file=path)
        names = ((split_name(member.name), member) for member in members if member.is_file)
        return [StoredPart(name[1], number, m.content_offset, m.num_bytes) for name, m in names if name is not None]

    def has_below(self, prefix: str, shard: int | None = None) -> bool:
        """Whether a key begins with `prefix`."""
        return next(self._keys_from(prefix, prefix, shard), None) is not None

    def names_below(self, prefix: str, shard: int | None = None) -> Iterator[tuple[str, bool]]:
        """(next piece of the keys that begin with `prefix`, whether it is a whole key), sorted; a piece may be both."""
        start = prefix
        while True:
            for key in self._keys_from(start, prefix, shard):
                piece, slash, _ = key[len(prefix) :].partition("/")
                yield piece, not slash
                if slash:  # what else is below that piece need not be read
                    start = f"{prefix}{piece}/{_LAST}"
                    break
            else:
                return

    def _keys_from(self, start: str, prefix: str, shard: int | None) -> Iterator[str]:
        """The keys that begin with `prefix`, sorted, from `start` on; of one shard, by a list of all its keys."""
        if shard is not None:
            keys = self._keys_of(shard)
            for number in range(bisect.bisect_left(keys, start), len(keys)):
                if not keys[number].startswith(prefix):
                    return
                yield keys[number]
            return
        query = "SELECT sample_key FROM samples WHERE sample_key >= ? AND sample_key < ? ORDER BY sample_key LIMIT ?"
        limit = 1
        while rows := self._ask(query, (start, prefix + _LAST, limit)):
            yield from (key for (key,) in rows)
            start, limit = rows[-1][0] + "\0", min(1000, 2 * limit)

    def _keys_of(self, shard: int) -> list[str]:
        keys = self._keys.get(shard)
        if keys is None:
            rows = self._ask("SELECT sample_key FROM samples WHERE tar_file_id = ?", (shard,))
            keys = self._keys[shard] = sorted(key for (key,) in rows)
            while len(self._keys) > MAX_LISTED:
                self._keys.pop(next(iter(self._keys)))
        return keys

    def num_bytes(self) -> int:
        """The size of all samples."""
        total: int | None = self._ask("SELECT SUM(byte_size) FROM samples")[0][0]
        return total or 0

    def num_samples(self) -> int:
        """How many samples there are."""
        number: int = self._ask("SELECT COUNT(*) FROM samples")[0][0]
        return number

    def read(self, part: StoredPart, offset: int, num_bytes: int) -> bytes:
        """A range of a part, fewer bytes at its end.

        Raises:
            DatasetError: if it cannot be read.
        """
        wanted = max(0, min(num_bytes, part.num_bytes - offset))
        path = str(self.root / self.shards[part.shard])
        if is_gzip(path):
            with self._lock:
                return self._gzip_tar(part.shard).read_exactly(part.offset + offset, wanted)
        return storage.read(path, part.offset + offset, wanted) if wanted else b""

    def _gzip_tar(self, shard: int) -> GzipTar:
        if shard not in self._tars:
            self._tars[shard] = GzipTar(str(self.root / self.shards[shard]))
        return self._tars[shard]

    def _ask(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise DatasetError(
                f"{self.path}: cannot be read: {error}; run `bridge-data prepare {self.root} --tar-index-only`"
            ) from error
