"""What the lanes of a run hand out from a state on, by micro-batch number.

Enters: the data set of the run, a state, and which samples are forgotten from which slot on. Leaves: the samples of a
micro-batch, and the micro-batches of a sample. Guarantee: by arithmetic if the lanes neither pack nor group and no
hook skips samples; else with the run's own lanes and hooks, opened again wherever the list of forgotten samples
changed.
"""

import bisect
import collections
import dataclasses
from collections.abc import Callable, Container, Sequence
from typing import Any, TypeAlias

from bridge_data.errors import StateError
from bridge_data.lanes.forgotten import ForgottenSamples
from bridge_data.lanes.lane import Lane
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.units import Unit
from bridge_data.lanes.work import Key, Work
from bridge_data.order import SampleRef
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.tools.oracle.sample_numbers import JobNumbers, LaneNumbers

_FEW, _MANY = 64, 4096
"""Draws checked together for forgotten samples: initial number, maximum."""

Changes: TypeAlias = Sequence[tuple[int, ForgottenSamples | None]]
"""(first slot, the samples forgotten from that slot on)."""

UnitRefs = list[SampleRef]
"""The samples of a pack, or one sample."""


class LanesFrom:
    """What the lanes make from `state` on, by micro-batch number."""

    def __init__(self, dataset: LaneDataset, state: LoaderState, changes: Changes, *, is_replayed: bool) -> None:
        self.is_replayed, self.num_replayed = is_replayed, 0
        self._lists: Changes = [(0, dataset.forgotten), *changes]
        self._forgets, self._kept = any(forgotten for _, forgotten in self._lists), dict[int, KeptDraws]()
        self._dataset, self._state, self._num_lanes = dataset, state, state.num_lanes
        self._size = dataset.batching.batch_size or 1
        self._numbers = None if is_replayed else JobNumbers(dataset.order, state)
        self._lanes: dict[int, _Replayed] = {}

    def units(self, number: int) -> list[UnitRefs]:
        """As `RunSection.units`."""
        lane, place = number % self._num_lanes, number // self._num_lanes
        done = self._state.place_of(lane)
        if place < done:
            raise StateError(f"micro-batch {number}: lane {lane} of the state has emitted {done} already")
        limit = self._dataset.batching.max_micro_batches
        if limit is not None and number >= limit:
            return []
        if self._numbers is None:
            return self._replayed(lane).units(place - done)
        numbers = self._kept_draws(lane) if self._forgets else self._numbers.lane(lane)
        refs = numbers.take((place - done) * self._size, self._size)
        if len(refs) < self._size and self._dataset.batching.drop_last:
            return []
        return [[ref] for ref in refs]

    def find(self, source: int, index: int, stop: int) -> set[int]:
        """The micro-batches before `stop` that have a sample, by arithmetic."""
        assert self._numbers is not None
        drawn = self._numbers.find(source, index, lambda lane, number: self._micro_batch(lane, number, stop) >= stop)
        return {
            self._micro_batch(lane, number, stop)
            for lane, number, _ in drawn
            if not (self._forgets and self._kept_draws(lane).is_gone(number))
        }

    def num_gone(self, lane: int, num_draws: int) -> int:
        """How many of the next draws of a lane are forgotten samples."""
        return self._kept_draws(lane).num_gone(num_draws) if self._forgets else 0

    def _kept_draws(self, lane: int) -> "KeptDraws":
        assert self._numbers is not None
        if lane not in self._kept:
            lists = [(place * self._size, forgotten or ()) for place, forgotten in self._lists_of(lane)]
            self._kept[lane] = KeptDraws(self._numbers.lane(lane), lists)
        return self._kept[lane]

    def _lists_of(self, lane: int) -> Changes:
        """The forgotten samples, by the lane's first micro-batch that lacks them, counted from the state."""
        done = self._state.place_of(lane)
        return [(max(0, -(-(slot - lane) // self._num_lanes) - done), forgotten) for slot, forgotten in self._lists]

    def _micro_batch(self, lane: int, number: int, stop: int) -> int:
        """The micro-batch of a draw; some number >= `stop` if that is not below `stop`."""
        if self._forgets:
            num_batches = max(0, -(-(stop - lane) // self._num_lanes) - self._state.place_of(lane))
            number = self._kept_draws(lane).number_of(number, num_batches * self._size)
        return (self._state.place_of(lane) + number // self._size) * self._num_lanes + lane

    def _replayed(self, lane: int) -> "_Replayed":
        if lane not in self._lanes:

            def count(_: SampleRef) -> None:
                self.num_replayed += 1

            def opened(lane_state: LaneState, forgotten: ForgottenSamples | None) -> tuple[Lane, _NotedWork]:
                work = _NotedWork(self._dataset.work())
                work.work.forgotten = forgotten
                state = dataclasses.replace(self._state, lanes={lane: lane_state})
                return self._dataset.lane(lane, state, count, work.work), work

            self._lanes[lane] = _Replayed(opened, self._state.lanes[lane], self._lists_of(lane))
        return self._lanes[lane]


class _NotedWork:
    """`work` that also records the units of its last batches."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.batches: list[Any] = []
        self.units: list[Unit] = []
        self._make = work.batch
        work.batch = self._batch  # type: ignore[method-assign]  # the lane calls it; all else is unchanged

    def _batch(self, units: list[Unit], keys: list[Key], *, collate: bool) -> list[Any]:
        self.batches, self.units = self._make(units, keys, collate=collate), units
        return self.batches


class _Replayed:
    """A lane that is replayed, with the units of each micro-batch so far. `opened` opens it at a state; `lists` are
    those of `LanesFrom`, by the lane's micro-batches."""

    def __init__(
        self,
        opened: Callable[[LaneState, ForgottenSamples | None], tuple[Lane, _NotedWork]],
        state: LaneState,
        lists: Changes,
    ) -> None:
        self._opened, self._changes = opened, collections.deque(lists)
        self._lane, self._work = opened(state, self._changes.popleft()[1])
        self._known: list[list[UnitRefs]] = []

    def units(self, number: int) -> list[UnitRefs]:
        """The units of the lane's micro-batch `number` from the state on; none after the end."""
        while len(self._known) <= number:
            while self._changes and self._changes[0][0] <= len(self._known):
                self._lane, self._work = self._opened(self._lane.state(), self._changes.popleft()[1])
            try:
                self._lane.next()
            except StopIteration:
                return []
            units = [[item.ref._replace(part=item.part) for item in unit.items] for unit in self._work.units]
            self._known.append(units)
        return self._known[number]


class KeptDraws:
    """The draws of the lane `numbers` without forgotten samples, as the lane hands them out. Each draw is counted only
    once, when first needed. `lists` are (number of the first kept sample, the samples forgotten from there on), in
    ascending order, the first from 0 on."""

    def __init__(self, numbers: LaneNumbers, lists: Sequence[tuple[int, Container[SampleRef]]]) -> None:
        self._numbers, self._lists = numbers, lists
        self._gone: list[int] = []
        """The forgotten draws among the first `_num_seen`."""
        self._num_seen, self._is_ended, self._list = 0, False, 0

    @property
    def _num_kept(self) -> int:
        return self._num_seen - len(self._gone)

    def take(self, number: int, count: int) -> list[SampleRef]:
        """The kept samples `number` to `number + count - 1`; fewer at the end of the data."""
        while not self._is_ended and self._num_kept < number + count:
            self._look()
        first, end = self._draw_of(number), self._draw_of(number + count)
        refs = self._numbers.take(first, end - first)
        gone = {*self._gone[bisect.bisect_left(self._gone, first) : bisect.bisect_left(self._gone, end)]}
        return [ref for draw, ref in enumerate(refs, start=first) if draw not in gone][:count]

    def number_of(self, draw: int, stop: int) -> int:
        """How many kept samples come before a draw; at most `stop`."""
        while not self._is_ended and self._num_seen <= draw and self._num_kept < stop:
            self._look()
        return min(stop, draw - bisect.bisect_left(self._gone, draw))

    def is_gone(self, draw: int) -> bool:
        """Whether a draw is a forgotten sample, after `number_of` was called for it."""
        at = bisect.bisect_left(self._gone, draw)
        return at < len(self._gone) and self._gone[at] == draw

    def num_gone(self, num_draws: int) -> int:
        """How many of the first `num_draws` are forgotten."""
        return num_draws - self.number_of(num_draws, num_draws)

    def _draw_of(self, number: int) -> int:
        """The draw of kept sample `number`; one after the last if there are fewer."""
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
