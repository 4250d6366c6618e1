"""Prepared tars as records: the shards of a split part, and their samples.

A `ShardSet` knows without reading a shard how many samples each has, without those that are excluded, and shard and
position of sample number i. It holds no handles and no data, so it can be pickled. Its `ShardReader` opens shards when
their samples are read, each as a `ShardTable`, its samples by position: a `TarShard`, of which our index has the
segment, or what a plug-in makes of a shard without one (`UNINDEXED`). Raises `DatasetError` for what is not the
prepared sample, and for a shard that changes between two reads.
With `verifies_digests`, contents are compared, too.

With our index, a sample is one read of known bytes; a reader that knows how its source is cut reads whole blocks: see
`blocks`. A shard other than the indexed one is detected if its size, its modification time or its last sample differ. A
`TarShard` of the indexed version is read without its headers. Another version may have other samples in its middle: a
copy, by its modification time, and every object in a store. Then each read has headers, which are compared with the
index; that takes no more requests, as they are beside the contents.
"""

import bisect
import contextlib
import dataclasses
import functools
import itertools
import json
import operator
import zlib
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from bridge_data import storage
from bridge_data.data.blocks import (
    MAX_BLOCK_BYTES,
    MAX_UNWANTED_BYTES,
    TOGETHER_BYTES,
    Block,
    ByteRange,
    RawSample,
    RecordReader,
    Samples,
)
from bridge_data.data.index_file import UNKNOWN, BridgeIndex, Part, Segment, ShardEntry, split_name
from bridge_data.data.metadata import BRIDGE_INDEX, split_shard, tar_index_path
from bridge_data.data.paged_file import DamagedIndexError
from bridge_data.data.records import (
    READ_BYTES,
    Contents,
    Records,
    contents_of,
    shard_identities,
    stored_place,
    verified,
)
from bridge_data.data.tar_files import (
    FILE,
    TAR_UNIT,
    CompressedTar,
    FileTar,
    MemoryTar,
    TarBytes,
    any_gzip,
    head_checksum,
    is_gzip,
    open_compressed,
    walk_runs,
)
from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.extensions import Feature
from bridge_data.storage import Location, PinnedFile, RecentlyUsed, Version

T = TypeVar("T")

KeyAndParts: TypeAlias = tuple[str, dict[str, bytes]]

ReadContent: TypeAlias = Callable[[int, int], bytes]
"""(offset, number of bytes) to bytes of the tar."""

TABLE_BYTES = 2048
"""About what the objects of a table take."""

MAX_TABLE_BYTES = 512 << 20
"""What the tables of shards that a reader keeps may take: of compressed ones their points, about 1% of a shard."""

_REPLACED = "Restore it, or prepare the data set again and copy its .nv-meta with it, and start again."


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
        if any_gzip(filled):
            segment = None if self.index is None else self.index.segment_if_intact(filled[0])
            return None if segment is None else segment.span(0, len(segment) - 1)[1] / len(segment)
        return sum(itertools.compress(self._sizes_bytes, self.stored_counts)) / sum(self.stored_counts)

    def identity(self) -> dict[str, Any]:
        """Names, sizes and sample counts of the shards, and the exclusions."""
        shards = zip(self.names, self._sizes_bytes, self.counts, strict=True)
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

    @functools.cached_property
    def _sizes_bytes(self) -> list[int]:
        if self.index is not None:
            return self.index.sizes_bytes(self.names)
        if storage.is_remote(self.root):
            found = storage.list_sizes(str(self.root))  # one request for a thousand shards
            return [found.get(name) or storage.size_bytes(self.root / name) for name in self.names]
        return [storage.size_bytes(self.path(shard)) for shard in range(len(self.names))]

    def reader(self) -> "ShardReader":
        return ShardReader(self)


@stored_place.register
def _place(shards: ShardSet, index: int) -> str:
    """The shard: numbers in it would be taken for keys."""
    return shards.names[shards.locate(index)[0]]


@contents_of.register
def _contents(records: ShardSet) -> Contents:
    return records.contents


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


