"""Rows: the training order of one source, as lanes read it, window by window.

Reads the number of samples of each shard, a geometry and a key; then a lane and the number of a window. Returns the
samples of that window. Over all lanes, every sample comes exactly once per epoch, for any number of lanes and any
lengths of shards.

A chunk is a run of neighbouring samples of one shard, and is read by one lane only. It is cut into blocks: all samples
of a block are in the same shuffle window, so that one read can fetch them. Every sample is in exactly one chunk, and no
chunk crosses a shard. All of it is arithmetic over sums of the shards before each: there is no table of chunks.

A row is the sequence of the source's chunks in all epochs, permuted per epoch. Chunk q of the row goes to lane
`q mod num_lanes`, so every lane has data.

A lane takes its n chunks of an epoch in windows. The blocks of a chunk are spread over `num_slots` slots (a chunk with
fewer blocks leaves some slots empty). The slots of a chunk are visited with a stride near the golden ratio times
`num_slots`, so that consecutive visits are spread over the chunk. Visit i of the lane's chunk j happens at time
(j * num_slots + i * n) mod (n * num_slots): the chunks start evenly staggered, and each is visited once around. A
window is an equal interval of these times, and its samples are fully permuted. So a block, the unit of reading, is
within one window; and a window has blocks of as many chunks as possible, from all parts of each chunk.
"""

import bisect
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from bridge_data.data.records import READ_BYTES
from bridge_data.order.random_draws import Permutation, key64

MIN_CHUNKS_PER_LANE = 16
"""Minimum number of chunks per lane and epoch; for smaller sources, chunks shrink."""

MIN_WINDOW_SIZE = 1024
"""Minimum number of samples in a shuffle window, if the lane has that many."""

MIN_WINDOW_BLOCKS = 64
"""Minimum number of blocks in a shuffle window."""

UNKNOWN_BLOCK_SIZE = 8
"""Samples per block if their size in bytes is unknown."""

MAX_BLOCK_SIZE = 1024
"""Maximum samples per block, so that a window of `MIN_WINDOW_BLOCKS` blocks can still be permuted by a table."""

WINDOW_OPEN_BYTES = 32 << 20
"""Maximum size of the partly consumed blocks of a window; blocks shrink to stay below it."""

MAX_SHARD_SKEW = 2
"""Where chunks are whole shards, shards longer than this multiple of the mean are split."""

_COUNTED = 1 << 15
"""Number of chunks whose lengths are computed at a time: few enough to stay in the CPU's caches."""

_SHARD_STEPS = 4
"""Shards tried one after another before a binary search."""

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

N = TypeVar("N", int, Ints)


def piece(number: N, count: N, num_pieces: N) -> tuple[N, N]:
    """(first position, length) of piece `number`, where `count` samples are cut into `num_pieces` as equal as possible;
    of arrays, of each."""
    begin = number * count // num_pieces
    return begin, (number + 1) * count // num_pieces - begin


