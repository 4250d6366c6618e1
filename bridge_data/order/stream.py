"""A lane's stream of one row: its samples from a position on.

Enters: a row, shuffled or ordered, a lane, a position. Leaves: samples, some at a time, and positions. Guarantee: the
position is four integers, and a stream that begins there goes on exactly as the one it was taken from.
"""

from collections.abc import Sequence

from bridge_data.order.ordered import OrderedRow, OrderedWindow
from bridge_data.order.row import Row, Window

BEGINNING = (0, 0, 0, 0)
"""The position before the first sample."""


class Stream:
    """The samples of `lane` in `row`, from `position` on.

    A position is (shuffle, window in the lane's share of it, offset in the window, samples taken of that share).
    """

    __slots__ = ("_lane", "_number", "_offset", "_row", "_shuffle", "_taken", "_window")

    def __init__(self, row: Row | OrderedRow, lane: int, position: Sequence[int] = BEGINNING) -> None:
        self._row, self._lane = row, lane
        self._shuffle, self._number, self._offset, self._taken = position
        self._window: Window | OrderedWindow | None = None

    def fault(self, draws: int | None = None) -> str | None:
        """What is wrong with the position, where it comes from a state: of a lane after so many draws, None for a slice
        of an inbox. None if nothing is."""
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
        """(epochs, indices) of the next samples: `count`, or those left in the window; none at the row's end."""
        self._leave()
        while self._window is None:
            self._window = self._row.window(self._lane, self._shuffle, self._number)
            if self._window is None and not self._advance():
                return [], []
        epochs, indices = self._window.take(self._offset, self._offset + count)
        self._offset += len(indices)
        self._taken += len(indices)
        return epochs.tolist(), indices.tolist()

    def position(self, unread: int = 0) -> list[int]:
        """Where the stream stands, `unread` samples before the end of what was taken last."""
        if not unread:
            self._leave()
        return [self._shuffle, self._number, self._offset - unread, self._taken - unread]

    def _leave(self) -> None:
        if self._window is not None and self._offset == len(self._window):
            self._advance()

    def _advance(self) -> bool:
        """Go to the beginning of the next window; False if there is none."""
        after = self._row.after(self._lane, self._shuffle, self._number)
        if after is None:
            return False
        self._taken = self._taken if after[0] == self._shuffle else 0
        self._shuffle, self._number = after
        self._offset, self._window = 0, None
        return True
