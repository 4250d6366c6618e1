"""Streams: what a lane reads of one source, first the leftovers of earlier rows (its inbox), then its share of a row.

Input: a row (shuffled or ordered), a lane, a saved position. Output: (epoch, index) of the next samples, in bulk, and
the position after them. Guarantee: a position is four integers, an inbox plain lists, and a stream that starts from
them continues exactly as the one that saved them.

A row is a `Row`, shuffled, or an `OrderedRow`, for validation, which has the same methods.

A re-deal fills inboxes. An entry is a slice `[generation, lane, shuffle, window, offset, skip, count]`: from that
position of an old lane's stream, skip `skip` samples and take the next `count`. Or it is a list of
`[epoch, index, part]`: single samples, or parts of samples, that were drawn but not yet emitted.
"""

import collections
import functools
import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bridge_data.errors import EDITED, StateError
from bridge_data.order.ledger import SAMPLE_BYTES
from bridge_data.order.row import Ints, Row, Window

BEGINNING = (0, 0, 0, 0)
"""The position before the first sample."""

ALL_PARTS = -1
"""The part number that means the whole sample."""


class SampleRef(NamedTuple):
    """A sample: number of its source in the plan, epoch, index in the source.

    `part` is the number of one output of a generator hook, if only that one is meant.
    """

    source: int
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on a reference
    part: int = ALL_PARTS


_MAX_KEPT_BYTES = 256 * SAMPLE_BYTES
"""References from before those packed last that are kept: of more samples than most micro-batches have."""

Entry = list[Any]
"""An entry of an inbox."""


