"""Reading samples by number.

Enters: a `ShardSet` and a number. Leaves: the sample's key and the bytes of its parts. With our index a sample is one
read of known bytes; without it the sample's range comes from `.tar.idx` and its headers are parsed. A reader that was
told how its source is cut reads whole blocks; see `blocks`.
Guarantee: the parts that the tar holds under this number, or a `DatasetError` that names shard and sample.
"""

import collections
import functools
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.blocks import MAX_BLOCK_BYTES, OpenBlocks
from bridge_data.shards.records import Place, RawSample
from bridge_data.shards.shard_table import IndexedShard, ParsedShard, ReadContent, ShardTable, is_intact
from bridge_data.shards.tar_bytes import FileTar, GzipTar, is_gzip

if TYPE_CHECKING:
    from bridge_data.shards.prepared import ShardSet

MAX_KNOWN_SHARDS = 1024
"""Shards whose tables a reader keeps."""

MAX_KNOWN_COMPRESSED = 64
"""The same for compressed shards: each holds its points, about 1% of its size, and a buffer of 1 MiB."""


class ShardReader:
    """Reads the samples of `shards`. It opens files when they are needed, and may be pickled: it reads singly then,
    until it is told to read in blocks again."""

    def __init__(self, shards: "ShardSet") -> None:
        self.shards = shards
        self._dataset_path = str(shards.root)
        self._reset()

    def _reset(self) -> None:
        self._tables: collections.OrderedDict[int, ShardTable] = collections.OrderedDict()
        self._blocks: OpenBlocks | None = None

    def __len__(self) -> int:
        return self.shards.num_samples

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        """Sample number `index`, with those of its parts that are among `parts` (None: with all). A part that it
        does not have is not in the result either.

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
        """The byte ranges that `read` will read.

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
        """The byte range of a block that is read as a whole; None if its samples are read singly.

        Raises:
            DatasetError: if its shard cannot be opened.
        """
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

    def __getstate__(self) -> dict[str, object]:
        return {"shards": self.shards, "_dataset_path": self._dataset_path}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._reset()


def _read_unchanged(url: str, num_bytes_indexed: int, start: int, num_bytes: int) -> bytes:
    """Read bytes of the object at `url`, which must have the size that it had when it was indexed."""
    data = storage.read(url, start, num_bytes)
    size = storage.size_bytes(url)  # as told by the answer
    if size != num_bytes_indexed:
        raise DatasetError(
            f"{url}: has {size} bytes, but had {num_bytes_indexed} when it was prepared. It was replaced: restore it, "
            "or prepare the data set again and copy its .nv-meta with it."
        )
    return data
