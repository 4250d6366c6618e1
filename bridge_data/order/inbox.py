"""The inbox of a lane: what a re-deal left to it of earlier rows, to be taken before its own.

Entries are plain lists. A slice `[generation, lane, taken, offset, skip, count]` is `count` samples of an old lane's
stream: from sample `offset` of the window after `taken` chunks, and `skip` samples further on. A list of
`[epoch, index, part]` names single parts that were drawn and not yet emitted.
"""

import collections
from collections.abc import Iterable, Sequence
from typing import Any

from bridge_data.order.row import Row, Window

Entry = list[Any]

ALL_PARTS = -1
"""The part of a reference that means the whole sample."""


class Inbox:
    """The inbox of one lane for one source; `rows` are the source's rows by generation."""

    def __init__(self, entries: Iterable[Entry], rows: Sequence[Row]) -> None:
        self._entries = collections.deque(entries)
        self._rows = rows
        self._window: Window | None = None

    def __bool__(self) -> bool:
        return bool(self._entries)

    def next(self) -> tuple[int, int, int]:
        """(epoch, index, part) of the next sample; part `ALL_PARTS` for a whole one."""
        head = self._entries.popleft()
        if not is_slice(head):
            (epoch, index, part), *rest = head
            if rest:
                self._entries.appendleft(rest)
            return epoch, index, part
        generation, lane, taken, offset, skip, count = head
        row = self._rows[generation]
        if skip:
            taken, offset = advance(row, lane, taken, offset, skip)
        if self._window is None:
            self._window = row.window(lane, taken)
        window = self._window
        assert window is not None, "a slice lies within its row"
        epoch, index = int(window.epochs[offset]), int(window.indices[offset])
        offset += 1
        if offset == len(window.indices):
            taken, offset, self._window = window.next_chunk, 0, None
        if count > 1:
            self._entries.appendleft([generation, lane, taken, offset, 0, count - 1])
        else:
            self._window = None
        return epoch, index, ALL_PARTS

    def entries(self) -> list[Entry]:
        """What is left, as the state keeps it."""
        return list(self._entries)


def advance(row: Row, lane: int, taken: int, offset: int, skip: int) -> tuple[int, int]:
    """(taken, offset) after `skip` more samples of the lane's stream."""
    while True:
        size, next_chunk = row.window_size(lane, taken)
        if skip < size - offset:
            return taken, offset + skip
        skip -= size - offset
        taken, offset = next_chunk, 0


def is_slice(entry: Entry) -> bool:
    """Whether an entry is a slice rather than a list of single parts."""
    return not isinstance(entry[0], list)


def entry_size(entry: Entry) -> int:
    """Samples (or parts of samples) that an entry holds; a slice ends with their number."""
    return entry[-1] if is_slice(entry) else len(entry)


def cut_entry(entry: Entry, size: int) -> tuple[Entry, Entry]:
    """The first `size` samples of an entry, and the rest. The last but one number of a slice is where it begins."""
    if not is_slice(entry):
        return entry[:size], entry[size:]
    *stream, start, count = entry
    return [*stream, start, size], [*stream, start + size, count - size]
