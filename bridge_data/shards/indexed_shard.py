"""Reading the samples of one shard by position, by our index: known byte ranges, and no headers.

Enters: a position, what reads the bytes of the tar, and the shard's segment. Leaves: key and parts, or the byte ranges
that hold them. `IndexedShard` trusts that the shard is the one that was indexed. `CheckedShard` reads the headers
before the parts, too, and compares them, whenever it reads: it is for shards that may have been replaced, as their time
of change is another, or unknown. With `verifies`, contents are compared with the digests of the index. Guarantee: what
does not fit is a `DatasetError` that names shard and key.
"""

import operator
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import chain

from bridge_data.errors import DatasetError
from bridge_data.shards.blocks import MAX_UNWANTED_BYTES, Samples
from bridge_data.shards.segment import Part, Segment, split_name
from bridge_data.shards.tar_bytes import MemoryTar
from bridge_data.shards.tar_headers import BLOCK, Fields, TarBytes, read_member, walk, walk_runs

TOGETHER_BYTES = 1 << 16
"""Parts within a range of this size are read at once; larger ones each by itself, without a copy."""

KeyAndParts = tuple[str, dict[str, bytes]]
"""Key and parts."""

ReadContent = Callable[[int, int], bytes]
"""(offset, number of bytes) to bytes of the tar."""


class IndexedShard:
    """The shard at `path` whose parts `segment` knows."""

    __slots__ = ("_path", "_sample", "_segment", "_verifies", "content")

    def __init__(self, path: str, content: ReadContent, segment: Segment, *, verifies: bool = False) -> None:
        self._path, self.content, self._segment, self._verifies = path, content, segment, verifies
        self._sample = segment.sample

    def read(self, position: int, wanted: Container[str] | None) -> KeyAndParts:
        """The key of the sample at `position`, and its parts, or those of them that are `wanted`."""
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
        """Consecutive samples, as `read` returns them, cut out of `data`, which begins at byte `start`."""
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
        """Leave out the samples with another digest: they are read singly, which says what is wrong with them."""
        for number, position in enumerate(positions):
            key, content = samples.keys[number], samples.contents[number]
            if key is not None:
                contents = content if samples.name is None else {samples.name: content}
                digests = self._segment.digests(position)
                if any(zlib.crc32(data) != digests[name] for name, data in contents.items()):
                    samples.keys[number] = samples.contents[number] = None


class CheckedShard(IndexedShard):
    """The same, for a shard whose headers are compared with the index whenever it is read."""

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
        return Samples([None] * len(positions), [None] * len(positions))  # read singly, which says what is wrong

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
    """Whether the last sample is still stored where the index has it: a shard of the same size but other members would
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


def _span(parts: Sequence[Part]) -> tuple[int, int]:
    """(offset, number of bytes) of the range from the first part to the last."""
    start = parts[0][1]
    return start, parts[-1][1] + parts[-1][2] - start
