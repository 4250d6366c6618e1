"""Reading the samples of one shard by position: by our index, or by `.tar.idx` and the headers of its members.

Enters: a position, what reads the bytes of the tar, and the shard's segment or its path. Leaves: key and parts, or the
byte ranges that hold them. Guarantee: the parts that the tar holds at this position, or a `DatasetError` that names the
shard.

`<shard>.tar.idx` is Energon's format, byte for byte: one u64, little-endian, for each sample, the offset of its first
header, and one more for the end of the last sample.
"""

import array
import operator
import sys
from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.blocks import MAX_UNWANTED_BYTES, Samples
from bridge_data.shards.bridge_index import Part, Segment
from bridge_data.shards.metadata import split_name, tar_index_path
from bridge_data.shards.tar_bytes import FileTar, GzipTar, MemoryTar, open_tar
from bridge_data.shards.tar_headers import FOLDER, LINKS, TarBytes, walk
from bridge_data.storage import Location, location

TOGETHER_BYTES = 1 << 16
"""Parts within a range of this size are read at once; larger ones each by itself, without a copy."""

KeyAndParts = tuple[str, dict[str, bytes]]
"""Key and parts."""

ReadContent = Callable[[int, int], bytes]
"""(offset, number of bytes) to bytes of the tar."""


class IndexedShard:
    """A shard whose parts our index knows."""

    __slots__ = ("_sample", "_segment", "content", "offsets")

    def __init__(self, content: ReadContent, segment: Segment) -> None:
        self.content, self.offsets = content, segment.offsets
        self._segment, self._sample = segment, segment.sample

    def read(self, position: int, wanted: Container[str] | None) -> KeyAndParts:
        """The key of the sample at `position`, and its parts, or those of them that are `wanted`."""
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
        """The ranges (offset, number of bytes) that `read` reads, as far as they are known."""
        parts = [part for part in self._segment.parts(position) if wanted is None or part[0] in wanted]
        if len(parts) > 1 and (together := _span(parts))[1] <= TOGETHER_BYTES:
            return [together]
        return [(start, num_bytes) for _, start, num_bytes in parts]

    def block_range(self, first: int, last: int, wanted: Container[str] | None) -> tuple[int, int]:
        """(offset, number of bytes) of the samples at positions `first` to `last`; 0 bytes if they are better read
        singly, as most of the range is not wanted."""
        segment = self._segment
        start, end = self.offsets[first], self.offsets[last + 1]
        if wanted is not None and not all(name in wanted for name in segment.names):
            parts = (part for position in range(first, last + 1) for part in segment.parts(position))
            unwanted = sum(size for name, _, size in parts if name not in wanted)
            if unwanted > max(MAX_UNWANTED_BYTES, (end - start) // 2):
                return start, 0
        return start, end - start

    def cut_out(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
        """Consecutive samples, as `read` returns them, cut out of `data`, which begins at byte `start`."""
        end = start + len(data)
        columns = self._segment.columns(positions[0], positions[-1])
        if columns is not None and len(columns[0]) == len(positions):
            keys, offsets, sizes = columns
            (name,) = self._segment.names
            is_inside = start <= min(offsets) and max(map(operator.add, offsets, sizes)) <= end
            if is_inside and (wanted is None or name in wanted):
                ranges = zip(offsets, sizes, strict=True)
                return Samples([*keys], [data[at - start : at - start + size] for at, size in ranges], name)
        samples = Samples([None] * len(positions), [None] * len(positions))
        for number, position in enumerate(positions):
            key, parts = self._sample(position)
            parts = [part for part in parts if wanted is None or part[0] in wanted]
            if all(start <= at and at + size <= end for _, at, size in parts):  # else the index is damaged
                samples.keys[number] = key
                samples.contents[number] = {name: data[at - start : at - start + size] for name, at, size in parts}
        return samples


class ParsedShard:
    """A shard of which only the offsets of samples are known, from its `.tar.idx`. Its methods are those of
    `IndexedShard`."""

    __slots__ = ("_compressed", "_path", "content", "offsets")

    def __init__(self, path: str, content: ReadContent, compressed: GzipTar | None, count: int) -> None:
        self._path, self.content, self._compressed = path, content, compressed
        self.offsets = read_offsets(path, count)
        num_bytes = storage.size_bytes(path) if compressed is None else compressed.end
        if self.offsets[-1] > num_bytes:
            raise DatasetError(
                f"{path}: has {num_bytes} bytes, but its .tar.idx knows samples up to byte {self.offsets[-1]}. The "
                "shard is truncated or was replaced: restore it, or run `bridge-data prepare` again."
            )
        if compressed is None and not storage.is_remote(path):
            self._check_rest(num_bytes)

    def _check_rest(self, num_bytes: int) -> None:
        """See that no sample follows the last that is known: as in tars that were joined by `cat`."""
        for member in walk(FileTar(self._path, num_bytes), self.offsets[-1], num_bytes, file=self._path):
            if split_name(member.name) is not None and member.kind != FOLDER:
                raise DatasetError(
                    f"{self._path}: member {member.name!r} at byte {member.offset} comes after the last sample that "
                    "its .tar.idx knows. The shard has grown since: run `bridge-data prepare` again."
                )

    def read(self, position: int, wanted: Container[str] | None) -> KeyAndParts:
        start, end = self.offsets[position], self.offsets[position + 1]
        tar: TarBytes
        if end - start <= TOGETHER_BYTES or wanted is None:
            tar = MemoryTar(self.content(start, end - start), start)
        else:
            tar = self._compressed or FileTar(self._path, end)
        return self._parsed(tar, start, end, wanted)

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


ShardTable: TypeAlias = IndexedShard | ParsedShard


def _span(parts: Sequence[Part]) -> tuple[int, int]:
    """(offset, number of bytes) of the range from the first part to the last."""
    start = parts[0][1]
    return start, parts[-1][1] + parts[-1][2] - start


def is_intact(path: str, tar: TarBytes, segment: Segment) -> bool:
    """Whether the last sample is still stored where the index has it: a shard of the same size but other members would
    hardly have that one at the same offset."""
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
    return [one for one in found if one[0]] == [
        ((key, name), offset, size) for name, offset, size in segment.parts(last)
    ]


def first_samples(root: Location, name: str, limit: int) -> dict[str, list[Part]]:
    """Keys and parts of the first samples of shard `name`, at most `limit` of them; the rest is not read."""
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


def encode_offsets(offsets: "array.array[int]") -> bytes:
    """The content of the file for these offsets (type code `Q`)."""
    return _little_endian(offsets).tobytes()


def read_offsets(shard: str | Location, count: int) -> "array.array[int]":
    """The `count` + 1 offsets of the shard at the path `shard`.

    Raises:
        DatasetError: if the file is missing, or is not that of a shard of `count` samples.
    """
    path = tar_index_path(location(shard))
    data = storage.read_if_there(path)
    if data is None:
        raise DatasetError(
            f"{path}: no such file, so the samples of the shard cannot be found; "
            "run `bridge-data prepare --tar-index-only` on the data set"
        )
    offsets = array.array("Q")
    if len(data) != 8 * (count + 1):
        raise DatasetError(
            f"{path}: has {len(data)} bytes, but {count} samples, as .nv-meta says, take {8 * (count + 1)}. Shard and "
            "metadata are not of one preparation: run `bridge-data prepare` again."
        )
    offsets.frombytes(data)
    return _little_endian(offsets)


def _little_endian(offsets: "array.array[int]") -> "array.array[int]":
    if sys.byteorder == "big":
        offsets = offsets[:]
        offsets.byteswap()
    return offsets
