"""Stored samples, and reading them by number: one by one, or in blocks, neighbours that are read at once.

A `RecordReader` reads a `RawSample`, or all samples of a `Block`; every kind of data has its own. A `BlockCache` stands
above any reader, also that of a selection, whose samples it holds by their numbers there: it reads all samples of a
block when the first of them is read; how a source is cut, is given. Returns each of them, once. A sample is held until
it is taken; those of a process take about `BlockBudget.max_bytes` at most. Beyond that the oldest blocks are dropped,
and their remaining samples are read singly.
"""

from __future__ import annotations

import abc
import array
import bisect
import collections
import dataclasses
import itertools
import json
import operator
import threading
import weakref
from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.samples import SourceInfo

MAX_BLOCK_BYTES = 1 << 20
"""Maximum bytes of a block; the samples of a larger one are read singly."""

MAX_UNWANTED_BYTES = 1 << 16
"""If unwanted parts are over half of a block and exceed this many bytes, its samples are read singly."""

TOGETHER_BYTES = 1 << 16
"""Parts of a sample within a range of this size are read at once; larger ones separately, without a copy."""

MAX_PASSED = 1 << 16
"""Blocks of a source of which some samples, but not all, were released before they were read."""

OVERHEAD_BYTES = 250
"""Memory overhead of a held sample besides its bytes."""


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
        """The key that users see, unique in the data set: `shard/key`; of JSONL the key alone."""
        return f"{self.shard_name}/{self.key}"

    @property
    def origin(self) -> str:
        """`shard/key`, for messages, of every kind of data."""
        return f"{self.shard_name}/{self.key}"

    @property
    def made_of(self) -> tuple[RawSample | None, ...]:
        """The stored samples in it: itself, or one (or None) of each data set that it is made of."""
        return (self,)

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


class Samples(NamedTuple):
    """Consecutive samples, in columns: one object for each sample would slow the garbage collector down.

    Each of `contents` is the one part `name` of a sample, or a dict of its parts if `name` is None. A sample that could
    not be extracted has the key None.
    """

    keys: list[str | None]
    contents: list[Any]
    name: str | None = None


@dataclasses.dataclass(slots=True, eq=False)
class Block:
    """Samples that were read at once, `num_bytes` in all; `keys`, `contents` and `name` are those of `Samples`.
    `numbers` are those that they have in the data set itself; in the cache that holds the block, they are numbered from
    `first` on. Samples that were taken are None."""

    shard_name: str
    numbers: Sequence[int]
    keys: list[Any]
    contents: list[Any]
    name: str | None
    num_bytes: int
    first: int = 0

    def drop(self, index: int) -> None:
        """Release a sample."""
        self.keys[index - self.first] = self.contents[index - self.first] = None

    def at(self, positions: Sequence[int]) -> Block:
        """The samples at some positions."""
        numbers, keys, contents = (
            [column[at] for at in positions] for column in (self.numbers, self.keys, self.contents)
        )
        num_bytes = self.num_bytes * len(positions) // len(self.keys)
        return Block(self.shard_name, numbers, keys, contents, self.name, num_bytes)


class RecordReader(abc.ABC):
    """Reads samples by number, in one process. It opens files on demand, and can be pickled."""

    dataset_path: str
    """Path or URL of the data set that holds the samples."""
    sample_class: type[RawSample] = RawSample
    """Of the samples in blocks."""
    has_blocks = False
    """Whether neighbours can be read at once; see `BlockCache`."""

    @abc.abstractmethod
    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        """Sample number `index`, with those of its parts that are among `parts` (None: with all). A part that the
        sample lacks is missing from the result, too.

        Raises:
            IndexError: if there is no such sample.
            DatasetError: if it cannot be read.
        """

    @abc.abstractmethod
    def byte_ranges(self, block: range, parts: Container[str] | None = None) -> Sequence[ByteRange]:
        """The byte ranges that `read` reads of one sample, or `read_block` of a block of more, as far as an index has
        them without reading the data. Of a block that is read singly there are none.

        Raises:
            IndexError: if there is no such sample.
            DatasetError: if the index cannot be read.
        """

    def read_block(self, block: range, parts: Container[str] | None) -> Block | None:
        """The samples of a block of more than one in a shard, with these parts; None if they are better read singly.

        Raises:
            DatasetError: if the block cannot be read.
        """
        return None

    def part_names(self, shard: int) -> Collection[str] | None:
        """The names of the parts of the samples in shard number `shard`, for messages; None if that needs reading
        it."""
        return None


