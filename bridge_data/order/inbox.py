"""What a re-deal leaves to a lane of a source, to be read before its share of the row.

Input: the entries of a saved state, the rows of all generations. Output: the samples, and the entries that remain.
Guarantee: an inbox that starts from them continues exactly as the one that saved them.

An entry is a slice `[generation, lane, shuffle, window, offset, skip, count]`: from that position of an old lane's
stream, skip `skip` samples and take the next `count`. Or it is a list of `[epoch, index, part]`: single samples, or
parts of samples, that were drawn but not yet emitted.
"""

import collections
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from bridge_data.errors import EDITED, StateError
from bridge_data.order.cursor import ALL_PARTS, Stream
from bridge_data.order.ordered import OrderedRow
from bridge_data.order.row import Row

Entry = list[Any]
"""An entry of an inbox."""


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
