"""The inbox of a lane: what a re-deal left to it of earlier rows, to be taken before its own.

Entries are plain lists. A slice `[generation, lane, shuffle, window, offset, skip, count]` is `count` samples of an
old lane's stream: those from `skip` samples after that position on. A list of `[epoch, index, part]` names single parts
that were drawn and not yet emitted.
"""

import collections
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from bridge_data.order.ordered import OrderedRow
from bridge_data.order.row import Row
from bridge_data.order.stream import Stream

Entry = list[Any]

ALL_PARTS = -1
"""The part of a reference that means the whole sample."""


class Inbox:
    """The inbox of one lane for one source; `rows` are the source's rows by generation."""

    def __init__(self, entries: Iterable[Entry], rows: Sequence[Row | OrderedRow]) -> None:
        self._entries = collections.deque(entries)
        self._rows = rows
        self._stream: Stream | None = None
        """That of the first entry, if it is a slice of which something was taken."""
        self._num_taken = 0
        """Samples that were taken last, all of the first entry."""

    def take(self, count: int) -> list[tuple[int, int, int]]:
        """(epoch, index, part) of the next samples, `count` or fewer, part `ALL_PARTS` for a whole one; none at the
        end."""
        self._leave()
        if not self._entries:
            return []
        head = self._entries[0]
        if not is_slice(head):
            parts = [(epoch, index, part) for epoch, index, part in head[:count]]
            self._num_taken = len(parts)
            return parts
        if self._stream is None:
            generation, lane, shuffle, window, offset, skip, left = head
            if skip:
                shuffle, window, offset = self._rows[generation].seek(lane, shuffle, window, offset + skip)
                head = self._entries[0] = [generation, lane, shuffle, window, offset, 0, left]
            self._stream = Stream(self._rows[generation], lane, (shuffle, window, offset, 0))
        epochs, indices = self._stream.take(min(count, head[-1]))
        self._num_taken = len(indices)
        return list(zip(epochs, indices, itertools.repeat(ALL_PARTS)))

    def entries(self, unread: int = 0) -> list[Entry]:
        """What is left, as the state keeps it, with the last `unread` samples of what was taken last."""
        if not unread:
            self._leave()
        if not self._num_taken:
            return list(self._entries)
        head, *rest = self._entries
        return [self._rest(head, unread), *rest]

    def _leave(self) -> None:
        """Have what was taken last out of the first entry."""
        if not self._num_taken:
            return
        rest = self._rest(self._entries.popleft(), 0)
        self._num_taken = 0
        if entry_size(rest):
            self._entries.appendleft(rest)
        else:
            self._stream = None

    def _rest(self, head: Entry, unread: int) -> Entry:
        """The first entry without what was taken of it last, but with the last `unread` of that."""
        used = self._num_taken - unread
        if not is_slice(head):
            return head[used:]
        assert self._stream is not None
        generation, lane, *_, count = head
        shuffle, window, offset, _ = self._stream.position(unread)
        return [generation, lane, shuffle, window, offset, 0, count - used]


def is_slice(entry: Entry) -> bool:
    """Whether an entry is a slice rather than a list of single parts."""
    return not isinstance(entry[0], list)


def entry_size(entry: Entry) -> int:
    """Samples (or parts of samples) that an entry holds; a slice ends with their number."""
    if not entry:
        return 0
    return entry[-1] if is_slice(entry) else len(entry)


def cut_entry(entry: Entry, size: int) -> tuple[Entry, Entry]:
    """The first `size` samples of an entry, and the rest. The last but one number of a slice is where it begins."""
    if not is_slice(entry):
        return entry[:size], entry[size:]
    *stream, start, count = entry
    return [*stream, start, size], [*stream, start + size, count - size]
