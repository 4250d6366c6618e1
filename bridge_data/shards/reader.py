"""Reading samples by number.

Enters: a `ShardSet` and a number. Leaves: the sample's key and the bytes of its parts. With our index a sample is one
read of known bytes; without it the sample's range comes from `.tar.idx` and its headers are parsed. A reader that was
told how its source is cut reads whole blocks; see `blocks`.
Guarantee: the parts that the tar holds under this number, or a `DatasetError` that names shard and sample.
"""

import collections
import functools
import operator
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Protocol

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.blocks import MAX_BLOCK_BYTES, MAX_UNWANTED_BYTES, OpenBlocks, Samples
from bridge_data.shards.bridge_index import Part, Segment
from bridge_data.shards.gzip_tar import GzipTar, is_gzip
from bridge_data.shards.names import split_name
from bridge_data.shards.records import Place, RawSample
from bridge_data.shards.tar_bytes import FileTar, MemoryTar
from bridge_data.shards.tar_headers import TarBytes, walk
from bridge_data.shards.tar_index import read_offsets

if TYPE_CHECKING:
    from bridge_data.shards.shard_set import ShardSet

MAX_KNOWN_SHARDS = 1024
"""Shards whose tables a reader keeps at hand."""

MAX_KNOWN_COMPRESSED = 64
"""As many, where one is compressed: each holds its points, about 1% of its size, and a buffer of 1 MiB."""

TOGETHER_BYTES = 1 << 16
"""Parts that lie within so many bytes are read at once; larger ones each by itself, without a copy."""

_Sample = tuple[str, dict[str, bytes]]
"""Key and parts."""

_Content = Callable[[int, int], bytes]
"""The bytes of a tar, from an offset on, so many."""


