"""Chunks: runs of neighbouring samples of one shard, the unit of sequential reading and of dealing.

Enters: samples per shard, the longest chunk wanted, the number of lanes. Leaves: chunk number -> (first sample,
length), by arithmetic over per-shard prefix sums; no table of chunks exists.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MIN_CHUNKS_PER_LANE = 16
"""A lane wants at least so many chunks an epoch; where a source is too small for that, chunks shrink."""

MIN_WINDOW_CHUNKS = 32
"""A window mixes at least so many chunks, where the lane has them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """How one source is cut and dealt: fixed for a generation, part of the state.

    `num_lanes` streams share the source; a chunk has at most `chunk_size` samples; a window has `window_chunks` chunks
    or up to twice as many; the row begins with epoch `first_epoch`.
    """

    num_lanes: int
    chunk_size: int
    window_chunks: int
    first_epoch: int = 0

    @classmethod
    def choose(
        cls,
        counts: Sequence[int],
        *,
        num_lanes: int,
        max_samples_per_sequence: int | None,
        shuffle_buffer_size: int | None,
    ) -> "Geometry":
        """The geometry for shards of `counts` samples.

        Where the source is too small, windows shrink first (a lane with few chunks has one short window), then chunks
        do, at the last to one sample: any source of at least one sample feeds any number of lanes.
        """
        longest = max(counts)
        chunk_size = longest if max_samples_per_sequence is None else min(max_samples_per_sequence, longest)
        window_chunks = max(MIN_WINDOW_CHUNKS, 16 + math.ceil(2 * (shuffle_buffer_size or 0) / chunk_size))
        fitting = sum(counts) // (num_lanes * MIN_CHUNKS_PER_LANE)
        return cls(num_lanes, max(1, min(chunk_size, fitting)), window_chunks)


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
        filled = samples[samples > 0]
        shortest, longest = int((filled // chunks[samples > 0]).min()), int((-(-filled // chunks[samples > 0])).max())
        self.equal_length = longest if shortest == longest else None
        """The length of every chunk, where all are equal; None where they are not."""

    def spans(self, chunks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(first sample, number of samples) of each chunk."""
        shard = np.searchsorted(self._first_chunk, chunks, side="right") - 1
        number = chunks - self._first_chunk[shard]
        pieces = self._first_chunk[shard + 1] - self._first_chunk[shard]
        samples = self._first_sample[shard + 1] - self._first_sample[shard]
        start, stop = number * samples // pieces, (number + 1) * samples // pieces
        return self._first_sample[shard] + start, stop - start
