"""Numbered samples of a source: what is known of them without reading, and reading them by number.

Enters: what a data set's metadata say, and a number. Leaves: how many samples there are, grouped by shard; the key of
sample number i and the bytes of its parts. Tars, JSONL files, ranges of either and joins are all `Records`; who reads
them need not know which. Guarantee: `Records` are immutable and travel to other processes without handles; only readers
hold some.

`ShardReader` reads tars. With our index a sample is one read of known bytes; without it the sample's range comes from
`.tar.idx` and its headers are parsed. A reader that was told how its source is cut reads whole blocks; see `blocks`.
"""

import collections
import dataclasses
import functools
from collections.abc import Collection, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.samples import SourceInfo
from bridge_data.shards.blocks import MAX_BLOCK_BYTES, OpenBlocks
from bridge_data.shards.shard_table import IndexedShard, ParsedShard, ReadContent, ShardTable, is_intact
from bridge_data.shards.tar_bytes import FileTar, GzipTar, is_gzip
from bridge_data.storage import Location

if TYPE_CHECKING:
    from bridge_data.shards.prepared import ShardSet

MAX_KNOWN_SHARDS = 1024
"""Shards whose tables a reader keeps."""

MAX_KNOWN_COMPRESSED = 64
"""The same for compressed shards: each holds its points, about 1% of its size, and a buffer of 1 MiB."""


@dataclasses.dataclass(slots=True)
class RawSample:
    """A sample as it is stored in its shard. `key` is its name there, `index` its number in the split part."""

    key: str
    shard_name: str
    index: int
    parts: dict[str, bytes]
    dataset_path: str

    @property
    def full_key(self) -> str:
        """The key that users see, unique in the data set: `shard/key`."""
        return f"{self.shard_name}/{self.key}"

    @property
    def origin(self) -> str:
        """`shard/key`, for messages."""
        return f"{self.shard_name}/{self.key}"

    @property
    def __key__(self) -> str:
        """The key that an error handler sees when the sample could not be decoded."""
        return self.full_key

    @property
    def __sources__(self) -> tuple[SourceInfo, ...]:
        """The origin that an error handler sees."""
        return (self.source_info(),)

    def source_info(self) -> SourceInfo:
        """Where it was read."""
        return SourceInfo(
            dataset_path=self.dataset_path,
            index=self.index,
            shard_name=self.shard_name,
            file_names=tuple(map(f"{self.key}.".__add__, self.parts)),
        )


ByteRange: TypeAlias = tuple[str, int, int]
"""Path or URL of a file, offset in it, number of bytes."""


class RecordReader(Protocol):
    """Reads samples by number. It opens files when they are needed, and may be pickled."""

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        """Sample number `index`, with those of its parts that are among `parts` (None: with all). A part that it
        does not have is not in the result either.

        Raises:
            IndexError: if there is no such sample. DatasetError: if it cannot be read.
        """

    def byte_ranges(self, index: int, parts: Container[str] | None = None) -> Sequence[ByteRange]:
        """The byte ranges that `read` will read, as far as an index knows them without reading the data.

        Raises:
            IndexError: if there is no such sample. DatasetError: if the index cannot be read.
        """

    def read_in_blocks(self, blocks: OpenBlocks | None) -> None:
        """From now on, where `read` is given the `parts` of `blocks`, read whole blocks; None: read single samples. The
        samples are the same."""

    def block(self, index: int) -> range | None:
        """The numbers of the samples of the block that sample `index` is in; None if samples are read singly.

        Raises:
            IndexError: if there is no such sample.
        """

    def block_bytes(self, block: range) -> ByteRange | None:
        """The byte range that `read` reads for the first sample of `block`; None if it reads the samples singly.

        Raises:
            DatasetError: if the index cannot be read.
        """


class Records(Protocol):
    """Samples 0..num_samples-1, grouped by shard: neighbours in a shard are read front to back. Here a shard is any
    contiguous range of samples, such as a JSONL file."""

    @property
    def root(self) -> Location:
        """The folder, or the file, that holds them."""

    @property
    def split_part(self) -> str:
        """The part of the split that they are."""

    @property
    def names(self) -> Sequence[str]:
        """The name of each shard."""

    @property
    def counts(self) -> Sequence[int]:
        """Samples of each shard."""

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""

    @property
    def sample_bytes(self) -> float | None:
        """Mean bytes of a stored sample (uncompressed); None if no index knows."""

    def identity(self) -> Mapping[str, Any]:
        """A value for `json.dumps` that differs where the samples or their order do, wherever they are stored.

        Raises:
            DatasetError: if it cannot be found out, as a file is missing.
        """

    def part_names(self, shard: int) -> Collection[str] | None:
        """The names of the parts of the samples in shard number `shard`; None if they are not known without reading
        it."""

    def describe(self, index: int) -> str:
        """Where sample `index` is stored, for messages, without reading it."""

    def reader(self) -> RecordReader:
        """A reader of these samples, with handles of its own."""


