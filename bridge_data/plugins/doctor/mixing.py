"""How well an order mixes, from some of its windows. No sample is drawn.

A batch comes from one lane, so from the chunks that this lane is reading. If the samples of a chunk resemble each
other, the means of batches vary more than those of a true permutation. The *inflation* is how many times as large their
variance is, for a value that all samples of a chunk share: 1 is a true permutation, the batch size is the worst case.

Reads the row of a source, and how many samples of a batch come from it. Returns a `Mixing`: exact if all windows of an
epoch are examined; else an estimate from at most `MAX_SAMPLES` samples in windows of several lanes.
"""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from bridge_data.order.row import ChunkTable, Row, Window

MAX_SAMPLES = 1 << 18
"""Samples whose chunks are looked up for an estimate."""

MAX_LANES = 8
"""Lanes from which windows are taken for an estimate."""


@dataclasses.dataclass(frozen=True, slots=True)
class Mixing:
    """How well the batches of a source are mixed.

    `inflation` is the variance of the mean of a batch, for a value per chunk, divided by that of a true permutation.
    `position_std` is the standard deviation, over seeds, of the correlation of positions in two epochs: 1/√C for C
    chunks of equal length, as for any order that permutes C chunks. `is_exact` unless it is an estimate.
    """

    inflation: float
    position_std: float
    is_exact: bool


def mixing_of(row: Row, chunks: ChunkTable, size: int) -> Mixing:
    """How well batches with `size` samples of a row with `chunks` are mixed."""
    known = squared_share(chunks)
    limit = min(row.num_samples, MAX_SAMPLES)
    windows = [chunks.chunk_of(samples)[0] for samples in _some_windows(row, limit)]
    is_exact = sum(map(len, windows)) == row.num_samples and row.mixes
    if not row.mixes:  # chunks are read front to back, and each batch is a window of its own
        one_after_another = np.concatenate(windows)
        windows = np.split(one_after_another, range(size, len(one_after_another), size))
    return Mixing(expected_inflation(windows, known, row.num_samples, size), known**0.5, is_exact)


def expected_inflation(windows: Iterable[NDArray[np.int64]], known: float, num_samples: int, size: int) -> float:
    """The inflation of batches of `size` out of fully permuted windows of a source of `num_samples`; each window is the
    group of each of its samples. `known` is the sum of the squared shares that the groups have of the source.

    A batch's sum of squared counts is size * (1 + (size - 1) * Σm(m-1)/(W(W-1))) on average, for a window of W
    samples with m of each group. If a window is a large part of the epoch, the mean over the epoch is known, too.
    """
    seen = mean = 0.0
    for window in windows:
        length = len(window)
        members = np.unique(window, return_counts=True)[1].astype(float)
        mean += length * (1 + (size - 1) * float((members * (members - 1)).sum()) / max(1, length * (length - 1)))
        seen += length
    of_permutation = (1 - known) / size * (num_samples - size) / max(1, num_samples - 1)
    return (mean / seen / size - known) / of_permutation if seen and of_permutation > 0 else 1.0


def squared_share(chunks: ChunkTable) -> float:
    """The sum over chunks of the squared share of all samples: 1/C for C chunks of equal length."""
    lengths, counts = chunks.counts_by_length()
    return float((counts * (lengths / chunks.num_samples) ** 2).sum())


def windows_of_epoch(row: Row) -> Iterator[NDArray[np.int64]]:
    """The samples of every window of a row's first epoch."""
    for lane in range(row.geometry.num_lanes):
        for window in _windows(row, lane):
            yield window.take(0, len(window))[1]


def _windows(row: Row, lane: int) -> Iterator[Window]:
    at: tuple[int, int] | None = (0, 0)
    while at is not None and at[0] == 0:
        if (window := row.window(lane, *at)) is not None:
            yield window
        at = row.after(lane, *at)


def _some_windows(row: Row, limit: int) -> Iterator[NDArray[np.int64]]:
    """The samples of windows of the first epoch: of all, if those are at most `limit` samples, else of the first
    windows of some lanes. A window that is too long is cut to its first samples, a random part of it."""
    if row.num_samples <= limit:
        yield from windows_of_epoch(row)
        return
    lanes = row.geometry.num_lanes
    for lane in range(0, lanes, -(-lanes // MAX_LANES)):
        left = limit // MAX_LANES
        for window in _windows(row, lane):
            samples = window.take(0, min(len(window), left))[1]
            yield samples
            left -= len(samples)
            if left <= 0:
                break
