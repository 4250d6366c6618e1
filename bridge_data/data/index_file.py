"""`index.bridge`: key, offset and size of every part of every sample, by shard.

Reads the path of an index, which is a `PagedFile`, written by `prepare.index_writing`. Returns the `Segment` of a
shard, which gives key and parts of sample number i in about a microsecond. A segment is stored in pages of a few
hundred samples, each with a checksum, so a sample costs reading one page, regardless of the size of the shard. An index
that does not fit the current data set is treated as absent. Raises `DamagedIndexError` for what is not as written.

Layout: the data are the segments. The table holds the preparation's uuid and, for each shard, its name, size and
modification time, its number of samples, offset and size of its segment, and size and CRC-32 of the segment's
directory, which has the checksums of its pages. By two more, the shard is told from others of the same sizes: the
CRC-32 of its first bytes (see `tar_files.head_checksum`), and of its keys.

Layout of a segment, in native byte order. Directory: five counts (u64): samples, samples of a page, bytes of the part
names, whether there are digests, bytes of the directory; then the end of each page (u64, from the end of the
directory), the CRC-32 of each page (u32), and the part names as a JSON list. Page: three counts (u64): samples, parts,
bytes of the keys; then sample offsets (u64, one more than samples: the row is that of `.tar.idx`), part offsets and
sizes (u64), per sample the end of its parts and of its key (u32), per part its name (u32) and perhaps the CRC-32 of its
content (u32), then the keys, concatenated.

A member `images/0001.left.png` is part `left.png` of sample `images/0001`: the key is the path up to the first dot of
the file name. Members under a name like `__meta__` are not data.

Source: the WebDataset naming convention, https://github.com/webdataset/webdataset
"""

import array
import dataclasses
import functools
import json
import operator
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeGuard

from bridge_data.data.paged_file import (
    HEADER_BYTES,
    VERSION,
    DamagedIndexError,
    PagedFile,
    kept_page,
    warn_unusable,
)
from bridge_data.storage import Location

MAGIC = b"BRIDGEIX"

MAX_SEGMENTS = 1024
"""Directories that a process keeps; that of 100,000 samples takes 5 KB."""

UNKNOWN = 0
"""The checksum of first bytes that were not read."""

DIRECTORY = struct.Struct("=QQQQQ")
PAGE = struct.Struct("=QQQ")
"""What a directory and a page begin with."""

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

    def __init__(self, data: memoryview | bytes, names: Sequence[str], has_digests: bool) -> None:
        view = memoryview(data)
        num_samples, num_parts, keys_bytes = PAGE.unpack_from(view)
        by_sample, by_part = 4 * num_samples, 4 * num_parts
        sizes = (2 * by_sample + 8, 2 * by_part, 2 * by_part, by_sample, by_sample, by_part, by_part * has_digests)
        ends = accumulate((*sizes, keys_bytes), initial=PAGE.size)
        offsets, part_offsets, part_sizes, part_ends, key_ends, name_of_part, digests, self._keys = [
            view[start:end] for start, end in pairwise(ends)
        ]
        self.offsets = offsets.cast("Q")
        self._part_offsets, self.part_sizes = part_offsets.cast("Q"), part_sizes.cast("Q")
        self.part_ends, self._key_ends = part_ends.cast("I"), key_ends.cast("I")
        self.name_of_part, self._digests = name_of_part.cast("I"), digests.cast("I")
        self._names = names

    def __len__(self) -> int:
        return len(self.part_ends)

    def sample(self, number: int) -> tuple[str, list[Part]]:
        """The key of sample `number`, and its parts, with their offsets in the shard."""
        first, start = (self._key_ends[number - 1], self.part_ends[number - 1]) if number else (0, 0)
        key, end = str(self._keys[first : self._key_ends[number]], "utf-8", "surrogateescape"), self.part_ends[number]
        names = map(self._names.__getitem__, self.name_of_part[start:end])
        return key, list(zip(names, self._part_offsets[start:end], self.part_sizes[start:end], strict=True))

    def samples(self, first: int, last: int) -> list[tuple[str, list[Part]]]:
        """Samples `first` to `last`, each as `sample` returns it."""
        begin, name_of = self.part_ends[first - 1] if first else 0, self._names.__getitem__
        ends = self.part_ends[first : last + 1].tolist()
        offsets, sizes = self._part_offsets[begin : ends[-1]], self.part_sizes[begin : ends[-1]]
        parts = list(zip(map(name_of, self.name_of_part[begin : ends[-1]]), offsets, sizes, strict=True))
        samples, start = [], 0
        for key, end in zip(self.keys(first, last), ends, strict=True):
            samples.append((key, parts[start : end - begin]))
            start = end - begin
        return samples

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

    def keys_checksum(self, before: int) -> int:
        """The CRC-32 of all keys, after those with the CRC-32 `before`."""
        return zlib.crc32(self._keys, zlib.crc32(self._key_ends, before))

    def keys(self, first: int, last: int) -> list[str]:
        """The keys of samples `first` to `last`."""
        ends = [self._key_ends[first - 1] if first else 0, *self._key_ends[first : last + 1].tolist()]
        start = ends[0]
        text = str(self._keys[start : ends[-1]], "utf-8", "surrogateescape")
        if len(text) < ends[-1] - start:  # bytes are not characters
            return [self.sample(number)[0] for number in range(first, last + 1)]
        return [text[begin - start : end - start] for begin, end in pairwise(ends)]


