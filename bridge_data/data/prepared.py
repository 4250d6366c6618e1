"""A prepared data set: a folder of shards with its `.nv-meta`, the shards of its split parts, and their samples.

Reads the folder. Returns `ShardSet`s, one for each split part: samples per shard, without those that are excluded, and
shard and position of sample number i. Opening reads a few metadata files and touches no shard. A `ShardSet` holds no
handles and no data, so it can be pickled. Its `ShardReader` opens shards when their samples are read.

With our index, a sample is one read of known bytes; a reader that knows how its source is cut reads whole blocks: see
`blocks`. A shard other than the indexed one is detected if its size, its modification time or its last sample differ:
then, and without our index, its headers are read, too (see `shard_table`). Raises `DatasetError` for what is not the
prepared sample, and for a shard that changes between two reads. With `verifies_digests`, contents are compared, too.
"""

import bisect
import collections
import dataclasses
import functools
import itertools
import json
import logging
import zlib
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from bridge_data import storage
from bridge_data.data.blocks import MAX_BLOCK_BYTES, READ_BYTES
from bridge_data.data.index_file import UNKNOWN, BridgeIndex
from bridge_data.data.key_index import KeyIndex
from bridge_data.data.metadata import (
    BRIDGE_INDEX,
    META_FOLDER,
    meta_folder,
    read_shard_counts,
    read_split,
    read_uuid,
    split_shard,
    tar_index_path,
)
from bridge_data.data.paged_file import DamagedIndexError
from bridge_data.data.recently_used import RecentlyUsed
from bridge_data.data.records import (
    Block,
    ByteRange,
    Contents,
    RawSample,
    RecordReader,
    Records,
    contents_of,
    shard_identities,
    stored_place,
    stored_records,
    verified,
)
from bridge_data.data.sample_keys import find, fix_repeated_keys, join_problem, keys_of, read_keys, scan_keys
from bridge_data.data.shard_table import ReadContent, SpanShard, TarShard, first_samples
from bridge_data.data.tar_files import FileTar, GzipTar, head_checksum, is_gzip
from bridge_data.data.withheld import SampleKey, ShardStamp, StoredFiles, files_of, keys_in
from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.storage import Location, PinnedFile

logger = logging.getLogger("bridge_data")

ShardTable: TypeAlias = TarShard | SpanShard

MakeIndex: TypeAlias = Callable[[Path, dict[str, int], str | None], BridgeIndex | None]
"""(folder, samples by shard, identity of the preparation) to an index of it."""

T = TypeVar("T")

MAX_TABLE_BYTES = 512 << 20
"""What the tables of shards that a reader keeps may take: of compressed ones their points, about 1% of a shard."""

_REPLACED = "Restore it, or prepare the data set again and copy its .nv-meta with it, and start again."

