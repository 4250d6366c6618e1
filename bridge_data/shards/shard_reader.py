"""Reading the samples of tars by number.

Enters: a `ShardSet` and a number. Leaves: the sample; files are opened when they are needed. With our index a sample is
one read of known bytes (`IndexedShard`). A reader that knows how its source is cut reads whole blocks; see `blocks`.
Guarantee: a shard other than the indexed one is detected if its size or modification time differ: then, and without our
index, its headers are read too; see `shard_table`. A shard that changes between two reads is an error. With `verifies`,
contents are compared with the digests of the index.
"""

import collections
import operator
import zlib
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from bridge_data import storage
from bridge_data.errors import DatasetError, bridge_command
from bridge_data.shards.blocks import MAX_BLOCK_BYTES, MAX_UNWANTED_BYTES, TOGETHER_BYTES
from bridge_data.shards.records import Block, ByteRange, RawSample, RecordReader, Samples
from bridge_data.shards.segment import DamagedIndexError, Part, Segment
from bridge_data.shards.tar_bytes import GZIP_SUFFIXES, FileTar, GzipTar
from bridge_data.shards.tar_headers import BLOCK

if TYPE_CHECKING:
    from bridge_data.shards.prepared import ShardSet
    from bridge_data.shards.shard_table import ParsedShard

    ShardTable: TypeAlias = "IndexedShard | ParsedShard"

KeyAndParts: TypeAlias = tuple[str, dict[str, bytes]]

ReadContent: TypeAlias = Callable[[int, int], bytes]
"""(offset, number of bytes) to bytes of the tar."""

T = TypeVar("T")

MAX_KNOWN_SHARDS = 1024
"""Shards whose tables a reader keeps."""

MAX_KNOWN_COMPRESSED = 64
"""The same for compressed shards: each holds its points, about 1% of its size, and a buffer of 1 MiB."""