class Segment:
    """The segment with this directory, whose pages are read by `read`, which checks them, from byte `start` on."""

    __slots__ = ("_checksums", "_count", "_ends", "_page_samples", "_read", "_start", "has_digests", "names")

    def __init__(self, directory: bytes | memoryview, read: ReadChecked, start: int) -> None:
        view = memoryview(directory)
        try:
            counts: tuple[int, ...] = DIRECTORY.unpack_from(view)
            self._count, self._page_samples, names_bytes, has_digests, _ = counts
            num_pages = -(-self._count // self._page_samples)
            ends_at, sums_at = DIRECTORY.size, DIRECTORY.size + 8 * num_pages
            names_at = sums_at + 4 * num_pages
            self._ends = array.array("Q", bytes(view[ends_at:sums_at]))  # a view takes twice as much
            self._checksums = array.array("I", bytes(view[sums_at:names_at]))
            self.names = _part_names(bytes(view[names_at : names_at + names_bytes]))
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
        """The key of the sample at `position`, and its parts, with their offsets in the shard."""
        number, at = divmod(position, self._page_samples)
        return kept_page(self, number).sample(at)

    def samples(self, first: int, last: int) -> list[tuple[str, list[Part]]]:
        """The samples at positions `first` to `last`, each as `sample` returns it."""
        size = self._page_samples
        number, at = divmod(first, size)
        last -= number * size
        samples = kept_page(self, number).samples(at, min(last, size - 1))
        while last >= size:
            number, last = number + 1, last - size
            samples += kept_page(self, number).samples(0, min(last, size - 1))
        return samples

    def key(self, position: int) -> str:
        """The key of the sample at `position`."""
        return self.sample(position)[0]

    def parts(self, position: int) -> list[Part]:
        """The parts of the sample at `position`."""
        return self.sample(position)[1]

    def digests(self, position: int) -> dict[str, int]:
        """The CRC-32 of the content of each part of the sample at `position`, if the segment has digests."""
        number, at = divmod(position, self._page_samples)
        return kept_page(self, number).digests(at)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """(first byte, end) of the samples at positions `first` to `last`, with their headers."""
        number, at = divmod(first, self._page_samples)
        start: int = kept_page(self, number).offsets[at]
        number, at = divmod(last, self._page_samples)
        end: int = kept_page(self, number).offsets[at + 1]
        return start, end

    def columns(self, first: int, last: int) -> Columns | None:
        """Keys, offsets and sizes of the one part of samples `first` to `last`; None if not all have the same one."""
        if len(self.names) > 1:
            return None
        size = self._page_samples
        number, at = divmod(first, size)
        last -= number * size
        columns = kept_page(self, number).columns(at, min(last, size - 1))
        while columns is not None and last >= size:
            number, last = number + 1, last - size
            more = kept_page(self, number).columns(0, min(last, size - 1))
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

    def keys_checksum(self) -> int:
        """The CRC-32 of all keys."""
        return functools.reduce(lambda before, page: page.keys_checksum(before), self.pages(), 0)

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


@functools.lru_cache(maxsize=256)
def _part_names(stored: bytes) -> tuple[str, ...]:
    """The part names of a directory: most shards have the same."""
    return tuple(json.loads(stored))


def _read_from(data: memoryview, start: int, num_bytes: int, checksum: int) -> memoryview:
    page = data[start : start + num_bytes]
    if zlib.crc32(page) != checksum:
        raise DamagedIndexError(f"bytes {start} to {start + num_bytes} of a shard's segment are not as written")
    return page


def directory_size(data: bytes | memoryview) -> int:
    """The size of the directory at the start of these bytes."""
    size: int = DIRECTORY.unpack_from(data)[-1]
    return size


@dataclasses.dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard as indexed, and where its segment is stored."""

    name: str
    num_bytes: int
    mtime_ns: int
    count: int
    segment_start: int
    segment_bytes: int
    directory_bytes: int
    checksum: int
    head_checksum: int
    keys_checksum: int


class _Entries(Mapping[str, ShardEntry]):
    """The entries by name. Each is made from its table row on demand: there may be 100,000 shards, of which a process
    reads some."""

    def __init__(self, rows: list[list[Any]]) -> None:
        self.rows = {row[0]: row for row in rows}

    def __getitem__(self, name: str) -> ShardEntry:
        return ShardEntry(*self.rows[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        return name in self.rows


class BridgeIndex:
    """A valid index. It is pickled as its path, and read by each process."""

    def __init__(self, file: PagedFile, uuid: str, has_digests: bool, rows: list[list[Any]]) -> None:
        self.uuid, self.has_digests, self._rows, self._file = uuid, has_digests, rows, file
        self.entries = _Entries(rows)
        self.notes: dict[str, Any] = {}
        """Remarks by shard, in the results of a scan."""
        self._is_told = False

    @classmethod
    def open(cls, path: Location) -> "BridgeIndex | None":
        """The index at `path`, as `PagedFile.open` finds it."""
        opened = PagedFile.open(path, MAGIC)
        if opened is None:
            return None
        file, table = opened
        uuid, has_digests, rows = table.get("uuid"), table.get("digests"), table.get("shards")
        if not (isinstance(uuid, str) and isinstance(has_digests, bool) and _are_entries(rows, file.table_offset)):
            warn_unusable(file.path, "is damaged: its table is not one of shards")
            return None
        index = cls(file, uuid, has_digests, rows)
        notes = table.get("notes")
        index.notes = notes if isinstance(notes, dict) else {}
        return index

    def describes(self, shard_counts: dict[str, int], uuid: str | None) -> bool:
        """Whether this index was made by the preparation that wrote `shard_counts` and `uuid` (None: unknown)."""
        if uuid is not None and uuid != self.uuid:
            return False
        return shard_counts == {row[0]: row[3] for row in self._rows}

    def sizes_bytes(self, shards: Iterable[str]) -> list[int]:
        """The sizes of these shards."""
        rows = self.entries.rows
        return [rows[name][1] for name in shards]

    def sums(self, shards: Iterable[str]) -> list[list[int]]:
        """Of each of these shards, the CRC-32 of its first bytes, and of its keys."""
        rows = self.entries.rows
        return [rows[name][-2:] for name in shards]

    def digest(self, shard: str) -> str:
        """The kind of the segment of `shard`, a colon, and a digest of its keys, parts and offsets."""
        return f"{VERSION}{'d' if self.has_digests else ''}:{self.entries[shard].checksum:08x}"

    def segment(self, shard: str) -> Segment:
        """The segment of `shard`.

        Raises:
            DamagedIndexError: if it cannot be read.
            DatasetError: if the index was replaced.
        """
        return _segment(self._file, self.entries[shard])

    def segment_if_intact(self, shard: str) -> Segment | None:
        """The segment of `shard`; None, after a warning, if it is damaged."""
        try:
            return self.segment(shard)
        except DamagedIndexError as error:
            self.tell_damage(shard, error)
            return None

    def offsets_if_intact(self, shard: str) -> "array.array[int] | None":
        """Where each sample begins in `shard`, and where the last one ends; None, after a warning, if they are
        damaged."""
        try:
            return self.segment(shard).offsets()
        except DamagedIndexError as error:
            self.tell_damage(shard, error)
            return None

    def tell_damage(self, shard: str, damage: DamagedIndexError) -> None:
        """Warn that another way is taken for `shard`; of one index only once in a process."""
        self._tell(f"is damaged where shard {shard} is described ({damage})")

    def tell_replaced(self, shard: str) -> None:
        """Warn that `shard` is not the one that was indexed, as `tell_damage` does."""
        self._tell(f"does not fit shard {shard}, which was replaced after it was prepared")

    def _tell(self, why: str) -> None:
        if not self._is_told:
            self._is_told = True
            warn_unusable(self._file.path, why)

    def segment_bytes(self, shard: str) -> bytes:
        """The bytes of the segment of `shard`, every page of which is checked.

        Raises:
            DamagedIndexError: if they differ from what was written.
        """
        entry = self.entries[shard]
        segment = self.segment(shard)
        directory = self._file.read(entry.segment_start, entry.directory_bytes, entry.checksum)
        return b"".join((directory, *segment.pages_bytes()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle rows, which is many times faster than pickling entries; there may be 100,000."""
        return BridgeIndex, (self._file, self.uuid, self.has_digests, self._rows)


@functools.lru_cache(maxsize=MAX_SEGMENTS)
def _segment(file: PagedFile, entry: ShardEntry) -> Segment:
    directory = file.read(entry.segment_start, entry.directory_bytes, entry.checksum)
    return Segment(directory, file.read, entry.segment_start + entry.directory_bytes)


def _are_entries(rows: Any, end: int) -> TypeGuard[list[list[Any]]]:
    """Whether these are rows of entries whose segments are stored before byte `end`."""
    fields = dataclasses.fields(ShardEntry)
    if not (isinstance(rows, list) and set(map(type, rows)) <= {list} and set(map(len, rows)) <= {len(fields)}):
        return False
    if not rows:
        return True
    columns = list(zip(*rows, strict=True))
    for field, column in zip(fields, columns, strict=True):
        if set(map(type, column)) != {field.type}:
            return False
        if field.type is int and min(column) < 0:
            return False
    names, _, _, _, starts, sizes, directories, *_ = columns
    return (
        len(set(names)) == len(names)
        and min(starts) >= HEADER_BYTES
        and max(map(operator.add, starts, sizes)) <= end
        and all(map(operator.le, directories, sizes))
    )