class BlockRule(Protocol):
    """How the samples of a source are cut into blocks. No block crosses a shard."""

    def block(self, index: int, first: int, count: int) -> range:
        """The block of sample `index`, which is in a shard of `count` samples from number `first` on."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkBlocks:
    """Each shard is cut into chunks of at most `chunk_size` samples, and these into blocks of at most `block_size`,
    as equal as possible, as the order of a source cuts them (`order.row`, by the same arithmetic)."""

    chunk_size: int
    block_size: int

    def block(self, index: int, first: int, count: int) -> range:
        for size in (self.chunk_size, self.block_size):
            # `piece` of `piece_of` in `order.row`, without their calls, as it is asked for each block
            num_pieces = -(-count // size)
            number = ((index - first + 1) * num_pieces - 1) // count
            begin, end = number * count // num_pieces, (number + 1) * count // num_pieces
            first, count = first + begin, end - begin
        return range(first, first + count)


@dataclasses.dataclass(frozen=True, slots=True)
class RunBlocks:
    """Runs of `size` samples of concatenated sources, where sample 0 of this source has number `offset`."""

    size: int
    offset: int

    def block(self, index: int, first: int, count: int) -> range:
        begin = index - (index + self.offset) % self.size
        return range(max(begin, first), min(begin + self.size, first + count))


class BlockBudget:
    """Bounds the bytes held by all its `BlockCache`s to about `max_bytes`. Any thread may use it."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._blocks: collections.deque[tuple[weakref.ref[BlockCache], range]] = collections.deque()
        """Opened blocks, the oldest first; completely taken ones are removed now and then."""
        self._num_kept = 0
        self._owners: weakref.WeakSet[BlockCache] = weakref.WeakSet()
        self._most_bytes = 0
        """An upper bound of what is held."""
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes held now."""
        with self._lock:
            return self._count()

    def add(self, owner: BlockCache, indices: range, num_bytes: int) -> None:
        """Count a new block, and drop the oldest ones while more than `max_bytes` are held."""
        with self._lock:
            self._blocks.append((weakref.ref(owner), indices))
            self._owners.add(owner)
            self._most_bytes += num_bytes
            if self._most_bytes > self.max_bytes:
                self._most_bytes = self._count()
                while self._most_bytes > self.max_bytes and self._blocks:
                    known, oldest = self._blocks.popleft()
                    dropped = known()
                    if dropped is not None:
                        before = dropped.num_bytes
                        dropped.pass_over(oldest)
                        self._most_bytes -= before - dropped.num_bytes
            if len(self._blocks) > 2 * self._num_kept + 64:
                self._blocks = collections.deque(block for block in self._blocks if _is_open(*block))
                self._num_kept = len(self._blocks)

    def _count(self) -> int:
        return sum(owner.num_bytes for owner in self._owners)


def _is_open(known: weakref.ref[BlockCache], indices: range) -> bool:
    owner = known()
    return owner is not None and any(index in owner.held for index in indices)


class BlockCache:
    """Reads the `parts` of samples in `shards` (see `Records.shards`), in blocks by `rule`, through a `reader` of
    them. Numbers are those of the reader: of a selection, its own. The samples are those that `reader.read` returns."""

    def __init__(
        self,
        shards: Iterable[tuple[str, int]],
        reader: RecordReader,
        rule: BlockRule,
        parts: Container[str] | None,
        budget: BlockBudget,
    ) -> None:
        self._reader, self._rule, self._parts, self._budget = reader, rule, parts, budget
        self._starts = array.array("q", itertools.accumulate(map(operator.itemgetter(1), shards), initial=0))
        self._sample_class, self._path = reader.sample_class, reader.dataset_path
        self.held: dict[int, Block] = {}
        """By the number of a sample: the block that holds it."""
        self._singly: set[int] = set()
        """Samples of blocks that were dropped, or are not read as a whole."""
        self._passed: dict[int, tuple[ByteRange | None, set[int]]] = {}
        """What was announced of blocks that are not read yet, and which of their samples were released; by the first
        sample of the block."""
        self._num_added = self._bytes_added = 0

    @property
    def num_bytes(self) -> int:
        """Estimated bytes held, by the mean size of a sample."""
        return self._bytes_added * len(self.held) // max(1, self._num_added)

    def read(self, index: int) -> RawSample:
        """Sample number `index`; the first of a block reads it all.

        Raises:
            IndexError: if there is no such sample.
            DatasetError: if it cannot be read.
        """
        block = self.held.pop(index, None)
        if block is None:
            self.open(index)
            block = self.held.pop(index, None)
            if block is None:
                self._singly.discard(index)
                return self._reader.read(index, self._parts)
        # Not in a method of `Block`: for small samples, function calls take most of the time.
        at, keys, contents, name = index - block.first, block.keys, block.contents, block.name
        key, content = keys[at], contents[at]
        keys[at] = contents[at] = None
        parts = content if name is None else {name: content}
        return self._sample_class(key, block.shard_name, block.numbers[at], parts, self._path)

    def block(self, index: int) -> range:
        """The numbers of the samples in the block of sample `index`.

        Raises:
            IndexError: if there is no such sample.
        """
        starts = self._starts
        if not 0 <= index < starts[-1]:
            raise IndexError(f"{self._path}: sample {index} of {starts[-1]}")
        shard = bisect.bisect_right(starts, index)
        first = starts[shard - 1]
        return self._rule.block(index, first, starts[shard] - first)

    def block_bytes(self, block: range) -> ByteRange | None:
        """The byte range that is read for the first sample of `block`; None if its samples are read singly, or that is
        known only when they are read.

        Raises:
            DatasetError: if the index cannot be read.
        """
        ranges = self._reader.byte_ranges(block, self._parts) if len(block) > 1 else ()
        return ranges[0] if ranges else None

    def release(self, index: int) -> None:
        """Free what is held of sample `index`, or was announced: it will not be read."""
        if (block := self.held.pop(index, None)) is not None:
            block.drop(index)
            return
        indices, is_remote = self.block(index), storage.is_remote(self._path)
        if indices.start not in self._passed:
            self._passed[indices.start] = self.block_bytes(indices) if is_remote else None, set()
        whole, passed = self._passed[indices.start]
        passed.add(index)
        if is_remote and whole is None:
            storage.release(self._reader.byte_ranges(range(index, index + 1), self._parts))
        if len(passed) == len(indices):
            del self._passed[indices.start]
            storage.release([] if whole is None else [whole])
        elif len(self._passed) > MAX_PASSED:
            del self._passed[next(iter(self._passed))]

    def pass_over(self, indices: Iterable[int]) -> None:
        """Release those of `indices` that are held; they will be read singly."""
        for index in indices:
            block = self.held.pop(index, None)
            if block is not None:
                self._singly.add(index)
                block.drop(index)

    def open(self, index: int) -> None:
        """Read the block of sample `index`, if it is read as a whole, and hold its samples. Those that cannot be
        extracted are read singly later, which reports the error.

        Raises:
            IndexError: if there is no such sample.
            DatasetError: if a remote block cannot be read.
        """
        indices = () if index in self._singly else self.block(index)
        if len(indices) < 2:
            return
        try:
            block = self._reader.read_block(indices, self._parts)
        except DatasetError:
            if storage.is_remote(self._path):
                raise  # retries are used up
            block = None
        if block is None:
            self._singly.update(indices)
            return
        block.first = indices[0]
        num_bytes = block.num_bytes + OVERHEAD_BYTES * len(indices)
        self._num_added += len(indices)
        self._bytes_added += num_bytes
        _, passed = self._passed.pop(indices.start, (None, set[int]()))
        self.held.update(dict.fromkeys(indices, block))
        if passed and index not in passed:  # else they were released in an epoch before
            self.pass_over(passed)
        if None in block.keys:
            self.pass_over([index for index, key in zip(indices, block.keys, strict=True) if key is None])
        self._budget.add(self, indices, num_bytes)