_FIRST_BYTES = 4096
"""Bytes of two samples that are compared first."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ShardSet:
    """Samples 0..num_samples-1 of the shards `names` (paths relative to `root`), shard after shard.

    `stored_counts` are the samples that the shards hold, `counts` without the excluded ones. `excluded` are samples
    left out, as `shard/key`; `excluded_positions` are their sorted positions, by shard number. `split_config` is the
    file of the split, if not the default one. With `verifies_digests`, contents read are compared with the digests of
    the index. `others` are the stored samples of the shards in other split parts, by name.
    """

    root: Location
    split_part: str
    names: tuple[str, ...]
    stored_counts: tuple[int, ...]
    excluded: frozenset[str] = frozenset()
    excluded_positions: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    index: BridgeIndex | None = None
    split_config: str | None = None
    verifies_digests: bool = False
    others: Mapping[str, int] = dataclasses.field(default_factory=dict)
    read_bytes = READ_BYTES

    @functools.cached_property
    def shards(self) -> list[tuple[str, int]]:
        return list(zip(self.names, self.counts, strict=True))

    @functools.cached_property
    def counts(self) -> list[int]:
        without = self.excluded_positions
        return [count - len(without.get(shard, ())) for shard, count in enumerate(self.stored_counts)]

    @functools.cached_property
    def starts(self) -> list[int]:
        """The number of each shard's first sample, and the number of all samples."""
        return [0, *itertools.accumulate(self.counts)]

    @property
    def num_samples(self) -> int:
        return self.starts[-1]

    def __len__(self) -> int:
        return self.num_samples

    def locate(self, index: int) -> tuple[int, int]:
        """(number of the shard, position of the sample in it) of sample `index`.

        Raises:
            IndexError: if there is no such sample.
        """
        starts = self.starts
        if not 0 <= index < starts[-1]:
            raise IndexError(f"{self.root} [{self.split_part}]: sample {index} of {self.num_samples}")
        shard = bisect.bisect_right(starts, index) - 1
        position = index - starts[shard]
        if self.excluded_positions and shard in self._steps:
            position += bisect.bisect_right(self._steps[shard], position)
        return shard, position

    def number(self, shard: int, position: int) -> int | None:
        """The number of the sample at `position` of shard number `shard`; None if it is excluded."""
        excluded = self.excluded_positions.get(shard, ())
        before = bisect.bisect_left(excluded, position)
        if before < len(excluded) and excluded[before] == position:
            return None
        return self.starts[shard] + position - before

    @functools.cached_property
    def _steps(self) -> dict[int, list[int]]:
        """By shard, the positions (without excluded samples) from which one more excluded sample precedes."""
        return {
            shard: [position - before for before, position in enumerate(positions)]
            for shard, positions in self.excluded_positions.items()
        }

    def path(self, shard: int) -> Location:
        """The path of shard number `shard`."""
        return self.root / self.names[shard]

    @functools.cached_property
    def sample_bytes(self) -> float | None:
        """Mean bytes of a sample in its tar, the same with and without an index; if a shard is compressed, those of the
        first shard, and None without an index."""
        filled = [name for name, count in zip(self.names, self.stored_counts, strict=True) if count]
        if not filled:
            return None
        if any(map(is_gzip, filled)):
            segment = None if self.index is None else self.index.segment_if_intact(filled[0])
            return None if segment is None else segment.span(0, len(segment) - 1)[1] / len(segment)
        sizes = zip(self._sizes_bytes(), self.stored_counts, strict=True)
        return sum(size for size, count in sizes if count) / sum(self.stored_counts)

    def identity(self) -> dict[str, Any]:
        """Names, sizes and sample counts of the shards, and the exclusions."""
        shards = zip(self.names, self._sizes_bytes(), self.counts, strict=True)
        return {"shards": list(shards), "excluded": sorted(self.excluded)}

    @functools.cached_property
    def _head(self) -> int:
        """The checksum of the first bytes of the first shard with samples: the same with and without an index."""
        first = self._first_filled
        if first is None:
            return 0
        known = UNKNOWN if self.index is None else self.index.entries[first].head_checksum
        path = str(self.root / first)
        return head_checksum(path, storage.size_bytes(path)) if known == UNKNOWN else known

    @property
    def _first_filled(self) -> str | None:
        counts = zip(self.names, self.stored_counts, strict=True)
        return next((name for name, count in counts if count), None)

    @functools.cached_property
    def contents(self) -> Contents:
        """`more` is: by our index, the keys of all shards, and their first bytes, if `prepare` has read
        these; or else by `.tar.idx`, where the samples of the first shard begin."""
        if self.index is not None:
            heads, keys = zip(*self.index.sums(self.names), strict=True) if self.names else ((), ())
            kind, sums = ("keys", [keys]) if UNKNOWN in heads else ("keys and first bytes", [keys, heads])
            return Contents(self._head, f"{kind}:{zlib.crc32(json.dumps(sums).encode()):08x}")
        first = self._first_filled
        offsets = None if first is None else storage.read_if_there(tar_index_path(self.root / first))
        return Contents(self._head, "" if offsets is None else f"offsets:{zlib.crc32(offsets):08x}")

    def _sizes_bytes(self) -> list[int]:
        if self.index is not None:
            return self.index.sizes_bytes(self.names)
        if storage.is_remote(self.root):
            found = storage.list_sizes(str(self.root))  # one request for a thousand shards
            return [found.get(name) or storage.size_bytes(self.root / name) for name in self.names]
        return [storage.size_bytes(self.path(shard)) for shard in range(len(self.names))]

    def reader(self) -> "ShardReader":
        return ShardReader(self)

    @property
    def fix_command(self) -> str:
        """What makes an index of its keys, for messages."""
        return f"`{bridge_command('prepare', self.root, '--tar-index-only')}`"


