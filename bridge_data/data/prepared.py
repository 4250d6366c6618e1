"""A prepared data set: a folder of shards with its `.nv-meta`.

Reads the folder. Returns `ShardSet`s, one for each split part: samples per shard, without those that are excluded.
Opening reads a few metadata files and touches no shard, but for keys to exclude, if no index has them.
"""

import collections
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from bridge_data import storage
from bridge_data.data.index_file import BridgeIndex, Part, split_name
from bridge_data.data.metadata import (
    BRIDGE_INDEX,
    META_FOLDER,
    meta_folder,
    read_shard_counts,
    read_split,
    read_uuid,
)
from bridge_data.data.records import Records, stored_records
from bridge_data.data.sample_keys import find, scan_headers, scan_keys
from bridge_data.data.shard_set import ShardSet
from bridge_data.data.tar_files import is_gzip, open_tar, walk
from bridge_data.data.withheld import SampleKey, ShardStamp, StoredFiles, files_of, keys_in
from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.storage import Location

logger = logging.getLogger("bridge_data")

MakeIndex: TypeAlias = Callable[[Path, dict[str, int], str | None], BridgeIndex | None]
"""(folder, samples by shard, identity of the preparation) to an index of it."""

_FIRST_BYTES = 4096
"""Bytes of two samples that are compared first."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDataset:
    """The data set at `root`; `shard_counts` are its samples by shard, in the order of preparation.

    `index` is our index, if a matching one exists; else Energon's files are used.
    """

    root: Location
    shard_counts: dict[str, int]
    index: BridgeIndex | None
    limits: Limits = DEFAULT_LIMITS

    @classmethod
    def open(
        cls, path: str | PathLike[str], limits: Limits = DEFAULT_LIMITS, *, make_index: MakeIndex | None = None
    ) -> "PreparedDataset":
        """The data set in the folder `path`, on a disk or at a URL; `limits` are those of its metadata. `make_index`
        makes our index of a data set of Energon's on a disk.

        Raises:
            ConfigError: if there is none, or it is not prepared.
            DatasetError: if its metadata are damaged.
        """
        root = storage.location(path)
        meta = meta_folder(root)
        shard_counts = read_shard_counts(meta, limits)
        is_missing = make_index is not None and not (meta / BRIDGE_INDEX).exists()
        index = BridgeIndex.open(meta / BRIDGE_INDEX)
        if index is not None and not index.describes(shard_counts, read_uuid(meta)):
            index = None
        if is_missing and make_index is not None and isinstance(root, Path):
            index = make_index(root, shard_counts, read_uuid(meta))
        return cls(root=root, shard_counts=shard_counts, index=index, limits=limits)

    @property
    def meta(self) -> Location:
        """The folder with the metadata."""
        return self.root / META_FOLDER

    def shard_bytes(self, shard: str) -> int:
        """The size of a shard, from our index or else from its file."""
        return self.index.entries[shard].num_bytes if self.index is not None else storage.size_bytes(self.root / shard)

    def stamp(self, shard: str) -> ShardStamp:
        """What the list of forgotten samples knows of a shard, from our index if there is one."""
        return _stamp(self.root, self.index, shard, self.shard_counts[shard])

    def part_names(self, max_shards: int = 10) -> list[str]:
        """The names of the parts in the first shards, sorted; without our index, those of the first samples."""
        names: set[str] = set()
        for shard in list(self.shard_counts)[:max_shards]:
            segment = None if self.index is None else self.index.segment_if_intact(shard)
            if segment is not None:
                names.update(segment.names)
            else:
                for parts in first_samples(self.root, shard, limit=10).values():
                    names.update(name for name, _, _ in parts)
        return sorted(names)

    def all_shards(self) -> ShardSet:
        """All samples, whether or not a split part has them."""
        return self._shards("", list(self.shard_counts))

    def _shards(self, split_part: str, names: Sequence[str], **others: Any) -> ShardSet:
        counts = tuple(map(self.shard_counts.__getitem__, names))
        return ShardSet(
            root=self.root,
            split_part=split_part,
            names=tuple(names),
            stored_counts=counts,
            index=self.index,
            **others,
        )

    def split_parts(self, split_config: str | None = None) -> list[str]:
        """The names of the parts, `train`, `val` and so on."""
        return list(read_split(self.meta, split_config, self.limits).split_parts)

    def split(self, split_part: str, *, split_config: str | None = None) -> ShardSet:
        """The shards of `split_part`, by `split.yaml` or the file named `split_config` next to it.

        Raises:
            ConfigError: if there is no such part, or it names a shard twice.
            DatasetError: if it names shards that were not prepared.
        """
        split = read_split(self.meta, split_config, self.limits)
        shards, exclude = split.shards(split_part), split.excluded()
        left_out = set(exclude)
        names = [name for name in shards if name not in left_out]
        if len(set(names)) < len(names):
            name, times = collections.Counter(names).most_common(1)[0]
            file = self.meta / (split_config or "split.yaml")
            raise ConfigError(
                f"{file}: split part {split_part!r} names {name!r} {times} times: "
                "its samples would come as often in each epoch. Name it once; a metadataset can repeat a data set "
                "(blend_epochized)."
            )
        unknown = [name for name in names if name not in self.shard_counts]
        if unknown:
            raise DatasetError(
                f"{self.meta}: split part {split_part!r} names {unknown[0]!r}"
                + (f" and {len(unknown) - 1} more shards" if len(unknown) > 1 else "")
                + f", which the data set was prepared without; run `{bridge_command('prepare', self.root)}` again"
            )
        excluded = _excluded_keys(exclude, names) if exclude else {}
        others = sorted(self.shard_counts.keys() - set(names))
        return self._shards(
            split_part,
            names,
            others={name: self.shard_counts[name] for name in others},
            excluded=frozenset(f"{names[shard]}/{key}" for shard, keys in excluded.items() for key in keys),
            excluded_positions=self._positions(names, excluded) if excluded else {},
            split_config=split_config,
        )

    def _positions(self, names: Sequence[str], excluded: Mapping[int, set[str]]) -> dict[int, tuple[int, ...]]:
        """The positions of samples that are excluded by their keys, by the number of the shard in `names`. Only their
        shards are looked at, and of indexes on a disk only the pages with the keys; a key that a shard lacks is
        logged."""
        found: dict[int, dict[str, int]] = {}
        missing = dict(excluded)
        copies_index = self.index is not None and storage.is_remote(self.root)
        for way in (scan_keys, scan_headers) if copies_index else (find, scan_keys, scan_headers):
            numbers = list(missing)
            shards = self._shards("", [names[number] for number in numbers])
            own: dict[int, dict[str, int]] = {number: {} for number in numbers}
            try:
                for sample, key in way(shards, set[str]().union(*missing.values())):
                    shard, position = shards.locate(sample)
                    if key in missing[numbers[shard]]:
                        own[numbers[shard]].setdefault(key, position)
            except (ConfigError, DatasetError):  # an older layout, damaged, or beyond the default limits
                if way is scan_headers:
                    raise
                continue
            found |= own
            missing = {number: keys for number, keys in missing.items() if len(own[number]) < len(keys)}
            if not missing or way is scan_keys:
                break
        for number, keys in missing.items():
            absent = sorted(keys - found.get(number, {}).keys())
            logger.warning(
                "%s: `exclude` names %s of shard %s, which has no such sample%s",
                self.meta,
                ", ".join(absent[:5]),
                names[number],
                "" if len(absent) == 1 else "s",
            )
        return {number: tuple(sorted(positions.values())) for number, positions in found.items()}


def _excluded_keys(exclude: Iterable[str], names: Sequence[str]) -> dict[int, set[str]]:
    """The keys of `exclude` (entries `shard/key`), by the number of the shard in `names`; entries of other shards are
    left out."""
    shards = {name: number for number, name in enumerate(names)}
    keys: dict[int, set[str]] = collections.defaultdict(set)
    for entry in exclude:
        slash = entry.find("/")
        while slash >= 0:
            if entry[:slash] in shards:
                keys[shards[entry[:slash]]].add(entry[slash + 1 :])
            slash = entry.find("/", slash + 1)
    return dict(keys)


def _stamp(root: Location, index: BridgeIndex | None, name: str, num_samples: int) -> ShardStamp:
    """What is known of a shard: of its index if there is one, else of its file."""
    if index is None:
        return ShardStamp(storage.size_bytes(root / name), num_samples, None)
    return ShardStamp(index.entries[name].num_bytes, num_samples, index.digest(name))


@files_of.register
def _files(records: ShardSet) -> StoredFiles:
    """Also those of other split parts, of which one may have the new name of a shard."""
    counts = {**dict(zip(records.names, records.stored_counts, strict=True)), **records.others}

    def number_in(file: int, position: int) -> int | None:
        return records.number(file, position) if file < len(records.names) else None

    return _tars(records.root, counts, lambda: records.index, number_in)


def _tars(
    root: Location,
    counts: Mapping[str, int],
    index_of: Callable[[], BridgeIndex | None],
    number_in: Callable[[int, int], int | None],
) -> StoredFiles:
    """The tars in the folder `root`, of which `counts` are the samples, by name."""
    names = list(counts)
    paths = [f"{root}/{name}" for name in names]

    def has_same(path: str, number: int, position: int) -> bool:
        index = index_of()
        segment = None if index is None or is_gzip(path) else index.segment_if_intact(names[number])
        if segment is None:
            return True
        start, end = segment.span(position, position)
        lengths = dict.fromkeys((min(end - start, _FIRST_BYTES), end - start))
        return all(
            storage.read(path, start, length) == storage.read(paths[number], start, length) for length in lengths
        )

    def stamp(number: int) -> ShardStamp:
        return _stamp(root, index_of(), names[number], counts[names[number]])

    return StoredFiles(root, names, paths, stamp, number_in, are_tars=True, has_same=has_same)


def withheld_keys(root: Location) -> frozenset[SampleKey]:
    """(shard, key) of the samples of the prepared folder `root` that may not be read.

    Raises:
        DatasetError: if a list of them is damaged, or shards have changed since.
    """
    opened = functools.cache(lambda: PreparedDataset.open(root).index)  # only if there is a list
    return keys_in(_tars(root, read_shard_counts(meta_folder(root)), opened, lambda *_: None))


def tars_of(records: Records) -> ShardSet | None:
    """The tars below all selections of `records`; None if these are other data.

    This is for what only tars have: their indexes, headers and media metadata. All else is asked of `Records`.
    """
    stored = stored_records(records)
    return stored if isinstance(stored, ShardSet) else None


def first_samples(root: Location, name: str, limit: int) -> dict[str, list[Part]]:
    """Keys and parts of at most the first `limit` samples of shard `name`; the rest is not read."""
    file = str(root / name)
    samples: dict[str, list[Part]] = {}
    tar = open_tar(file)
    for member in walk(tar, 0, tar.end, file=file):
        split = split_name(member.name) if member.is_file else None
        if split is None:
            continue
        if split[0] not in samples and len(samples) == limit:
            break
        samples.setdefault(split[0], []).append((split[1], member.content_offset, member.num_bytes))
    return samples


def open_shards(path: str | PathLike[str], split_part: str, *, split_config: str | None = None) -> ShardSet:
    """The shards of `split_part` of the prepared data set in the folder `path`; see `PreparedDataset`."""
    return PreparedDataset.open(path).split(split_part, split_config=split_config)
