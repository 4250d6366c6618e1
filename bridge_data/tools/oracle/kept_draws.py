"""Which of a lane's draws are left, where samples are forgotten.

Enters: a lane by number (`LaneNumbers`), and which samples are forgotten from which of its samples on. Leaves: its
samples by number, and the numbers of draws, without the forgotten ones. Guarantee: what the lane itself hands out; the
draws are counted up to the one that is asked for, once.
"""

import bisect
from collections.abc import Container, Sequence

from bridge_data.order import SampleRef
from bridge_data.order.lane_numbers import LaneNumbers

_FEW, _MANY = 64, 4096
"""Draws that are looked at together, first and at most."""


class KeptDraws:
    """The draws of the lane `numbers`. `lists` are (number of the first sample left, the samples forgotten from there
    on), in ascending order, the first from 0 on."""

    def __init__(self, numbers: LaneNumbers, lists: Sequence[tuple[int, Container[SampleRef]]]) -> None:
        self._numbers, self._lists = numbers, lists
        self._gone: list[int] = []
        """The forgotten ones of the first `_num_seen` draws."""
        self._num_seen, self._is_ended, self._list = 0, False, 0

    @property
    def _num_kept(self) -> int:
        return self._num_seen - len(self._gone)

    def take(self, number: int, count: int) -> list[SampleRef]:
        """Samples number `number` to `number + count - 1` that are left; fewer at the end of the data."""
        while not self._is_ended and self._num_kept < number + count:
            self._look()
        first, end = self._draw_of(number), self._draw_of(number + count)
        refs = self._numbers.take(first, end - first)
        gone = {*self._gone[bisect.bisect_left(self._gone, first) : bisect.bisect_left(self._gone, end)]}
        return [ref for draw, ref in enumerate(refs, start=first) if draw not in gone][:count]

    def number_of(self, draw: int, stop: int) -> int:
        """How many samples are left before a draw; `stop`, if it is that many or more."""
        while not self._is_ended and self._num_seen <= draw and self._num_kept < stop:
            self._look()
        return min(stop, draw - bisect.bisect_left(self._gone, draw))

    def is_gone(self, draw: int) -> bool:
        """Whether a draw that `number_of` was asked for is of a forgotten sample."""
        at = bisect.bisect_left(self._gone, draw)
        return at < len(self._gone) and self._gone[at] == draw

    def num_gone(self, num_draws: int) -> int:
        """How many of the first `num_draws` are forgotten."""
        return num_draws - self.number_of(num_draws, num_draws)

    def _draw_of(self, number: int) -> int:
        """The draw of sample `number` that is left; one after the last if there are fewer."""
        draw = number
        while (later := number + bisect.bisect_right(self._gone, draw)) > draw:
            draw = later
        return draw

    def _look(self) -> None:
        count = min(_MANY, max(_FEW, self._num_seen))
        refs = self._numbers.take(self._num_seen, count)
        self._is_ended = len(refs) < count
        for ref in refs:
            while self._list + 1 < len(self._lists) and self._num_kept >= self._lists[self._list + 1][0]:
                self._list += 1
            if ref in self._lists[self._list][1]:
                self._gone.append(self._num_seen)
            self._num_seen += 1
