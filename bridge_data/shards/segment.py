"""The index of one shard: key, offset and size of every part of every sample.

Enters: the result of a scan of the shard, or its encoded bytes. Leaves: key and parts of sample number i, in about a
microsecond. A segment is stored in pages of a few hundred samples, each with a checksum, so a sample costs reading one
page, regardless of the size of the shard. Guarantee: what was written, or a `DamagedIndexError`.

Layout, in native byte order. Directory: five counts (u64): samples, samples of a page, bytes of the part names, whether
there are digests, bytes of the directory; then the end of each page (u64, from the end of the directory), the CRC-32 of
each page (u32), and the part names as a JSON list. Page: three counts (u64): samples, parts, bytes of the keys; then
sample offsets (u64, one more than samples: the row is that of `.tar.idx`), part offsets and sizes (u64), per sample the
end of its parts and of its key (u32), per part its name (u32) and perhaps the CRC-32 of its content (u32), then the
keys, concatenated.

A member `images/0001.left.png` is part `left.png` of sample `images/0001`: the key is the path up to the first dot of
the file name. Members under a name like `__meta__` are not data.

Source: the WebDataset naming convention, https://github.com/webdataset/webdataset
"""

import array
import functools
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

from bridge_data.errors import DatasetError

PAGE_SAMPLES = 256
"""Samples of a page, if they have few parts."""

PAGE_PARTS = 1024
"""Approximate parts of a page, if samples have many."""

MAX_PAGES = 1024
"""Pages that a process keeps, of about 10 KB each."""

_DIRECTORY = struct.Struct("=QQQQQ")
_PAGE = struct.Struct("=QQQ")

_HIDDEN_PART = re.compile(r"((?:.*/)?[^./]*/)\.([^/]*)", re.DOTALL)
"""The member `a/.txt` has the key `a/`."""

_META_MEMBER = re.compile(r"__[^/]*__(/|$)")

Part = tuple[str, int, int]
"""Name, offset of the content in the shard, its size."""

ReadChecked = Callable[[int, int, int], bytes | memoryview]
"""(offset, number of bytes, their CRC-32) to the bytes."""

Columns = tuple[list[str], list[int], list[int]]
"""Keys, offsets and sizes."""

PartColumns = tuple[list[int], list[str], list[int], list[int]]
"""Of each part: the number of its sample, name, offset and size."""


class DamagedIndexError(DatasetError):
    """A part of an index differs from what was written."""


def split_name(name: str) -> tuple[str, str] | None:
    """(key, part) of the member `name`; None if it is not a part of a sample."""
    start = name.rfind("/") + 1
    dot = name.find(".", start)
    if dot < 0 or (name[:2] == "__" and is_meta_member(name)):
        return None
    if dot > start:
        return name[:dot], name[dot + 1 :]
    match = _HIDDEN_PART.fullmatch(name)
    return None if match is None else (match[1], match[2])


def is_meta_member(name: str) -> bool:
    """Whether the member `name` is marked as not data, like `__meta__/readme`."""
    return name.startswith("__") and _META_MEMBER.match(name) is not None


