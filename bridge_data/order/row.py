"""Rows: the training order of one source, as lanes read it, window by window.

Reads the number of samples of each shard, a geometry and a key; then a lane and the number of a window. Returns the
samples of that window. Over all lanes, every sample comes exactly once per epoch, for any number of lanes and any
lengths of shards.

A row is the sequence of the source's chunks in all epochs, permuted per epoch. Chunk q of the row goes to lane
`q mod num_lanes`: every lane has data, and a chunk is read by one lane only.

A lane takes its n chunks of an epoch in windows. The blocks of a chunk are spread over `num_slots` slots (a chunk with
fewer blocks leaves some slots empty). The slots of a chunk are visited with a stride near the golden ratio times
`num_slots`, so that consecutive visits are spread over the chunk. Visit i of the lane's chunk j happens at time
(j * num_slots + i * n) mod (n * num_slots): the chunks start evenly staggered, and each is visited once around. A
window is an equal interval of these times, and its samples are fully permuted. So a block, the unit of reading, is
within one window; and a window has blocks of as many chunks as possible, from all parts of each chunk.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bridge_data.order.chunks import ChunkTable, Geometry
from bridge_data.order.random_draws import Permutation, key64

_CHUNK_STAGE, _SAMPLE_STAGE, _STRIDE_STAGE = 1, 2, 3

_RATIOS = (0.6180339887, 0.4142135624, 0.3027756377, 0.7912878475)
"""Strides as fractions of the number of slots: the fractional parts of (1 + sqrt 5)/2, 1 + sqrt 2, (1 + sqrt 13)/2 and
(1 + sqrt 21)/2. They are far from simple fractions, so their multiples spread evenly."""

_PART = 1 << 16
"""Visits of a window computed at a time. It fixes the order of blocks within a window, so it is part of the format."""

_BULK = 1 << 17
"""Chunks or blocks computed at a time, to bound memory."""

_MAX_TABLE = 1 << 22
"""Maximum number of chunks for which a temporary table of lengths is made."""

Ints = NDArray[np.int64]


class SampleWindow(Protocol):
    """Some consecutive samples of a lane."""

    def __len__(self) -> int: ...

    def take(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """(epochs, indices) of samples number `start` to `stop` - 1."""


class SampleRow(Protocol):
    """A row as cursors read it: shuffled, or in validation front to back."""

    @property
    def num_lanes(self) -> int: ...

    @property
    def num_samples(self) -> int: ...

    def window(self, lane: int, shuffle: int, number: int) -> SampleWindow | None:
        """A window of a lane; None if the lane has no samples there."""

    def after(self, lane: int, shuffle: int, number: int) -> tuple[int, int] | None:
        """(shuffle, number) of the next window of a lane; None if that was the last one."""

    def starts_at(self, shuffle: int) -> tuple[int, int]:
        """The smallest (epoch, index) of the row from a shuffle on."""

    def seek(self, lane: int, shuffle: int, number: int, count: int, end: tuple[int, int]) -> tuple[int, int, int]:
        """(shuffle, window, offset) `count` samples after the start of a window; `ValueError` if they reach `end`."""


class Window:
    """The samples of a window, in the order in which the lane takes them."""

    __slots__ = ("_ends", "_epoch", "_num_samples", "_order", "_shifts")

    def __init__(self, starts: Ints, lengths: Ints, order: Permutation | None, epoch: int, num_samples: int) -> None:
        self._ends = np.cumsum(lengths)
        self._shifts = starts - (self._ends - lengths)
        self._order, self._epoch, self._num_samples = order, epoch, num_samples

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """(epochs, indices) of samples number `start` to `stop` - 1 of the window."""
        numbers = np.arange(start, min(stop, len(self)), dtype=np.int64)
        if self._order is not None:
            numbers = self._order(numbers)
        indices = numbers + self._shifts[np.searchsorted(self._ends, numbers, side="right")]
        epochs, indices = np.divmod(indices, self._num_samples)  # several epochs may be shuffled together
        return epochs + self._epoch, indices


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """A lane's share of a shuffle: the lane's chunks number `first` to `last` - 1, in `num_windows` windows."""

    first: int
    last: int
    num_windows: int

    @property
    def num_chunks(self) -> int:
        return self.last - self.first


class Row:
    """The row of one source under one geometry; `key` is made from the seed and the source.

    A shuffle is `epochs_per_shuffle` = m epochs whose chunks are permuted together: with m > 1 a sample may come twice
    before another comes once, but still m times in m epochs. None: nothing is shuffled.

    The row ends after `num_epochs` epochs, counted from epoch 0 even if the row starts later; None: never. A fraction
    is exact: `num_epochs` times the samples of an epoch, rounded to the nearest sample, half a sample up. A last
    fraction of an epoch has whole chunks, and the start of one more.
    """

    def __init__(
        self,
        counts: Sequence[int],
        geometry: Geometry,
        key: int,
        *,
        epochs_per_shuffle: int | None = 1,
        num_epochs: Fraction | int | None = None,
    ) -> None:
        self.geometry = geometry
        self._key = key
        self.chunks = ChunkTable(counts, geometry.chunk_size)
        self.is_shuffled = epochs_per_shuffle is not None
        self.mixes = self.is_shuffled and geometry.window_size > 0
        self.num_slots = -(-self.chunks.longest // geometry.block_size) if self.mixes else 1
        self.epochs_per_shuffle = epochs_per_shuffle = epochs_per_shuffle or 1
        self.num_whole: int | None = None
        if num_epochs is not None:
            end = math.floor(num_epochs * self.num_samples + Fraction(1, 2))
            left = max(0, end - geometry.first_epoch * self.num_samples)
            self.num_whole, self._rest = divmod(left, self.num_samples * epochs_per_shuffle)
        self._permutation: tuple[int, Permutation] | None = None

    @property
    def num_lanes(self) -> int:
        """The number of lanes that share the row."""
        return self.geometry.num_lanes

    @property
    def num_samples(self) -> int:
        """The number of samples in one epoch."""
        return self.chunks.num_samples

    def window(self, lane: int, shuffle: int, number: int) -> Window | None:
        """Window `number` of the lane's share of a shuffle; None if it does not exist or is empty."""
        share = self.share(lane, shuffle)
        if number >= share.num_windows:
            return None
        begin, end = (self.start_time(share, window) for window in (number, number + 1))
        parts = [
            self.blocks(lane, shuffle, share, time, min(time + _PART, end))[:2] for time in range(begin, end, _PART)
        ]
        if not any(len(lengths) for _, lengths in parts):
            return None
        starts, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = None
        if self.mixes:
            stage = self._key, _SAMPLE_STAGE, self.first_epoch_of(shuffle), lane, number
            order = Permutation(int(lengths.sum()), key64(*stage))
        return Window(starts, lengths, order, self.first_epoch_of(shuffle), self.num_samples)

    def after(self, lane: int, shuffle: int, number: int) -> tuple[int, int] | None:
        """(shuffle, number) of the lane's next window, which may be empty; None at the end of the row."""
        share = self.share(lane, shuffle)
        if number + 1 < share.num_windows:
            return shuffle, number + 1
        chunk = lane + share.last * self.geometry.num_lanes
        following = chunk // self.per_shuffle
        return None if chunk >= self.stop(following) else (following, 0)

    def starts_at(self, shuffle: int) -> tuple[int, int]:
        """The smallest (epoch, index) of a shuffle."""
        return self.first_epoch_of(shuffle), 0

    def seek(self, lane: int, shuffle: int, number: int, count: int, end: tuple[int, int]) -> tuple[int, int, int]:
        """(shuffle, window, offset) of the lane's sample `count` samples after the start of window `number`.

        `ValueError` if the lane has no such sample before the shuffle that starts at `end`.
        """
        while True:
            share = self.share(lane, shuffle)
            step = max(1, _BULK * share.num_windows // max(1, share.num_chunks * self.num_slots))
            for first in range(number, share.num_windows, step):
                stop = min(first + step, share.num_windows)
                bounds = (self.start_time(share, window) for window in (first, stop))
                _, lengths, times = self.blocks(lane, shuffle, share, *bounds)
                windows = times * share.num_windows // (share.num_chunks * self.num_slots)
                ends = np.cumsum(np.bincount(windows - first, lengths, minlength=stop - first)).astype(np.int64)
                if count < ends[-1]:
                    passed = int(np.searchsorted(ends, count, side="right"))
                    return shuffle, first + passed, count - int(ends[passed - 1] if passed else 0)
                count -= int(ends[-1])
            chunk = lane + share.last * self.geometry.num_lanes
            shuffle, number = chunk // self.per_shuffle, 0
            if chunk >= self.stop(shuffle) or self.starts_at(shuffle) >= end:
                raise ValueError(f"the lane ends {count} samples before it")

    def last_before(self, lane: int, shuffle: int) -> int:
        """The last shuffle before `shuffle` in which the lane has a chunk, or -1."""
        first = self.share(lane, shuffle).first
        return (lane + (first - 1) * self.geometry.num_lanes) // self.per_shuffle if first else -1

    def num_samples_to(self, end: int, shuffles: Sequence[int] | Ints) -> Ints:
        """Samples of each lane from the start of shuffle `shuffles[lane]` to the start of shuffle `end`."""
        num_lanes, equal_length = self.geometry.num_lanes, self.chunks.equal_length
        lanes = np.arange(num_lanes)
        begins = np.asarray(shuffles, dtype=np.int64) * self.per_shuffle
        first = lanes + np.maximum(0, -((lanes - begins) // num_lanes)) * num_lanes
        samples = np.zeros(num_lanes, dtype=np.int64)
        begin = int(first.min())
        if equal_length is not None:
            stop = self.per_shuffle * (end if self.num_whole is None else min(end, self.num_whole))
            samples += equal_length * np.maximum(0, -((first - stop) // num_lanes))
            begin = max(begin, stop)
        table = self.chunks.lengths() if equal_length is None and self.chunks.num_chunks <= _MAX_TABLE else None
        for shuffle in range(begin // self.per_shuffle, end):
            for numbers in _parts(max(begin, shuffle * self.per_shuffle), self.stop(shuffle)):
                lanes_of = numbers % num_lanes
                lengths = self.lengths(shuffle, numbers - shuffle * self.per_shuffle, table)
                lengths[numbers < first[lanes_of]] = 0
                samples += np.bincount(lanes_of, lengths, minlength=num_lanes).astype(np.int64)
        return samples

    @property
    def per_shuffle(self) -> int:
        return self.chunks.num_chunks * self.epochs_per_shuffle

    def first_epoch_of(self, shuffle: int) -> int:
        """The first epoch of a shuffle."""
        return self.geometry.first_epoch + shuffle * self.epochs_per_shuffle

    def share(self, lane: int, shuffle: int) -> Share:
        begin, end, num_lanes = shuffle * self.per_shuffle, self.stop(shuffle), self.geometry.num_lanes
        first, last = max(0, -((lane - begin) // num_lanes)), max(0, -((lane - end) // num_lanes))
        num_chunks = max(0, last - first)
        if not self.mixes:
            return Share(first, first + num_chunks, num_chunks)
        per_window = self.chunks.num_chunks * self.geometry.window_size
        num_windows = max(min(1, num_chunks), num_chunks * self.num_samples // per_window)
        return Share(first, first + num_chunks, num_windows)

    def stop(self, shuffle: int) -> int:
        """The number of the first chunk after a shuffle, or after the end of the row if that comes first."""
        if self.num_whole is None or shuffle < self.num_whole:
            return (shuffle + 1) * self.per_shuffle
        return self._end[0]

    @functools.cached_property
    def _end(self) -> tuple[int, int | None]:
        """(number of chunks in a finite row, samples in the last chunk if that is truncated)."""
        assert self.num_whole is not None
        begin, rest = self.num_whole * self.per_shuffle, self._rest
        if not rest:
            return begin, None
        if self.chunks.equal_length is not None:
            number, before_last = divmod(rest - 1, self.chunks.equal_length)
            return begin + number + 1, before_last + 1
        for positions in _parts(0, self.per_shuffle):
            assigned = self.permutation(self.num_whole)(positions) % self.chunks.num_chunks
            lengths = self.chunks.spans(assigned)[1]
            ends = np.cumsum(lengths)
            if ends[-1] >= rest:
                number = int(np.searchsorted(ends, rest))
                return begin + int(positions[number]) + 1, int(lengths[number] - ends[number] + rest)
            rest -= int(ends[-1])
        raise AssertionError("a fraction is less than the whole")

    def start_time(self, share: Share, window: int) -> int:
        """The time of the first visit of a window."""
        return -(-window * share.num_chunks * self.num_slots // share.num_windows)

    def blocks(self, lane: int, shuffle: int, share: Share, begin: int, end: int) -> tuple[Ints, Ints, Ints]:
        """(first sample, number of samples, time) of the blocks visited at times `begin` to `end` - 1.

        Samples of the shuffle's later epochs are numbered consecutively after those of its first epoch.
        """
        num_slots = self.num_slots
        chunks, visits, times = _staggered(share.num_chunks, num_slots, begin, end)
        positions = lane + (share.first + chunks) * self.geometry.num_lanes - shuffle * self.per_shuffle
        epochs, starts, lengths = self.spans(shuffle, positions)
        starts = starts + epochs * self.num_samples
        if num_slots == 1:
            return starts, lengths, times
        slots = visits * self.stride(shuffle) % num_slots
        numbers = -(-lengths // self.geometry.block_size)
        blocks, before = np.divmod(slots * numbers, num_slots)
        filled = before < numbers
        if not filled.all():
            starts, lengths, times = starts[filled], lengths[filled], times[filled]
            blocks, numbers = blocks[filled], numbers[filled]
        offsets = blocks * lengths // numbers
        return starts + offsets, (blocks + 1) * lengths // numbers - offsets, times

    def stride(self, shuffle: int) -> int:
        """The distance in slots between consecutive visits of a chunk, coprime to `num_slots`."""
        ratio = _RATIOS[key64(self._key, _STRIDE_STAGE, self.first_epoch_of(shuffle)) % len(_RATIOS)]
        wanted = round(ratio * self.num_slots)
        near = (wanted + sign * distance for distance in range(self.num_slots) for sign in (1, -1))
        return next(stride for stride in near if math.gcd(stride, self.num_slots) == 1)

    def spans(self, shuffle: int, positions: Ints) -> tuple[Ints, Ints, Ints]:
        """(epoch within the shuffle, first sample, number of samples) of the chunks at `positions` of a shuffle."""
        epochs, chunks = np.divmod(self.permutation(shuffle)(positions), self.chunks.num_chunks)
        starts, lengths = self.chunks.spans(chunks)
        self._cut_last(shuffle, positions, lengths)
        return epochs, starts, lengths

    def lengths(self, shuffle: int, positions: Ints, table: NDArray[np.integer] | None) -> NDArray[np.integer]:
        """Lengths of the chunks at `positions` of a shuffle; faster with a `table` of all lengths."""
        if table is None:
            return self.spans(shuffle, positions)[2]
        lengths = table[self.permutation(shuffle)(positions) % self.chunks.num_chunks]
        self._cut_last(shuffle, positions, lengths)
        return lengths

    def _cut_last(self, shuffle: int, positions: Ints, lengths: NDArray[np.integer]) -> None:
        if shuffle == self.num_whole and self._end[1] is not None:
            lengths[positions == self._end[0] - 1 - shuffle * self.per_shuffle] = self._end[1]

    def permutation(self, shuffle: int) -> Callable[[Ints], Ints]:
        if not self.is_shuffled:
            return lambda positions: positions
        if self._permutation is None or self._permutation[0] != shuffle:
            key = key64(self._key, _CHUNK_STAGE, self.first_epoch_of(shuffle))
            self._permutation = shuffle, Permutation(self.per_shuffle, key)
        return self._permutation[1]


def _staggered(num_chunks: int, num_slots: int, begin: int, end: int) -> tuple[Ints, Ints, Ints]:
    """(chunk, visit, time) of the visits at times `begin` to `end` - 1, out of 0..num_chunks * num_slots - 1.

    See the module docstring. With g = gcd(num_chunks, num_slots), g visits would share each g-th time and leave the
    others free; they are spread over these. Linear in the smaller number and in the number of results.
    """
    short, long = min(num_chunks, num_slots), max(num_chunks, num_slots)
    divisor = math.gcd(short, long)
    shift, rest = np.divmod(np.arange(short, dtype=np.int64) * long, short)
    least = np.clip(-((rest - (begin - divisor + 1)) // short), 0, long)
    counts = np.clip(-((rest - end) // short), 0, long) - least
    shorter = np.repeat(np.arange(short, dtype=np.int64), counts)
    laps = np.arange(len(shorter), dtype=np.int64) + np.repeat(least - (np.cumsum(counts) - counts), counts)
    longer = (laps - shift[shorter]) % long
    chunks, visits = (shorter, longer) if num_chunks <= num_slots else (longer, shorter)
    times = rest[shorter] + short * laps + chunks // (num_chunks // divisor)
    inside = (begin <= times) & (times < end)
    return chunks[inside], visits[inside], times[inside]


def _parts(begin: int, stop: int) -> Iterator[Ints]:
    """The numbers begin..stop-1, `_BULK` at a time."""
    for first in range(begin, stop, _BULK):
        yield np.arange(first, min(first + _BULK, stop), dtype=np.int64)
