"""The inbox of a lane: what a re-deal left to it of earlier rows, to be taken before its own.

Entries are plain lists. A slice `[generation, lane, shuffle, window, offset, skip, count]` is `count` samples of an
old lane's stream: those from `skip` samples after that position on. A list of `[epoch, index, part]` names single parts
that were drawn and not yet emitted.
"""

import collections
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from bridge_data.errors import EDITED, StateError
from bridge_data.order.ordered import OrderedRow
from bridge_data.order.row import Row
from bridge_data.order.stream import Stream

Entry = list[Any]

ALL_PARTS = -1
"""The part of a reference that means the whole sample."""


class Inbox:
    """The inbox of one lane for one source; `rows` are the source's rows by generation.

    A slice holds what was left before the next of them, so it ends where that begins. `path` is where the entries stand
    in the state.
    """

    def __init__(self, entries: Iterable[Entry], rows: Sequence[Row | OrderedRow], path: str) -> None:
        self._entries = collections.deque(entries)
        self._rows, self._path = rows, path
        self._stream: Stream | None = None
        """That of the first entry, if it is a slice of which something was taken."""
        self._num_taken = 0
        """Samples that were taken last, all of the first entry."""

    def take(self, count: int) -> list[tuple[int, int, int]]:
        """(epoch, index, part) of the next samples, `count` or fewer, part `ALL_PARTS` for a whole one; none at the
        end.

        Raises:
            StateError: if an entry is of samples that there are not.
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
            self._stream = self._begun(head, end)
        epochs, indices = self._stream.take(min(count, head[-1]))
        if not indices or (epochs[-1], indices[-1]) >= end:
            raise self._error(self._entries[0], "the lane had fewer samples left than the count says")
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

    def _begun(self, head: Entry, end: tuple[int, int]) -> Stream:
        """The stream of a slice, at its first sample; what it skips goes out of the entry."""
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
            place = row.seek(lane, shuffle, window, offset + skip, end)
        except ValueError as error:
            raise self._error(head, f"the skip is too long: {error}") from None
        self._entries[0] = [generation, lane, *place, 0, count]
        return Stream(row, lane, (*place, 0))

    def _error(self, entry: Entry, fault: str) -> StateError:
        return StateError(f"{self._path}: {entry}: {fault}; {EDITED}")

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
