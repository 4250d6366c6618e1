"""The samples of a row by number: the n-th that a lane reads of a source, and when a lane reads a sample.

Input: a row; a lane and a number counted from a first shuffle, or an index of the source. Output: the sample there, or
lane and number of the sample. Guarantee: the same as reading the row from there, without doing so.
If all chunks have one length, the time depends on neither the number nor the size of the source. If lengths
differ, the chunks of a lane in an epoch are computed once; a later epoch needs the chunks of all epochs before it.
"""

import bisect
import collections
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bridge_data.order.random_draws import Permutation
from bridge_data.order.row import Ints, Row, Share

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