@stored_place.register
def _place(shards: ShardSet, index: int) -> str:
    """The shard: numbers in it would be taken for keys."""
    return shards.names[shards.locate(index)[0]]


@contents_of.register
def _contents(records: ShardSet) -> Contents:
    return records.contents


@keys_of.register
def _keys(records: ShardSet, samples: range) -> Iterator[str]:
    """From our index, or else from `index.sqlite`; no shard is read."""
    index = KeyIndex.find(records.root) if records.index is None else None
    if records.index is None and index is None:
        raise DatasetError(f"{records.root}: has no index of its keys; run {records.fix_command}")
    numbers = {} if index is None else {name: number for number, name in enumerate(index.shard_names)}
    first, last = (records.locate(samples[at])[0] for at in (0, -1)) if samples else (0, -1)
    for shard in range(first, last + 1):
        name, start = records.names[shard], records.starts[shard]
        keys = _stored_keys(records, name) if index is None else index.keys(numbers[name])
        if len(keys) != records.stored_counts[shard]:
            raise DatasetError(
                f"{records.root}: the index knows {len(keys)} samples in {name}, but the metadata "
                f"{records.stored_counts[shard]}; run {records.fix_command}"
            )
        left_out = set(records.excluded_positions.get(shard, ()))
        if left_out:
            keys = [key for position, key in enumerate(keys) if position not in left_out]
        yield from keys[max(samples.start - start, 0) : samples.stop - start]


def _stored_keys(records: ShardSet, name: str) -> list[str]:
    assert records.index is not None
    try:
        return records.index.segment(name).keys()
    except DamagedIndexError as error:
        raise DatasetError(f"{error}. Run {records.fix_command}.") from error


