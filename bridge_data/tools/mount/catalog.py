"""Which samples a prepared data set has below a prefix of their keys: look-ups in its `index.sqlite`.

Enters: keys, beginnings of keys. Leaves: the next pieces of keys, parts, and ranges of parts. Little is held in memory.
"""

import bisect
import threading
from collections.abc import Iterator
from pathlib import Path

from bridge_data.shards.key_index import PartReader, StoredPart

MAX_LISTED = 8
"""Shards whose keys are held in memory, while their folders are looked at."""

_LAST = "\U0010ffff"


class Catalog:
    """The samples of the data set in the folder `root`, whose shards are `shards`. Any thread may ask.

    Raises:
        ConfigError: if it is not prepared, or without an index of keys. DatasetError: if that cannot be read.
    """

    def __init__(self, root: Path) -> None:
        self._reader = PartReader(root)
        self._index = self._reader.index
        self.shards = self._index.shard_names
        self.path = self._index.database.file
        self._index.knows_parts  # noqa: B018 - a damaged index is told here
        self._lock = threading.Lock()
        self._keys: dict[int, list[str]] = {}

    def parts(self, key: str, shard: int | None = None) -> list[StoredPart]:
        """The parts of the sample `key` (if it is in `shard`, where that is given); none if there is no such sample."""
        return [part for part in self._index.parts(key) if shard in (None, part.shard)]

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

    def size(self) -> tuple[int, int]:
        """(bytes, number) of all samples."""
        return self._index.size()

    def read(self, part: StoredPart, offset: int, num_bytes: int) -> bytes:
        """A range of a part, fewer bytes at its end.

        Raises:
            DatasetError: if it cannot be read.
        """
        return self._reader.read(part, offset, num_bytes)

    def _keys_from(self, start: str, prefix: str, shard: int | None) -> Iterator[str]:
        """The keys that begin with `prefix`, sorted, from `start` on; of one shard, by a list of all its keys."""
        if shard is not None:
            keys = self._keys_of(shard)
            for number in range(bisect.bisect_left(keys, start), len(keys)):
                if not keys[number].startswith(prefix):
                    return
                yield keys[number]
            return
        limit = 1
        while keys := self._index.sorted_keys(start, prefix + _LAST, limit):
            yield from keys
            start, limit = keys[-1] + "\0", min(1000, 2 * limit)

    def _keys_of(self, shard: int) -> list[str]:
        with self._lock:
            keys = self._keys.get(shard)
            if keys is None:
                keys = self._keys[shard] = sorted(self._index.keys(shard))
                while len(self._keys) > MAX_LISTED:
                    self._keys.pop(next(iter(self._keys)))
            return keys
