"""Reading samples by number.

Enters: a `ShardSet` and a number. Leaves: the sample's key and the bytes of its parts. With our index a sample is one
read of known bytes; without it the sample's range comes from `.tar.idx` and its headers are parsed.
Guarantee: the parts that the tar holds under this number, or a `DatasetError` that names shard and sample.
"""

import collections
import functools
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Protocol

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.index.gzip_tar import GzipTar, is_gzip
from bridge_data.index.names import split_name
from bridge_data.index.records import RawSample
from bridge_data.index.segment import Segment
from bridge_data.index.tar_bytes import FileTar, MemoryTar
from bridge_data.index.tar_headers import TarBytes, read_member, walk
from bridge_data.index.tar_index import read_offsets

if TYPE_CHECKING:
    from bridge_data.index.shards import ShardSet

MAX_KNOWN_SHARDS = 1024
"""Shards whose tables a reader keeps at hand."""

MAX_KNOWN_COMPRESSED = 64
"""As many, where one is compressed: each holds its points, about 1% of its size, and a buffer of 1 MiB."""

TOGETHER_BYTES = 1 << 16
"""Parts that lie within so many bytes are read at once; larger ones each by itself, without a copy."""


_Content = Callable[[int, int], bytes]
"""The bytes of a tar, from an offset on, so many."""


class _Table(Protocol):
    """Where the samples of one shard lie."""

    def read(self, position: int, wanted: Container[str] | None) -> tuple[str, dict[str, bytes]]:
        """The key of the sample at `position`, and its parts, or those of them that are `wanted`."""


class ShardReader:
    """Reads the samples of `shards`. It opens files when they are needed, and may be pickled."""

    def __init__(self, shards: "ShardSet") -> None:
        self.shards = shards
        self._dataset_path = str(shards.root)
        self._tables: collections.OrderedDict[int, _Table] = collections.OrderedDict()

    def __len__(self) -> int:
        return self.shards.num_samples

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        """Sample number `index`, with those of its parts that are among `parts` (None: with all). A part that it has
        not is not in the result either.

        Raises:
            IndexError: if there is no such sample. DatasetError: if it cannot be read.
        """
        shard, position = self.shards.locate(index)
        try:
            table = self._tables.get(shard) or self._open(shard)
            key, content = table.read(position, parts)
        except DatasetError as error:
            raise DatasetError(f"{error} [sample {index}, number {position} of {self.shards.names[shard]}]") from error
        return RawSample(key, self.shards.names[shard], index, content, self._dataset_path)

    def _open(self, shard: int) -> _Table:
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
            if _is_intact(path, content, segment):
                table = _IndexedShard(content, segment)
        if table is None:
            table = _ParsedShard(path, content, compressed, shards.stored_counts[shard])
        while len(self._tables) >= (MAX_KNOWN_SHARDS if compressed is None else MAX_KNOWN_COMPRESSED):
            self._tables.popitem(last=False)
        self._tables[shard] = table
        return table

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"_tables": collections.OrderedDict()}


class _IndexedShard:
    """A shard whose parts our index knows."""

    __slots__ = ("_content", "_segment")

    def __init__(self, content: _Content, segment: Segment) -> None:
        self._content, self._segment = content, segment

    def read(self, position: int, wanted: Container[str] | None) -> tuple[str, dict[str, bytes]]:
        content, key = self._content, self._segment.key(position)
        parts = self._segment.parts(position)
        if wanted is not None:
            parts = [part for part in parts if part[0] in wanted]
        if len(parts) > 1:
            start = parts[0][1]
            span = parts[-1][1] + parts[-1][2] - start
            if span <= TOGETHER_BYTES:
                data = content(start, span)
                return key, {name: data[offset - start : offset - start + size] for name, offset, size in parts}
        return key, {name: content(offset, size) for name, offset, size in parts}


class _ParsedShard:
    """A shard of which only the offsets of samples are known, from its `.tar.idx`."""

    __slots__ = ("_compressed", "_content", "_offsets", "_path")

    def __init__(self, path: str, content: _Content, compressed: GzipTar | None, count: int) -> None:
        self._path, self._content, self._compressed = path, content, compressed
        self._offsets = read_offsets(path, count)
        num_bytes = storage.size_bytes(path) if compressed is None else compressed.end
        if self._offsets[-1] > num_bytes:
            raise DatasetError(
                f"{path}: has {num_bytes} bytes, but its .tar.idx knows samples up to byte {self._offsets[-1]}. The "
                "shard is truncated or was replaced: restore it, or run `bridge-data prepare` again."
            )

    def read(self, position: int, wanted: Container[str] | None) -> tuple[str, dict[str, bytes]]:
        start, end = self._offsets[position], self._offsets[position + 1]
        tar: TarBytes
        if end - start <= TOGETHER_BYTES or wanted is None:
            tar = MemoryTar(self._content(start, end - start), start)
        else:
            tar = self._compressed or FileTar(self._path, end)
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


def _is_intact(path: str, content: _Content, segment: Segment) -> bool:
    """Whether the last sample still lies where the index has it: a shard of the same size but other members would
    hardly have that one in the same place."""
    if not len(segment):
        return True
    last = len(segment) - 1
    start, (part, offset, num_bytes) = segment.offsets[last], segment.parts(last)[0]
    try:
        member = read_member(MemoryTar(content(start, offset - start), start), start, file=path)
    except DatasetError:
        return False
    return member is not None and (split_name(member.name), member.content_offset, member.num_bytes) == (
        (segment.key(last), part),
        offset,
        num_bytes,
    )
