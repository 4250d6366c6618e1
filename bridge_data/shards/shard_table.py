"""Reading the samples of one shard by position, with the headers of its members.

Enters: a position, a function that reads the bytes of the tar, and the shard's path. Leaves: key and parts, or the byte
ranges that hold them. Guarantee: the parts that the tar holds at this position, or a `DatasetError` that names the
shard.

`ParsedShard` does without our index: it has the offsets of `.tar.idx`, and parses headers. As that file has no
checksum, a plain shard on a disk is also searched for parts of the sample beyond its offsets; in a store or a
compressed shard, that would cost too much. `CheckedShard` compares the headers with our index at every read: for shards
that may have been replaced, as their modification time differs or is unknown.

`<shard>.tar.idx` is Energon's format, byte for byte: one u64, little-endian, for each sample, the offset of its first
header, and one more for the end of the last sample.
"""

import array
import contextlib
import itertools
import operator
import sys
import zlib
from collections.abc import Container, Iterator, Sequence
from itertools import chain

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.blocks import TOGETHER_BYTES
from bridge_data.shards.metadata import tar_index_path
from bridge_data.shards.records import Samples
from bridge_data.shards.segment import Part, Segment, split_name
from bridge_data.shards.shard_reader import IndexedShard, KeyAndParts, ReadContent
from bridge_data.shards.tar_bytes import FileTar, GzipTar, MemoryTar, open_tar
from bridge_data.shards.tar_headers import BLOCK, FOLDER, LINKS, Fields, TarBytes, read_member, walk, walk_runs
from bridge_data.storage import Location, location


class ParsedShard:
    """A shard with only sample offsets known, from its `.tar.idx`. Its methods are those of `IndexedShard`."""

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
        """Ensure that no sample follows the last known one, as in tars joined by `cat`."""
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
        with contextlib.suppress(DatasetError):  # reported when that sample is read
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


class CheckedShard(IndexedShard):
    """An `IndexedShard` that compares headers with the index at every read."""

    __slots__ = ()

    def _contents(self, position: int, key: str, parts: list[Part]) -> dict[str, bytes]:
        contents = {}
        for start, num_bytes, run in self._runs(position, parts):
            data = self.content(start, num_bytes)
            self._check_headers(key, run, start, data)
            contents.update({name: data[offset - start : offset - start + size] for name, offset, size in run})
        return contents

    def ranges(self, position: int, wanted: Container[str] | None) -> Sequence[tuple[int, int]]:
        parts = [part for part in self._segment.parts(position) if wanted is None or part[0] in wanted]
        return [(start, num_bytes) for start, num_bytes, _ in self._runs(position, parts)]

    def _cut_out(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
        if self._headers_fit(positions[0], positions[-1], start, data):
            return super()._cut_out(positions, wanted, start, data)
        return Samples([None] * len(positions), [None] * len(positions))  # read singly, which reports the error

    def _runs(self, position: int, parts: list[Part]) -> Iterator[tuple[int, int, list[Part]]]:
        """(offset, number of bytes, parts) of each range to read: parts with the headers before them."""
        if not parts:
            return
        headers = {}
        end, _ = self._segment.span(position, position)
        for name, offset, size in self._segment.parts(position):
            headers[name] = end
            end = offset + -(-size // BLOCK) * BLOCK
        start = headers[parts[0][0]]
        span = parts[-1][1] + parts[-1][2] - start
        if span <= TOGETHER_BYTES:
            yield start, span, parts
            return
        for part in parts:
            name, offset, size = part
            yield headers[name], offset + size - headers[name], [part]

    def _check_headers(self, key: str, parts: list[Part], start: int, data: bytes) -> None:
        """Compare the headers in `data`, which begins at byte `start`, with the index's `parts` of the sample `key`."""
        tar = MemoryTar(data, start)
        for name, offset, size in parts:
            try:
                while (member := read_member(tar, start, file=self._path)) is not None:
                    start = member.next_offset
                    if member.content_offset >= offset:
                        break
            except DatasetError:
                member = None
            if member is None or not member.is_file or _part(member) != (f"{key}.{name}", offset, size):
                found = "no member" if member is None else f"{member.name!r} of {member.num_bytes} bytes"
                raise DatasetError(
                    f"{self._path}: sample {key!r}: its part {name!r}, {size} bytes from byte {offset} on, is not "
                    f"stored where the index has it; there is {found}. The shard was replaced after it was prepared: "
                    "restore it, or run `bridge-data prepare` again; in a store, copy .nv-meta with the shards."
                )

    def _headers_fit(self, first: int, last: int, start: int, data: bytes) -> bool:
        """Whether `data`, from byte `start` on, holds the samples at positions `first` to `last`, and no others."""
        runs = walk_runs(MemoryTar(data, start), start, start + len(data), file=self._path)
        try:
            found = [_part(member) for member in chain.from_iterable(runs) if member[4]]
        except DatasetError:
            return False
        columns = self._segment.columns(first, last)
        if columns is not None:
            (name,) = self._segment.names
            keys, offsets, sizes = columns
            expected = list(zip([f"{key}.{name}" for key in keys], offsets, sizes, strict=True))
        else:
            samples = map(self._sample, range(first, last + 1))
            expected = [(f"{key}.{name}", offset, size) for key, parts in samples for name, offset, size in parts]
        return found == expected or [part for part in found if split_name(part[0]) is not None] == expected


def is_intact(path: str, tar: TarBytes, segment: Segment) -> bool:
    """Whether the last sample is still stored where the index has it: a shard of the same size with other members would
    hardly have that one at the same offset."""
    if not len(segment):
        return True
    last = len(segment) - 1
    start, end = segment.span(last, last)
    try:
        members = [member for member in walk(tar, start, end, file=path) if member.is_file]
    except DatasetError:
        return False
    found = [(split_name(member.name), member.content_offset, member.num_bytes) for member in members]
    key = segment.key(last)
    return [one for one in found if one[0]] == [
        ((key, name), offset, size) for name, offset, size in segment.parts(last)
    ]


def _part(member: Fields) -> Part:
    """Name, offset and size of a member's content."""
    return member[0], member[2], member[3]


def first_samples(root: Location, name: str, limit: int) -> dict[str, list[Part]]:
    """Keys and parts of at most the first `limit` samples of shard `name`; the rest is not read."""
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


DIGESTED_BYTES = 1 << 12
"""The end of the offsets by which a rewritten file is noticed: it costs one read."""


def offsets_digest(data: bytes) -> str:
    """A digest of the end of encoded offsets."""
    return f"{zlib.crc32(data[-DIGESTED_BYTES:]):08x}"


def read_offsets(shard: str | Location, count: int) -> "array.array[int]":
    """The `count` + 1 offsets of the shard at the path `shard`.

    Raises:
        DatasetError: if the file is missing, or does not fit a shard of `count` samples.
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