class IndexedShard:
    """The shard at `path` with the parts in `segment`. It trusts that the shard is the indexed one."""

    __slots__ = ("_path", "_sample", "_segment", "_verifies", "content")

    def __init__(self, path: str, content: ReadContent, segment: Segment, *, verifies: bool = False) -> None:
        self._path, self.content, self._segment, self._verifies = path, content, segment, verifies
        self._sample = segment.sample

    def read(self, position: int, wanted: Container[str] | None) -> KeyAndParts:
        """The key of the sample at `position`, and its parts, or only the `wanted` ones."""
        key, parts = self._sample(position)
        if wanted is not None:
            parts = [part for part in parts if part[0] in wanted]
        contents = self._contents(position, key, parts)
        if self._verifies:
            self._verify(position, key, contents)
        return key, contents

    def _contents(self, position: int, key: str, parts: list[Part]) -> dict[str, bytes]:
        content = self.content
        if len(parts) > 1:
            start, span = _span(parts)
            if span <= TOGETHER_BYTES:
                data = content(start, span)
                return {name: data[offset - start : offset - start + size] for name, offset, size in parts}
        return {name: content(offset, size) for name, offset, size in parts}

    def ranges(self, position: int, wanted: Container[str] | None) -> Sequence[tuple[int, int]]:
        """The ranges (offset, number of bytes) that `read` reads, as far as they are known."""
        parts = [part for part in self._segment.parts(position) if wanted is None or part[0] in wanted]
        if len(parts) > 1 and (together := _span(parts))[1] <= TOGETHER_BYTES:
            return [together]
        return [(start, num_bytes) for _, start, num_bytes in parts]

    def block_range(self, first: int, last: int, wanted: Container[str] | None) -> tuple[int, int]:
        """(offset, number of bytes) of the samples at positions `first` to `last`; 0 bytes if they are better read
        singly, as most of the range is not wanted."""
        segment = self._segment
        start, end = segment.span(first, last)
        if wanted is not None and not all(name in wanted for name in segment.names):
            parts = (part for position in range(first, last + 1) for part in segment.parts(position))
            unwanted = sum(size for name, _, size in parts if name not in wanted)
            if unwanted > max(MAX_UNWANTED_BYTES, (end - start) // 2):
                return start, 0
        return start, end - start

    def cut_out(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
        """Consecutive samples, as `read` returns them, extracted from `data`, which begins at byte `start`."""
        samples = self._cut_out(positions, wanted, start, data)
        if self._verifies:
            self._drop_damaged(positions, samples)
        return samples

    def _cut_out(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
        end = start + len(data)
        columns = self._segment.columns(positions[0], positions[-1])
        if columns is not None and len(columns[0]) == len(positions):
            keys, offsets, sizes = columns
            (name,) = self._segment.names
            is_inside = start <= min(offsets) and max(map(operator.add, offsets, sizes)) <= end
            if is_inside and (wanted is None or name in wanted):
                ranges = zip(offsets, sizes, strict=True)
                contents = [data[(begin := at - start) : begin + size] for at, size in ranges]
                return Samples([*keys], contents, name)
        samples = Samples([None] * len(positions), [None] * len(positions))
        for number, position in enumerate(positions):
            key, parts = self._sample(position)
            parts = [part for part in parts if wanted is None or part[0] in wanted]
            if all(start <= at and at + size <= end for _, at, size in parts):  # else the index is damaged
                samples.keys[number] = key
                samples.contents[number] = {name: data[at - start : at - start + size] for name, at, size in parts}
        return samples

    def _verify(self, position: int, key: str, contents: dict[str, bytes]) -> None:
        digests = self._segment.digests(position)
        for name, content in contents.items():
            if zlib.crc32(content) != digests[name]:
                raise DatasetError(
                    f"{self._path}: sample {key!r}: the content of its part {name!r} is not what was there when the "
                    "data set was prepared: its digest is another. Restore the shard, or, if the change was meant, "
                    "run `bridge-data prepare` with --tar-index-only --digest --rescan."
                )

    def _drop_damaged(self, positions: Sequence[int], samples: Samples) -> None:
        """Leave out samples whose digest differs: they are read singly, which reports the error."""
        for number, position in enumerate(positions):
            key, content = samples.keys[number], samples.contents[number]
            if key is not None:
                contents = content if samples.name is None else {samples.name: content}
                digests = self._segment.digests(position)
                if any(zlib.crc32(data) != digests[name] for name, data in contents.items()):
                    samples.keys[number] = samples.contents[number] = None


def _span(parts: Sequence[Part]) -> tuple[int, int]:
    """(offset, number of bytes) of the range from the first part to the last."""
    start = parts[0][1]
    return start, parts[-1][1] + parts[-1][2] - start


class ShardReader(RecordReader):
    """Reads the samples of `shards`. It opens files when they are needed, and may be pickled."""

    has_blocks = True

    def __init__(self, shards: "ShardSet") -> None:
        self.shards = shards
        self.dataset_path = str(shards.root)
        self._tables: collections.OrderedDict[int, ShardTable] = collections.OrderedDict()
        self._files: dict[int, WatchedFile] = {}
        """Of each shard that was opened."""
        self._unindexed: set[int] = set()
        """Shards whose segment is damaged."""

    def __len__(self) -> int:
        return self.shards.num_samples

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        shard, position = self.shards.locate(index)
        key, content = self._using(index, shard, position, lambda table: table.read(position, parts))
        return RawSample(key, self.shards.names[shard], index, content, self.dataset_path)

    def byte_ranges(self, index: int, parts: Container[str] | None = None) -> list[ByteRange]:
        shard, position = self.shards.locate(index)
        path = f"{self.dataset_path}/{self.shards.names[shard]}"
        ranges = self._using(index, shard, position, lambda table: table.ranges(position, parts))
        return [(path, start, num_bytes) for start, num_bytes in ranges]

    def shard_of(self, index: int) -> tuple[int, int]:
        shard, _ = self.shards.locate(index)
        first, end = self.shards.starts[shard : shard + 2]
        return first, end - first

    def block_bytes(self, block: range, parts: Container[str] | None) -> ByteRange | None:
        shard, first = self.shards.locate(block[0])
        _, last = self.shards.locate(block[-1])
        start, num_bytes = self._using(block[0], shard, first, lambda table: _block_range(table, first, last, parts))
        return (f"{self.dataset_path}/{self.shards.names[shard]}", start, num_bytes) if num_bytes else None

    def read_block(self, block: range, parts: Container[str] | None) -> Block | None:
        shard, first = self.shards.locate(block[0])
        _, last = self.shards.locate(block[-1])

        def read(table: "ShardTable") -> Block | None:
            start, num_bytes = _block_range(table, first, last, parts)
            if not num_bytes:
                return None
            positions: Sequence[int] = range(first, last + 1)
            if len(positions) > len(block):  # some are excluded
                positions = [self.shards.locate(index)[1] for index in block]
            samples = table.cut_out(positions, parts, start, table.content(start, num_bytes))
            return Block(self.shards.names[shard], block, samples, num_bytes)

        return self._using(block[0], shard, first, read)

    def _using(self, index: int, shard: int, position: int, action: Callable[["ShardTable"], T]) -> T:
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
        self._unindexed.add(shard)
        self._tables.pop(shard, None)

    def _open(self, shard: int) -> "ShardTable":
        """The table of shard number `shard`, which is kept.

        Raises:
            DamagedIndexError: if the index cannot be used for it. DatasetError: if the shard cannot be read.
        """
        shards = self.shards
        path, name = str(shards.path(shard)), shards.names[shard]
        compressed = GzipTar(path) if path.endswith(GZIP_SUFFIXES) else None
        if compressed is not None:
            compressed.warn_if_slow()
        content: ReadContent = self._watched(shard, path).read if compressed is None else compressed.read_exactly
        segment = None if shards.index is None or shard in self._unindexed else shards.index.segment(name)
        table: ShardTable | None = None
        if segment is not None:
            table = self._open_indexed(shard, content, compressed, segment)
        if table is None:
            if shards.verifies_digests:
                way_out = bridge_command("prepare", shards.root, "--tar-index-only", "--digest")
                raise DatasetError(
                    f"{path}: its digests cannot be checked, as it was replaced after it was prepared, or the index is "
                    f"damaged: restore it, or run `{way_out}`."
                )
            from bridge_data.shards.shard_table import ParsedShard  # imported here: few shards need their headers read

            table = ParsedShard(path, content, compressed, shards.stored_counts[shard])
        num_known = MAX_KNOWN_COMPRESSED if compressed is not None else MAX_KNOWN_SHARDS
        while len(self._tables) >= num_known:
            self._tables.popitem(last=False)
        self._tables[shard] = table
        return table

    def _open_indexed(
        self, shard: int, content: ReadContent, compressed: GzipTar | None, segment: Segment
    ) -> IndexedShard | None:
        """The shard as indexed; None if it has changed. In a store, no request is made here."""
        shards = self.shards
        assert shards.index is not None
        path, entry = str(shards.path(shard)), shards.index.entries[shards.names[shard]]
        is_same = compressed is not None or not storage.is_remote(path)
        if is_same:
            version = storage.version(path)
            if version.num_bytes != entry.num_bytes:
                return None
            if not ends_plainly(content, segment):
                from bridge_data.shards.shard_table import is_intact  # imported here: it parses headers of all kinds

                if not is_intact(path, compressed or FileTar(path, version.num_bytes), segment):
                    return None
            is_same = version.changed == entry.mtime_ns
        if is_same:
            return IndexedShard(path, content, segment, verifies=shards.verifies_digests)
        from bridge_data.shards.shard_table import CheckedShard  # imported here, too

        return CheckedShard(path, content, segment, verifies=shards.verifies_digests)

    def _watched(self, shard: int, path: str) -> "WatchedFile":
        file = self._files.get(shard)
        if file is None:
            index = self.shards.index
            indexed_bytes = None if index is None else index.entries[self.shards.names[shard]].num_bytes
            known = None if storage.is_remote(path) else storage.version(path)
            file = self._files[shard] = WatchedFile(path, known, indexed_bytes)
        return file

    def __reduce__(self) -> tuple[type["ShardReader"], tuple["ShardSet"]]:
        return ShardReader, (self.shards,)


def _block_range(table: "ShardTable", first: int, last: int, parts: Container[str] | None) -> tuple[int, int]:
    """(offset, number of bytes) of the samples at positions `first` to `last`; 0 bytes if they are read singly."""
    start, num_bytes = table.block_range(first, last, parts)
    return start, num_bytes if num_bytes <= MAX_BLOCK_BYTES else 0


def ends_plainly(content: ReadContent, segment: Segment) -> bool:
    """Whether headers with the right names and sizes precede the parts of the last sample: then the index is right. If
    names are not in the header itself, only `is_intact` can tell."""
    key, parts = segment.sample(len(segment) - 1) if len(segment) else ("", [])
    for name, offset, size in parts:
        try:
            header = content(max(0, offset - BLOCK), BLOCK)
        except DatasetError:
            return False
        is_plain_file = header[156] in b"0\0" and not header[345]  # its type, and the folder that precedes the name
        if not is_plain_file or header[:100].rstrip(b"\0") != f"{key}.{name}".encode("utf-8", "surrogateescape"):
            return False
        if header[124:136].rstrip(b"\0 ") != b"%011o" % size:
            return False
    return bool(parts)


class WatchedFile:
    """Reads a shard, which must keep the version `known` (None: that of the first read). In a store it must have the
    size at indexing, if that is not None."""

    __slots__ = ("_indexed_bytes", "_path", "known")

    def __init__(self, path: str, known: storage.Version | None, indexed_bytes: int | None) -> None:
        self._path, self.known = path, known
        self._indexed_bytes = indexed_bytes if storage.is_remote(path) else None

    def read(self, start: int, num_bytes: int) -> bytes:
        """Bytes of the shard.

        Raises:
            DatasetError: if they cannot be read, or the shard was replaced.
        """
        data, version = storage.read_with_version(self._path, start, num_bytes)
        if version is not self.known:
            self._check(version)
        return data

    def _check(self, version: storage.Version) -> None:
        if self._indexed_bytes not in (None, version.num_bytes):
            raise DatasetError(
                f"{self._path}: has {version.num_bytes} bytes, but had {self._indexed_bytes} when it was prepared. It "
                "was replaced: restore it, or prepare the data set again and copy its .nv-meta with it."
            )
        known = self.known or version
        if known != version:
            raise DatasetError(
                f"{self._path}: was replaced while it was in use: size and time of change, or in a store the ETag, "
                f"were {known.num_bytes} and {known.changed}, and are {version.num_bytes} and {version.changed}. "
                "Restore it, or prepare the data set again, and start again."
            )
        self.known = version
