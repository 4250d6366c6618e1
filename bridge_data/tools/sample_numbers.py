"""The samples of a run by number: the n-th that a lane draws after a state, and when a lane draws a sample.

Reads the order of a plan and a state of the whole job. Returns references of samples, or lane and number of a sample:
the same as cursors set to the state, by arithmetic alone, including inboxes and earlier generations. Samples that hooks
skip are not known here, and no data is read.

`RowNumbers` knows the samples of a row by number: the n-th that a lane reads of a source, and when it reads a sample.
If all chunks have one length, the time depends on neither the number nor the size of the source. If lengths differ, the
chunks of a lane in an epoch are computed once; a later epoch needs the chunks of all epochs before it. `DrawNumbers`
says which source a draw of the blend takes, and which draw takes a source's n-th sample, along one path of the blend's
tree. (Of schedules, phases are passed one by one.) `JobNumbers` and `LaneNumbers` join both.

Weights of costs have no such formula: there, `DrawnNumbers` draws from the state on, which reads costs, but no data.
"""

import bisect
import collections
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bridge_data.order.cursor import BEGINNING, Cursor, Entry, SampleRef, Stream, entry_size, is_slice
from bridge_data.order.plan_order import PlanOrder
from bridge_data.order.random_draws import DRAWS_PER_BLOCK, MASK, Blend, Permutation, Schedule
from bridge_data.order.row import Ints, Row, Share
from bridge_data.order.state import LaneState, LoaderState

_FRACTION_BITS = 64
_ONE = 1 << _FRACTION_BITS


_AT_ONCE = 4096
"""Samples that are drawn together."""

_MAX_KNOWN = 512
"""Number of lanes' shares whose chunk lengths are kept."""

_FEW = 1 << 16
"""Maximum number of chunks of a source for which all lanes are computed together."""

_MAX_TABLE = 1 << 24
"""Maximum number of chunks for which a table of lengths is kept."""


class Occurrence(NamedTuple):
    """Where a sample comes in one epoch: the lane, and how many samples that lane reads before it in this row."""

    lane: int
    number: int
    epoch: int


class _Lengths(NamedTuple):
    """The chunks of a share: the number of each one's length among the distinct lengths, and for each distinct length
    the samples in the first i visits, (distinct lengths, visits + 1)."""

    which: Ints
    sums: Ints