class _Table(Protocol):
    """Where the samples of one shard lie."""

    content: _Content

    @property
    def offsets(self) -> Sequence[int]:
        """Where each sample begins, and the last one ends."""

    def read(self, position: int, wanted: Container[str] | None) -> _Sample:
        """The key of the sample at `position`, and its parts, or those of them that are `wanted`."""

    def ranges(self, position: int, wanted: Container[str] | None) -> Sequence[tuple[int, int]]:
        """What `read` reads for that, as far as it is known: (offset, number of bytes)."""

    def block_range(self, first: int, last: int, wanted: Container[str] | None) -> tuple[int, int]:
        """(offset, number of bytes) of the samples at positions `first` to `last`; 0 bytes if they are better read
        singly, as most of it is not wanted."""

    def cut_out(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
        """What `read` gives for some samples in a row, out of `data`, which holds them and begins at byte `start`."""


class ShardReader:
    """Reads the samples of `shards`. It opens files when they are needed, and may be pickled: it reads singly then,
    until it is told to read in blocks again."""

    def __init__(self, shards: "ShardSet") -> None:
        self.shards = shards
        self._dataset_path = str(shards.root)
        self._reset()

    def _reset(self) -> None:
        self._tables: collections.OrderedDict[int, _Table] = collections.OrderedDict()
        self._blocks: OpenBlocks | None = None

    def __len__(self) -> int:
        return self.shards.num_samples

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        """Sample number `index`, with those of its parts that are among `parts` (None: with all). A part that it has
        not is not in the result either.

        Raises:
            IndexError: if there is no such sample. DatasetError: if it cannot be read.
        """
        blocks = self._blocks
        if blocks is not None and blocks.parts is parts:
            held = blocks.held.pop(index, None)
            if held is not None:
                key, content = held.take(index)
                return RawSample(key, held.shard_name, index, content, self._dataset_path)
        shards = self.shards
        shard, position = shards.locate(index)
        try:
            table = self._tables.get(shard) or self._open(shard)
            if (
                blocks is not None
                and blocks.parts is parts
                and blocks.fetch(index, lambda: self._open_block(index, shard, table, blocks))
            ):
                return self.read(index, parts)
            key, content = table.read(position, parts)
        except DatasetError as error:
            raise DatasetError(f"{error} [sample {index}, number {position} of {shards.names[shard]}]") from error
        return RawSample(key, shards.names[shard], index, content, self._dataset_path)

    def places(self, index: int, parts: Container[str] | None = None) -> list[Place]:
        """Where the bytes lie that `read` will read.

        Raises:
            IndexError: if there is no such sample. DatasetError: if its shard cannot be opened.
        """
        shard, position = self.shards.locate(index)
        table = self._tables.get(shard) or self._open(shard)
        path = str(self.shards.path(shard))
        return [(path, start, num_bytes) for start, num_bytes in table.ranges(position, parts)]

    def read_in_blocks(self, blocks: OpenBlocks | None) -> None:
        """Read by `blocks` from now on; None: singly."""
        self._blocks = blocks

    def block(self, index: int) -> range | None:
        """The block that sample `index` is in; None if samples are read singly.

        Raises:
            IndexError: if there is no such sample.
        """
        if self._blocks is None:
            return None
        shard, _ = self.shards.locate(index)
        return self._indices(index, shard, self._blocks)

    def block_place(self, block: range) -> Place | None:
        """Where the bytes of a block lie that are read together; None if its samples are read singly.

        Raises:
            DatasetError: if its shard cannot be opened.
        """
        shard, _ = self.shards.locate(block[0])
        start, num_bytes = self._block_range(block, self._tables.get(shard) or self._open(shard))
        return (str(self.shards.path(shard)), start, num_bytes) if num_bytes else None

    def _indices(self, index: int, shard: int, blocks: OpenBlocks) -> range:
        starts = self.shards.starts
        return blocks.cut.block(index, starts[shard], starts[shard + 1] - starts[shard])

    def _block_range(self, indices: range, table: _Table) -> tuple[int, int]:
        assert self._blocks is not None
        if len(indices) == 1:
            return 0, 0
        (_, first), (_, last) = self.shards.locate(indices[0]), self.shards.locate(indices[-1])
        start, num_bytes = table.block_range(first, last, self._blocks.parts)
        return start, num_bytes if num_bytes <= MAX_BLOCK_BYTES else 0

    def _open_block(self, index: int, shard: int, table: _Table, blocks: OpenBlocks) -> None:
        """Fetch the block of sample `index`, if it is to be read as a whole, and hold its samples; those that cannot be
        cut out say by themselves what is wrong with them, when they are read singly."""
        indices = self._indices(index, shard, blocks)
        start, num_bytes = self._block_range(indices, table)
        if num_bytes:
            try:
                data = table.content(start, num_bytes)
            except DatasetError:
                if storage.is_remote(self.shards.path(shard)):
                    raise  # it was tried again for as long as it may be
            else:
                (_, first), (_, last) = self.shards.locate(indices[0]), self.shards.locate(indices[-1])
                positions: Sequence[int] = range(first, last + 1)
                if len(positions) > len(indices):  # some are excluded
                    positions = [self.shards.locate(other)[1] for other in indices]
                samples = table.cut_out(positions, blocks.parts, start, data)
                blocks.hold(indices, self.shards.names[shard], samples, num_bytes)
                return
        blocks.read_singly(indices)

    def _open(self, shard: int) -> _Table:
        table = self._open_remote(shard) or self._open_any(shard)
        num_known = MAX_KNOWN_COMPRESSED if is_gzip(self.shards.names[shard]) else MAX_KNOWN_SHARDS
        while len(self._tables) >= num_known:
            self._tables.popitem(last=False)
        self._tables[shard] = table
        return table

    def _open_remote(self, shard: int) -> _Table | None:
        """A shard in an object store, if our index knows it: it is not asked for here, but looked at as it is read."""
        shards = self.shards
        path, name = str(shards.path(shard)), shards.names[shard]
        if shards.index is None or is_gzip(path) or not storage.is_remote(path):
            return None
        read = functools.partial(_read_unchanged, path, shards.index.entries[name].num_bytes)
        return _IndexedShard(read, shards.index.segment(name))

    def _open_any(self, shard: int) -> _Table:
        shards = self.shards
        path = str(shards.path(shard))
        num_bytes = storage.size_bytes(path)
        compressed = GzipTar(path) if is_gzip(path) else None
        content: _Content = functools.partial(storage.read, path)
        if compressed is not None:
            compressed.warn_if_slow()
            content = compressed.read_exactly
        table: _Table | None = None
        if shards.index is not None and shards.index.entries[shards.names[shard]].num_bytes == num_bytes:
            segment = shards.index.segment(shards.names[shard])
            if _is_intact(path, compressed or FileTar(path, num_bytes), segment):
                table = _IndexedShard(content, segment)
        if table is None:
            table = _ParsedShard(path, content, compressed, shards.stored_counts[shard])
        return table

    def __getstate__(self) -> dict[str, object]:
        return {"shards": self.shards, "_dataset_path": self._dataset_path}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._reset()


class _IndexedShard:
    """A shard whose parts our index knows."""

    __slots__ = ("_sample", "_segment", "content", "offsets")

    def __init__(self, content: _Content, segment: Segment) -> None:
        self.content, self.offsets = content, segment.offsets
        self._segment, self._sample = segment, segment.sample

    def read(self, position: int, wanted: Container[str] | None) -> _Sample:
        content = self.content
        key, parts = self._sample(position)
        if wanted is not None:
            parts = [part for part in parts if part[0] in wanted]
        if len(parts) > 1:
            start, span = _span(parts)
            if span <= TOGETHER_BYTES:
                data = content(start, span)
                return key, {name: data[offset - start : offset - start + size] for name, offset, size in parts}
        return key, {name: content(offset, size) for name, offset, size in parts}

    def ranges(self, position: int, wanted: Container[str] | None) -> Sequence[tuple[int, int]]:
        parts = [part for part in self._segment.parts(position) if wanted is None or part[0] in wanted]
        if len(parts) > 1 and (together := _span(parts))[1] <= TOGETHER_BYTES:
            return [together]
        return [(start, num_bytes) for _, start, num_bytes in parts]

    def block_range(self, first: int, last: int, wanted: Container[str] | None) -> tuple[int, int]:
        segment = self._segment
        start, end = self.offsets[first], self.offsets[last + 1]
        if wanted is not None and not all(name in wanted for name in segment.names):
            parts = (part for position in range(first, last + 1) for part in segment.parts(position))
            unwanted = sum(size for name, _, size in parts if name not in wanted)
            if unwanted > max(MAX_UNWANTED_BYTES, (end - start) // 2):
                return start, 0
        return start, end - start

    def cut_out(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
        end = start + len(data)
        columns = self._segment.columns(positions[0], positions[-1])
        if columns is not None and len(columns[0]) == len(positions):
            keys, offsets, sizes = columns
            (name,) = self._segment.names
            is_inside = start <= min(offsets) and max(map(operator.add, offsets, sizes)) <= end
            if is_inside and (wanted is None or name in wanted):
                places = zip(offsets, sizes, strict=True)
                return Samples([*keys], [data[at - start : at - start + size] for at, size in places], name)
        samples = Samples([None] * len(positions), [None] * len(positions))
        for number, position in enumerate(positions):
            key, parts = self._sample(position)
            parts = [part for part in parts if wanted is None or part[0] in wanted]
            if all(start <= at and at + size <= end for _, at, size in parts):  # else the index is damaged
                samples.keys[number] = key
                samples.contents[number] = {name: data[at - start : at - start + size] for name, at, size in parts}
        return samples


class _ParsedShard:
    """A shard of which only the offsets of samples are known, from its `.tar.idx`."""

    __slots__ = ("_compressed", "_path", "content", "offsets")

    def __init__(self, path: str, content: _Content, compressed: GzipTar | None, count: int) -> None:
        self._path, self.content, self._compressed = path, content, compressed
        self.offsets = read_offsets(path, count)
        num_bytes = storage.size_bytes(path) if compressed is None else compressed.end
        if self.offsets[-1] > num_bytes:
            raise DatasetError(
                f"{path}: has {num_bytes} bytes, but its .tar.idx knows samples up to byte {self.offsets[-1]}. The "
                "shard is truncated or was replaced: restore it, or run `bridge-data prepare` again."
            )

    def read(self, position: int, wanted: Container[str] | None) -> _Sample:
        start, end = self.offsets[position], self.offsets[position + 1]
        tar: TarBytes
        if end - start <= TOGETHER_BYTES or wanted is None:
            tar = MemoryTar(self.content(start, end - start), start)
        else:
            tar = self._compressed or FileTar(self._path, end)
        return self._parsed(tar, start, end, wanted)

    def _parsed(self, tar: TarBytes, start: int, end: int, wanted: Container[str] | None) -> _Sample:
        """The sample at bytes `start` to `end` of the tar."""
        key, parts = None, {}
        for member in walk(tar, start, end, file=self._path):
            name = split_name(member.name) if member.is_file else None
            if name is None:
                continue
            if key is None:
                key = name[0]
            elif key != name[0]:
                raise DatasetError(
                    f"{self._path}: members of {key!r} and {name[0]!r} stand in the place of one sample. The shard was "
                    "replaced after it was prepared: run `bridge-data prepare` again."
                )
            if wanted is None or name[1] in wanted:
                parts[name[1]] = tar.read(member.content_offset, member.num_bytes)
        if key is None:
            raise DatasetError(
                f"{self._path}: bytes {start} to {end} hold no sample. The shard was replaced after it was prepared: "
                "run `bridge-data prepare` again."
            )
        return key, parts

    def ranges(self, position: int, wanted: Container[str] | None) -> Sequence[tuple[int, int]]:
        start, end = self.offsets[position], self.offsets[position + 1]
        return [(start, end - start)] if end - start <= TOGETHER_BYTES or wanted is None else []

    def block_range(self, first: int, last: int, wanted: Container[str] | None) -> tuple[int, int]:
        start, end = self.offsets[first], self.offsets[last + 1]
        is_read_whole = wanted is None or end - start <= TOGETHER_BYTES * (last + 1 - first)
        return start, end - start if is_read_whole else 0

    def cut_out(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
        samples = Samples([], [])
        for position in positions:
            begin, end = self.offsets[position], self.offsets[position + 1]
            try:
                key, parts = self._parsed(MemoryTar(data[begin - start : end - start], begin), begin, end, wanted)
            except DatasetError:
                key, parts = None, None
            samples.keys.append(key)
            samples.contents.append(parts)
        return samples


def _span(parts: Sequence[Part]) -> tuple[int, int]:
    """(offset, number of bytes) of parts and what lies between them."""
    start = parts[0][1]
    return start, parts[-1][1] + parts[-1][2] - start


def _read_unchanged(url: str, num_bytes_indexed: int, start: int, num_bytes: int) -> bytes:
    """Bytes of the object at `url`, which must have the size that it had when it was indexed."""
    data = storage.read(url, start, num_bytes)
    size = storage.size_bytes(url)  # that which came with the bytes
    if size != num_bytes_indexed:
        raise DatasetError(
            f"{url}: has {size} bytes, but had {num_bytes_indexed} when it was prepared. It was replaced: restore it, "
            "or prepare the data set again and copy its .nv-meta with it."
        )
    return data


def _is_intact(path: str, tar: TarBytes, segment: Segment) -> bool:
    """Whether the last sample still lies where the index has it: a shard of the same size but other members would
    hardly have that one in the same place."""
    if not len(segment):
        return True
    last = len(segment) - 1
    start, end = segment.offsets[last], segment.offsets[last + 1]
    try:
        members = [member for member in walk(tar, start, end, file=path) if member.is_file]
    except DatasetError:
        return False
    found = [(split_name(member.name), member.content_offset, member.num_bytes) for member in members]
    key = segment.key(last)
    return [one for one in found if one[0]] == [((key, name), *place) for name, *place in segment.parts(last)]
