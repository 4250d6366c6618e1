"""Reading the samples of one shard by position, by `.tar.idx` and the headers of its members.

Enters: a position, what reads the bytes of the tar, and the shard's path. Leaves: key and parts, or the byte ranges
that hold them. Guarantee: the parts that the tar holds at this position, or a `DatasetError` that names the shard. As
a `.tar.idx` has no checksum, a plain shard on a disk is also searched for parts of the sample beyond its offsets; in a
store or a compressed shard, that would cost too much.

`<shard>.tar.idx` is Energon's format, byte for byte: one u64, little-endian, for each sample, the offset of its first
header, and one more for the end of the last sample.
"""

import array
import contextlib
import itertools
import operator
import sys
from collections.abc import Container, Iterator, Sequence
from typing import TypeAlias

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.blocks import Samples
from bridge_data.shards.indexed_shard import TOGETHER_BYTES, IndexedShard, KeyAndParts, ReadContent
from bridge_data.shards.metadata import tar_index_path
from bridge_data.shards.segment import Part, split_name
from bridge_data.shards.tar_bytes import FileTar, GzipTar, MemoryTar, open_tar
from bridge_data.shards.tar_headers import FOLDER, LINKS, TarBytes, walk
from bridge_data.storage import Location, location


class ParsedShard:
    """A shard of which only the offsets of samples are known, from its `.tar.idx`. Its methods are those of
    `IndexedShard`."""

    __slots__ = ("_compressed", "_is_boundary", "_path", "content", "offsets")

    def __init__(self, path: str, content: ReadContent, compressed: GzipTar | None, count: int) -> None:
        self._path, self.content, self._compressed = path, content, compressed
        self.offsets = read_offsets(path, count)
        self._is_boundary = bytearray(count + 1)
        """1 for each offset that was found to be between two samples."""
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
        key, parts = self._parsed(tar, start, end, wanted)
        self._check_boundaries(position, key)
        return key, parts

    def _check_boundaries(self, position: int, key: str) -> None:
        """Check that the sample `key`, at `position`, has no parts before its first offset or from its last one on."""
        if self._compressed is not None or storage.is_remote(self._path):
            return
        is_boundary, count = self._is_boundary, len(self.offsets) - 1
        if not is_boundary[position]:
            before = self._keys(0 if position == 0 else self.offsets[position - 1], self.offsets[position])
            last = next(reversed(list(before)), None)
            if last == key or (last is not None and position == 0):
                raise self._cut(position, last)
            is_boundary[position] = 1
        if not is_boundary[position + 1]:
            end = storage.size_bytes(self._path) if position + 1 == count else self.offsets[position + 2]
            first = next(self._keys(self.offsets[position + 1], end), None)
            if first == key or (first is not None and position + 1 == count):
                raise self._cut(position + 1, first)
            is_boundary[position + 1] = 1

    def _keys(self, start: int, end: int) -> Iterator[str]:
        """The keys of the members from byte `start` to `end`, as far as they can be read."""
        with contextlib.suppress(DatasetError):  # it is an error where that sample is read
            for member in walk(FileTar(self._path, end), start, end, file=self._path):
                name = split_name(member.name) if member.is_file else None
                if name is not None:
                    yield name[0]

    def _cut(self, position: int, key: str) -> DatasetError:
        return DatasetError(
            f"{self._path}: byte {self.offsets[position]}, between samples {position - 1} and {position} in its "
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
        start, end = self.offsets[position], self.offsets[position + 1]
        return [(start, end - start)] if end - start <= TOGETHER_BYTES or wanted is None else []

    def block_range(self, first: int, last: int, wanted: Container[str] | None) -> tuple[int, int]:
        start, end = self.offsets[first], self.offsets[last + 1]
        is_read_whole = wanted is None or end - start <= TOGETHER_BYTES * (last + 1 - first)
        return start, end - start if is_read_whole else 0

    def cut_out(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
        samples = Samples([], [])
        for position in positions:
            try:
                begin, end = self.offsets[position], self.offsets[position + 1]
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


ShardTable: TypeAlias = IndexedShard | ParsedShard


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
    if len(data) != 8 * (count + 1):
        raise DatasetError(
            f"{path}: has {len(data)} bytes, but {count} samples, as .nv-meta says, take {8 * (count + 1)}. Shard and "
            "metadata are not of one preparation: run `bridge-data prepare` again."
        )
    offsets = decode_offsets(data)
    if not are_ascending(offsets):
        raise DatasetError(
            f"{path}: is damaged: its offsets do not ascend. Run `bridge-data prepare --tar-index-only` on the data "
            "set."
        )
    return offsets


def are_ascending(offsets: "array.array[int]") -> bool:
    """Whether each offset is greater than the one before."""
    return all(map(operator.lt, offsets, itertools.islice(offsets, 1, None)))


def decode_offsets(data: bytes) -> "array.array[int]":
    """The offsets in the content of such a file, or in a range of it."""
    offsets = array.array("Q")
    offsets.frombytes(data)
    return _little_endian(offsets)


def _little_endian(offsets: "array.array[int]") -> "array.array[int]":
    if sys.byteorder == "big":
        offsets = offsets[:]
        offsets.byteswap()
    return offsets
