"""Samples that a split excludes by key: their positions in their shards.

Enters: entries `shard/key` of a split. Leaves: sorted positions, by shard. Only shards with such entries are examined,
and in a prepared data set on a disk only the index pages that hold the keys: opening time does not depend on the number
of samples. Guarantee: the sample at a position has the key, according to an index with checksums or the shard itself; a
key that the shard lacks is logged.
"""

import functools
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.index_file import BridgeIndex, split_name
from bridge_data.shards.metadata import meta_folder
from bridge_data.shards.shard_table import read_offsets
from bridge_data.shards.tar_files import open_tar, walk
from bridge_data.storage import Location

if TYPE_CHECKING:
    from bridge_data.shards.key_index import KeyIndex

logger = logging.getLogger("bridge_data")


def excluded_keys(exclude: Iterable[str], names: Sequence[str]) -> dict[int, set[str]]:
    """The keys of `exclude` (entries `shard/key`), by the number of the shard in `names`; entries of other shards are
    left out."""
    shards = {name: number for number, name in enumerate(names)}
    keys: dict[int, set[str]] = defaultdict(set)
    for entry in exclude:
        slash = entry.find("/")
        while slash >= 0:
            if entry[:slash] in shards:
                keys[shards[entry[:slash]]].add(entry[slash + 1 :])
            slash = entry.find("/", slash + 1)
    return dict(keys)


class ExclusionFinder:
    """Finds samples of the data set at `root` by key. `shard_counts` are its samples by shard; `index` is our index, if
    there is one that matches."""

    def __init__(self, root: Location, shard_counts: dict[str, int], index: BridgeIndex | None) -> None:
        self._root, self._shard_counts, self._index = root, shard_counts, index

    def positions(self, shard: str, keys: set[str]) -> tuple[int, ...]:
        """The positions of the samples `keys` in `shard`. A warning names those that it does not have."""
        found = self._by_both_indexes(shard, keys)
        if found is None:
            found = self._by_index(shard, keys)
        if found is None:
            found = self._by_key_index(shard, keys)
        if found is None:
            found = self._by_headers(shard, keys)
        absent = keys - found.keys()
        if absent:
            logger.warning(
                "%s: `exclude` names %s of shard %s, which has no such sample%s",
                meta_folder(self._root),
                ", ".join(sorted(absent)[:5]),
                shard,
                "" if len(absent) == 1 else "s",
            )
        return tuple(sorted(found.values()))

    def _by_both_indexes(self, shard: str, keys: set[str]) -> dict[str, int] | None:
        """The positions that Energon's index has, if ours has these keys there; None if not, or if Energon's would have
        to be copied from a store."""
        if self._index is None or storage.is_remote(self._root):
            return None
        found = self._by_key_index(shard, keys)
        segment = self._index.segment_if_intact(shard) if found else None
        if found is None or segment is None or len(found) < len(keys):
            return None
        try:
            agree = all(at < len(segment) and segment.key(at) == key for key, at in found.items())
        except DatasetError:  # this page of ours is damaged
            return None
        return found if agree else None

    def _by_index(self, shard: str, keys: set[str]) -> dict[str, int] | None:
        stored = None if self._index is None else self._index.keys_if_intact(shard)
        return None if stored is None else {key: at for at, key in enumerate(stored) if key in keys}

    def _by_key_index(self, shard: str, keys: set[str]) -> dict[str, int] | None:
        if self._key_index is None:
            return None
        number = self._numbers[shard]
        try:
            found = {key: self._key_index.position(key, number) for key in keys}
        except DatasetError:  # an older layout, or damaged
            return None
        return {key: position for key, position in found.items() if position is not None}

    def _by_headers(self, shard: str, keys: set[str]) -> dict[str, int]:
        path = str(self._root / shard)
        offsets = read_offsets(path, self._shard_counts[shard])
        starts = {offset: position for position, offset in enumerate(offsets[:-1])}
        found: dict[str, int] = {}
        position = -1
        for member in walk(open_tar(path), offsets[0], offsets[-1], file=path):
            position = starts.get(member.offset, position)
            name = split_name(member.name) if member.is_file else None
            if name is not None and name[0] in keys:
                found.setdefault(name[0], position)
        return found

    @functools.cached_property
    def _key_index(self) -> "KeyIndex | None":
        from bridge_data.shards.key_index import KeyIndex  # here: few data sets have exclusions

        return KeyIndex.find(self._root)

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._shard_counts)}