class IndexPage:
    """Consecutive samples, numbered from 0: a view of their bytes, without a copy."""

    __slots__ = (
        "_digests",
        "_key_ends",
        "_keys",
        "_names",
        "_part_offsets",
        "name_of_part",
        "offsets",
        "part_ends",
        "part_sizes",
    )

    def __init__(self, data: memoryview | bytes, names: list[str], has_digests: bool) -> None:
        view = memoryview(data)
        num_samples, num_parts, keys_bytes = _PAGE.unpack_from(view)
        at = _PAGE.size

        def take(num_bytes: int) -> memoryview:
            nonlocal at
            at += num_bytes
            return view[at - num_bytes : at]

        self.offsets = take(8 * (num_samples + 1)).cast("Q")
        self._part_offsets = take(8 * num_parts).cast("Q")
        self.part_sizes = take(8 * num_parts).cast("Q")
        self.part_ends = take(4 * num_samples).cast("I")
        self._key_ends = take(4 * num_samples).cast("I")
        self.name_of_part = take(4 * num_parts).cast("I")
        self._digests = take(4 * num_parts * has_digests).cast("I")
        self._keys = take(keys_bytes)
        self._names = names

    def __len__(self) -> int:
        return len(self.part_ends)

    def key(self, number: int) -> str:
        """The key of sample `number`."""
        start = self._key_ends[number - 1] if number else 0
        return str(self._keys[start : self._key_ends[number]], "utf-8", "surrogateescape")

    def parts(self, number: int) -> list[Part]:
        """The parts of sample `number`, with their offsets in the shard."""
        start, end = self.part_ends[number - 1] if number else 0, self.part_ends[number]
        names, name_of = self._names, self.name_of_part
        offsets, sizes = self._part_offsets, self.part_sizes
        return [(names[name_of[i]], offsets[i], sizes[i]) for i in range(start, end)]

    def digests(self, number: int) -> dict[str, int]:
        """The CRC-32 of the content of each part of sample `number`."""
        start, end = self.part_ends[number - 1] if number else 0, self.part_ends[number]
        return {self._names[self.name_of_part[i]]: self._digests[i] for i in range(start, end)}

    def columns(self, first: int, last: int) -> Columns | None:
        """Keys, offsets and sizes of the one part of samples `first` to `last`; None if not all have one part."""
        start, stop = self.part_ends[first - 1] if first else 0, self.part_ends[last]
        if stop - start != last + 1 - first:
            return None
        return self.keys(first, last), self._part_offsets[start:stop].tolist(), self.part_sizes[start:stop].tolist()

    def part_columns(self) -> PartColumns:
        """All parts."""
        ends = self.part_ends.tolist()
        numbers = list(range(len(ends)))
        if ends != list(range(1, len(ends) + 1)):  # not one part each
            numbers = [number for number, (start, end) in enumerate(pairwise([0, *ends])) for _ in range(start, end)]
        names = list(map(self._names.__getitem__, self.name_of_part))
        return numbers, names, self._part_offsets.tolist(), self.part_sizes.tolist()

    def keys(self, first: int, last: int) -> list[str]:
        """The keys of samples `first` to `last`."""
        ends = [self._key_ends[first - 1] if first else 0, *self._key_ends[first : last + 1].tolist()]
        start = ends[0]
        text = str(self._keys[start : ends[-1]], "utf-8", "surrogateescape")
        if len(text) < ends[-1] - start:  # bytes are not characters
            return [self.key(number) for number in range(first, last + 1)]
        return [text[begin - start : end - start] for begin, end in pairwise(ends)]


