"""Numbered samples of a source: what is known without reading them, and reading them by number.

Reads the metadata of a data set, and a number. Returns how many samples there are, grouped by shard; the key of sample
number i and the bytes of its parts; the samples that have a key. Tars, JSONL files, tables, selections of these and
joins are all `Records`; callers need not know which. `Records` are immutable and can be pickled, without handles; only
readers hold handles.
"""

from __future__ import annotations

import abc
import bisect
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeAlias

from bridge_data.errors import ConfigError
from bridge_data.samples import SourceInfo
from bridge_data.storage import Location

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bridge_data.data.sample_columns import SampleColumns


@dataclasses.dataclass(slots=True)
class RawSample:
    """A sample as it is stored in its shard. `key` is its name there, `index` its number in the split part. Parts are
    bytes; in tables and samples in memory they may be values."""

    key: str
    shard_name: str
    index: int
    parts: dict[str, Any]
    dataset_path: str

    @property
    def full_key(self) -> str:
        """The key that users see, unique in the data set: `shard/key`."""
        return f"{self.shard_name}/{self.key}"

    @property
    def origin(self) -> str:
        """`shard/key`, for messages."""
        return f"{self.shard_name}/{self.key}"

    @property
    def __key__(self) -> str:
        """The key that an error handler sees when the sample could not be decoded."""
        return self.full_key

    @property
    def __sources__(self) -> tuple[SourceInfo, ...]:
        """The origin that an error handler sees."""
        return (self.source_info(),)

    def source_info(self) -> SourceInfo:
        """Where the sample was read."""
        return SourceInfo(
            dataset_path=self.dataset_path,
            index=self.index,
            shard_name=self.shard_name,
            file_names=tuple(map(f"{self.key}.".__add__, self.parts)),
        )


def bytes_of(part: Any) -> bytes:
    """A part as bytes: the stored ones, or the text or JSON of a table's value."""
    if isinstance(part, bytes):
        return part
    return (part if isinstance(part, str) else json.dumps(part, ensure_ascii=False, default=str)).encode()


ByteRange: TypeAlias = tuple[str, int, int]
"""Path or URL of a file, offset in it, number of bytes."""


@dataclasses.dataclass(slots=True)
class Samples:
    """Consecutive samples, in columns: one object for each sample would slow the garbage collector down.

    Each of `contents` is the one part `name` of a sample, or a dict of its parts if `name` is None. A sample that could
    not be extracted has the key None.
    """

    keys: list[str | None]
    contents: list[Any]
    name: str | None = None


class Block:
    """Samples that were read at once, `num_bytes` in all. `numbers` are those that they have in the data set itself; in
    the cache that holds the block, they are numbered from `first` on. Samples that were taken are None."""

    __slots__ = ("contents", "first", "keys", "name", "num_bytes", "numbers", "shard_name")

    def __init__(self, shard_name: str, numbers: Sequence[int], samples: Samples, num_bytes: int) -> None:
        self.shard_name, self.numbers, self.num_bytes = shard_name, numbers, num_bytes
        self.keys: list[Any] = samples.keys
        self.contents, self.name = samples.contents, samples.name
        self.first = 0

    def drop(self, index: int) -> None:
        """Release a sample."""
        self.keys[index - self.first] = self.contents[index - self.first] = None

    def at(self, positions: Sequence[int]) -> Block:
        """The samples at some positions."""
        keys, contents = ([column[at] for at in positions] for column in (self.keys, self.contents))
        num_bytes = self.num_bytes * len(positions) // len(self.keys)
        numbers = [self.numbers[at] for at in positions]
        return Block(self.shard_name, numbers, Samples(keys, contents, self.name), num_bytes)


