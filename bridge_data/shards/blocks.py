"""Blocks: neighbouring samples of a shard that are read at once and held until each is taken.

Enters: how a source is cut, and the samples of a block when the first of them is read. Leaves: each of them, once.
`BlockReader` is what all readers of files share.
Guarantees: a sample is held until it is taken; those of a process take about `BlockBudget.max_bytes` at most. Beyond
that the oldest blocks are dropped, and their remaining samples are read singly.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import threading
import weakref
from collections.abc import Callable, Container, Iterable
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.records import ByteRange, RawSample

READ_BYTES = 1 << 18
"""Approximate size of a block: one efficient read."""

MAX_BLOCK_BYTES = 1 << 20
"""Maximum bytes of a block; the samples of a larger one are read singly."""

MAX_UNWANTED_BYTES = 1 << 16
"""If unwanted parts are over half of a block and exceed this many bytes, its samples are read singly."""

TOGETHER_BYTES = 1 << 16
"""Parts of a sample within a range of this size are read at once; larger ones separately, without a copy."""

OVERHEAD_BYTES = 250
"""Memory overhead of a held sample besides its bytes."""


class Cut(Protocol):
    """How the samples of a source are cut into blocks. No block crosses a shard."""

    def block(self, index: int, first: int, count: int) -> range:
        """The block of sample `index`, which is in a shard of `count` samples from number `first` on."""

    def within(self, start: int, end: int) -> Cut:
        """The same cut, for the data set whose range `start` to `end` - 1 is this source."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkCut:
    """Each shard is cut into chunks of at most `chunk_size` samples, and these into blocks of at most `block_size`,
    as equal as possible; see `order.chunks`. Samples before `start` and from `end` on do not belong to the source."""

    chunk_size: int
    block_size: int
    start: int = 0
    end: int | None = None

    def block(self, index: int, first: int, count: int) -> range:
        end = first + count if self.end is None else min(first + count, self.end)
        first = max(first, self.start)
        begin, length = _piece(index - first, end - first, self.chunk_size)
        begin += first
        at, length = _piece(index - begin, length, self.block_size)
        return range(begin + at, begin + at + length)

    def within(self, start: int, end: int) -> ChunkCut:
        last = end if self.end is None else min(end, start + self.end)
        return dataclasses.replace(self, start=start + self.start, end=last)


@dataclasses.dataclass(frozen=True, slots=True)
class RunCut:
    """Runs of `size` samples of concatenated sources, where sample 0 of this source has number `offset`."""

    size: int
    offset: int
    start: int = 0
    end: int | None = None

    def block(self, index: int, first: int, count: int) -> range:
        begin = index - (index + self.offset) % self.size
        end = first + count if self.end is None else min(first + count, self.end)
        return range(max(begin, first, self.start), min(begin + self.size, end))

    def within(self, start: int, end: int) -> RunCut:
        last = end if self.end is None else min(end, start + self.end)
        return dataclasses.replace(self, offset=self.offset - start, start=start + self.start, end=last)


