"""JSONL data sets: a file of JSON objects, one a line, each a crude sample with the part `json`.

Reads `data.jsonl`, next to it `data.jsonl.idx` with the offsets of the samples, and perhaps `data.jsonl.split.yaml`
with a range of samples for each split part. Returns `Records`. Opening reads sizes and the split; index pages are read
when their samples are. A sample is the line that was there when the file was prepared, or one of the same length
instead; else raises a `DatasetError` that names file and byte.

The key of a sample is its number among the lines that are not blank, from 0. The index is Energon's, byte for byte: a
u64, little-endian, for each sample, and one for the end of the file. Without a split, each split part is the whole
file, as in Energon, which has no splits for JSONL.
"""

import array
import codecs
import contextlib
import dataclasses
import functools
import os
import struct
import zlib
from collections.abc import Collection, Container, Iterator
from typing import Any

from bridge_data import storage
from bridge_data.data.blocks import MAX_BLOCK_BYTES, Block, ByteRange, RawSample, RecordReader, Samples
from bridge_data.data.metadata import parse_document
from bridge_data.data.paged_file import kept_page
from bridge_data.data.records import READ_BYTES, Contents, Records, contents_of, label_of
from bridge_data.data.sample_keys import find, join_problem, keys_of, number_of_key
from bridge_data.data.sample_offsets import DIGESTED_BYTES, are_ascending, decode_offsets, offsets_digest
from bridge_data.data.subset import Subset, SubsetRange, gaps
from bridge_data.data.withheld import ShardStamp, StoredFiles, files_of
from bridge_data.errors import ConfigError, DatasetError, SampleError, bridge_command
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.storage import AnyLocation, Location, location

PART = "json"
"""The one part of each sample."""

HEAD_BYTES = 1 << 16
"""Bytes at the beginning of a file that tell it from another of the same sizes."""

_OFFSET = struct.Struct("<Q")

PAGE_OFFSETS = 512
"""Offsets that are read from the index at once."""


def index_path(path: AnyLocation) -> AnyLocation:
    """The path of the sample offsets of the JSONL file `path`."""
    return path.with_name(f"{path.name}.idx")


def split_path(path: AnyLocation, split_config: str | None = None) -> AnyLocation:
    """The path of the split of the JSONL file `path`, or of the file named `split_config` next to it.

    Raises:
        ConfigError: if that is no name of a file.
    """
    try:
        return path.with_name(f"{path.name}.split.yaml" if split_config is None else split_config)
    except ValueError:
        raise ConfigError(f"split_config={split_config!r}: expected the name of a file beside {path}") from None