class RowNumbers:
    """The samples of `row` by number. Numbers are counted from the start of shuffle `since`; nothing before it is
    known."""

    def __init__(self, row: Row, since: int = 0) -> None:
        self.row, self.since = row, since
        self._before: list[Ints] = [np.zeros(row.num_lanes, dtype=np.int64)]
        self._before_of_lane: dict[int, list[int]] = {}
        self._last: tuple[tuple[int, int], NDArray[np.integer]] | None = None
        self._lengths: collections.OrderedDict[tuple[int, int], _Lengths] = collections.OrderedDict()
        self._num_computed = 0

    def num_before(self, lane: int, shuffle: int) -> int:
        """The samples that a lane reads before a shuffle, or before the end of the row."""
        equal, whole = self.row.chunks.equal_length, self.row.num_whole
        within = shuffle if whole is None else min(shuffle, whole)
        first = self._first_chunk(lane, within)
        before = self._before_unequal(lane, within) if equal is None else equal * first
        return before + (self._size(lane, within) if within < shuffle else 0)

    def least_before(self, lane: int, shuffle: int) -> int:
        """A lower bound of `num_before`, without computing lengths; 0 for a row that has an end."""
        if self.row.num_whole is not None:
            return 0
        return max(self.row.chunks.shortest * self._first_chunk(lane, shuffle), self._least * (shuffle - self.since))

    @property
    def bound_suffices(self) -> bool:
        """Whether `least_before` is so good that an exact count, which is slow, is not worth it."""
        row = self.row
        is_slow = row.chunks.equal_length is None and row.chunks.num_chunks > _FEW
        return is_slow and row.num_whole is None and self._least * row.num_lanes * 4 > row.num_samples

    @functools.cached_property
    def _least(self) -> int:
        """The fewest samples that a lane can have in a shuffle of a row without end."""
        row = self.row
        return int(row.chunks.least_samples(np.array(row.per_shuffle // row.num_lanes), row.epochs_per_shuffle))

    def _before_unequal(self, lane: int, shuffle: int) -> int:
        row = self.row
        if row.chunks.num_chunks <= _FEW:
            while len(self._before) <= shuffle - self.since:
                last = self.since + len(self._before) - 1
                more = row.num_samples_to(last + 1, [last] * row.num_lanes)
                self._before.append(self._before[-1] + more)
            return int(self._before[shuffle - self.since][lane])
        of_lane = self._before_of_lane.setdefault(lane, [0])
        while len(of_lane) <= shuffle - self.since:
            of_lane.append(of_lane[-1] + int(self._chunk_lengths(lane, self.since + len(of_lane) - 1).sum()))
        return of_lane[shuffle - self.since]

    def _first_chunk(self, lane: int, shuffle: int) -> int:
        """The chunks of a lane before a shuffle."""
        return self.row.share(lane, shuffle).first - self.row.share(lane, self.since).first

    def total(self, lane: int) -> int | None:
        """The samples of a lane in a finite row; None if it has no end."""
        return None if self.row.num_whole is None else self.num_before(lane, self.row.num_whole + 1)

    def number_at(self, lane: int, shuffle: int, window: int, offset: int) -> int:
        """The number of the sample at an offset in a window."""
        return self.num_before(lane, shuffle) + self._in_windows(lane, shuffle, window) + offset

    def position(self, lane: int, number: int) -> tuple[int, int, int, int]:
        """(shuffle, window, offset in it, samples taken of the shuffle) before the lane's sample `number`.

        Raises:
            IndexError: if the row ends before it.
        """
        total = self.total(lane)
        if total is not None and number >= total:
            raise IndexError(f"lane {lane} has {total} samples")
        shuffle = self._shuffle_of(lane, number)
        taken = number - self.num_before(lane, shuffle)
        share = self.row.share(lane, shuffle)
        before = functools.cache(functools.partial(self._in_windows, lane, shuffle))
        # Windows have about equal sizes: search near the one in which the sample would be if they had.
        guess = taken * self.row.chunks.num_chunks * share.num_windows // (self.row.num_samples * share.num_chunks)
        low = high = min(guess, share.num_windows - 1)
        step = 1
        while low > 0 and before(low) > taken:
            low, high, step = max(0, low - step), low, 2 * step
        while high < share.num_windows and before(high) <= taken:
            low, high, step = high, min(share.num_windows, high + step), 2 * step
        window = bisect.bisect_right(range(low, high), taken, key=before) + low - 1
        return shuffle, window, taken - before(window), taken

    def _shuffle_of(self, lane: int, number: int) -> int:
        equal = self.row.chunks.equal_length
        if equal is not None:
            chunk = self.row.share(lane, self.since).first + number // equal
            shuffle = (lane + chunk * self.row.num_lanes) // self.row.per_shuffle
            return shuffle if self.row.num_whole is None else min(shuffle, self.row.num_whole)
        shuffle = self.since
        while self.num_before(lane, shuffle + 1) <= number:
            shuffle += 1
        return shuffle

    def find(self, index: int, shuffle: int) -> Iterator[Occurrence]:
        """Where sample `index` of the source comes in the epochs of a shuffle; nothing after the end of the row."""
        row, num_lanes = self.row, self.row.num_lanes
        chunk, offset = (int(found[0]) for found in row.chunks.chunk_of(np.array([index])))
        values = chunk + np.arange(row.epochs_per_shuffle, dtype=np.int64) * row.chunks.num_chunks
        permutation = row.permutation(shuffle)
        positions = permutation.inverse(values) if isinstance(permutation, Permutation) else values
        for epoch, position in enumerate(positions.tolist()):
            number = shuffle * row.per_shuffle + position
            if number >= row.stop(shuffle):
                continue
            lane = number % num_lanes
            share = row.share(lane, shuffle)
            length = int(row.spans(shuffle, np.array([position], dtype=np.int64))[2][0])
            if offset >= length:
                continue  # a finite row may have only the beginning of the last chunk
            window = self._window_of(shuffle, share, number // num_lanes - share.first, offset, length)
            epochs, indices = self._samples(lane, shuffle, window)
            real_epoch = row.first_epoch_of(shuffle) + epoch
            (at,) = np.flatnonzero((indices == index) & (epochs == real_epoch)).tolist()
            yield Occurrence(lane, self.number_at(lane, shuffle, window, at), real_epoch)

    def _window_of(self, shuffle: int, share: Share, chunk: int, offset: int, length: int) -> int:
        """The window of sample `offset` of chunk number `chunk`, of `length` samples, of a share."""
        num_slots, num_chunks = self.row.num_slots, share.num_chunks
        if num_slots == 1:
            time = chunk
        else:
            num_blocks = -(-length // self.row.geometry.block_size)
            block = ((offset + 1) * num_blocks - 1) // length
            slot = -(-block * num_slots // num_blocks)
            visit = slot * pow(self.row.stride(shuffle), -1, num_slots) % num_slots
            divisor = math.gcd(num_chunks, num_slots)
            time = (chunk * num_slots + visit * num_chunks) % (num_chunks * num_slots)
            time += chunk // (num_chunks // divisor)
        return time * share.num_windows // (num_chunks * num_slots)

    def _samples(self, lane: int, shuffle: int, window: int) -> tuple[Ints, Ints]:
        """(epochs, indices) of a window, in the order in which the lane takes them."""
        made = self.row.window(lane, shuffle, window)
        assert made is not None
        return made.take(0, len(made))

    def _size(self, lane: int, shuffle: int) -> int:
        """The samples of a lane in a shuffle."""
        share = self.row.share(lane, shuffle)
        return self._in_windows(lane, shuffle, share.num_windows) if share.num_chunks else 0

    def _in_windows(self, lane: int, shuffle: int, window: int) -> int:
        """The samples of a lane in the windows of a shuffle before `window`."""
        share = self.row.share(lane, shuffle)
        if not share.num_chunks or not window:
            return 0
        end = self.row.start_time(share, window)
        begin = end - end % math.gcd(share.num_chunks, self.row.num_slots)
        rest = int(self.row.blocks(lane, shuffle, share, begin, end)[1].sum()) if begin < end else 0
        return self._before_time(lane, shuffle, share, begin) + rest

    def _before_time(self, lane: int, shuffle: int, share: Share, time: int) -> int:
        """The samples visited before `time`, a multiple of the greatest common divisor of chunks and slots."""
        num_chunks, num_slots, row = share.num_chunks, self.row.num_slots, self.row
        visits = np.arange(num_slots, dtype=np.int64)
        if row.chunks.equal_length is not None and (row.num_whole is None or shuffle < row.num_whole):
            # Visit i of some chunk happens at each time that is i * num_chunks modulo num_slots, before the spreading.
            counts = np.maximum(0, -((visits * num_chunks % num_slots - time) // num_slots))
            return int(counts @ self._sizes(shuffle, row.chunks.equal_length))
        known = self._lengths_of(lane, shuffle)
        starts = np.arange(num_chunks, dtype=np.int64) * num_slots
        all_times = num_chunks * num_slots
        wraps = -((starts - all_times) // num_chunks)  # the first visit of each chunk that is counted from 0 again
        wraps = np.minimum(wraps, num_slots)
        first = np.clip(-((starts - time) // num_chunks), 0, wraps)
        again = np.clip(-((starts - time - all_times) // num_chunks), wraps, num_slots)
        sums, which = known.sums, known.which
        return int((sums[which, first] + sums[which, again] - sums[which, wraps]).sum())

    def _lengths_of(self, lane: int, shuffle: int) -> _Lengths:
        name = lane, shuffle
        if name not in self._lengths:
            lengths, which = np.unique(self._chunk_lengths(lane, shuffle), return_inverse=True)
            sums = np.zeros((len(lengths), self.row.num_slots + 1), dtype=np.int64)
            for number, length in enumerate(lengths.tolist()):
                np.cumsum(self._sizes(shuffle, length), out=sums[number, 1:])
            self._lengths[name] = _Lengths(which, sums)
            while len(self._lengths) > _MAX_KNOWN:
                self._lengths.popitem(last=False)
        return self._lengths[name]

    def _chunk_lengths(self, lane: int, shuffle: int) -> NDArray[np.integer]:
        """The lengths of a lane's chunks in a shuffle, in the order of the row. The last ones are kept."""
        if self._last is None or self._last[0] != (lane, shuffle):
            row, share = self.row, self.row.share(lane, shuffle)
            chunks = share.first + np.arange(share.num_chunks, dtype=np.int64)
            positions = lane + chunks * row.num_lanes - shuffle * row.per_shuffle
            self._num_computed += len(positions)
            num_chunks = row.chunks.num_chunks
            has_table = num_chunks < 4 * self._num_computed and num_chunks <= _MAX_TABLE
            self._last = (lane, shuffle), row.lengths(shuffle, positions, self._table if has_table else None)
        return self._last[1]

    @functools.cached_property
    def _table(self) -> NDArray[np.integer]:
        """The lengths of all chunks: worth it after a quarter of them were computed one by one."""
        return self.row.chunks.lengths()

    def _sizes(self, shuffle: int, length: int) -> Ints:
        """The samples in each visit of a chunk of `length` samples: of its block there, if it has one."""
        num_slots = self.row.num_slots
        if num_slots == 1:
            return np.array([length], dtype=np.int64)
        slots = np.arange(num_slots, dtype=np.int64) * self.row.stride(shuffle) % num_slots
        num_blocks = -(-length // self.row.geometry.block_size)
        blocks, before = np.divmod(slots * num_blocks, num_slots)
        sizes = (blocks + 1) * length // num_blocks - blocks * length // num_blocks
        return np.where(before < num_blocks, sizes, 0)


class LaneDraw(NamedTuple):
    """A sample that a lane draws, as number `number` after the state."""

    lane: int
    number: int
    ref: SampleRef


class NumberedLane(Protocol):
    """One lane after a state."""

    def take(self, number: int, count: int) -> list[SampleRef]:
        """The samples number `number` to `number + count - 1`; fewer at the end of the data."""


class JobNumbers(Protocol):
    """All lanes of a job, in training order, after a state."""

    def lane(self, lane: int) -> NumberedLane:
        """One lane."""

    def find(self, source: int, index: int, is_past: Callable[[int, int], bool]) -> Iterator[LaneDraw]:
        """The draws of sample `index` of a source. `is_past(lane, number)` ends the search in a lane: neither this
        number nor later ones are wanted. If the data never end, it must become true."""


def numbers_of(order: PlanOrder, state: LoaderState) -> JobNumbers:
    """The lanes after `state`."""
    blend = order.blend(state)
    if blend is None or isinstance(blend, Schedule):
        return ComputedNumbers(order, blend, state)
    return DrawnNumbers(order, state)


class DrawnNumbers:
    """All lanes, by drawing from the state on."""

    def __init__(self, order: PlanOrder, state: LoaderState) -> None:
        self._order, self._state = order, state
        self._lanes: dict[int, DrawnLane] = {}

    def lane(self, lane: int) -> "DrawnLane":
        """One lane."""
        if lane not in self._lanes:
            self._lanes[lane] = DrawnLane(self._order.cursor(lane, self._state), self._state.lanes[lane])
        return self._lanes[lane]

    def find(self, source: int, index: int, is_past: Callable[[int, int], bool]) -> Iterator[LaneDraw]:
        """See `JobNumbers`."""
        for lane in range(self._state.num_lanes):
            for number in itertools.count(step=_AT_ONCE):
                refs = [] if is_past(lane, number) else self.lane(lane).take(number, _AT_ONCE)
                for at, ref in enumerate(refs, start=number):
                    if ref[0] == source and ref[2] == index and not is_past(lane, at):
                        yield LaneDraw(lane, at, ref)
                if len(refs) < _AT_ONCE:
                    break


class DrawnLane:
    """One lane, drawn by its cursor after `state`; draws are kept as numbers."""

    def __init__(self, cursor: Cursor, state: LaneState) -> None:
        cursor.seek(state)
        self._cursor, self._is_over = cursor, False
        self._drawn: list[Ints] = []
        """Source, epoch, index and part, of `_AT_ONCE` samples each."""

    def take(self, number: int, count: int) -> list[SampleRef]:
        """See `NumberedLane`."""
        while not self._is_over and len(self._drawn) * _AT_ONCE < number + count:
            refs: list[SampleRef] = []
            while len(refs) < _AT_ONCE and not self._is_over:
                try:
                    refs += [ref for _, ref in self._cursor.take(_AT_ONCE - len(refs))]
                except StopIteration:
                    self._is_over = True
            self._drawn.append(np.array(refs, dtype=np.int64).reshape(-1, 4))
        first, last = number // _AT_ONCE, (number + count - 1) // _AT_ONCE
        found = itertools.chain.from_iterable(block.tolist() for block in self._drawn[first : last + 1])
        begin = number - first * _AT_ONCE
        return [SampleRef(*ref) for ref in itertools.islice(found, begin, begin + count)]


class ComputedNumbers:
    """All lanes, by arithmetic, with a blend of samples."""

    def __init__(self, order: PlanOrder, blend: Schedule | None, state: LoaderState) -> None:
        self._state, self._blend = state, blend
        *earlier, now = state.generations
        self._rows = [[RowNumbers(row) for row in order.rows(generation)] for generation in earlier]
        self._rows.append([RowNumbers(row, self._shuffle(source)) for source, row in enumerate(order.rows(now))])
        self._lanes: dict[int, LaneNumbers] = {}

    def lane(self, lane: int) -> "LaneNumbers":
        """One lane."""
        if lane not in self._lanes:
            draws = DrawNumbers(self._blend, lane, self._state.num_lanes)
            self._lanes[lane] = LaneNumbers(self._rows, draws, lane, self._state.lanes[lane])
        return self._lanes[lane]

    def _shuffle(self, source: int) -> int:
        """The first shuffle of a source that some lane is in."""
        return min(int(lane.get("cursors", {}).get(str(source), BEGINNING)[0]) for lane in self._state.lanes.values())

    def find(self, source: int, index: int, is_past: Callable[[int, int], bool]) -> Iterator[LaneDraw]:
        """See `JobNumbers`."""
        known = functools.cache(lambda generation, shuffle: [*self._rows[generation][source].find(index, shuffle)])
        for lane in range(self._state.num_lanes):
            for place, epoch, part in self.lane(lane).in_inbox(source, index, known):
                yield from self._drawn(lane, source, place, SampleRef(source, epoch, index, part), is_past)
        row = self._rows[-1][source]
        lanes = range(self._state.num_lanes)
        last = row.row.num_whole
        for shuffle in itertools.count(row.since):
            if last is not None and shuffle > last:
                return
            for lane, number, epoch in known(len(self._rows) - 1, shuffle):
                after = self.lane(lane).place_of(source, number)
                if after is not None:
                    yield from self._drawn(lane, source, after, SampleRef(source, epoch, index), is_past)
            if all(self._is_past_shuffle(lane, source, shuffle + 1, is_past) for lane in lanes):
                return

    def _drawn(
        self, lane: int, source: int, place: int, ref: SampleRef, is_past: Callable[[int, int], bool]
    ) -> Iterator[LaneDraw]:
        number = self.lane(lane).number_of(source, place)
        if number is not None and not is_past(lane, number):
            yield LaneDraw(lane, number, ref)

    def _is_past_shuffle(self, lane: int, source: int, shuffle: int, is_past: Callable[[int, int], bool]) -> bool:
        numbers, row = self.lane(lane), self._rows[-1][source]
        for first in (row.least_before,) if row.bound_suffices else (row.least_before, row.num_before):
            place = numbers.place_of(source, first(lane, shuffle))
            number = None if place is None else numbers.number_of(source, place)
            if place is not None and (number is None or is_past(lane, number)):
                return True
        return False


class LaneNumbers:
    """One lane after its `state`; `rows` are by generation, the current one last, and source."""

    def __init__(self, rows: list[list[RowNumbers]], draws: "DrawNumbers", lane: int, state: LaneState) -> None:
        self._rows, self._draws, self._lane = rows, draws, lane
        self._first: int = state.get("draws", 0)
        self._cursors, self._inbox = state.get("cursors", {}), state.get("inbox", {})
        self._is_finite = any(row.row.num_whole is not None for row in rows[-1])
        self._taken = functools.cache(lambda source: draws.count(source, self._first))

    def take(self, number: int, count: int) -> list[SampleRef]:
        """The samples number `number` to `number + count - 1`; fewer at the end of the data."""
        draw = self._draw_at(number)
        sources: list[int] = []
        nexts: dict[int, int] = {}
        first: dict[int, int] = {}
        while draw is not None and len(sources) < count:
            source = self._draws.source_of(draw)
            if source not in nexts:
                first[source] = nexts[source] = self._draws.count(source, draw) - self._taken(source)
            left = self._left(source)
            if left is None or nexts[source] < left:
                sources.append(source)
            elif self._is_over(draw):
                break
            nexts[source] += 1
            draw += 1
        refs = {source: iter(self._refs(source, first[source], sources.count(source))) for source in first}
        return [next(refs[source]) for source in sources]

    def number_of(self, source: int, place: int) -> int | None:
        """The number of the sample at `place` of a source, counted from the state; None if it is not drawn."""
        left = self._left(source)
        draw = self._draws.draw_of(source, self._taken(source) + place)
        if draw is None or (left is not None and place >= left):
            return None
        return self._num_drawn(draw)

    def place_of(self, source: int, number: int) -> int | None:
        """The place after the state of sample `number` of the lane's row; None if it comes before."""
        place = number - self._begin(source)
        return None if place < 0 else self._inbox_size(source) + place

    def in_inbox(
        self, source: int, index: int, known: Callable[[int, int], list[Occurrence]]
    ) -> Iterator[tuple[int, int, int]]:
        """(place after the state, epoch, part) of sample `index` in the inbox of a source; `known` finds it
        in a shuffle of a generation."""
        before = 0
        for entry in self._entries(source):
            if is_slice(entry):
                begin, end = self._span(source, entry)
                generation, lane, shuffle, *_ = entry
                row = self._rows[generation][source]
                while row.num_before(lane, shuffle) < end:
                    for found in known(generation, shuffle):
                        if found.lane == lane and begin <= found.number < end:
                            yield before + found.number - begin, found.epoch, -1
                    shuffle += 1
            else:
                yield from (
                    (before + place, epoch, part) for place, (epoch, other, part) in enumerate(entry) if other == index
                )
            before += entry_size(entry)

    def _refs(self, source: int, place: int, count: int) -> list[SampleRef]:
        """The next `count` samples of a source from `place` after the state on."""
        refs: list[SampleRef] = []
        before = 0
        for entry in self._entries(source):
            size = entry_size(entry)
            begin, end = max(place - before, 0), min(place + count - before, size)
            before += size
            if begin >= end:
                continue
            if is_slice(entry):
                first, _ = self._span(source, entry)
                refs += self._of_row(source, entry[0], entry[1], first + begin, end - begin)
            else:
                refs += [SampleRef(source, *part) for part in entry[begin:end]]
        rest = count - len(refs)
        if rest > 0:
            number = self._begin(source) + max(0, place - before)
            refs += self._of_row(source, len(self._rows) - 1, self._lane, number, rest)
        return refs

    def _of_row(self, source: int, generation: int, lane: int, number: int, count: int) -> list[SampleRef]:
        row = self._rows[generation][source]
        stream = Stream(row.row, lane, row.position(lane, number))
        refs: list[SampleRef] = []
        while len(refs) < count:
            epochs, indices = stream.take(count - len(refs))
            refs += map(SampleRef, itertools.repeat(source), epochs, indices)
        return refs

    def _span(self, source: int, entry: Entry) -> tuple[int, int]:
        """The numbers in the row of its generation of the first sample of a slice, and after the last."""
        generation, lane, shuffle, window, offset, skip, count = entry
        first = self._rows[generation][source].number_at(lane, shuffle, window, offset) + skip
        return first, first + count

    def _entries(self, source: int) -> list[Entry]:
        entries: list[Entry] = self._inbox.get(str(source), [])
        return entries

    def _inbox_size(self, source: int) -> int:
        return sum(map(entry_size, self._entries(source)))

    def _begin(self, source: int) -> int:
        """The number in the row of the first sample after the state."""
        shuffle, _, _, taken = self._cursors.get(str(source), BEGINNING)
        return self._rows[-1][source].num_before(self._lane, shuffle) + int(taken)

    def _left(self, source: int) -> int | None:
        """The samples of a source after the state; None if they do not end."""
        if not self._is_finite:
            return None
        total = self._rows[-1][source].total(self._lane)
        return None if total is None else self._inbox_size(source) + total - self._begin(source)

    def _num_drawn(self, draw: int) -> int:
        """The samples after the state that come before a draw: in finite data, without the draws of ended sources."""
        if not self._is_finite:
            return draw - self._first
        total = 0
        for source in range(len(self._rows[-1])):
            left, drawn = self._left(source), self._draws.count(source, draw) - self._taken(source)
            total += drawn if left is None else min(drawn, left)
        return total

    def _draw_at(self, number: int) -> int | None:
        """The draw of sample `number` after the state; None after the end of the data."""
        if not self._is_finite:
            return self._first + number
        step = 1
        while self._num_drawn(self._first + step) <= number:
            if self._is_over(self._first + step):
                return None
            step *= 2
        low, high = self._first, self._first + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._num_drawn(middle) > number else (middle, high)
        return low

    def _is_over(self, draw: int) -> bool:
        """Whether no source has a sample left at a draw."""
        sources = range(len(self._rows[-1]))
        return all(
            (left := self._left(source)) is not None and self._draws.count(source, draw) - self._taken(source) >= left
            for source in sources
        )


class DrawNumbers:
    """The draws of `lane`, one of `num_lanes`; `blend` None means that there is only one source."""

    def __init__(self, blend: Blend | Schedule | None, lane: int, num_lanes: int) -> None:
        self._lane, self._num_lanes = lane, num_lanes
        self._blocks: Blend | Schedule | None = blend
        self._block: tuple[int, list[int]] = (-1, [])
        self._phases: list[tuple[int, _Paths]] = []
        """First draw of each phase, and its paths."""
        if isinstance(blend, Schedule):
            for phase in range(blend.num_phases):
                paths = _Paths(blend.blend_of(phase), lane, num_lanes)
                self._phases.append((blend.first_draw(phase, num_lanes), paths))
        elif blend is not None:
            self._phases = [(0, _Paths(blend, lane, num_lanes))]

    def source_of(self, draw: int) -> int:
        """The source from which a draw takes its sample."""
        if self._blocks is None:
            return 0
        number, offset = divmod(draw, DRAWS_PER_BLOCK)
        if self._block[0] != number:
            self._block = number, self._blocks.block(self._lane, self._num_lanes, number).tolist()
        return self._block[1][offset]

    def count(self, source: int, draws: int) -> int:
        """How often `source` was drawn in the first `draws` draws."""
        if self._blocks is None:
            return draws
        return sum(
            paths.count(source, min(draws, end)) - paths.count(source, begin)
            for begin, end, paths in self._spans()
            if begin < draws
        )

    def draw_of(self, source: int, number: int) -> int | None:
        """The draw that takes sample `number` (from 0) of `source`; None if the source is not drawn so often."""
        if self._blocks is None:
            return number
        for begin, end, paths in self._spans():
            before = paths.count(source, begin)
            here = None if end == _ONE else paths.count(source, end) - before
            if here is None or number < here:
                return paths.draw_of(source, number + before)
            number -= here
        return None

    def _spans(self) -> Iterator[tuple[int, int, "_Paths"]]:
        """(first draw, end, paths) of the phases that have draws."""
        ends = [begin for begin, _ in self._phases[1:]] + [_ONE]
        for (begin, paths), end in zip(self._phases, ends, strict=True):
            if begin < end:
                yield begin, end, paths


class _Paths:
    """The paths from the root of a blend's tree to its sources, for one lane."""

    def __init__(self, blend: Blend, lane: int, num_lanes: int) -> None:
        self._blend, self._lane, self._num_lanes = blend, lane, num_lanes
        root_phase = ((2 * lane + 1) << (_FRACTION_BITS - 1)) // num_lanes
        self._paths: dict[int, list[tuple[int, int, bool]]] = {}
        """(share of the lighter child, phase, whether the path takes the lighter child) of each node, by source."""
        todo: list[tuple[int, list[tuple[int, int, bool]]]] = [(blend.root, [])]
        while todo:
            number, path = todo.pop()
            if number < 0:
                self._paths[~number] = path
                continue
            node = blend.nodes[number]
            phase = (node.key + lane * node.step) & MASK if node.step else root_phase
            todo.append((node.lighter, [*path, (node.share, phase, True)]))
            todo.append((node.heavier, [*path, (node.share, phase, False)]))

    def count(self, source: int, draws: int) -> int:
        """How often `source` was drawn in the first `draws` draws."""
        if source not in self._paths:
            return 0
        number, rest = divmod(draws, DRAWS_PER_BLOCK)
        count = number * DRAWS_PER_BLOCK
        for share, phase, is_lighter in self._paths[source]:
            lighter = (count * share + phase) >> _FRACTION_BITS
            count = lighter if is_lighter else count - lighter
        return count + (self._in_block(source, number, rest) if rest else 0)

    def draw_of(self, source: int, number: int) -> int | None:
        """The draw of sample `number` of `source`; None if it is never drawn."""
        if source not in self._paths:
            return None
        draw = number
        for share, phase, is_lighter in reversed(self._paths[source]):
            if is_lighter:
                draw = -((phase - ((draw + 1) << _FRACTION_BITS)) // share) - 1
            else:
                draw = ((draw << _FRACTION_BITS) + phase) // (_ONE - share)
        block = draw // DRAWS_PER_BLOCK
        places = np.flatnonzero(self._blend.block(self._lane, self._num_lanes, block) == source)
        return block * DRAWS_PER_BLOCK + int(places[number - self.count(source, block * DRAWS_PER_BLOCK)])

    def _in_block(self, source: int, number: int, rest: int) -> int:
        sources = self._blend.block(self._lane, self._num_lanes, number)
        return int(np.count_nonzero(sources[:rest] == source))