@find.register
def _find(records: ShardSet, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    """By a search of `index.sqlite` for each key; a sample that our index has at another position is none. Without
    it, all keys are read: from our index, or else from the headers of the shards."""
    index = KeyIndex.find(records.root)
    if index is None:
        yield from scan_keys(records, keys) if records.index is not None else _scan_headers(records, keys)
        return
    known = {name: shard for shard, name in enumerate(records.names)}
    for key in keys:
        for stored_in, position in index.positions(key).items():
            shard = known.get(index.shard_names[stored_in])
            if shard is not None and position < records.stored_counts[shard]:
                number = records.number(shard, position)
                if number is not None and _may_have(records, shard, position, key):
                    yield number, key


def _may_have(records: ShardSet, shard: int, position: int, key: str) -> bool:
    """Whether the sample of `shard` at this position has this key, as far as our index says."""
    name = records.names[shard]
    segment = None if records.index is None else records.index.segment_if_intact(name)
    if records.index is None or segment is None:
        return True
    try:
        return segment.key(position) == key
    except DamagedIndexError as error:
        records.index.tell_damage(name, error)
        return True


@join_problem.register
def _problem(records: ShardSet) -> None:
    return None


@fix_repeated_keys.register
def _fix(records: ShardSet) -> str:
    command = bridge_command("prepare", records.root, "--force-overwrite", "--fix-duplicates")
    return f"Write the shards again with other keys: `{command}` puts the shard's name in front of each."


@verified.register
def _verified(records: ShardSet) -> Records:
    if records.index is None or not records.index.has_digests:
        fix_command = bridge_command("prepare", records.root, "--tar-index-only", "--digest")
        why = f", as it has no {BRIDGE_INDEX} that is whole and of this preparation" if records.index is None else ""
        raise ConfigError(f"{records.root}: has no digests to verify{why}; run `{fix_command}`")
    return dataclasses.replace(records, verifies_digests=True)


@shard_identities.register
def _shard_identities(records: ShardSet) -> list[Any]:
    """Name, size, what is known of the contents, and the excluded samples."""
    excluded: dict[str, list[str]] = {}
    for sample in sorted(records.excluded):
        excluded.setdefault((split_shard(sample) or ("",))[0], []).append(sample)
    start, more = contents_of(records)  # of a first shard that was replaced, all are other ones
    sums = [more] * len(records.names) if records.index is None else records.index.sums(records.names)
    shards = zip(records.identity()["shards"], sums, strict=True)
    return [[*shard, excluded.get(shard[0], []), start, known] for shard, known in shards]


class ShardReader(RecordReader):
    """Reads the samples of `shards`. It opens files when they are needed, and may be pickled."""

    has_blocks = True

    def __init__(self, shards: ShardSet) -> None:
        self.shards = shards
        self.dataset_path = str(shards.root)
        self._tables: RecentlyUsed[int, ShardTable] = RecentlyUsed(MAX_TABLE_BYTES)
        self._files: dict[int, PinnedFile] = {}
        """Of each shard that was opened."""
        self._unindexed: tuple[int, ...] = ()
        """Shards whose segment is damaged."""

    def __len__(self) -> int:
        return self.shards.num_samples

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        shard, position = self.shards.locate(index)
        key, content = self._using(index, shard, position, lambda table: table.read(position, parts))
        return RawSample(key, self.shards.names[shard], index, content, self.dataset_path)

    def byte_ranges(self, block: range, parts: Container[str] | None = None) -> list[ByteRange]:
        index, (shard, first) = block[0], self.shards.locate(block[0])
        _, last = self.shards.locate(block[-1])

        def ranges(table: ShardTable) -> Sequence[tuple[int, int]]:
            if len(block) == 1:
                return table.ranges(first, parts)
            start, num_bytes = _block_range(table, first, last, parts)
            return [(start, num_bytes)] if num_bytes else []

        path = f"{self.dataset_path}/{self.shards.names[shard]}"
        return [(path, start, num_bytes) for start, num_bytes in self._using(index, shard, first, ranges)]

    def part_names(self, shard: int) -> Collection[str] | None:
        """Those of our index of the shard; None without one."""
        index = self.shards.index
        segment = None if index is None else index.segment_if_intact(self.shards.names[shard])
        return None if segment is None else segment.names

    def read_block(self, block: range, parts: Container[str] | None) -> Block | None:
        shard, first = self.shards.locate(block[0])
        _, last = self.shards.locate(block[-1])

        def read(table: ShardTable) -> Block | None:
            start, num_bytes = _block_range(table, first, last, parts)
            if not num_bytes:
                return None
            positions: Sequence[int] = range(first, last + 1)
            if len(positions) > len(block):  # some are excluded
                positions = [self.shards.locate(index)[1] for index in block]
            samples = table.cut_out(positions, parts, start, table.content(start, num_bytes))
            return Block(self.shards.names[shard], block, samples, num_bytes)

        return self._using(block[0], shard, first, read)

    def _using(self, index: int, shard: int, position: int, action: Callable[[ShardTable], T]) -> T:
        """The result of `action` for the table of shard number `shard`, where sample `index` is at `position`. If the
        index is damaged, it is called again, with a table that does not need it."""
        try:
            try:
                return action(self._tables.get(shard) or self._open(shard))
            except DamagedIndexError as damage:
                self._stop_using_index(shard, damage)
                return action(self._open(shard))
        except DatasetError as error:
            where = f"sample {index}, number {position} of {self.shards.names[shard]}"
            raise DatasetError(f"{error} [{where}]") from error

    def _stop_using_index(self, shard: int, damage: DamagedIndexError) -> None:
        assert self.shards.index is not None
        self.shards.index.tell_damage(self.shards.names[shard], damage)
        self._unindexed += (shard,)
        self._tables.drop(shard)

    def _open(self, shard: int) -> ShardTable:
        """The table of shard number `shard`, which is kept.

        Raises:
            DamagedIndexError: if the index cannot be used for it.
            DatasetError: if the shard cannot be read.
        """
        shards = self.shards
        path = str(shards.path(shard))
        compressed = GzipTar(path) if is_gzip(path) else None
        if compressed is not None:
            compressed.warn_if_slow()
        content: ReadContent = self._pinned(shard, path).read if compressed is None else compressed.read_exactly
        table: ShardTable | None = self._open_indexed(shard, path, content, compressed)
        if table is None:
            if shards.verifies_digests:
                fix_command = bridge_command("prepare", shards.root, "--tar-index-only", "--digest")
                raise DatasetError(
                    f"{path}: its digests cannot be checked, as it was replaced after it was prepared, or the index is "
                    f"damaged: restore it, or run `{fix_command}`."
                )
            table = SpanShard(path, content, compressed, shards.stored_counts[shard])
        self._tables.put(shard, table, table.held_bytes + (0 if compressed is None else compressed.held_bytes))
        return table

    def _open_indexed(self, shard: int, path: str, content: ReadContent, compressed: GzipTar | None) -> TarShard | None:
        """The shard as indexed; None if it has changed. In a store, no request is made here."""
        index, name = self.shards.index, self.shards.names[shard]
        if index is None or shard in self._unindexed:
            return None
        entry, segment = index.entries[name], index.segment(name)
        version = None if storage.is_remote(path) else storage.version(path)
        if version is not None and version.num_bytes != entry.num_bytes:
            return None
        compares = version is None or version.changed != entry.mtime_ns
        table = TarShard(path, content, segment, compares=compares, verifies=self.shards.verifies_digests)
        is_intact = version is None or table.is_intact(compressed or FileTar(path, version.num_bytes))
        return table if is_intact else None

    def _pinned(self, shard: int, path: str) -> PinnedFile:
        file = self._files.get(shard)
        if file is None:
            index = self.shards.index
            num_bytes = None if index is None else index.entries[self.shards.names[shard]].num_bytes
            if storage.is_remote(path):
                file = PinnedFile(path, num_bytes=num_bytes, fix=_REPLACED)
            else:
                file = PinnedFile(path, storage.version(path), fix=_REPLACED)
            self._files[shard] = file
        return file

    def __reduce__(self) -> tuple[type["ShardReader"], tuple[ShardSet]]:
        return ShardReader, (self.shards,)


def _block_range(table: ShardTable, first: int, last: int, parts: Container[str] | None) -> tuple[int, int]:
    """(offset, number of bytes) of the samples at positions `first` to `last`; 0 bytes if they are read singly."""
    start, num_bytes = table.block_range(first, last, parts)
    return start, num_bytes if num_bytes <= MAX_BLOCK_BYTES else 0


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
        counts = tuple(self.shard_counts[name] for name in names)
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
        return list(read_split(self.meta, split_config, self.limits).parts)

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
        positions = self._positions(names, excluded)
        others = sorted(self.shard_counts.keys() - set(names))
        return self._shards(
            split_part,
            names,
            others={name: self.shard_counts[name] for name in others},
            excluded=frozenset(f"{names[shard]}/{key}" for shard, keys in excluded.items() for key in keys),
            excluded_positions=positions,
            split_config=split_config,
        )

    def _positions(self, names: Sequence[str], excluded: Mapping[int, set[str]]) -> dict[int, tuple[int, ...]]:
        """The positions of samples that are excluded by their keys, by the number of the shard in `names`. Only their
        shards are looked at, and of indexes on a disk only the pages with the keys; a key that a shard lacks is
        logged."""
        found: dict[int, dict[str, int]] = {}
        missing = dict(excluded)
        copies_index = self.index is not None and storage.is_remote(self.root)
        for way in (scan_keys, _scan_headers) if copies_index else (find, scan_keys, _scan_headers):
            numbers = list(missing)
            shards = self._shards("", [names[number] for number in numbers])
            own: dict[int, dict[str, int]] = {number: {} for number in numbers}
            try:
                for sample, key in way(shards, set[str]().union(*missing.values())):
                    shard, position = shards.locate(sample)
                    if key in missing[numbers[shard]]:
                        own[numbers[shard]].setdefault(key, position)
            except (ConfigError, DatasetError):  # an older layout, damaged, or beyond the default limits
                if way is _scan_headers:
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
                *(self.meta, ", ".join(absent[:5]), names[number], "" if len(absent) == 1 else "s"),
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


def _scan_headers(shards: ShardSet, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    """`find` without any index of keys."""
    own = enumerate(read_keys(shards, range(shards.num_samples)))
    return ((number, key) for number, key in own if key in keys)


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


def open_shards(path: str | PathLike[str], split_part: str, *, split_config: str | None = None) -> ShardSet:
    """The shards of `split_part` of the prepared data set in the folder `path`; see `PreparedDataset`."""
    return PreparedDataset.open(path).split(split_part, split_config=split_config)
