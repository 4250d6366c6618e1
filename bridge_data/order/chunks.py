"""Chunks and blocks: how the sources are cut to be assigned and read.

A chunk is a run of neighbouring samples of one shard, and is read by one lane only. It is cut into blocks: all samples
of a block are in the same shuffle window, so that one read can fetch them.

Reads the number of samples of each shard, shuffle settings, and the number of lanes. Returns the geometry, and (first
sample, length) of any chunk. Every sample is in exactly one chunk, and no chunk crosses a shard. All of it is
arithmetic over per-shard prefix sums: there is no table of chunks.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bridge_data.data.blocks import READ_BYTES

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

MAX_OPEN_BYTES = 32 << 20
"""Maximum size of the partly consumed blocks of a window; blocks shrink to stay below it."""

MAX_SHARD_SKEW = 2
"""Where chunks are whole shards, shards longer than this multiple of the mean are split."""

_PART = 1 << 15
"""Number of chunks whose lengths are computed at a time: few enough to stay in the CPU's caches."""

_STEPS = 4
"""Shards tried one after another before a binary search."""


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

    return max(1, bisect.bisect_right(range(1, largest + 1), MAX_OPEN_BYTES, key=num_open_bytes))


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
        bounds = np.searchsorted(self._first_chunk, np.arange(0, self.num_chunks, _PART))
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
        start, stop = number * samples // pieces, (number + 1) * samples // pieces
        return self._first_sample[shard] + start, stop - start

    def _shards_of(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """The shard of each chunk. It is at or soon after the shard of the first chunk in the same bucket; that is
        several times as fast as a binary search."""
        shard: NDArray[np.int64] = self._shard_of_bucket[chunks >> self._shift]
        for _ in range(_STEPS):
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
        number = ((offset + 1) * pieces - 1) // length
        return first + number, offset - number * length // pieces