class ShardReader:
    """Reads the samples of `shards`. It opens files when they are needed, and may be pickled: it reads singly then,
    until `read_in_blocks` is called again."""

    def __init__(self, shards: "ShardSet") -> None:
        self.shards = shards
        self._dataset_path = str(shards.root)
        self._tables: collections.OrderedDict[int, ShardTable] = collections.OrderedDict()
        self._blocks: OpenBlocks | None = None

    def __len__(self) -> int:
        return self.shards.num_samples

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
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

    def byte_ranges(self, index: int, parts: Container[str] | None = None) -> list[ByteRange]:
        shard, position = self.shards.locate(index)
        table = self._tables.get(shard) or self._open(shard)
        path = str(self.shards.path(shard))
        return [(path, start, num_bytes) for start, num_bytes in table.ranges(position, parts)]

    def read_in_blocks(self, blocks: OpenBlocks | None) -> None:
        self._blocks = blocks

    def block(self, index: int) -> range | None:
        if self._blocks is None:
            return None
        shard, _ = self.shards.locate(index)
        return self._indices(index, shard, self._blocks)

    def block_bytes(self, block: range) -> ByteRange | None:
        shard, _ = self.shards.locate(block[0])
        start, num_bytes = self._block_range(block, self._tables.get(shard) or self._open(shard))
        return (str(self.shards.path(shard)), start, num_bytes) if num_bytes else None

    def _indices(self, index: int, shard: int, blocks: OpenBlocks) -> range:
        starts = self.shards.starts
        return blocks.cut.block(index, starts[shard], starts[shard + 1] - starts[shard])

    def _block_range(self, indices: range, table: ShardTable) -> tuple[int, int]:
        assert self._blocks is not None
        if len(indices) == 1:
            return 0, 0
        (_, first), (_, last) = self.shards.locate(indices[0]), self.shards.locate(indices[-1])
        start, num_bytes = table.block_range(first, last, self._blocks.parts)
        return start, num_bytes if num_bytes <= MAX_BLOCK_BYTES else 0

    def _open_block(self, index: int, shard: int, table: ShardTable, blocks: OpenBlocks) -> None:
        """Fetch the block of sample `index`, if it is read as a whole, and hold its samples. Those that cannot be cut
        out are read singly later, which reports what is wrong with them."""
        indices = self._indices(index, shard, blocks)
        start, num_bytes = self._block_range(indices, table)
        if num_bytes:
            try:
                data = table.content(start, num_bytes)
            except DatasetError:
                if storage.is_remote(self.shards.path(shard)):
                    raise  # it was retried for as long as allowed
            else:
                (_, first), (_, last) = self.shards.locate(indices[0]), self.shards.locate(indices[-1])
                positions: Sequence[int] = range(first, last + 1)
                if len(positions) > len(indices):  # some are excluded
                    positions = [self.shards.locate(other)[1] for other in indices]
                samples = table.cut_out(positions, blocks.parts, start, data)
                blocks.hold(indices, self.shards.names[shard], samples, num_bytes)
                return
        blocks.read_singly(indices)

    def _open(self, shard: int) -> ShardTable:
        table = self._open_remote(shard) or self._open_any(shard)
        num_known = MAX_KNOWN_COMPRESSED if is_gzip(self.shards.names[shard]) else MAX_KNOWN_SHARDS
        while len(self._tables) >= num_known:
            self._tables.popitem(last=False)
        self._tables[shard] = table
        return table

    def _open_remote(self, shard: int) -> ShardTable | None:
        """A shard in an object store, if our index knows it: no request is made here; its size is checked when it is
        read."""
        shards = self.shards
        path, name = str(shards.path(shard)), shards.names[shard]
        if shards.index is None or is_gzip(path) or not storage.is_remote(path):
            return None
        read = functools.partial(_read_unchanged, path, shards.index.entries[name].num_bytes)
        return IndexedShard(read, shards.index.segment(name))

    def _open_any(self, shard: int) -> ShardTable:
        shards = self.shards
        path = str(shards.path(shard))
        num_bytes = storage.size_bytes(path)
        compressed = GzipTar(path) if is_gzip(path) else None
        content: ReadContent = functools.partial(storage.read, path)
        if compressed is not None:
            compressed.warn_if_slow()
            content = compressed.read_exactly
        table: ShardTable | None = None
        if shards.index is not None and shards.index.entries[shards.names[shard]].num_bytes == num_bytes:
            segment = shards.index.segment(shards.names[shard])
            if is_intact(path, compressed or FileTar(path, num_bytes), segment):
                table = IndexedShard(content, segment)
        if table is None:
            table = ParsedShard(path, content, compressed, shards.stored_counts[shard])
        return table

    def __reduce__(self) -> tuple[type["ShardReader"], tuple["ShardSet"]]:
        return ShardReader, (self.shards,)


def _read_unchanged(url: str, num_bytes_indexed: int, start: int, num_bytes: int) -> bytes:
    """Read bytes of the object at `url`, which must have the size that it had when it was indexed."""
    data = storage.read(url, start, num_bytes)
    size = storage.size_bytes(url)  # from the answer to the read
    if size != num_bytes_indexed:
        raise DatasetError(
            f"{url}: has {size} bytes, but had {num_bytes_indexed} when it was prepared. It was replaced: restore it, "
            "or prepare the data set again and copy its .nv-meta with it."
        )
    return data