class ShardTable(Protocol):
    """The samples of one shard, by position."""

    content: ReadContent
    held_bytes: int
    """About how much memory it takes."""

    def read(self, position: int, wanted: Container[str] | None) -> KeyAndParts:
        """The key of the sample at `position`, and its parts, or only the `wanted` ones.

        Raises:
            DatasetError: if they cannot be read, or are not what an index has.
        """

    def ranges(self, position: int, wanted: Container[str] | None) -> Sequence[tuple[int, int]]:
        """The ranges (offset, number of bytes) that `read` reads, as far as they are known."""

    def block_range(self, first: int, last: int, wanted: Container[str] | None) -> tuple[int, int]:
        """(offset, number of bytes) of the samples at positions `first` to `last`; 0 bytes if they are better read
        one by one."""

    def samples_in(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
        """The samples at some positions, out of `data`, the bytes of the tar from `start` on; those that cannot be
        extracted have no key."""


UNINDEXED = Feature[Callable[[str, ReadContent, CompressedTar | None, int], ShardTable]]("unindexed_shards")
"""The shard at a path, whose tar is read by the function, or is the compressed one, with so many samples, of which our
index has no segment."""


class TarShard:
    """The shard at `path` with the parts in `segment`; `content` reads the tar. With `compares`, headers are read, too,
    and compared with the segment; with `verifies`, contents are compared with its digests."""

    __slots__ = ("_compares", "_last", "_path", "_sample", "_segment", "_verifies", "content", "held_bytes")

    def __init__(
        self, path: str, content: ReadContent, segment: Segment, *, compares: bool, verifies: bool = False
    ) -> None:
        self._path, self.content, self._segment = path, content, segment
        self._compares, self._verifies = compares, verifies
        self._sample = segment.sample
        num_samples = len(segment)
        self._last = num_samples - 1
        self.held_bytes = TABLE_BYTES + num_samples // 16
        """About how much memory it takes."""

    def is_intact(self, tar: TarBytes) -> bool:
        """Whether `tar` has the last sample where the segment has it: a shard of the same size with other members would
        hardly have that one at the same offset."""
        last = self._last
        if last < 0:
            return True
        key, parts = self._sample(last)
        for name, offset, size in parts:
            if not _describes(tar.read(max(0, offset - TAR_UNIT), TAR_UNIT), f"{key}.{name}", size):
                return self._holds(tar, *self._segment.span(last, last), last, last)
        return bool(parts) or self._holds(tar, *self._segment.span(last, last), last, last)

    def read(self, position: int, wanted: Container[str] | None) -> KeyAndParts:
        """The key of the sample at `position`, and its parts, or only the `wanted` ones.

        Raises:
            DatasetError: if they cannot be read, or are not what the index has.
        """
        key, parts = self._sample(position)
        if wanted is not None:
            parts = [part for part in parts if part[0] in wanted]
        if len(parts) == 1 and not self._compares:  # as below, but faster
            name, start, num_bytes = parts[0]
            contents = {name: self.content(start, num_bytes)}
        else:
            contents = {}
            for start, num_bytes, run in self._runs(position, parts):
                data = self.content(start, num_bytes)
                if self._compares:
                    self._check_headers(key, run, start, data)
                for name, offset, size in run:
                    contents[name] = data[offset - start : offset - start + size]
        if self._verifies and (damaged := self._damaged(position, contents)) is not None:
            raise DatasetError(
                f"{self._path}: sample {key!r}: the content of its part {damaged!r} is not what was there when the "
                "data set was prepared: its digest is another. Restore the shard, or, if the change was meant, run "
                "`bridge-data prepare` with --tar-index-only --digest --rescan."
            )
        return key, contents

    def ranges(self, position: int, wanted: Container[str] | None) -> Sequence[tuple[int, int]]:
        """The ranges (offset, number of bytes) that `read` reads, as far as they are known."""
        parts = [part for part in self._segment.parts(position) if wanted is None or part[0] in wanted]
        return [(start, num_bytes) for start, num_bytes, _ in self._runs(position, parts)]

    def _runs(self, position: int, parts: list[Part]) -> list[tuple[int, int, list[Part]]]:
        """(offset, number of bytes, parts) of each range to read: all these parts if they are near each other, else
        each of them; with the headers before them, if these are compared."""
        if not parts:
            return []
        headers = {}
        if self._compares:
            header, _ = self._segment.span(position, position)
            for _, offset, size in self._segment.parts(position):
                headers[offset] = header
                header = offset + _padded(size)
        (_, first, _), (_, last, size) = parts[0], parts[-1]
        start = headers.get(first, first)
        if last + size - start <= TOGETHER_BYTES:
            return [(start, last + size - start, parts)]
        return [
            ((start := headers.get(offset, offset)), offset + size - start, [(name, offset, size)])
            for name, offset, size in parts
        ]

    def block_range(self, first: int, last: int, wanted: Container[str] | None) -> tuple[int, int]:
        """(offset, number of bytes) of the samples at positions `first` to `last`; 0 bytes if they are better read
        singly, as most of the range is not wanted."""
        segment = self._segment
        start, end = segment.span(first, last)
        if wanted is not None and not all(map(wanted.__contains__, segment.names)):
            samples = segment.samples(first, last)
            unwanted = sum(size for _, parts in samples for name, _, size in parts if name not in wanted)
            if unwanted > max(MAX_UNWANTED_BYTES, (end - start) // 2):
                return start, 0
        return start, end - start

    def samples_in(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
        """Consecutive samples, as `read` returns them, extracted from `data`, which begins at byte `start`. Those that
        are not what the index has are left out: they are read singly, which reports the error."""
        end = start + len(data)
        if self._compares and not self._holds(MemoryTar(data, start), start, end, positions[0], positions[-1]):
            return Samples([None] * len(positions), [None] * len(positions))
        samples = self._samples_in(positions, wanted, start, data)
        if self._verifies:
            self._drop_damaged(positions, samples)
        return samples

    def _samples_in(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
        end = start + len(data)
        names = self._segment.names
        columns = self._segment.columns(positions[0], positions[-1]) if len(names) == 1 else None
        if columns is not None and len(columns[0]) == len(positions):
            keys, offsets, sizes = columns
            (name,) = names
            is_inside = start <= min(offsets) and max(map(operator.add, offsets, sizes)) <= end
            if is_inside and (wanted is None or name in wanted):
                ranges = zip(offsets, sizes, strict=True)
                contents = [data[(begin := at - start) : begin + size] for at, size in ranges]
                return Samples([*keys], contents, name)
        samples = Samples([None] * len(positions), [None] * len(positions))
        indexed = self._segment.samples(positions[0], positions[-1])
        for number, position in enumerate(positions):
            key, parts = indexed[position - positions[0]]
            own = {}
            for name, at, size in parts:
                if wanted is None or name in wanted:
                    if at < start or at + size > end:  # the index is damaged
                        break
                    own[name] = data[at - start : at - start + size]
            else:
                samples.keys[number], samples.contents[number] = key, own
        return samples

    def _holds(self, tar: TarBytes, start: int, end: int, first: int, last: int) -> bool:
        """Whether bytes `start` to `end` of `tar` hold the samples at positions `first` to `last`, and no others."""
        columns = self._segment.columns(first, last)
        if columns is not None:
            (name,) = self._segment.names
            keys, offsets, sizes = columns
            expected = list(zip([f"{key}.{name}" for key in keys], offsets, sizes, strict=True))
        else:
            samples = self._segment.samples(first, last)
            expected = [(f"{key}.{name}", offset, size) for key, parts in samples for name, offset, size in parts]
        found = self._found(tar, start, end)
        return found == expected or [member for member in found if split_name(member[0]) is not None] == expected

    def _check_headers(self, key: str, parts: list[Part], start: int, data: bytes) -> None:
        """Ensure that `data`, from byte `start` on, has the headers of these parts of the sample `key`."""
        found = self._found(MemoryTar(data, start), start, start + _padded(len(data)))
        for name, offset, size in parts:
            if (f"{key}.{name}", offset, size) not in found:
                there = next((f"{what!r} of {length} bytes" for what, at, length in found if at >= offset), "no member")
                raise DatasetError(
                    f"{self._path}: sample {key!r}: its part {name!r}, {size} bytes from byte {offset} on, is not "
                    f"stored where the index has it; there is {there}. The shard was replaced after it was prepared: "
                    "restore it, or run `bridge-data prepare` again; in a store, copy .nv-meta with the shards."
                )

    def _found(self, tar: TarBytes, start: int, end: int) -> list[Part]:
        """Name, offset and size of each file from byte `start` to `end` of `tar`, up to a header that is damaged."""
        found: list[Part] = []
        with contextlib.suppress(DatasetError):
            for run in walk_runs(tar, start, end, file=self._path):
                found += [(name, offset, size) for name, _, offset, size, kind, _ in run if kind == FILE]
        return found

    def _damaged(self, position: int, contents: dict[str, bytes]) -> str | None:
        """The name of a part whose digest differs."""
        digests = self._segment.digests(position)
        return next((name for name, content in contents.items() if zlib.crc32(content) != digests[name]), None)

    def _drop_damaged(self, positions: Sequence[int], samples: Samples) -> None:
        """Leave out samples whose digest differs: they are read singly, which reports the error."""
        for number, position in enumerate(positions):
            content = samples.contents[number]
            if samples.keys[number] is not None:
                contents = content if samples.name is None else {samples.name: content}
                if self._damaged(position, contents) is not None:
                    samples.keys[number] = samples.contents[number] = None


def _describes(header: bytes, name: str, num_bytes: int) -> bool:
    """Whether a plain header, whatever its checksum, is that of a file of this name and size. False if a part of the
    name is not in the header itself."""
    return (
        len(header) == TAR_UNIT
        and header[156] in b"0\0"  # its type
        and not header[345]  # the folder that precedes the name
        and header[:100].rstrip(b"\0") == name.encode("utf-8", "surrogateescape")
        and header[124:136].rstrip(b"\0 ") == b"%011o" % num_bytes
    )


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // TAR_UNIT) * TAR_UNIT


class ShardReader(RecordReader):
    """Reads the samples of `shards`. It opens files when they are needed, and may be pickled."""

    has_blocks = True

    def __init__(self, shards: ShardSet) -> None:
        self.shards = shards
        self.dataset_path = str(shards.root)
        self._is_remote = storage.is_remote(shards.root)
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
            start, num_bytes = table.block_range(first, last, parts)
            return [(start, num_bytes)] if 0 < num_bytes <= MAX_BLOCK_BYTES else []

        path = f"{self.dataset_path}/{self.shards.names[shard]}"
        return [(path, start, num_bytes) for start, num_bytes in self._using(index, shard, first, ranges)]

    def part_names(self, shard: int) -> Collection[str] | None:
        """The names of parts in our index of the shard; None without one."""
        index = self.shards.index
        segment = None if index is None else index.segment_if_intact(self.shards.names[shard])
        return None if segment is None else segment.names

    def read_block(self, block: range, parts: Container[str] | None) -> Block | None:
        shards = self.shards
        shard, first = shards.locate(block[0])
        last = shards.locate(block[-1])[1] if shards.excluded_positions else first + len(block) - 1

        def read(table: ShardTable) -> Block | None:
            start, num_bytes = table.block_range(first, last, parts)
            if not 0 < num_bytes <= MAX_BLOCK_BYTES:
                return None
            positions: Sequence[int] = range(first, last + 1)
            if len(positions) > len(block):  # some are excluded
                positions = [shards.locate(index)[1] for index in block]
            samples = table.samples_in(positions, parts, start, table.content(start, num_bytes))
            return Block(shards.names[shard], block, *samples, num_bytes)

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
        shards, name = self.shards, self.shards.names[shard]
        path = f"{self.dataset_path}/{name}"
        compressed = open_compressed(path) if is_gzip(path) else None
        entry = None if shards.index is None else shards.index.entries[name]
        version: Version | None = None
        if not self._is_remote:
            version = storage.version(path) if compressed is not None else storage.opened_version(path)
        if compressed is not None:
            compressed.warn_if_slow()
            content: ReadContent = compressed.read_exactly
        else:
            if shard not in self._files:
                num_bytes = None if version is not None or entry is None else entry.num_bytes
                self._files[shard] = PinnedFile(path, version, num_bytes=num_bytes, fix=_REPLACED)
            content = self._files[shard].read
        table: ShardTable | None = None
        if entry is not None and shard not in self._unindexed:
            table = self._indexed(entry, path, version, content, compressed)
            if table is None and shards.index is not None:
                shards.index.tell_replaced(name)
        if table is None:
            if shards.verifies_digests:
                fix_command = bridge_command("prepare", shards.root, "--tar-index-only", "--digest")
                raise DatasetError(
                    f"{path}: its digests cannot be checked, as it was replaced after it was prepared, or the index is "
                    f"damaged: restore it, or run `{fix_command}`."
                )
            open_shard = UNINDEXED.get(needed_by=f"{path}: a shard that our index does not describe")
            table = open_shard(path, content, compressed, shards.stored_counts[shard])
        self._tables.put(shard, table, table.held_bytes + (0 if compressed is None else compressed.held_bytes))
        return table

    def _indexed(
        self,
        entry: ShardEntry,
        path: str,
        version: Version | None,
        content: ReadContent,
        compressed: CompressedTar | None,
    ) -> TarShard | None:
        """The shard as indexed; None if it has changed. In a store, no request is made here."""
        assert self.shards.index is not None
        segment = self.shards.index.segment(entry.name)
        if version is not None and version.num_bytes != entry.num_bytes:
            return None
        compares = version is None or version.changed != entry.mtime_ns
        table = TarShard(path, content, segment, compares=compares, verifies=self.shards.verifies_digests)
        is_intact = version is None or table.is_intact(compressed or FileTar(path, version.num_bytes))
        return table if is_intact else None

    def __reduce__(self) -> tuple[type["ShardReader"], tuple[ShardSet]]:
        return ShardReader, (self.shards,)
