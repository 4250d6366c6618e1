"""The samples of one tar of which only the offsets in `.tar.idx` are known: their headers are parsed.

Reads a tar. Returns key and parts of a sample, the byte ranges that hold them, and the samples of a block, cut out of
its bytes. Raises `DatasetError`, which names the shard, if the tar does not hold a sample at its offsets.

As `.tar.idx` has no checksum, a plain shard on a disk is also searched for parts of the sample beyond its offsets; in a
store or a compressed shard, that would cost too much.
"""

import contextlib
import itertools
from collections.abc import Container, Iterator, Sequence

from bridge_data import storage
from bridge_data.data.blocks import TOGETHER_BYTES, Samples
from bridge_data.data.index_file import split_name
from bridge_data.data.sample_offsets import read_offsets
from bridge_data.data.shard_set import TABLE_BYTES, KeyAndParts, ReadContent
from bridge_data.data.tar_files import FOLDER, LINKS, CompressedTar, FileTar, MemoryTar, TarBytes, walk
from bridge_data.errors import DatasetError


class SpanShard:
    """The shard at `path`, whose tar `content` reads, with only the offsets of its samples known. It is a
    `ShardTable`."""

    def __init__(self, path: str, content: ReadContent, compressed: CompressedTar | None, count: int) -> None:
        self._path, self.content, self._compressed = path, content, compressed
        self._offsets = read_offsets(path, count)
        self.held_bytes = TABLE_BYTES + 9 * len(self._offsets)
        """About how much memory it takes."""
        num_bytes = storage.size_bytes(path) if compressed is None else compressed.end
        if self._offsets[-1] > num_bytes:
            raise DatasetError(
                f"{path}: has {num_bytes} bytes, but its .tar.idx knows samples up to byte {self._offsets[-1]}. The "
                "shard is truncated or was replaced: restore it, or run `bridge-data prepare` again."
            )
        is_searched = compressed is None and not storage.is_remote(path)
        self._is_boundary = bytearray([not is_searched]) * count + b"\1"
        """1 for each offset that was found to be between two samples, or is taken to be."""
        if is_searched:
            self._check_rest(num_bytes)

    def _check_rest(self, num_bytes: int) -> None:
        """Ensure that no sample follows the last known one, as in tars joined by `cat`."""
        for member in walk(FileTar(self._path, num_bytes), self._offsets[-1], num_bytes, file=self._path):
            if split_name(member.name) is not None and member.kind != FOLDER:
                raise DatasetError(
                    f"{self._path}: member {member.name!r} at byte {member.offset} comes after the last sample that "
                    "its .tar.idx knows. The shard has grown since: run `bridge-data prepare` again."
                )

    def read(self, position: int, wanted: Container[str] | None) -> KeyAndParts:
        start, end = self._offsets[position], self._offsets[position + 1]
        tar: TarBytes
        if end - start <= TOGETHER_BYTES or wanted is None:
            tar = MemoryTar(self.content(start, end - start), start)
        else:
            tar = self._compressed or FileTar(self._path, end)
        key, parts = self._parsed(tar, start, end, wanted)
        self._check_boundaries(position, key)
        return key, parts

    def _check_boundaries(self, position: int, key: str) -> None:
        """Check that the sample `key`, at `position`, has no parts before its first offset or from its last one on."""
        offsets, is_boundary = self._offsets, self._is_boundary
        if not is_boundary[position]:
            *_, last = None, *self._keys(offsets[position - 1] if position else 0, offsets[position])
            if last == key or (last is not None and position == 0):
                raise self._cut(position, last)
            is_boundary[position] = 1
        if not is_boundary[position + 1]:
            if next(self._keys(offsets[position + 1], offsets[position + 2]), None) == key:
                raise self._cut(position + 1, key)
            is_boundary[position + 1] = 1

    def _keys(self, start: int, end: int) -> Iterator[str]:
        """The keys of the members from byte `start` to `end`, as far as they can be read."""
        with contextlib.suppress(DatasetError):  # reported when that sample is read
            for member in walk(FileTar(self._path, end), start, end, file=self._path):
                name = split_name(member.name) if member.is_file else None
                if name is not None:
                    yield name[0]

    def _cut(self, position: int, key: str) -> DatasetError:
        return DatasetError(
            f"{self._path}: byte {self._offsets[position]}, between samples {position - 1} and {position} in its "
            f".tar.idx, is within sample {key!r}, or before the last one. The shard was replaced after it was "
            "prepared, or its .tar.idx is damaged: run `bridge-data prepare` again."
        )

    def _parsed(self, tar: TarBytes, start: int, end: int, wanted: Container[str] | None) -> KeyAndParts:
        """The sample at bytes `start` to `end` of the tar."""
        key, parts = None, {}
        for member in walk(tar, start, end, file=self._path):
            name = split_name(member.name)
            if name is not None and member.kind in LINKS:
                raise DatasetError(
                    f"{self._path}: member {member.name!r} is a {member.kind}, without content of its own. Write the "
                    "shard again with copies of the files: tar --dereference --hard-dereference."
                )
            if name is None or not member.is_file:
                continue
            if key is None:
                key = name[0]
            elif key != name[0]:
                raise DatasetError(
                    f"{self._path}: members of {key!r} and {name[0]!r} are stored where one sample should be. The "
                    "shard was replaced after it was prepared: run `bridge-data prepare` again."
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
        start, end = self._offsets[position], self._offsets[position + 1]
        return [(start, end - start)] if end - start <= TOGETHER_BYTES or wanted is None else []

    def block_range(self, first: int, last: int, wanted: Container[str] | None) -> tuple[int, int]:
        start, end = self._offsets[first], self._offsets[last + 1]
        is_read_whole = wanted is None or end - start <= TOGETHER_BYTES * (last + 1 - first)
        return start, end - start if is_read_whole else 0

    def samples_in(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
        samples = Samples([], [])
        for position in positions:
            try:
                begin, end = self._offsets[position], self._offsets[position + 1]
                key, parts = self._parsed(MemoryTar(data[begin - start : end - start], begin), begin, end, wanted)
            except DatasetError:
                key, parts = None, None
            samples.keys.append(key)
            samples.contents.append(parts)
        keys = samples.keys
        for number, (before, after) in enumerate(itertools.pairwise(positions)):
            if after == before + 1 and None not in keys[number : number + 2] and keys[number] != keys[number + 1]:
                self._is_boundary[after] = 1
        for number, position in enumerate(positions):
            key = keys[number]
            if key is not None:
                try:
                    self._check_boundaries(position, key)
                except DatasetError:
                    keys[number] = samples.contents[number] = None
        return samples