def _piece(position: int, count: int, size: int) -> tuple[int, int]:
    """(first position, length) of the piece around `position`, of `count` samples in pieces of at most `size`."""
    num_pieces = -(-count // size)
    piece = ((position + 1) * num_pieces - 1) // count
    begin = piece * count // num_pieces
    return begin, (piece + 1) * count // num_pieces - begin


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
    """The samples of a block from number `first` on that have not been taken yet."""

    __slots__ = ("contents", "first", "keys", "name", "shard_name")

    def __init__(self, first: int, shard_name: str, samples: Samples) -> None:
        self.first, self.shard_name, self.name = first, shard_name, samples.name
        self.keys: list[Any] = samples.keys
        self.contents = samples.contents

    def drop(self, index: int) -> None:
        """Release a sample."""
        self.keys[index - self.first] = self.contents[index - self.first] = None


class Held(NamedTuple):
    """The samples of open blocks: by its number plus `first`, the block that holds a sample."""

    blocks: dict[int, Block]
    first: int
    dataset_path: str


class BlockBudget:
    """Bounds the bytes held by all its `OpenBlocks` to about `max_bytes`. Any thread may use it."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._blocks: collections.deque[tuple[weakref.ref[OpenBlocks], range]] = collections.deque()
        """Opened blocks, the oldest first; completely taken ones are removed now and then."""
        self._num_kept = 0
        self._owners: weakref.WeakSet[OpenBlocks] = weakref.WeakSet()
        self._most_bytes = 0
        """An upper bound of what is held."""
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes held now."""
        with self._lock:
            return self._count()

    def add(self, owner: OpenBlocks, indices: range, num_bytes: int) -> None:
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


def _is_open(known: weakref.ref[OpenBlocks], indices: range) -> bool:
    owner = known()
    return owner is not None and any(index in owner.held for index in indices)


class OpenBlocks:
    """The open blocks of one reader, whose source is cut by `cut`. They hold the `parts` of its samples, and serve
    reads that pass this very object."""

    def __init__(self, cut: Cut, parts: Container[str] | None, budget: BlockBudget) -> None:
        self.cut, self.parts, self.budget = cut, parts, budget
        self.held: dict[int, Block] = {}
        """By the number of a sample: the block that holds it."""
        self._singly: set[int] = set()
        self._num_added = self._bytes_added = 0

    @property
    def num_bytes(self) -> int:
        """Estimated bytes held, by the mean size of a sample."""
        return self._bytes_added * len(self.held) // max(1, self._num_added)

    def within(self, start: int, end: int) -> Self:
        """The same, for the reader of the data set whose range `start` to `end` - 1 is this source."""
        return type(self)(self.cut.within(start, end), self.parts, self.budget)

    def fetch(self, index: int, open_block: Callable[[], None]) -> bool:
        """Open the block of a sample by `open_block`, unless it was dropped. True: the sample is held now; False: read
        it singly."""
        if index not in self._singly:
            open_block()
            if index in self.held:
                return True
        self._singly.discard(index)
        return False

    def hold(self, indices: range, shard_name: str, samples: Samples, num_bytes: int) -> None:
        """Hold the samples of a block of `num_bytes` bytes; those that could not be extracted will be read singly."""
        num_bytes += OVERHEAD_BYTES * len(indices)
        self._num_added += len(indices)
        self._bytes_added += num_bytes
        self.held.update(dict.fromkeys(indices, Block(indices[0], shard_name, samples)))
        if None in samples.keys:
            self.pass_over(index for index, key in zip(indices, samples.keys, strict=True) if key is None)
        self.budget.add(self, indices, num_bytes)

    def pass_over(self, indices: Iterable[int]) -> None:
        """Release those of `indices` that are held; they will be read singly."""
        for index in indices:
            block = self.held.pop(index, None)
            if block is not None:
                self._singly.add(index)
                block.drop(index)

    def read_singly(self, indices: Iterable[int]) -> None:
        """Mark `indices`, of which none is held, to be read singly."""
        self._singly.update(indices)


class BlockReader(abc.ABC):
    """Reads samples singly, or, from `read_in_blocks` on, whole blocks of them. It is a `RecordReader`."""

    sample_class: ClassVar[type[RawSample]] = RawSample
    dataset_path: str
    _blocks: OpenBlocks | None = None

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        """Sample number `index`, with those of its parts that are among `parts`."""
        blocks = self._blocks
        if blocks is not None and blocks.parts is parts:
            held = blocks.held.pop(index, None)
            if held is None and blocks.fetch(index, lambda: self._open_block(index, blocks)):
                held = blocks.held.pop(index)
            if held is not None:
                # Not in a method of `Block`: for small samples, function calls take most of the time.
                at, keys, contents, name = index - held.first, held.keys, held.contents, held.name
                key, content = keys[at], contents[at]
                keys[at] = contents[at] = None
                parts_read = content if name is None else {name: content}
                return self.sample_class(key, held.shard_name, index, parts_read, self.dataset_path)
        return self.read_one(index, parts)

    def read_in_blocks(self, blocks: OpenBlocks | None) -> None:
        self._blocks = blocks

    def held(self, parts: Container[str] | None) -> Held | None:
        """The samples in memory that `read` would return, for a caller that takes them directly, which is faster than
        reading each; None if reads of these parts are not served by blocks, or samples are more than their parts."""
        blocks = self._blocks
        if blocks is None or blocks.parts is not parts or self.sample_class is not RawSample:
            return None
        return Held(blocks.held, 0, self.dataset_path)

    def block(self, index: int) -> range | None:
        first, count = self.shard_of(index)
        return None if self._blocks is None else self._blocks.cut.block(index, first, count)

    def _open_block(self, index: int, blocks: OpenBlocks) -> None:
        """Fetch the block of sample `index`, if it is read as a whole, and hold its samples. Those that cannot be
        extracted are read singly later, which reports the error."""
        first, count = self.shard_of(index)
        block = blocks.cut.block(index, first, count)
        try:
            found = self.read_block(block)
        except DatasetError:
            if storage.is_remote(self.dataset_path):
                raise  # retries are used up
            found = None
        if found is None:
            blocks.read_singly(block)
        else:
            blocks.hold(block, *found)

    @abc.abstractmethod
    def read_one(self, index: int, parts: Container[str] | None) -> RawSample:
        """The same as `read`, by reading this sample alone."""

    @abc.abstractmethod
    def shard_of(self, index: int) -> tuple[int, int]:
        """(number of the first sample, number of samples) of the shard of sample `index`.

        Raises:
            IndexError: if there is no such sample.
        """

    @abc.abstractmethod
    def block_bytes(self, block: range) -> ByteRange | None:
        """The byte range to read for a block; None if its samples are read singly."""

    @abc.abstractmethod
    def read_block(self, block: range) -> tuple[str, Samples, int] | None:
        """The name of the shard, the samples of a block, and the bytes that were read; None if they are read singly.

        Raises:
            DatasetError: if the block cannot be read.
        """
