"""A prepared data set: a folder of shards with its `.nv-meta`.

Enters: the folder. Leaves: `ShardSet`s, one a split part. Opening reads a few metadata files and touches no shard.
"""

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Iterable
from os import PathLike

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.shards.bridge_index import BridgeIndex
from bridge_data.shards.key_index import KeyIndex
from bridge_data.shards.members import first_samples
from bridge_data.shards.metadata import meta_folder, read_shard_counts, read_split, read_uuid
from bridge_data.shards.names import BRIDGE_INDEX, split_name
from bridge_data.shards.shard_set import ShardSet
from bridge_data.shards.tar_bytes import open_tar
from bridge_data.shards.tar_headers import walk
from bridge_data.shards.tar_index import read_offsets
from bridge_data.storage import Location

logger = logging.getLogger("bridge_data")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDataset:
    """The data set at `root`; `shard_counts` are its samples by shard, in the order of preparation.

    `index` is our memory-mapped index, where there is one that matches; without it all is found by Energon's files.
    """

    root: Location
    shard_counts: dict[str, int]
    index: BridgeIndex | None

    @classmethod
    def open(cls, path: str | PathLike[str]) -> "PreparedDataset":
        """The data set in the folder `path`, on a disk or at a URL.

        Raises:
            ConfigError: if there is none, or it is not prepared. DatasetError: if its metadata are damaged.
        """
        root = storage.location(path)
        meta = meta_folder(root)
        shard_counts = read_shard_counts(meta)
        index = BridgeIndex.open(meta / BRIDGE_INDEX)
        if index is not None and not index.describes(shard_counts, read_uuid(meta)):
            index = None
        return cls(root=root, shard_counts=shard_counts, index=index)

    @property
    def meta(self) -> Location:
        """The folder with the metadata."""
        return meta_folder(self.root)

    def shard_bytes(self, shard: str) -> int:
        """The size of a shard, as our index knows it, or else of its file."""
        return self.index.entries[shard].num_bytes if self.index is not None else storage.size_bytes(self.root / shard)

    def part_names(self, max_shards: int = 10) -> list[str]:
        """The names of the parts in the first shards, sorted; without our index, those of the first samples."""
        names: set[str] = set()
        for shard in list(self.shard_counts)[:max_shards]:
            if self.index is not None:
                names.update(self.index.segment(shard).names)
            else:
                for parts in first_samples(self.root, shard, limit=10).values():
                    names.update(name for name, _, _ in parts)
        return sorted(names)

    def split_parts(self, split_config: str | None = None) -> list[str]:
        """The names of the parts, `train`, `val` and so on."""
        return list(read_split(self.meta, split_config)[0])

    def split(self, split_part: str, *, split_config: str | None = None) -> ShardSet:
        """The shards of `split_part`, by `split.yaml` or the file named `split_config` beside it.

        Raises:
            ConfigError: if there is no such part. DatasetError: if it names shards that were not prepared.
        """
        parts, exclude = read_split(self.meta, split_config)
        if split_part not in parts:
            raise ConfigError(
                f"{self.meta / (split_config or 'split.yaml')}: there is no split part {split_part!r}; "
                f"there is {', '.join(parts) or 'none'}"
            )
        left_out = set(exclude)
        names = [name for name in parts[split_part] if name not in left_out]
        unknown = [name for name in names if name not in self.shard_counts]
        if unknown:
            raise DatasetError(
                f"{self.meta}: split part {split_part!r} names {unknown[0]!r}"
                + (f" and {len(unknown) - 1} more shards" if len(unknown) > 1 else "")
                + f", which the data set was prepared without; run `bridge-data prepare {self.root}` again"
            )
        excluded = _by_shard(exclude, {name: number for number, name in enumerate(names)})
        return ShardSet(
            root=self.root,
            split_part=split_part,
            names=tuple(names),
            stored_counts=tuple(self.shard_counts[name] for name in names),
            excluded=frozenset(f"{names[shard]}/{key}" for shard, keys in excluded.items() for key in keys),
            excluded_positions={shard: self._positions(names[shard], keys) for shard, keys in excluded.items()},
            index=self.index,
        )

    def _positions(self, shard: str, keys: set[str]) -> tuple[int, ...]:
        """The positions of the samples `keys` in `shard`: by our index, or Energon's, or else by its headers."""
        found: dict[str, int] | None = None
        if self.index is not None:
            found = {key: at for at, key in enumerate(self.index.segment(shard).keys()) if key in keys}
        if found is None:
            found = self._positions_by_keys(shard, keys)
        if found is None:
            found = self._positions_by_headers(shard, keys)
        absent = keys - found.keys()
        if absent:
            logger.warning(
                "%s: `exclude` names %s of shard %s, which has no such sample%s",
                self.meta,
                ", ".join(sorted(absent)[:5]),
                shard,
                "" if len(absent) == 1 else "s",
            )
        return tuple(sorted(found.values()))

    def _positions_by_keys(self, shard: str, keys: set[str]) -> dict[str, int] | None:
        index = KeyIndex.find(self.root)
        if index is None:
            return None
        number = list(self.shard_counts).index(shard)
        try:
            found = {key: index.position(key) for key in keys}
        except DatasetError:  # an older layout
            return None
        return {key: at[1] for key, at in found.items() if at is not None and at[0] == number}

    def _positions_by_headers(self, shard: str, keys: set[str]) -> dict[str, int]:
        path = str(self.root / shard)
        offsets = read_offsets(path, self.shard_counts[shard])
        starts = {offset: position for position, offset in enumerate(offsets[:-1])}
        found: dict[str, int] = {}
        position = -1
        for member in walk(open_tar(path), offsets[0], offsets[-1], file=path):
            position = starts.get(member.offset, position)
            name = split_name(member.name) if member.is_file else None
            if name is not None and name[0] in keys:
                found.setdefault(name[0], position)
        return found


def open_shards(path: str | PathLike[str], split_part: str, *, split_config: str | None = None) -> ShardSet:
    """The shards of `split_part` of the prepared data set in the folder `path`; see `PreparedDataset`."""
    return PreparedDataset.open(path).split(split_part, split_config=split_config)


def _by_shard(exclude: Iterable[str], shards: dict[str, int]) -> dict[int, set[str]]:
    """The keys of `exclude` (entries `shard/key`), by shard number; entries for other shards have no meaning here."""
    keys: dict[int, set[str]] = defaultdict(set)
    for entry in exclude:
        slash = entry.find("/")
        while slash >= 0:
            if entry[:slash] in shards:
                keys[shards[entry[:slash]]].add(entry[slash + 1 :])
            slash = entry.find("/", slash + 1)
    return dict(keys)