class RecordReader(abc.ABC):
    """Reads samples by number. It opens files on demand, and can be pickled."""

    dataset_path: str
    """Path or URL of the data set that holds the samples."""
    sample_class: type[RawSample] = RawSample
    """Of the samples in blocks."""
    has_blocks = False
    """Whether neighbours can be read at once; see `blocks`."""

    @abc.abstractmethod
    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        """Sample number `index`, with those of its parts that are among `parts` (None: with all). A part that the
        sample lacks is missing from the result, too.

        Raises:
            IndexError: if there is no such sample.
            DatasetError: if it cannot be read.
        """

    @abc.abstractmethod
    def byte_ranges(self, index: int, parts: Container[str] | None = None) -> Sequence[ByteRange]:
        """The byte ranges that `read` will read, as far as an index has them without reading the data.

        Raises:
            IndexError: if there is no such sample.
            DatasetError: if the index cannot be read.
        """

    def shard_of(self, index: int) -> tuple[int, int]:
        """(number of the first sample, number of samples) of the shard of sample `index`.

        Raises:
            IndexError: if there is no such sample.
        """
        raise NotImplementedError

    def block_bytes(self, block: range, parts: Container[str] | None) -> ByteRange | None:
        """The byte range that `read_block` reads; None if it reads nothing, or only reading says what.

        Raises:
            DatasetError: if the index cannot be read.
        """
        return None

    def read_block(self, block: range, parts: Container[str] | None) -> Block | None:
        """The samples of a block of more than one, with these parts; None if they are better read singly.

        Raises:
            DatasetError: if the block cannot be read.
        """
        return None


class Records(Protocol):
    """Samples 0..num_samples-1, grouped by shard: neighbours in a shard are read front to back. A shard is any
    contiguous range of samples, such as a JSONL file."""

    @property
    def root(self) -> Location:
        """The folder or file that holds the samples."""

    @property
    def split_part(self) -> str:
        """Their split part."""

    @property
    def names(self) -> Sequence[str]:
        """The name of each shard."""

    @property
    def counts(self) -> Sequence[int]:
        """Samples of each shard."""

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""

    @property
    def sample_bytes(self) -> float | None:
        """Mean bytes of a stored sample (uncompressed); None if no index has it."""

    @property
    def read_bytes(self) -> int:
        """Approximate bytes of one efficient read, and so of a block."""

    def identity(self) -> Mapping[str, Any]:
        """A value for `json.dumps` that differs if the samples or their order do, regardless of where they are stored.

        Raises:
            DatasetError: if it cannot be determined, as a file is missing.
        """

    def part_names(self, shard: int) -> Collection[str] | None:
        """The names of the parts of the samples in shard number `shard`; None if that needs reading it."""

    def describe(self, index: int) -> str:
        """Where sample `index` is stored, for messages, without reading it."""

    def reader(self) -> RecordReader:
        """A reader of these samples, with its own handles."""

    def verified(self) -> Records:
        """The same records; their readers raise a `DatasetError` if a part differs from what was prepared.

        Raises:
            ConfigError: if they have no digests.
        """

    def keys(self, samples: range) -> Iterator[str]:
        """The keys of these samples, read front to back, without their contents: from an index, if there is one, which
        is opened for each call.

        Raises:
            DatasetError: if they cannot be read.
        """

    def find(self, keys: Collection[str]) -> Iterator[tuple[int, str]]:
        """(number, key) of all samples that have one of `keys`; for data without an index of keys, all are read once.

        Raises:
            DatasetError: if keys cannot be read.
        """

    def sample_columns(self) -> SampleColumns:
        """What predicates of `where:` know of the samples.

        Raises:
            ConfigError: if that is nothing.
        """

    @property
    def join_problem(self) -> str | None:
        """Why the samples cannot be joined by their keys, for messages; None if they can."""

    @property
    def repeated_keys_fix(self) -> str:
        """How keys that several samples share become unique, for messages; empty if there is no need, or no way."""


NO_MEMBER = "a member of a join is the path of a prepared folder of tars, of tables or of a JSONL file"
"""The `join_problem` of data of other kinds."""


