"""The row of one source: its chunks of all epochs, permuted epoch by epoch, dealt to the lanes like cards.

Chunk number q of the row goes to lane `q mod num_lanes`; so no lane is without data, and one lane reads a chunk.
A lane's chunks of an epoch are split into nearly equal windows; within a window samples come well mixed, yet each
chunk is read front to back in parts of `SPREAD` samples.

Enters: lane, number of chunks taken. Leaves: the window that begins there. Guarantee: over all lanes, every sample
exactly once an epoch, for any number of lanes.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bridge_data.order.chunks import ChunkTable, Geometry
from bridge_data.order.keys import key64, uniform64
from bridge_data.order.permutation import Permutation

SPREAD = 25
"""A sample may come this many positions of its chunk early or late: one ranged read of a remote store."""

_CHUNK_STAGE, _SAMPLE_STAGE = 1, 2

_BULK = 1 << 17
"""Chunks worked on at a time, where all lanes are."""


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Samples in the order in which a lane takes them: index and epoch of each, and the chunks taken after them."""

    indices: NDArray[np.int64]
    epochs: NDArray[np.int64]
    next_chunk: int


class Row:
    """The endless row of one source under one geometry.

    `key` stands for seed and source. With `epochs_per_shuffle` m > 1, the chunks of m epochs are shuffled together:
    a sample may then come twice before another comes once, but still m times in m epochs. With None nothing is
    shuffled: the lanes take the chunks in their order, and each sample in its place. `num_epochs` is where the row
    ends, None for never. That is counted from epoch 0 in exact arithmetic, whatever epoch the row begins with:
    `num_epochs` times the samples of an epoch, rounded to the nearest sample, half a sample up. Of a last fraction of
    an epoch the row has whole chunks, and the beginning of one more.
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
        self._chunks = ChunkTable(counts, geometry.chunk_size)
        self._is_shuffled = epochs_per_shuffle is not None
        self._epochs_per_shuffle = epochs_per_shuffle = epochs_per_shuffle or 1
        self._num_whole: int | None = None
        if num_epochs is not None:
            end = math.floor(num_epochs * self.num_samples + Fraction(1, 2))
            left = max(0, end - geometry.first_epoch * self.num_samples)
            self._num_whole, self._rest = divmod(left, self.num_samples * epochs_per_shuffle)
        self._permutation: tuple[int, Permutation] | None = None

    @property
    def num_samples(self) -> int:
        """Samples in one epoch."""
        return self._chunks.num_samples

    def window(self, lane: int, taken: int) -> Window | None:
        """The window that begins after `taken` chunks of `lane`; None at the end of the row.

        `taken` must be 0 or the `next_chunk` of an earlier window.
        """
        shuffle = self.shuffle_of(lane, taken)
        if lane + taken * self.geometry.num_lanes >= self._stop(shuffle):
            return None
        stop = self._window_stop(lane, taken, shuffle)
        return self._mix(shuffle, self._positions(lane, taken, stop, shuffle), stop)

    def window_size(self, lane: int, taken: int) -> tuple[int, int]:
        """(samples, `next_chunk`) of the window that begins after `taken` chunks of `lane`, without making it."""
        shuffle = self.shuffle_of(lane, taken)
        stop = self._window_stop(lane, taken, shuffle)
        return self._num_samples(lane, taken, stop, shuffle), stop

    def shuffle_of(self, lane: int, chunk: int) -> int:
        """Which shuffle chunk number `chunk` of `lane` belongs to, counted from the beginning of the row."""
        return (lane + chunk * self.geometry.num_lanes) // self._per_shuffle

    def num_samples_to(self, end: int, taken: Sequence[int]) -> NDArray[np.int64]:
        """Samples of each lane in its chunks after the first `taken[lane]`, up to the beginning of shuffle `end`."""
        num_lanes, equal_length = self.geometry.num_lanes, self._chunks.equal_length
        lanes = np.arange(num_lanes)
        first = lanes + np.asarray(taken, dtype=np.int64) * num_lanes
        samples = np.zeros(num_lanes, dtype=np.int64)
        begin = int(first.min())
        if equal_length is not None:
            stop = self._per_shuffle * (end if self._num_whole is None else min(end, self._num_whole))
            samples += equal_length * np.maximum(0, -((first - stop) // num_lanes))
            begin = max(begin, stop)
        for shuffle in range(begin // self._per_shuffle, end):
            for numbers in _blocks(max(begin, shuffle * self._per_shuffle), self._stop(shuffle)):
                left = numbers[numbers >= first[numbers % num_lanes]]
                _, _, lengths = self._spans(shuffle, left - shuffle * self._per_shuffle)
                samples += np.bincount(left % num_lanes, lengths, minlength=num_lanes).astype(np.int64)
        return samples

    @property
    def _per_shuffle(self) -> int:
        return self._chunks.num_chunks * self._epochs_per_shuffle

    def first_epoch_of(self, shuffle: int) -> int:
        """The first epoch that a shuffle of this row deals."""
        return self.geometry.first_epoch + shuffle * self._epochs_per_shuffle

    def _span(self, lane: int, shuffle: int) -> tuple[int, int]:
        """The lane's chunks of a shuffle are its numbers first..last-1."""
        begin, end, num_lanes = shuffle * self._per_shuffle, self._stop(shuffle), self.geometry.num_lanes
        return max(0, -((lane - begin) // num_lanes)), max(0, -((lane - end) // num_lanes))

    def _stop(self, shuffle: int) -> int:
        """The number in the row of the first chunk after those of a shuffle, or after the row's end in or before it."""
        if self._num_whole is None or shuffle < self._num_whole:
            return (shuffle + 1) * self._per_shuffle
        return self._end[0]

    @functools.cached_property
    def _end(self) -> tuple[int, int | None]:
        """(chunks in the row, samples in the last of them where it is cut) of a row that ends.

        Chunks of unequal lengths are counted, once, when a lane comes to the fraction.
        """
        assert self._num_whole is not None
        begin, rest = self._num_whole * self._per_shuffle, self._rest
        if not rest:
            return begin, None
        if self._chunks.equal_length is not None:
            number, before_last = divmod(rest - 1, self._chunks.equal_length)
            return begin + number + 1, before_last + 1
        for positions in _blocks(0, self._per_shuffle):
            dealt = self._permuted(self._num_whole)(positions) % self._chunks.num_chunks
            lengths = self._chunks.spans(dealt)[1]
            ends = np.cumsum(lengths)
            if ends[-1] >= rest:
                number = int(np.searchsorted(ends, rest))
                return begin + int(positions[number]) + 1, int(lengths[number] - ends[number] + rest)
            rest -= int(ends[-1])
        raise AssertionError("a fraction is less than the whole")

    def _window_stop(self, lane: int, taken: int, shuffle: int) -> int:
        """Cut the lane's chunks of the shuffle into nearly equal windows, and say where the one at `taken` ends."""
        first, last = self._span(lane, shuffle)
        num_chunks = last - first
        num_windows = max(1, num_chunks // self.geometry.window_chunks)
        number = -(-(taken - first) * num_windows // num_chunks)
        return first + (number + 1) * num_chunks // num_windows

    def _positions(self, lane: int, taken: int, stop: int, shuffle: int) -> NDArray[np.int64]:
        """Where chunks taken..stop-1 of the lane stand in the shuffle."""
        num_lanes = self.geometry.num_lanes
        return lane + np.arange(taken, stop, dtype=np.int64) * num_lanes - shuffle * self._per_shuffle

    def _num_samples(self, lane: int, taken: int, stop: int, shuffle: int) -> int:
        if self._chunks.equal_length is not None and shuffle != self._num_whole:
            return (stop - taken) * self._chunks.equal_length
        return int(self._spans(shuffle, self._positions(lane, taken, stop, shuffle))[2].sum())

    def _spans(
        self, shuffle: int, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(lap, first sample, number of samples) of the chunks at `positions` of a shuffle."""
        laps, chunks = np.divmod(self._permuted(shuffle)(positions), self._chunks.num_chunks)
        starts, lengths = self._chunks.spans(chunks)
        if shuffle == self._num_whole and self._end[1] is not None:
            lengths[positions == self._end[0] - 1 - shuffle * self._per_shuffle] = self._end[1]
        return laps, starts, lengths

    def _mix(self, shuffle: int, positions: NDArray[np.int64], next_chunk: int) -> Window:
        laps, starts, lengths = self._spans(shuffle, positions)
        ends = np.cumsum(lengths)
        place = np.arange(ends[-1], dtype=np.int64) - np.repeat(ends - lengths, lengths)
        indices = np.repeat(starts, lengths) + place
        first_epoch = self.first_epoch_of(shuffle)
        epochs = np.broadcast_to(np.int64(first_epoch), indices.shape)
        if self._epochs_per_shuffle > 1:
            epochs = first_epoch + np.repeat(laps, lengths)
        if not self._is_shuffled:
            return Window(indices, epochs, next_chunk)
        # Sort by (place in chunk + SPREAD * u), u in [0, 1) keyed by the sample; in 32-bit fixed point, exactly.
        spread = min(self.geometry.chunk_size, SPREAD)
        chance = uniform64(indices, key64(self._key, _SAMPLE_STAGE, first_epoch)) >> np.uint64(32)
        order = np.argsort((place << 32) + spread * chance.astype(np.int64), kind="stable")
        return Window(indices[order], epochs[order] if self._epochs_per_shuffle > 1 else epochs, next_chunk)

    def _permuted(self, shuffle: int) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
        if not self._is_shuffled:
            return _unchanged
        if self._permutation is None or self._permutation[0] != shuffle:
            key = key64(self._key, _CHUNK_STAGE, self.first_epoch_of(shuffle))
            self._permutation = shuffle, Permutation(self._per_shuffle, key)
        return self._permutation[1]


def _unchanged(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions


def _blocks(begin: int, stop: int) -> Iterator[NDArray[np.int64]]:
    """The numbers begin..stop-1, some at a time: bounded memory for any number of chunks."""
    for first in range(begin, stop, _BULK):
        yield np.arange(first, min(first + _BULK, stop), dtype=np.int64)