class OrderedRow:
    """The validation order: samples 0..`num_samples`-1 of all sources, front to back, as a row of one epoch.

    A block is the `block_size` samples of one micro-batch. Blocks go to the lanes round-robin, so the micro-batches of
    the job are the data set from start to end. The row starts with block `first_block`: after a re-deal, the first that
    no lane has touched; what is left before it is in the lanes' inboxes.
    """

    def __init__(self, num_samples: int, num_lanes: int, block_size: int, first_block: int = 0) -> None:
        self.num_samples, self.num_lanes = num_samples, num_lanes
        self.block_size, self.first_block = block_size, first_block
        self._num_blocks = -(-num_samples // block_size)

    def window(self, lane: int, shuffle: int, number: int) -> "OrderedWindow | None":
        """The lane's only window; None if the lane has no samples."""
        size = self.num_samples_to(self._num_blocks, lane)
        return OrderedWindow(self, lane, size) if size else None

    def after(self, lane: int, shuffle: int, number: int) -> None:
        """None: there is only one window."""
        return

    def starts_at(self, shuffle: int) -> tuple[int, int]:
        """The smallest (epoch, index) of the row."""
        return 0, self.first_block * self.block_size

    def fault(self, lane: int, position: Sequence[int], draws: int | None) -> str | None:
        """Why a saved position of a lane after `draws` draws (None: unknown) is invalid; None if it is valid."""
        size = self.num_samples_to(self._num_blocks, lane)
        shuffle, number, offset, taken = position
        if shuffle or number or offset != taken:
            return "in validation a position is [0, 0, samples taken, samples taken]"
        if taken > size:
            return f"{taken} samples taken of the {size} that the lane has"
        if draws is not None and taken > draws:
            return f"{taken} samples were taken before it, in {draws} draws"
        return None

    def seek(self, lane: int, shuffle: int, number: int, count: int, end: tuple[int, int]) -> tuple[int, int, int]:
        """(shuffle, window, offset) of the lane's sample number `count`; `ValueError` if there is none."""
        missing = count - self.num_samples_to(self._num_blocks, lane)
        if missing >= 0:
            raise ValueError(f"the lane ends {missing} samples before it")
        return shuffle, number, count

    def num_samples_to(self, block: int, lane: int) -> int:
        """The number of samples in the lane's blocks before `block`."""
        blocks = -((self.first_block_of(lane) - min(block, self._num_blocks)) // self.num_lanes)
        last = self.first_block_of(lane) + (blocks - 1) * self.num_lanes
        missing = self._num_blocks * self.block_size - self.num_samples if last == self._num_blocks - 1 else 0
        return blocks * self.block_size - missing if blocks > 0 else 0

    def untouched_block(self, lane: int, taken: int) -> int:
        """The block after the last one that a lane has touched, given how many samples it has taken."""
        blocks = -(-taken // self.block_size)
        return self.first_block_of(lane) + (blocks - 1) * self.num_lanes + 1 if blocks else self.first_block

    def first_block_of(self, lane: int) -> int:
        """The first block of a lane."""
        return self.first_block + (lane - self.first_block) % self.num_lanes


class OrderedWindow:
    """The `size` samples of a lane, in ascending order."""

    __slots__ = ("_lane", "_row", "_size")

    def __init__(self, row: OrderedRow, lane: int, size: int) -> None:
        self._row, self._lane, self._size = row, lane, size

    def __len__(self) -> int:
        return self._size

    def take(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """(epochs, indices) of samples number `start` to `stop` - 1."""
        row = self._row
        blocks, offsets = np.divmod(np.arange(start, min(stop, self._size), dtype=np.int64), row.block_size)
        indices = (row.first_block_of(self._lane) + blocks * row.num_lanes) * row.block_size + offsets
        return np.zeros_like(indices), indices


class Stream:
    """The samples of `lane` in `row`, starting at `position`.

    A position is (shuffle, window in the lane's share of it, offset in the window, samples taken of that share).
    """

    __slots__ = ("_lane", "_number", "_offset", "_row", "_shuffle", "_taken", "_window")

    def __init__(self, row: Row | OrderedRow, lane: int, position: Sequence[int] = BEGINNING) -> None:
        self._row, self._lane = row, lane
        self._shuffle, self._number, self._offset, self._taken = position
        self._window: Window | OrderedWindow | None = None

    def fault(self, draws: int | None = None) -> str | None:
        """Why the position, from a saved state, is invalid, or None. `draws` of the lane; None for an inbox slice."""
        position = self._shuffle, self._number, self._offset, self._taken
        if found := self._row.fault(self._lane, position, draws):
            return found
        self._window = self._row.window(self._lane, self._shuffle, self._number)
        size = len(self._window) if self._window else 0
        if self._offset > size:
            return (
                f"offset {self._offset} is beyond window {self._number} of shuffle {self._shuffle}, of {size} samples"
            )
        return None

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """(epochs, indices) of the next samples: `count`, or the rest of the window; empty at the end of the row."""
        epochs, indices = self.take_arrays(count)
        return epochs.tolist(), indices.tolist()

    def take_arrays(self, count: int) -> tuple[Ints, Ints]:
        """The same as arrays."""
        self._leave()
        while self._window is None:
            self._window = self._row.window(self._lane, self._shuffle, self._number)
            if self._window is None and not self._advance():
                return np.empty(0, np.int64), np.empty(0, np.int64)
        epochs, indices = self._window.take(self._offset, self._offset + count)
        self._offset += len(indices)
        self._taken += len(indices)
        return epochs, indices

    def position(self, unread: int = 0) -> list[int]:
        """The current position, or the one `unread` samples earlier, within what was taken last."""
        if not unread:
            self._leave()
        return [self._shuffle, self._number, self._offset - unread, self._taken - unread]

    def _leave(self) -> None:
        """Go to the next window if this one is finished."""
        if self._window is not None and self._offset == len(self._window):
            self._advance()

    def _advance(self) -> bool:
        """Go to the start of the next window; False if there is none."""
        after = self._row.after(self._lane, self._shuffle, self._number)
        if after is None:
            return False
        self._taken = self._taken if after[0] == self._shuffle else 0
        self._shuffle, self._number = after
        self._offset, self._window = 0, None
        return True


def packed_references(values: Sequence[int]) -> bytes:
    """The references of samples, as in `ledger`: source, epoch, index and part of each, one sample after another."""
    return _numbers(len(values)).pack(*values)


@functools.lru_cache(maxsize=64)
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}q")


class PackedReferences:
    """The references of the whole samples of one source that were taken last, packed many at a time for the ledger."""

    def __init__(self, source: int) -> None:
        self._source, self._packed = source, b""

    def add(self, epochs: Ints, indices: Ints) -> None:
        """Add samples that were taken after the others."""
        samples = np.zeros((len(indices), 4), dtype="<i8")
        samples[:, 0], samples[:, 1], samples[:, 2] = self._source, epochs, indices
        self._packed = self._packed[-_MAX_KEPT_BYTES:] + samples.tobytes()

    def last(self, count: int, unread: int) -> bytes | None:
        """The references of `count` samples, after which `unread` have been added; None if some are not known."""
        end = len(self._packed) - unread * SAMPLE_BYTES
        start = end - count * SAMPLE_BYTES
        return self._packed[start:end] if start >= 0 else None


class Inbox:
    """What a re-deal left to one lane of one source, read before the lane's own row.

    `rows` are the source's rows by generation. A slice never reaches into the epochs of the next generation. `path` is
    the location of the entries in the state, for errors.
    """

    def __init__(self, entries: Iterable[Entry], rows: Sequence[Row | OrderedRow], path: str) -> None:
        self._entries = collections.deque(entries)
        self._rows, self._path = rows, path
        self._stream: Stream | None = None
        """The stream of the first entry, if that is a slice from which samples were taken."""
        self._num_taken = 0
        """Samples taken by the last `take`, all of the first entry."""

    def take(self, count: int) -> list[tuple[int, int, int]]:
        """(epoch, index, part) of the next `count` samples or fewer; empty at the end. `ALL_PARTS`: a whole sample.

        Raises:
            StateError: if an entry names samples that do not exist.
        """
        self._leave()
        if not self._entries:
            return []
        head = self._entries[0]
        if not is_slice(head):
            parts = [(epoch, index, part) for epoch, index, part in head[:count]]
            num_samples = self._rows[-1].num_samples
            for number, (_, index, _) in enumerate(parts):
                if index >= num_samples:
                    raise self._error(head[number], f"there is no sample {index}, the data has {num_samples}")
            self._num_taken = len(parts)
            return parts
        end = self._rows[head[0] + 1].starts_at(0)
        if self._stream is None:
            self._stream = self._opened(head, end)
        epochs, indices = self._stream.take(min(count, head[-1]))
        if not indices or (epochs[-1], indices[-1]) >= end:
            raise self._error(self._entries[0], "the lane had fewer samples left than the count says")
        self._num_taken = len(indices)
        return list(zip(epochs, indices, itertools.repeat(ALL_PARTS)))

    def entries(self, unread: int = 0) -> list[Entry]:
        """The remaining entries, for the state, including the last `unread` samples of the last `take`."""
        if not unread:
            self._leave()
        if not self._num_taken:
            return list(self._entries)
        head, *rest = self._entries
        return [self._rest(head, unread), *rest]

    def _opened(self, head: Entry, end: tuple[int, int]) -> Stream:
        """The stream of a slice, at its first sample; its `skip` is applied and removed from the entry."""
        generation, lane, shuffle, window, offset, skip, count = head
        row = self._rows[generation]
        if row.starts_at(shuffle) >= end:
            raise self._error(head, f"shuffle {shuffle} is one of the next generation's")
        stream = Stream(row, lane, (shuffle, window, offset, offset))
        if fault := stream.fault():
            raise self._error(head, fault)
        if not skip:
            return stream
        try:
            position = row.seek(lane, shuffle, window, offset + skip, end)
        except ValueError as error:
            raise self._error(head, f"the skip is too long: {error}") from None
        self._entries[0] = [generation, lane, *position, 0, count]
        return Stream(row, lane, (*position, 0))

    def _error(self, entry: Entry, fault: str) -> StateError:
        return StateError(f"{self._path}: {entry}: {fault}; {EDITED}")

    def _leave(self) -> None:
        """Remove the samples of the last `take` from the first entry."""
        if not self._num_taken:
            return
        rest = self._rest(self._entries.popleft(), 0)
        self._num_taken = 0
        if entry_size(rest):
            self._entries.appendleft(rest)
        else:
            self._stream = None

    def _rest(self, head: Entry, unread: int) -> Entry:
        """The first entry after the last `take`, of which the last `unread` samples were not used."""
        used = self._num_taken - unread
        if not is_slice(head):
            return head[used:]
        assert self._stream is not None
        generation, lane, *_, count = head
        shuffle, window, offset, _ = self._stream.position(unread)
        return [generation, lane, shuffle, window, offset, 0, count - used]


def is_slice(entry: Entry) -> bool:
    """Whether an entry is a slice; if not, it is a list of single parts."""
    return not isinstance(entry[0], list)


def entry_size(entry: Entry) -> int:
    """The number of samples (or parts of samples) in an entry."""
    if not entry:
        return 0
    return entry[-1] if is_slice(entry) else len(entry)


def cut_entry(entry: Entry, size: int) -> tuple[Entry, Entry]:
    """Split an entry into its first `size` samples and the rest."""
    if not is_slice(entry):
        return entry[:size], entry[size:]
    *stream, skip, count = entry
    return [*stream, skip, size], [*stream, skip + size, count - size]