def scan_keys(records: Records, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    """`Records.find` of those that have no index of keys."""
    return ((at, key) for at, key in enumerate(records.keys(range(records.num_samples))) if key in keys)


def read_keys(records: Records, samples: range) -> Iterator[str]:
    """`Records.keys` of those that have no index of keys: out of the samples, one by one."""
    reader = records.reader()
    return (reader.read(index, ()).key for index in samples)


def number_of_key(key: str) -> int | None:
    """The number that the key of a sample without its own key is; None if it is none."""
    return int(key) if key.isascii() and key.isdigit() and key == str(int(key[:20])) else None


def no_columns(records: Records) -> ConfigError:
    """The error of `Records.sample_columns` of data that have none."""
    return ConfigError(
        f"{records.root}: where: is for prepared data sets, JSONL files, Parquet files and data sets of Hugging Face"
    )


def shard_at(records: Records, index: int) -> int:
    """The number of the shard that sample `index` is in."""
    return bisect.bisect_right([*itertools.accumulate(records.counts)], index)


@dataclasses.dataclass(frozen=True, eq=False)
class Selection(abc.ABC):
    """Some samples of `records`, in the same order, numbered from 0; shards without any are skipped.

    Their readers return them with their numbers and names in `records`.
    """

    records: Records

    @property
    def root(self) -> Location:
        return self.records.root

    @property
    def split_part(self) -> str:
        return self.records.split_part

    @property
    @abc.abstractmethod
    def num_samples(self) -> int:
        """Samples in the selection."""

    @property
    @abc.abstractmethod
    def shard_counts(self) -> Sequence[int]:
        """Those in each shard of `records`."""

    @abc.abstractmethod
    def to_base(self, index: int) -> int:
        """The number in `records` of sample `index`, which must exist."""

    @abc.abstractmethod
    def to_base_array(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """`to_base` of many samples at once."""

    @abc.abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """The identity of `records`, and which of them."""

    @abc.abstractmethod
    def rank(self, number: int) -> int:
        """How many samples of the selection come before sample `number` of `records`."""

    def from_base(self, number: int) -> int | None:
        """The number in the selection of sample `number` of `records`; None if it is not in it."""
        index = self.rank(number)
        return index if index < self.num_samples and self.to_base(index) == number else None

    @functools.cached_property
    def _shards(self) -> list[int]:
        """The numbers in `records` of the shards."""
        return [shard for shard, count in enumerate(self.shard_counts) if count]

    @functools.cached_property
    def counts(self) -> Sequence[int]:
        return [count for count in self.shard_counts if count]

    @functools.cached_property
    def names(self) -> Sequence[str]:
        names = self.records.names
        return [names[shard] for shard in self._shards]

    @property
    def sample_bytes(self) -> float | None:
        """Mean bytes of a sample of `records`."""
        return self.records.sample_bytes

    @property
    def read_bytes(self) -> int:
        return self.records.read_bytes

    def part_names(self, shard: int) -> Collection[str] | None:
        return self.records.part_names(self._shards[shard])

    def describe(self, index: int) -> str:
        return self.records.describe(self.to_base(index))

    def keys(self, samples: range) -> Iterator[str]:
        if not samples:
            return
        wanted = map(self.to_base, samples)
        number, end = next(wanted), self.to_base(samples[-1]) + 1
        for at, key in enumerate(self.records.keys(range(number, end)), start=number):
            if at == number:
                yield key
                number = next(wanted, end)

    def find(self, keys: Collection[str]) -> Iterator[tuple[int, str]]:
        found = ((self.from_base(number), key) for number, key in self.records.find(keys))
        return ((index, key) for index, key in found if index is not None)

    def sample_columns(self) -> SampleColumns:
        raise no_columns(self)

    @property
    def join_problem(self) -> str | None:
        return self.records.join_problem

    @property
    def repeated_keys_fix(self) -> str:
        return self.records.repeated_keys_fix

    def verified(self) -> Self:
        return dataclasses.replace(self, records=self.records.verified())

    def reader(self) -> RecordReader:
        return _SelectionReader(self)


class Derivation(NamedTuple):
    """Where records have their samples from: `members`, and the number of a sample in each of these, -1 if it has none
    there."""

    members: Sequence[Records]
    row: Callable[[int], Sequence[int]]


@functools.singledispatch
def derivation_of(records: Records) -> Derivation | None:
    """Where these records have their samples from; None if they are stored themselves."""
    return None


@derivation_of.register
def _derivation(records: Selection) -> Derivation:
    return Derivation((records.records,), lambda index: (records.to_base(index),))


def _selections(records: Records) -> tuple[list[Selection], Records]:
    """(the selections that `records` are made by, the outermost first, what they select from)."""
    found = []
    while isinstance(records, Selection):
        found.append(records)
        records = records.records
    return found, records


class Contents(NamedTuple):
    """What tells data of one identity apart, by what is known without reading them.

    `start` is a CRC-32 of their first bytes, the same however they were prepared; 0 if the identity says all. `more`
    depends on the index: `kind:digest`, to be compared with another of the same kind; it may be empty.
    """

    start: int = 0
    more: str = ""


@functools.singledispatch
def contents_of(records: Records) -> Contents:
    """What tells these data from others of their identity.

    Raises:
        DatasetError: if a file is missing.
    """
    return Contents()


@contents_of.register
def _contents(records: Selection) -> Contents:
    return contents_of(records.records)


def fingerprint_of(records: Records) -> str:
    """24 hex digits that identify the samples and their order: 16 of their identity, 8 of their first bytes.

    Raises:
        DatasetError: if a shard is missing.
    """
    import hashlib  # imported here: commands that read no data do not need it

    text = json.dumps(records.identity(), sort_keys=True, separators=(",", ":"))
    return f"{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}{contents_of(records).start:08x}"


def stored_records(records: Records) -> Records:
    """The records below all selections; `records` itself if it is no selection."""
    return _selections(records)[1]


def stored_number(records: Records, index: int) -> int:
    """The number of sample `index` below all selections."""
    return functools.reduce(lambda number, one: one.to_base(number), _selections(records)[0], index)


def selected_number(records: Records, stored: int) -> int | None:
    """The number in `records` of the sample that has the number `stored` below all selections; None if it is not in
    them."""
    number: int | None = stored
    for one in reversed(_selections(records)[0]):
        number = None if number is None else one.from_base(number)
    return number


MAX_READ_PER_CHOSEN = 8
"""Maximum samples read together per sample of a selection; beyond it, they are read singly."""


class _SelectionReader(RecordReader):
    """Reads the samples of a selection; neighbours in it together, even if others are between them."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._reader = reader = selection.records.reader()
        self.dataset_path, self.sample_class = reader.dataset_path, reader.sample_class
        self.has_blocks = reader.has_blocks

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        return self._reader.read(self._to_base(index), parts)

    def byte_ranges(self, index: int, parts: Container[str] | None = None) -> Sequence[ByteRange]:
        return self._reader.byte_ranges(self._to_base(index), parts)

    def shard_of(self, index: int) -> tuple[int, int]:
        first, count = self._reader.shard_of(self._to_base(index))
        begin = self._selection.rank(first)
        return begin, self._selection.rank(first + count) - begin

    def block_bytes(self, block: range, parts: Container[str] | None) -> ByteRange | None:
        whole = self._whole(block)
        return None if whole is None else self._reader.block_bytes(whole, parts)

    def read_block(self, block: range, parts: Container[str] | None) -> Block | None:
        whole = self._whole(block)
        found = None if whole is None else self._reader.read_block(whole, parts)
        if found is None or whole is None or len(whole) == len(block):
            return found
        return found.at([self._selection.to_base(index) - whole.start for index in block])

    def _whole(self, block: range) -> range | None:
        """The samples of `records` from the first of a block to the last; None if these are too many."""
        whole = range(self._selection.to_base(block[0]), self._selection.to_base(block[-1]) + 1)
        return whole if len(whole) <= MAX_READ_PER_CHOSEN * len(block) else None

    def _to_base(self, index: int) -> int:
        own = self._selection
        if not 0 <= index < own.num_samples:
            raise IndexError(f"{own.root} [{own.split_part}]: sample {index} of {own.num_samples}")
        return own.to_base(index)
