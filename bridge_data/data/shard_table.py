"""The samples of one tar by position.

Reads a tar: of a `TarShard` our index has the segment; of a `SpanShard` only the offsets of `.tar.idx` are known, and
headers are parsed. Returns key and parts of a sample, the byte ranges that hold them, and the samples of a block, cut
out of its bytes. Raises `DatasetError`, which names the shard, if the tar does not hold what the index has.

A `TarShard` of the indexed version is read without its headers. Another version may have other samples in its middle: a
copy, by its modification time, and every object in a store. Then each read has headers, which are compared with the
index; that takes no more requests, as they are beside the contents.

`<shard>.tar.idx` is Energon's format, byte for byte: one u64, little-endian, for each sample, the offset of its first
header, and one more for the end of the last sample. As it has no checksum, a plain shard on a disk is also searched for
parts of the sample beyond its offsets; in a store or a compressed shard, that would cost too much.
"""

import array
import contextlib
import itertools
import operator
import sys
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TypeAlias

from bridge_data import storage
from bridge_data.data.blocks import MAX_UNWANTED_BYTES, TOGETHER_BYTES
from bridge_data.data.index_file import Part, Segment, split_name
from bridge_data.data.metadata import tar_index_path
from bridge_data.data.records import Samples
from bridge_data.data.tar_files import (
    BLOCK,
    FILE,
    FOLDER,
    LINKS,
    FileTar,
    GzipTar,
    MemoryTar,
    TarBytes,
    open_tar,
    walk,
    walk_runs,
)
from bridge_data.errors import DatasetError
from bridge_data.storage import Location, location

KeyAndParts: TypeAlias = tuple[str, dict[str, bytes]]

ReadContent: TypeAlias = Callable[[int, int], bytes]
"""(offset, number of bytes) to bytes of the tar."""


_TABLE_BYTES = 2048
"""About what the objects of a table take."""


class TarShard:
    """The shard at `path` with the parts in `segment`; `content` reads the tar. With `compares`, headers are read, too,
    and compared with the segment; with `verifies`, contents are compared with its digests."""

    __slots__ = ("_compares", "_path", "_sample", "_segment", "_verifies", "content")

    def __init__(
        self, path: str, content: ReadContent, segment: Segment, *, compares: bool, verifies: bool = False
    ) -> None:
        self._path, self.content, self._segment = path, content, segment
        self._compares, self._verifies = compares, verifies
        self._sample = segment.sample

    @property
    def held_bytes(self) -> int:
        """About how much memory it takes."""
        return _TABLE_BYTES + len(self._segment) // 16

    def is_intact(self, tar: TarBytes) -> bool:
        """Whether `tar` has the last sample where the segment has it: a shard of the same size with other members would
        hardly have that one at the same offset."""
        last = len(self._segment) - 1
        if last < 0:
            return True
        key, parts = self._sample(last)
        is_plain = bool(parts) and all(
            _describes(tar.read(max(0, offset - BLOCK), BLOCK), f"{key}.{name}", size) for name, offset, size in parts
        )
        return is_plain or self._holds(tar, *self._segment.span(last, last), last, last)

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
        if wanted is not None and not all(name in wanted for name in segment.names):
            parts = (part for position in range(first, last + 1) for part in segment.parts(position))
            unwanted = sum(size for name, _, size in parts if name not in wanted)
            if unwanted > max(MAX_UNWANTED_BYTES, (end - start) // 2):
                return start, 0
        return start, end - start

    def cut_out(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
        """Consecutive samples, as `read` returns them, extracted from `data`, which begins at byte `start`. Those that
        are not what the index has are left out: they are read singly, which reports the error."""
        end = start + len(data)
        if self._compares and not self._holds(MemoryTar(data, start), start, end, positions[0], positions[-1]):
            return Samples([None] * len(positions), [None] * len(positions))
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

    def _holds(self, tar: TarBytes, start: int, end: int, first: int, last: int) -> bool:
        """Whether bytes `start` to `end` of `tar` hold the samples at positions `first` to `last`, and no others."""
        columns = self._segment.columns(first, last)
        if columns is not None:
            (name,) = self._segment.names
            keys, offsets, sizes = columns
            expected = list(zip([f"{key}.{name}" for key in keys], offsets, sizes, strict=True))
        else:
            samples = map(self._sample, range(first, last + 1))
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
        len(header) == BLOCK
        and header[156] in b"0\0"  # its type
        and not header[345]  # the folder that precedes the name
        and header[:100].rstrip(b"\0") == name.encode("utf-8", "surrogateescape")
        and header[124:136].rstrip(b"\0 ") == b"%011o" % num_bytes
    )


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK) * BLOCK


class SpanShard:
    """The shard at `path`, whose tar `content` reads, with only the offsets of its samples known. Its methods are those
    of `TarShard`."""

    def __init__(self, path: str, content: ReadContent, compressed: GzipTar | None, count: int) -> None:
        self._path, self.content, self._compressed = path, content, compressed
        self._offsets = read_offsets(path, count)
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

    @property
    def held_bytes(self) -> int:
        """About how much memory it takes."""
        return _TABLE_BYTES + 9 * len(self._offsets)

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

    def cut_out(self, positions: Sequence[int], wanted: Container[str] | None, start: int, data: bytes) -> Samples:
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
