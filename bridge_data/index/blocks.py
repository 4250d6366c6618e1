"""Blocks: neighbours of one stretch that are fetched together and held until each of them has been taken.

Enters: how a source is cut, and the bytes of a block when the first of its samples is wanted. Leaves: these bytes, once
for each sample of the block. Guarantees: a block is gone when its last sample has been taken, and one of large samples
goes sample by sample; the blocks of a process hold at most `BlockBudget.max_bytes`. Beyond that the oldest is dropped,
and what is left of it is read singly.
"""

import collections
import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Container, Iterable
from typing import Protocol, Self, TypeAlias

MAX_BLOCK_BYTES = 1 << 20
"""A block that has more, as its samples are unequal, is read singly."""

MAX_UNWANTED_BYTES = 1 << 16
"""A block with more bytes of parts that nobody wants, if they are more than half of it, is read singly."""

PARTED_BYTES = 1 << 13
"""Samples of so many bytes, on the average of their block, are held each by itself."""

OVERHEAD_BYTES = 100
"""What it costs to hold a sample of a block, besides its bytes: an entry in a dict."""


class Cut(Protocol):
    """How the samples of a source are cut into blocks. No block crosses a stretch."""

    def block(self, index: int, first: int, count: int) -> range:
        """The block of sample `index`, which lies in a stretch of `count` samples from number `first` on."""

    def within(self, start: int, end: int) -> "Cut":
        """The same of a data set of which this cut's source are the samples `start` to `end` - 1."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkCut:
    """Each stretch is cut into chunks of at most `chunk_size` samples, and these into blocks of at most `block_size`,
    all as equal as can be; see `order.chunks`. Samples before `start` and from `end` on are none of the source."""

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

    def within(self, start: int, end: int) -> "ChunkCut":
        last = end if self.end is None else min(end, start + self.end)
        return dataclasses.replace(self, start=start + self.start, end=last)


@dataclasses.dataclass(frozen=True, slots=True)
class RunCut:
    """Runs of `size` samples, in a row of sources of which sample 0 of this one has number `offset`."""

    size: int
    offset: int
    start: int = 0
    end: int | None = None

    def block(self, index: int, first: int, count: int) -> range:
        begin = index - (index + self.offset) % self.size
        end = first + count if self.end is None else min(first + count, self.end)
        return range(max(begin, first, self.start), min(begin + self.size, end))

    def within(self, start: int, end: int) -> "RunCut":
        last = end if self.end is None else min(end, start + self.end)
        return dataclasses.replace(self, offset=self.offset - start, start=start + self.start, end=last)


def _piece(position: int, count: int, size: int) -> tuple[int, int]:
    """(first position, length) of the piece around `position`, of `count` samples in pieces of at most `size`."""
    num_pieces = -(-count // size)
    piece = ((position + 1) * num_pieces - 1) // count
    begin = piece * count // num_pieces
    return begin, (piece + 1) * count // num_pieces - begin


class Block:
    """The bytes of a block, or of one of its samples: `data`, which lies in its shard from `start` on."""

    __slots__ = ("__weakref__", "_budget", "_indices", "_owner", "data", "number", "start")

    def __init__(self, start: int, data: bytes, indices: range, owner: "OpenBlocks") -> None:
        self.start, self.data = start, data
        self._indices, self._owner, self._budget = indices, weakref.ref(owner), owner.budget
        self.number = 0

    @property
    def num_bytes(self) -> int:
        """What it takes to hold it."""
        return len(self.data) + OVERHEAD_BYTES * len(self._indices)

    def drop(self) -> None:
        """Let those of its samples that have not been taken be read singly."""
        owner = self._owner()
        if owner is not None:
            for index in self._indices:
                if owner.held.get(index) is self:
                    owner.held[index] = None

    def __del__(self) -> None:
        self._budget.gone.append((self.number, self.num_bytes))


class BlockBudget:
    """At most `max_bytes` for the blocks of all readers that share it. Any thread may use it."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.gone: collections.deque[tuple[int, int]] = collections.deque()
        """Number and bytes of blocks that do not exist any more, and are still counted."""
        self._open: collections.OrderedDict[int, weakref.ref[Block]] = collections.OrderedDict()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """What is held now."""
        with self._lock:
            self._settle()
            return self._num_bytes

    def add(self, block: Block) -> None:
        """Count a new block, and drop the oldest ones as long as there is too much."""
        with self._lock:
            block.number = next(self._numbers)
            self._open[block.number] = weakref.ref(block)
            self._num_bytes += block.num_bytes
            self._settle()
            while self._num_bytes > self.max_bytes and self._open:
                _, known = self._open.popitem(last=False)
                oldest = known()
                if oldest is not None:
                    oldest.drop()
                del oldest
                self._settle()

    def _settle(self) -> None:
        while self.gone:
            number, num_bytes = self.gone.popleft()
            self._open.pop(number, None)
            self._num_bytes -= num_bytes


Places: TypeAlias = Callable[[], Iterable[tuple[int, int]]]


class _Unseen:
    """What `held` has for a sample whose block has not been opened."""


UNSEEN = _Unseen()


class OpenBlocks:
    """The open blocks of one reader, whose source is cut by `cut`. Of its samples, `parts` are wanted: this very object
    is what `read` is given."""

    def __init__(self, cut: Cut, parts: Container[str] | None, budget: BlockBudget) -> None:
        self.cut, self.parts, self.budget = cut, parts, budget
        self.held: dict[int, Block | None] = {}
        """By the numbers of samples that are not taken yet; None where the sample is to be read singly."""

    def within(self, start: int, end: int) -> Self:
        """The same for the reader of a data set of which this source are the samples `start` to `end` - 1."""
        return type(self)(self.cut.within(start, end), self.parts, self.budget)

    def open(self, indices: range, index: int, start: int, data: bytes, places: Places) -> Block:
        """The block of the samples `indices`, of which `index` is taken now; `places` tells where each of them lies,
        (offset, end), if that matters."""
        block = Block(start, data, indices, self)
        if len(data) >= PARTED_BYTES * len(indices):
            self.budget.add(block)
            for other, (begin, end) in zip(indices, places(), strict=True):
                if other != index:
                    self.held[other] = part = Block(
                        begin, data[begin - start : end - start], range(other, other + 1), self
                    )
                    self.budget.add(part)
            return block
        self.held.update(dict.fromkeys(indices, block))
        del self.held[index]
        self.budget.add(block)
        return block

    def pass_over(self, indices: range, index: int) -> None:
        """Let `indices`, of which `index` is taken now, be read singly."""
        self.held.update(dict.fromkeys(indices))
        self.held.pop(index, None)