def piece_of(position: N, count: N, num_pieces: N) -> N:
    """The number of the piece in which a position is; of arrays, of each."""
    return ((position + 1) * num_pieces - 1) // count


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """How one source is cut and shared among lanes. Part of the state; changes only when the run is resharded.

    `chunk_size` and `block_size` are maximum numbers of samples. A shuffle window has `window_size` to twice
    `window_size` samples; 0 means no shuffling within a chunk. The row starts with epoch `first_epoch`.
    """

    num_lanes: int
    chunk_size: int
    block_size: int
    window_size: int
    first_epoch: int = 0

    @classmethod
    def choose(
        cls,
        counts: Sequence[int],
        *,
        num_lanes: int,
        max_samples_per_sequence: int | None,
        shuffle_buffer_size: int | None,
        sample_bytes: float | None = None,
        read_bytes: int = READ_BYTES,
    ) -> "Geometry":
        """The geometry for shards of `counts` samples, `sample_bytes` bytes each on average (None: unknown), of which
        `read_bytes` are read at once. If that is not `READ_BYTES`, a chunk has at least `read_bytes` bytes.

        For a source that is small for its lanes, first windows shrink, then chunks, down to one sample: any source of
        at least one sample feeds any number of lanes. If both settings are None, samples of a chunk are not shuffled.
        """
        mixes = max_samples_per_sequence is not None or shuffle_buffer_size is not None
        num_samples, longest = sum(counts), max(counts)
        chunk_size = longest if max_samples_per_sequence is None else max_samples_per_sequence
        if mixes and max_samples_per_sequence is None:
            chunk_size = -(-MAX_SHARD_SKEW * num_samples // sum(1 for count in counts if count))
        if read_bytes != READ_BYTES and sample_bytes is not None:
            chunk_size = max(chunk_size, min(MAX_BLOCK_SIZE, int(read_bytes / max(1.0, sample_bytes))))
        fitting = num_samples // (num_lanes * (MIN_CHUNKS_PER_LANE if mixes else 1))
        chunk_size = max(1, min(chunk_size, longest, fitting))
        if not mixes:
            return cls(num_lanes, chunk_size, chunk_size, 0)
        least = max(shuffle_buffer_size or 0, MIN_WINDOW_SIZE)
        block_size = _block_size(chunk_size, least, sample_bytes, read_bytes)
        return cls(num_lanes, chunk_size, block_size, _window_size(block_size, least))


def _block_size(chunk_size: int, least: int, sample_bytes: float | None, read_bytes: int) -> int:
    """Samples per block, for windows of at least `least` samples."""
    if sample_bytes is None:
        return min(chunk_size, UNKNOWN_BLOCK_SIZE)
    largest = max(1, min(chunk_size, MAX_BLOCK_SIZE, int(read_bytes / max(1.0, sample_bytes))))

    def num_open_bytes(block_size: int) -> int:
        return int(_window_size(block_size, least) * sample_bytes * share_open(block_size))

    return max(1, bisect.bisect_right(range(1, largest + 1), WINDOW_OPEN_BYTES, key=num_open_bytes))


def _window_size(block_size: int, least: int) -> int:
    return max(least, MIN_WINDOW_BLOCKS * block_size)


def share_open(block_size: int) -> float:
    """The largest fraction of a shuffled window's samples that wait in partly consumed blocks at any moment."""
    if block_size == 1:
        return 0.0
    untouched: float = block_size ** (-1 / (block_size - 1))  # the fraction not yet drawn at that moment
    return untouched * (1 - 1 / block_size)


class ChunkTable:
    """The chunks of one source, numbered in sample order. Chunks of one shard differ by at most one sample."""

    def __init__(self, counts: Sequence[int], chunk_size: int) -> None:
        samples = np.asarray(counts, dtype=np.int64)
        chunks = -(-samples // chunk_size)
        self._first_sample = np.concatenate(([0], np.cumsum(samples)))
        self._first_chunk = np.concatenate(([0], np.cumsum(chunks)))
        self.num_samples = int(self._first_sample[-1])
        self.num_chunks = int(self._first_chunk[-1])
        filled = samples > 0
        self.shortest = int((samples[filled] // chunks[filled]).min())
        self.longest = int((-(-samples[filled] // chunks[filled])).max())
        self._shift = max(0, (self.num_chunks // (4 * len(samples))).bit_length())
        firsts = np.arange((self.num_chunks >> self._shift) + 1, dtype=np.int64) << self._shift
        self._shard_of_bucket = np.searchsorted(self._first_chunk, firsts, side="right") - 1
        """The shard of the first of each 2^shift chunks."""

    @property
    def equal_length(self) -> int | None:
        """The length of all chunks, or None if lengths differ."""
        return self.longest if self.shortest == self.longest else None

    def counts_by_length(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(distinct chunk lengths in ascending order, number of chunks of each), without a table of all chunks."""
        samples, pieces = np.diff(self._first_sample), np.diff(self._first_chunk)
        samples, pieces = samples[pieces > 0], pieces[pieces > 0]
        length, num_longer = np.divmod(samples, pieces)
        found, which = np.unique(np.concatenate((length, length + 1)), return_inverse=True)
        counts = np.bincount(which, np.concatenate((pieces - num_longer, num_longer))).astype(np.int64)
        return found[counts > 0], counts[counts > 0]

    def lengths(self) -> NDArray[np.integer]:
        """The number of samples of every chunk, as a table of the smallest integers that hold them."""
        lengths = np.empty(self.num_chunks, np.min_scalar_type(self.longest))
        bounds = np.searchsorted(self._first_chunk, np.arange(0, self.num_chunks, _COUNTED))
        for begin, end in itertools.pairwise([*bounds.tolist(), len(self._first_chunk) - 1]):
            first_chunks, first_samples = self._first_chunk[begin : end + 1], self._first_sample[begin : end + 1]
            chunks, samples = np.diff(first_chunks), np.diff(first_samples)
            pieces, of_shard = np.repeat(chunks, chunks), np.repeat(samples, chunks)
            number = np.arange(first_chunks[0], first_chunks[-1]) - np.repeat(first_chunks[:-1], chunks)
            starts = np.repeat(first_samples[:-1], chunks) + number * of_shard // pieces
            lengths[first_chunks[0] : first_chunks[-1]] = np.diff(starts, append=first_samples[-1])
        return lengths

    def spans(self, chunks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(first sample, number of samples) of each chunk."""
        shard = self._shards_of(chunks)
        number = chunks - self._first_chunk[shard]
        pieces = self._first_chunk[shard + 1] - self._first_chunk[shard]
        samples = self._first_sample[shard + 1] - self._first_sample[shard]
        start, length = piece(number, samples, pieces)
        return self._first_sample[shard] + start, length

    def _shards_of(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """The shard of each chunk. It is at or soon after the shard of the first chunk in the same bucket; that is
        several times as fast as a binary search."""
        shard: NDArray[np.int64] = self._shard_of_bucket[chunks >> self._shift]
        for _ in range(_SHARD_STEPS):
            is_later = self._first_chunk[shard + 1] <= chunks
            if not is_later.any():
                return shard
            shard = shard + is_later
        later = np.flatnonzero(self._first_chunk[shard + 1] <= chunks)
        shard[later] = np.searchsorted(self._first_chunk, chunks[later], side="right") - 1
        return shard

    def least_samples(self, num_chunks: NDArray[np.int64], num_epochs: int = 1) -> NDArray[np.int64]:
        """The samples in the `num_chunks` shortest chunks of `num_epochs` epochs."""
        lengths, counts = self.counts_by_length()
        ends = np.concatenate(([0], np.cumsum(counts * num_epochs)))
        sums = np.concatenate(([0], np.cumsum(counts * lengths * num_epochs)))
        at = np.minimum(np.searchsorted(ends, num_chunks, side="right") - 1, len(lengths) - 1)
        return np.asarray(sums[at] + (num_chunks - ends[at]) * lengths[at])

    def chunk_of(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(chunk, offset in it) of each sample; both of the shape of `samples`."""
        shard = np.searchsorted(self._first_sample, samples, side="right") - 1
        first, offset = self._first_chunk[shard], samples - self._first_sample[shard]
        pieces = self._first_chunk[shard + 1] - first
        length = self._first_sample[shard + 1] - self._first_sample[shard]
        number = piece_of(offset, length, pieces)
        return first + number, offset - piece(number, length, pieces)[0]


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
        self.num_lanes = geometry.num_lanes
        self._key = key
        self.chunks = ChunkTable(counts, geometry.chunk_size)
        self.num_samples = self.chunks.num_samples
        """The number of samples in one epoch."""
        self.is_shuffled = epochs_per_shuffle is not None
        self.mixes = self.is_shuffled and geometry.window_size > 0
        self.num_slots = -(-self.chunks.longest // geometry.block_size) if self.mixes else 1
        self.epochs_per_shuffle = epochs_per_shuffle = epochs_per_shuffle or 1
        self.per_shuffle = self.chunks.num_chunks * epochs_per_shuffle
        self.num_whole: int | None = None
        if num_epochs is not None:
            end = math.floor(num_epochs * self.num_samples + Fraction(1, 2))
            left = max(0, end - geometry.first_epoch * self.num_samples)
            self.num_whole, self._rest = divmod(left, self.num_samples * epochs_per_shuffle)
        self._permutation: tuple[int, Permutation] | None = None

    def window(self, lane: int, shuffle: int, number: int) -> Window | None:
        """Window `number` of the lane's share of a shuffle; None if it does not exist or is empty."""
        share = self.share(lane, shuffle)
        if number >= share.num_windows:
            return None
        begin, end = self.start_time(share, number), self.start_time(share, number + 1)
        parts = [
            self.blocks(lane, shuffle, share, time, min(time + _PART, end))[:2] for time in range(begin, end, _PART)
        ]
        if not any(len(lengths) for _, lengths in parts):
            return None
        starts, lengths = map(np.concatenate, zip(*parts, strict=True))
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

    def find(self, lane: int, shuffle: int, number: int) -> tuple[int, int, int, int]:
        """(shuffle, window, offset, samples of the shuffle before it) of the lane's sample `number`, counted from the
        start of `shuffle`, in a row without end. Linear in the chunks of the lane up to there, not in samples."""
        while True:
            share, lengths = self.share(lane, shuffle), self._lengths_of(lane, shuffle)
            total = int(lengths.sum())
            if number <= total and share.num_windows:
                before = self._counter(lane, shuffle, lengths)
                window = bisect.bisect_left(range(share.num_windows), number, key=before)
                if window < share.num_windows and before(window) == number:
                    return shuffle, window, 0, number  # the first of these, also if it is empty: as `after` goes on
                if number < total:
                    return shuffle, window - 1, number - before(window - 1), number
            shuffle, number = (lane + share.last * self.geometry.num_lanes) // self.per_shuffle, number - total

    def num_samples_of(self, lane: int, shuffle: int) -> int:
        """The samples of a lane's share of a shuffle."""
        if self.num_whole is None and self.chunks.equal_length is not None:
            return self.share(lane, shuffle).num_chunks * self.chunks.equal_length
        return int(self._lengths_of(lane, shuffle).sum())

    def num_samples_before(self, lane: int, shuffle: int, window: int) -> int:
        """The samples of a lane's share of a shuffle before a window."""
        return self._counter(lane, shuffle, self._lengths_of(lane, shuffle))(window)

    def _lengths_of(self, lane: int, shuffle: int) -> NDArray[np.integer]:
        """The lengths of the chunks of a lane in a shuffle."""
        share = self.share(lane, shuffle)
        chunks = np.arange(share.first, share.last, dtype=np.int64)
        return self.spans(shuffle, lane + chunks * self.geometry.num_lanes - shuffle * self.per_shuffle)[2]

    def _counter(self, lane: int, shuffle: int, lengths: NDArray[np.integer]) -> Callable[[int], int]:
        """How many samples the windows of a lane have before some window of a shuffle: each visit of a chunk has a part
        of it, which depends on its length alone."""
        share, num_slots = self.share(lane, shuffle), self.num_slots
        kinds, which = np.unique(lengths, return_inverse=True)
        slots = np.arange(num_slots, dtype=np.int64) * (self.stride(shuffle) if num_slots > 1 else 1) % num_slots
        sums = np.zeros((len(kinds), num_slots + 1), dtype=np.int64)
        for kind, length in enumerate(kinds.tolist()):
            number = -(-length // self.geometry.block_size) if num_slots > 1 else 1
            blocks, rest = np.divmod(slots * number, num_slots)
            sizes = np.where(rest < number, (blocks + 1) * length // number - blocks * length // number, 0)
            np.cumsum(sizes, out=sums[kind, 1:])
        all_times = share.num_chunks * num_slots
        starts = np.arange(share.num_chunks, dtype=np.int64) * num_slots
        wraps = np.minimum(-((starts - all_times) // share.num_chunks), num_slots)  # from there, times begin at 0 again

        def before(window: int) -> int:
            end = self.start_time(share, window)
            time = end - end % math.gcd(share.num_chunks, num_slots)
            first = np.clip(-((starts - time) // share.num_chunks), 0, wraps)
            again = np.clip(-((starts - time - all_times) // share.num_chunks), wraps, num_slots)
            found = int((sums[which, first] + sums[which, again] - sums[which, wraps]).sum())
            return found + (int(self.blocks(lane, shuffle, share, time, end)[1].sum()) if time < end else 0)

        return before

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
        offsets, lengths = piece(blocks, lengths, numbers)
        return starts + offsets, lengths, times

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
