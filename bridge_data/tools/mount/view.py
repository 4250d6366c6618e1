"""The tree of folders and files as which a data set is shown.

Enters: paths. Leaves: what each is, and what is in it. Three layouts: `members`, all parts under the names that they
have in the shards; `samples`, a folder for each sample, with a file for each part; `shards`, a folder for each shard,
with its members. Slashes in keys are folders in all of them. All comes from look-ups in `index.sqlite`; little is held
in memory.
"""

import bisect
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from bridge_data.shards.key_index import PartReader, StoredPart
from bridge_data.shards.metadata import split_name

Layout: TypeAlias = Literal["members", "samples", "shards"]

MAX_LISTED = 8
"""Shards whose keys are held in memory, while their folders are looked at."""

_LAST = "\U0010ffff"


@dataclasses.dataclass(frozen=True, slots=True)
class ShardPath:
    """A path below the shard that it is in (None: below all), without slash in front."""

    shard: int | None
    rest: str


class View:
    """The data set in the folder `root` in a `layout`.

    Raises:
        ConfigError: if it is not prepared.
    """

    def __init__(self, root: Path, layout: Layout = "members") -> None:
        self.catalog = Catalog(root)
        self._by_sample = layout == "samples"
        shards = self.catalog.shards if layout == "shards" else []
        self._shards = {name: number for number, name in enumerate(shards)}
        self._sorted_shards = sorted(shards)

    def file(self, path: str) -> StoredPart | None:
        """The part that is the file `path`, such as `/a/0001.jpg`; None if there is no such file."""
        found = self._locate(path)
        if found is None:
            return None
        if self._by_sample:
            key, _, name = found.rest.rpartition("/")
        else:
            pieces = split_name(found.rest)
            if pieces is None:
                return None
            key, name = pieces
        return next((part for part in self.catalog.parts(key, found.shard) if part.part == name), None)

    def is_folder(self, path: str) -> bool:
        """Whether `path` is a folder."""
        found = self._locate(path)
        if found is None:
            return path == "/" or self._has_shard_below(path[1:] + "/")
        if not found.rest or self.catalog.has_below(found.rest + "/", found.shard):
            return True
        return self._by_sample and bool(self.catalog.parts(found.rest, found.shard))

    def names(self, path: str) -> Iterator[str]:
        """The names in the folder `path`."""
        found = self._locate(path)
        if found is None:
            yield from self._shard_names(path[1:] + "/" if path != "/" else "")
            return
        prefix = found.rest + "/" if found.rest else ""
        if self._by_sample:
            if found.rest:
                yield from (part.part for part in self.catalog.parts(found.rest, found.shard))
            yield from _without_repetition(self.catalog.names_below(prefix, found.shard))
            return
        for name, is_key in self.catalog.names_below(prefix, found.shard):
            if is_key:
                yield from (f"{name}.{part.part}" for part in self.catalog.parts(prefix + name, found.shard))
            else:
                yield name

    def _locate(self, path: str) -> ShardPath | None:
        """Where `path` is, in its shard; None above the shards."""
        rest = path[1:]
        if not self._shards:
            return ShardPath(None, rest)
        end = len(rest)
        while end > 0:
            number = self._shards.get(rest[:end])
            if number is not None:
                return ShardPath(number, rest[end + 1 :])
            end = rest.rfind("/", 0, end)
        return None

    def _has_shard_below(self, prefix: str) -> bool:
        return next(self._shard_names(prefix), None) is not None

    def _shard_names(self, prefix: str) -> Iterator[str]:
        """The next pieces of the shards' names that begin with `prefix`."""
        last = ""
        for number in range(bisect.bisect_left(self._sorted_shards, prefix), len(self._sorted_shards)):
            if not self._sorted_shards[number].startswith(prefix):
                return
            piece = self._sorted_shards[number][len(prefix) :].partition("/")[0]
            if piece != last:
                last = piece
                yield piece


def _without_repetition(names: Iterator[tuple[str, bool]]) -> Iterator[str]:
    """Names once, where one is a key and a folder of other keys as well; those are next to each other but for a few in
    between."""
    keys: set[str] = set()
    for name, is_key in names:
        if is_key:
            keys.add(name)
            yield name
        elif name not in keys:
            yield name


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
