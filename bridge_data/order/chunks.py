"""Chunks and blocks: runs of neighbouring samples of one shard.

A chunk is the unit of dealing: one lane takes all of it. It is cut into blocks, the unit of reading: the samples of a
block come in one window, so that one read can fetch them.

Enters: samples per shard, the settings of the shuffle, the number of lanes. Leaves: chunk number -> (first sample,
length), and the same of its blocks, by arithmetic over per-shard prefix sums; no table of chunks exists.
"""

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MIN_CHUNKS_PER_LANE = 16
"""A lane wants at least so many chunks an epoch; where a source is too small for that, chunks shrink."""

MIN_WINDOW_SIZE = 1024
"""A window mixes at least so many samples, where the lane has them."""

MIN_WINDOW_BLOCKS = 64
"""And it has at least so many blocks."""

READ_BYTES = 1 << 18
"""A block is about what one read of so many bytes holds."""

UNKNOWN_BLOCK_SIZE = 8
"""Samples of a block where no index tells how many bytes they have."""

MAX_BLOCK_SIZE = 1024
"""A window of `MIN_WINDOW_BLOCKS` blocks of so many samples can still be permuted by a table."""

MAX_OPEN_BYTES = 32 << 20
"""Blocks are so small that those of a window that are read in part hold at most so many bytes."""

MAX_SHARD_SKEW = 2
"""A shard that is longer than so many times the mean is cut, where chunks are whole shards."""


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """How one source is cut and dealt: fixed for a generation, part of the state.

    `num_lanes` streams share the source; a chunk has at most `chunk_size` samples, a block at most `block_size`; a
    window has `window_size` samples, or up to twice as many; 0 is for a chunk by itself, front to back. The row begins
    with epoch `first_epoch`.
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
    ) -> "Geometry":
        """The geometry for shards of `counts` samples of `sample_bytes` bytes on the average (None: not known).

        Where the source is too small, windows shrink first (a lane with few chunks has one short window), then chunks
        do, at the last to one sample: any source of at least one sample feeds any number of lanes. With neither
        setting given, samples of a chunk are not mixed.
        """
        mixes = max_samples_per_sequence is not None or shuffle_buffer_size is not None
        num_samples, longest = sum(counts), max(counts)
        chunk_size = longest if max_samples_per_sequence is None else max_samples_per_sequence
        if mixes and max_samples_per_sequence is None:
            chunk_size = -(-MAX_SHARD_SKEW * num_samples // sum(1 for count in counts if count))
        fitting = num_samples // (num_lanes * (MIN_CHUNKS_PER_LANE if mixes else 1))
        chunk_size = max(1, min(chunk_size, longest, fitting))
        if not mixes:
            return cls(num_lanes, chunk_size, chunk_size, 0)
        least = max(shuffle_buffer_size or 0, MIN_WINDOW_SIZE)
        block_size = _block_size(chunk_size, least, sample_bytes)
        return cls(num_lanes, chunk_size, block_size, _window_size(block_size, least))


def _block_size(chunk_size: int, least: int, sample_bytes: float | None) -> int:
    """The samples of a block, where a window has at least `least` samples."""
    if sample_bytes is None:
        return min(chunk_size, UNKNOWN_BLOCK_SIZE)
    largest = max(1, min(chunk_size, MAX_BLOCK_SIZE, int(READ_BYTES / max(1.0, sample_bytes))))

    def num_open_bytes(block_size: int) -> int:
        return int(_window_size(block_size, least) * sample_bytes * share_open(block_size))

    return max(1, bisect.bisect_right(range(1, largest + 1), MAX_OPEN_BYTES, key=num_open_bytes))


def _window_size(block_size: int, least: int) -> int:
    return max(least, MIN_WINDOW_BLOCKS * block_size)


def share_open(block_size: int) -> float:
    """The largest share of a permuted window's samples that lie, not yet taken, in blocks of which one was taken."""
    if block_size == 1:
        return 0.0
    untouched: float = block_size ** (-1 / (block_size - 1))  # of the samples, when the share is largest
    return untouched * (1 - 1 / block_size)


class ChunkTable:
    """The chunks of one source, numbered in sample order. No chunk crosses a shard; those of a shard differ by at
    most one sample."""

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

    @property
    def equal_length(self) -> int | None:
        """The length of every chunk, where all are equal; None where they are not."""
        return self.longest if self.shortest == self.longest else None

    def counts_by_length(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lengths that chunks have, in rising order, and how many have each; without a table of all chunks."""
        samples, pieces = np.diff(self._first_sample), np.diff(self._first_chunk)
        samples, pieces = samples[pieces > 0], pieces[pieces > 0]
        length, num_longer = np.divmod(samples, pieces)
        found, which = np.unique(np.concatenate((length, length + 1)), return_inverse=True)
        counts = np.bincount(which, np.concatenate((pieces - num_longer, num_longer))).astype(np.int64)
        return found[counts > 0], counts[counts > 0]

    def lengths(self) -> NDArray[np.int64]:
        """The number of samples of every chunk."""
        chunks, samples = np.diff(self._first_chunk), np.diff(self._first_sample)
        pieces, of_shard = np.repeat(chunks, chunks), np.repeat(samples, chunks)
        number = np.arange(self.num_chunks) - np.repeat(self._first_chunk[:-1], chunks)
        starts = np.repeat(self._first_sample[:-1], chunks) + number * of_shard // pieces
        return np.diff(starts, append=self.num_samples)

    def spans(self, chunks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(first sample, number of samples) of each chunk."""
        shard = np.searchsorted(self._first_chunk, chunks, side="right") - 1
        number = chunks - self._first_chunk[shard]
        pieces = self._first_chunk[shard + 1] - self._first_chunk[shard]
        samples = self._first_sample[shard + 1] - self._first_sample[shard]
        start, stop = number * samples // pieces, (number + 1) * samples // pieces
        return self._first_sample[shard] + start, stop - start