class Segment:
    """The segment with this directory, whose pages are read by `read`, which checks them, from byte `start` on."""

    def __init__(self, directory: bytes | memoryview, read: ReadChecked, start: int) -> None:
        view = memoryview(directory)
        try:
            counts: tuple[int, ...] = _DIRECTORY.unpack_from(view)
            self._count, self._page_samples, names_bytes, has_digests, _ = counts
            num_pages = -(-self._count // self._page_samples)
            ends_at, sums_at = _DIRECTORY.size, _DIRECTORY.size + 8 * num_pages
            names_at = sums_at + 4 * num_pages
            self._ends = view[ends_at:sums_at].cast("Q")
            self._checksums = view[sums_at:names_at].cast("I")
            self.names: list[str] = json.loads(bytes(view[names_at : names_at + names_bytes]))
        except (struct.error, ValueError, TypeError, ZeroDivisionError) as error:
            raise DamagedIndexError(f"the directory of a shard in an index is damaged: {error}") from None
        self.has_digests = bool(has_digests)
        self._read, self._start = read, start

    @classmethod
    def of(cls, data: bytes | memoryview) -> "Segment":
        """The segment whose bytes these are."""
        view = memoryview(data)
        directory_bytes = directory_size(view)
        return cls(view[:directory_bytes], functools.partial(_read_from, view), directory_bytes)

    def __len__(self) -> int:
        return self._count

    def sample(self, position: int) -> tuple[str, list[Part]]:
        """Key and parts of the sample at `position`."""
        number, at = divmod(position, self._page_samples)
        page = _kept_page(self, number)
        return page.key(at), page.parts(at)

    def key(self, position: int) -> str:
        """The key of the sample at `position`."""
        number, at = divmod(position, self._page_samples)
        return _kept_page(self, number).key(at)

    def parts(self, position: int) -> list[Part]:
        """The parts of the sample at `position`, with their offsets in the shard."""
        number, at = divmod(position, self._page_samples)
        return _kept_page(self, number).parts(at)

    def digests(self, position: int) -> dict[str, int]:
        """The CRC-32 of the content of each part of the sample at `position`, if the segment has digests."""
        number, at = divmod(position, self._page_samples)
        return _kept_page(self, number).digests(at)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """(first byte, end) of the samples at positions `first` to `last`, with their headers."""
        number, at = divmod(first, self._page_samples)
        start: int = _kept_page(self, number).offsets[at]
        number, at = divmod(last, self._page_samples)
        end: int = _kept_page(self, number).offsets[at + 1]
        return start, end

    def columns(self, first: int, last: int) -> Columns | None:
        """Keys, offsets and sizes of the one part of samples `first` to `last`; None if not all have the same one."""
        if len(self.names) > 1:
            return None
        size = self._page_samples
        number, at = divmod(first, size)
        last -= number * size
        columns = _kept_page(self, number).columns(at, min(last, size - 1))
        while columns is not None and last >= size:
            number, last = number + 1, last - size
            more = _kept_page(self, number).columns(0, min(last, size - 1))
            if more is None:
                return None
            keys, offsets, sizes = more
            columns[0].extend(keys)
            columns[1].extend(offsets)
            columns[2].extend(sizes)
        return columns

    def keys(self) -> list[str]:
        """All keys."""
        return [key for page in self.pages() for key in page.keys(0, len(page) - 1)]

    def offsets(self) -> "array.array[int]":
        """Where each sample begins in the shard, and where the last one ends."""
        offsets = array.array("Q")
        for page in self.pages():
            del offsets[-1:]
            offsets.extend(page.offsets)
        return offsets or array.array("Q", [0])

    def rows(self) -> Iterator[tuple[int, str, int, int]]:
        """All parts: the number of the sample, name, offset and size of each."""
        first = 0
        for page in self.pages():
            numbers, *columns = page.part_columns()
            yield from zip((first + number for number in numbers), *columns, strict=True)
            first += len(page)

    def pages(self) -> Iterator[IndexPage]:
        """All pages; they are not kept."""
        return map(self.read_page, range(len(self._ends)))

    def read_page(self, number: int) -> IndexPage:
        """Page `number`, read again."""
        try:
            return IndexPage(self._page_bytes(number), self.names, self.has_digests)
        except (struct.error, ValueError, TypeError) as error:
            raise DamagedIndexError(f"a page of an index is damaged: {error}") from None

    def pages_bytes(self) -> Iterator[bytes | memoryview]:
        """The bytes of each page."""
        return map(self._page_bytes, range(len(self._ends)))

    def _page_bytes(self, number: int) -> bytes | memoryview:
        start = self._ends[number - 1] if number else 0
        return self._read(self._start + start, self._ends[number] - start, self._checksums[number])


@functools.lru_cache(maxsize=MAX_PAGES)
def _kept_page(segment: Segment, number: int) -> IndexPage:
    return segment.read_page(number)


def _read_from(data: memoryview, start: int, num_bytes: int, checksum: int) -> memoryview:
    page = data[start : start + num_bytes]
    if zlib.crc32(page) != checksum:
        raise DamagedIndexError(f"bytes {start} to {start + num_bytes} of a shard's segment are not as written")
    return page


def directory_size(data: bytes | memoryview) -> int:
    """The size of the directory at the start of these bytes."""
    size: int = _DIRECTORY.unpack_from(data)[-1]
    return size


def build_segment(
    keys: Sequence[str],
    offsets: Sequence[int],
    part_ends: Sequence[int],
    parts: Sequence[Part],
    digests: Sequence[int] | None = None,
) -> bytes:
    """The segment of samples `keys`; sample i takes bytes `offsets[i]` to `offsets[i + 1]`, and has the parts from
    `part_ends[i - 1]` to `part_ends[i]`; `digests` are the CRC-32 of their contents."""
    numbers: dict[str, int] = {}
    name_of_part = array.array("I", (numbers.setdefault(name, len(numbers)) for name, _, _ in parts))
    content_offsets = array.array("Q", (offset for _, offset, _ in parts))
    sizes = array.array("Q", (num_bytes for _, _, num_bytes in parts))
    sums = array.array("I", digests or ())
    page_samples = max(1, min(PAGE_SAMPLES, PAGE_PARTS * len(keys) // max(1, len(parts))))
    pages = []
    first_part = 0
    for first in range(0, len(keys), page_samples):
        last = min(len(keys), first + page_samples)
        encoded = [key.encode("utf-8", "surrogateescape") for key in keys[first:last]]
        key_ends = array.array("I", accumulate(map(len, encoded)))
        own = slice(first_part, part_ends[last - 1])
        body = b"".join(
            (
                _PAGE.pack(last - first, own.stop - own.start, key_ends[-1]),
                array.array("Q", offsets[first : last + 1]).tobytes(),
                content_offsets[own].tobytes(),
                sizes[own].tobytes(),
                array.array("I", (end - first_part for end in part_ends[first:last])).tobytes(),
                key_ends.tobytes(),
                name_of_part[own].tobytes(),
                sums[own].tobytes(),
                *encoded,
            )
        )
        pages.append(body + bytes(-len(body) % 8))
        first_part = own.stop
    names = json.dumps(list(numbers)).encode()
    size = _DIRECTORY.size + 12 * len(pages) + len(names)
    padding = bytes(-size % 8)
    has_digests = int(digests is not None)
    return b"".join(
        (
            _DIRECTORY.pack(len(keys), page_samples, len(names), has_digests, size + len(padding)),
            array.array("Q", accumulate(map(len, pages))).tobytes(),
            array.array("I", map(zlib.crc32, pages)).tobytes(),
            names,
            padding,
            *pages,
        )
    )