def open_jsonl(
    path: str | os.PathLike[str],
    split_part: str,
    *,
    split_config: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Records:
    """The samples of `split_part` of the JSONL file `path`; a line beyond `limits` is a `SampleError` when it is read.

    Raises:
        ConfigError: if it is not prepared, or there is no such part.
        DatasetError: if it was changed since.
    """
    lines = JsonlLines.open(path, split_part)
    lines = dataclasses.replace(lines, max_line_bytes=limits.max_json_bytes)
    ranges = read_ranges(lines.root, split_config, limits)
    if ranges is None:
        return lines
    if split_part not in ranges:
        raise ConfigError(
            f"{split_path(lines.root, split_config)}: there is no split part {split_part!r}; "
            f"there is {', '.join(ranges) or 'none'}"
        )
    try:
        return Subset(lines, *ranges[split_part].resolve(lines.num_samples))
    except ConfigError as error:
        raise ConfigError(f"{split_path(lines.root, split_config)}: split part {split_part!r}: {error}") from None


def read_ranges(
    path: Location, split_config: str | None = None, limits: Limits = DEFAULT_LIMITS
) -> dict[str, SubsetRange] | None:
    """The range of each split part of the JSONL file `path`; None if it has no split.

    Raises:
        ConfigError: if the file is no split, or `split_config` is given and missing.
    """
    file = split_path(path, split_config)
    data = storage.read_if_there(file)
    if data is None:
        if split_config is not None:
            raise ConfigError(f"{file}: no such file; a split_config is a file beside the JSONL file")
        return None
    content = parse_document(data, file, limits)
    parts = content.get("split_parts") if isinstance(content, dict) else None
    if not isinstance(parts, dict) or list(content) != ["split_parts"]:
        raise ConfigError(
            f"{file}: expected a mapping with `split_parts` alone, such as `split_parts: {{train: [0, 900], val: "
            "[900, end]}`"
        )
    ranges = {}
    for part, bounds in parts.items():
        try:
            ranges[str(part)] = SubsetRange.parse(bounds)
        except ConfigError as error:
            raise ConfigError(f"{file}: split part {str(part)!r}: {error}") from None
    return ranges


def split_gaps(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Numbers of samples of the JSONL file `path` that are in no part of its split, and in several."""
    num_samples = JsonlLines.open(path, "").num_samples
    ranges = read_ranges(location(path))
    return gaps(
        [(0, num_samples)] if ranges is None else [part.resolve(num_samples) for part in ranges.values()], num_samples
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class JsonlLines:
    """All samples of the JSONL file `root`, which count as one shard; `num_bytes` is its size, `digest` that of the end
    of its index. Longer lines than `max_line_bytes` are refused."""

    root: Location
    split_part: str
    num_samples: int
    num_bytes: int
    digest: str
    max_line_bytes: int = DEFAULT_LIMITS.max_json_bytes
    read_bytes = READ_BYTES

    @classmethod
    def open(cls, path: str | os.PathLike[str], split_part: str) -> "JsonlLines":
        """The samples of the file `path`."""
        root = location(path)
        index = index_path(root)
        if not root.is_file():
            raise ConfigError(f"{root}: no such file")
        if not index.is_file():
            raise ConfigError(
                f"{root}: not prepared, there is no {index.name}; run `{bridge_command('prepare', root)}`"
            )
        num_bytes, index_bytes = storage.version(root).num_bytes, storage.version(index).num_bytes
        if index_bytes % _OFFSET.size or index_bytes < 2 * _OFFSET.size:
            raise DatasetError(
                f"{index}: has {index_bytes} bytes, but holds 8 for each sample and 8 more. It is damaged: run "
                f"`{bridge_command('prepare', root)}` again."
            )
        last_bytes = min(index_bytes, DIGESTED_BYTES)
        last = storage.read(index, index_bytes - last_bytes, last_bytes)
        (end,) = _OFFSET.unpack(last[-_OFFSET.size :])
        if end != num_bytes:
            raise DatasetError(
                f"{root}: has {num_bytes} bytes, but had {end} when it was prepared. It was changed or cut off: "
                f"restore it, or run `{bridge_command('prepare', root)}` again."
            )
        num_samples, digest = index_bytes // _OFFSET.size - 1, offsets_digest(last)
        return cls(root=root, split_part=split_part, num_samples=num_samples, num_bytes=num_bytes, digest=digest)

    @property
    def stamp(self) -> ShardStamp:
        """What is known of the file, to notice that it was rewritten."""
        return ShardStamp(self.num_bytes, self.num_samples, self.digest)

    @property
    def shards(self) -> list[tuple[str, int]]:
        return [(self.root.name, self.num_samples)]

    @property
    def sample_bytes(self) -> float | None:
        """Mean bytes of a line."""
        return self.num_bytes / self.num_samples if self.num_samples else None

    def identity(self) -> dict[str, Any]:
        """The file's name, its size and the number of its samples."""
        return {"jsonl": [self.root.name, self.num_bytes, self.num_samples]}

    @functools.cached_property
    def contents(self) -> Contents:
        """By the first bytes, and where the last samples begin."""
        storage.close_file(str(self.root))  # perhaps of an earlier file at this path
        head = storage.read(self.root, 0, min(HEAD_BYTES, self.num_bytes))
        return Contents(zlib.crc32(head, zlib.crc32(self.digest.encode())))

    def reader(self) -> RecordReader:
        return JsonlReader(self)


@keys_of.register
def _keys(records: JsonlLines, samples: range) -> Iterator[str]:
    """Their numbers, which are unique."""
    return map(str, samples)


@find.register
def _find(records: JsonlLines, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    numbers = ((number_of_key(key), key) for key in keys)
    return ((number, key) for number, key in numbers if number is not None and number < records.num_samples)


@join_problem.register
def _problem(records: JsonlLines) -> None:
    return None


@contents_of.register
def _contents(records: JsonlLines) -> Contents:
    return records.contents


@files_of.register
def _files(records: JsonlLines) -> StoredFiles:
    name, path = records.root.name, str(records.root)
    return StoredFiles(records.root, [name], [path], lambda _: records.stamp, lambda _, position: position)


class JsonlSample(RawSample):
    """A line of a JSONL file. Its key alone is unique in the data set, which is one file."""

    __slots__ = ()

    @property
    def full_key(self) -> str:
        """The number of the sample."""
        return self.key


class JsonlReader(RecordReader):
    """Reads the samples of `lines`: each its line, without white space around it."""

    sample_class, has_blocks = JsonlSample, True

    def __init__(self, lines: JsonlLines) -> None:
        self._lines = lines
        self.dataset_path = str(lines.root)
        self._index: str | None = None

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        start, end = self._bounds(index)
        content = {}
        if parts is None or PART in parts:
            self._check_range(index, start, end)
            before = min(start, 1)
            data = storage.read(self.dataset_path, start - before, end - start + before)
            content[PART] = self._line(index, start, end, data)
        return JsonlSample(str(index), self._lines.root.name, index, content, self.dataset_path)

    def byte_ranges(self, block: range, parts: Container[str] | None = None) -> list[ByteRange]:
        """The lines, and the byte before them."""
        (start, _), (_, end) = self._bounds(block[0]), self._bounds(block[-1])
        start -= min(start, 1)
        if len(block) == 1:
            is_read = parts is None or PART in parts
        else:
            is_read = 0 < end - start <= MAX_BLOCK_BYTES and end <= self._lines.num_bytes
        return [(self.dataset_path, start, end - start)] if is_read else []

    def read_block(self, block: range, parts: Container[str] | None) -> Block | None:
        found = self.byte_ranges(block, parts)
        if not found:
            return None
        ((_, start, num_bytes),) = found
        samples = self._samples_in(block, start, storage.read(self.dataset_path, start, num_bytes))
        return Block(self._lines.root.name, block, *samples, num_bytes)

    def part_names(self, shard: int) -> Collection[str]:
        return (PART,)

    def _samples_in(self, block: range, start: int, data: bytes) -> Samples:
        samples = Samples([None] * len(block), [None] * len(block), PART)
        for number, index in enumerate(block):
            first, end = self._bounds(index)
            begin = first - min(first, 1) - start
            with contextlib.suppress(DatasetError, SampleError):
                self._check_range(index, first, end)
                if begin >= 0 and end - start <= len(data):
                    samples.contents[number] = self._line(index, first, end, data[begin : end - start])
                    samples.keys[number] = str(index)
        return samples

    def _bounds(self, index: int) -> tuple[int, int]:
        lines = self._lines
        if not 0 <= index < lines.num_samples:
            raise IndexError(f"{label_of(lines)}: sample {index} of {lines.num_samples}")
        number, at = divmod(index, PAGE_OFFSETS)
        page = kept_page(self, number)
        return page[at], page[at + 1]

    def read_page(self, number: int) -> "array.array[int]":
        """The offsets of page `number` of the index, and the one after them."""
        if self._index is None:
            self._index = self._found_index()
        first = number * PAGE_OFFSETS
        count = min(PAGE_OFFSETS, self._lines.num_samples - first) + 1
        page = decode_offsets(storage.read(self._index, first * _OFFSET.size, count * _OFFSET.size))
        if not are_ascending(page):
            raise DatasetError(
                f"{self._index}: is damaged: the offsets of samples {first} to {first + count - 2} do not ascend; run "
                f"`bridge-data prepare {self.dataset_path}` again."
            )
        return page

    def _check_range(self, index: int, start: int, end: int) -> None:
        if start >= end or end > self._lines.num_bytes:
            raise self._changed(index, start, "its index has no such range")
        if end - start > self._lines.max_line_bytes:
            raise SampleError(
                f"{self.dataset_path}: sample {index}, at byte {start}: a line of {end - start} bytes is longer than "
                f"the {self._lines.max_line_bytes} allowed (Limits(max_json_bytes))"
            )

    def _line(self, index: int, start: int, end: int, data: bytes) -> bytes:
        """The line at bytes `start` to `end` out of `data`, which has the byte before it, too."""
        before = min(start, 1)
        if (before and data[0] != 0x0A) or (end < self._lines.num_bytes and data[-1] != 0x0A):
            raise self._changed(index, start, f"lines do not begin at byte {start} and end at byte {end}")
        line = (data[before:] if start else data.removeprefix(codecs.BOM_UTF8)).strip()
        if not line or b"\n" in line:
            raise self._changed(index, start, f"bytes {start} to {end} are not one line")
        return line

    def _found_index(self) -> str:
        path = index_path(self._lines.root)
        copy = storage.local_copy(path)
        if copy is None:
            raise DatasetError(f"{path}: cannot be read: no such file; run `bridge-data prepare {self.dataset_path}`")
        if storage.version(copy).num_bytes != (self._lines.num_samples + 1) * _OFFSET.size:
            raise DatasetError(f"{path}: was replaced while it was in use: the file was prepared again. Start again.")
        return str(copy)

    def _changed(self, index: int, start: int, why: str) -> DatasetError:
        return DatasetError(
            f"{self.dataset_path}: sample {index}, at byte {start}: {why}. The file was changed after it was prepared: "
            f"restore it, or run `{bridge_command('prepare', self.dataset_path)}` again."
        )

    def __reduce__(self) -> tuple[type["JsonlReader"], tuple[JsonlLines]]:
        return JsonlReader, (self._lines,)
