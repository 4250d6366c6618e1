"""Measures of how well a stream of samples is mixed; a true permutation scores 0 in correlations and 1 in inflations.

Input: streams of sample numbers (numbered by their position on disk), and how many samples each shard has. What
leaves: a `Figure` for each measure.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bridge_data.order import Row
from bridge_data.order.row import ChunkTable
from bridge_data.plugins.doctor.mixing import expected_inflation, windows_of_epoch

FIRST_SHARE, LOW_OFFSETS = 0.05, 0.16
BINS = 10

BETWEEN_EPOCHS = "correlation of positions, epoch 0 and 1"
BETWEEN_SEEDS = "correlation of positions, two seeds"
CHUNK_OFFSET_TIME = "correlation of offset in chunk with time"
SHARD_OFFSET_TIME = "correlation of offset in shard with time"
CHUNK_OFFSET_INFLATION = "inflation, offset in chunk"
SHARD_OFFSET_INFLATION = "inflation, offset in shard"
CHUNK_INFLATION = "inflation, a value per chunk"
RUN_INFLATION = "inflation, a value per run"
SHARD_INFLATION = "inflation, a value per shard"
RUNS_IN_BATCH = "runs in a batch"
EARLY_LOW = "first 5% of an epoch from the first 16% of a chunk, %"
FIRST_POSITION_P = "first sample: p that its position on disk is uniform"
FIRST_OFFSET_P = "first sample: p that its offset in chunk is uniform"


@dataclass(frozen=True, slots=True)
class Figure:
    """Mean of several values, its standard error, and the number of values."""

    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure":
        error = float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        return cls(float(np.mean(values)), error, len(values))


class Layout:
    """The location of each sample on disk: shard, run and chunk, and the relative offset in shard and chunk.

    A *run* is what `run_size` samples at the most cut of a shard (None: the shard), a chunk what `chunk_size` does.
    """

    def __init__(self, counts: Sequence[int], run_size: int | None, chunk_size: int | None = None) -> None:
        longest = max(counts)
        self.samples = sum(counts)
        self.shard, self.offset_in_shard, _ = _cut(counts, longest)
        self.run, _, _ = _cut(counts, run_size or longest)
        self.chunk, self.offset_in_chunk, lengths = _cut(counts, chunk_size or run_size or longest)
        self.num_equal_chunks = self.samples**2 / float((lengths.astype(float) ** 2).sum())
        """C = N²/Σc², the number of chunks of c samples, where short ones count less."""
        self.num_chunks = len(lengths)


def _cut(counts: Sequence[int], size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(number of the piece, relative offset in it) of each sample, and the lengths of the pieces."""
    lengths = ChunkTable(counts, size).lengths()
    offsets = np.concatenate([(np.arange(length) + 0.5) / length for length in lengths])
    return np.repeat(np.arange(len(lengths)), lengths), offsets, lengths


def positions(stream: np.ndarray, samples: int, epochs: int) -> np.ndarray:
    """The position of each sample in each epoch, (epochs, samples).

    Epoch e is made of the e-th time that each sample comes, so it is whole even where a stream mixes two epochs.
    """
    by_sample = np.argsort(stream, kind="stable")
    times = np.bincount(stream, minlength=samples)
    if times.min() < epochs:
        raise ValueError(f"sample {int(times.argmin())} comes {int(times.min())} times in {epochs} epochs")
    first = np.cumsum(times) - times
    found = np.empty((epochs, samples), dtype=np.int64)
    for epoch in range(epochs):
        found[epoch, np.argsort(by_sample[first + epoch])] = np.arange(samples)
    return found


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's r."""
    return float(np.corrcoef(one, other)[0, 1])


def _of_permutation(variance: float, size: int, samples: int) -> float:
    """The variance of the mean of a batch drawn without replacement."""
    return variance / size * (samples - size) / (samples - 1)


def value_inflation(batches: np.ndarray, values: np.ndarray) -> float:
    """Variance over batches of the mean of a per-sample value, divided by that of a true permutation."""
    deviations = values[batches].mean(axis=1) - values.mean()
    return float((deviations**2).mean() / _of_permutation(values.var(), batches.shape[1], len(values)))


def group_inflation(batches: np.ndarray, groups: np.ndarray) -> float:
    """The same for a random value that each group of samples shares; the mean over all such values, in closed form."""
    size = batches.shape[1]
    shares = np.bincount(groups) / len(groups)
    members = groups[batches]
    spread = _squared_counts(members) / size**2 - 2 * shares[members].mean(axis=1) + (shares**2).sum()
    return float(spread.mean() / _of_permutation(1 - (shares**2).sum(), size, len(groups)))


def chunk_inflation_of_row(row: Row, layout: Layout, size: int) -> float:
    """What `group_inflation` gives for the chunks of `layout`, for batches of `size` out of a row's windows."""
    windows = (layout.chunk[window] for window in windows_of_epoch(row))
    known = float(((np.bincount(layout.chunk) / layout.samples) ** 2).sum())
    return expected_inflation(windows, known, layout.samples, size)


def _squared_counts(members: np.ndarray) -> np.ndarray:
    """For each row, the sum over groups of the square of how often each comes."""
    num_rows, size = members.shape
    ordered = np.sort(members, axis=1)
    begins = np.ones((num_rows, size), dtype=bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    at = np.flatnonzero(begins)
    counts = np.diff(at, append=num_rows * size)
    return np.asarray(np.bincount(at // size, counts**2, minlength=num_rows))


def distinct(batches: np.ndarray, groups: np.ndarray) -> float:
    """The mean number of different groups in a batch."""
    members = np.sort(groups[batches], axis=1)
    return float((np.diff(members, axis=1) != 0).sum(axis=1).mean() + 1)


def uniform_p(values: np.ndarray, bins: int = BINS) -> float:
    """The p-value of a chi-square test that values in [0, 1) are uniform."""
    counts = np.histogram(values, bins=bins, range=(0, 1))[0]
    expected = len(values) / bins
    statistic = float(((counts - expected) ** 2).sum() / expected)
    half = torch.tensor([(bins - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def measure(
    streams: Sequence[np.ndarray], batches: Sequence[np.ndarray], firsts: np.ndarray, layout: Layout, epochs: int
) -> Mapping[str, Figure]:
    """All measures of one library's streams and batches, one per seed; `firsts` are the first samples of many seeds."""
    orders = [positions(stream, layout.samples, epochs) for stream in streams]
    every = [order[epoch] for order in orders for epoch in range(epochs)]
    early = [order < FIRST_SHARE * layout.samples for order in every]
    figures = {
        BETWEEN_EPOCHS: Figure.of([correlation(o[e], o[e + 1]) for o in orders for e in range(epochs - 1)]),
        BETWEEN_SEEDS: Figure.of([correlation(a[e], b[e]) for a, b in _pairs(orders) for e in range(epochs)]),
        CHUNK_OFFSET_TIME: Figure.of([correlation(layout.offset_in_chunk, order) for order in every]),
        SHARD_OFFSET_TIME: Figure.of([correlation(layout.offset_in_shard, order) for order in every]),
        CHUNK_OFFSET_INFLATION: Figure.of([value_inflation(b, layout.offset_in_chunk) for b in batches]),
        SHARD_OFFSET_INFLATION: Figure.of([value_inflation(b, layout.offset_in_shard) for b in batches]),
        CHUNK_INFLATION: Figure.of([group_inflation(b, layout.chunk) for b in batches]),
        RUN_INFLATION: Figure.of([group_inflation(b, layout.run) for b in batches]),
        SHARD_INFLATION: Figure.of([group_inflation(b, layout.shard) for b in batches]),
        RUNS_IN_BATCH: Figure.of([distinct(b, layout.run) for b in batches]),
        EARLY_LOW: Figure.of([100 * float((layout.offset_in_chunk[chosen] < LOW_OFFSETS).mean()) for chosen in early]),
    }
    if len(firsts):
        figures[FIRST_POSITION_P] = Figure(uniform_p(firsts / layout.samples), float("nan"), len(firsts))
        figures[FIRST_OFFSET_P] = Figure(uniform_p(layout.offset_in_chunk[firsts]), float("nan"), len(firsts))
    return figures


def _pairs(orders: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of consecutive seeds, cyclic if there are three or more."""
    pairs = list(itertools.pairwise(orders))
    return [*pairs, (orders[-1], orders[0])] if len(orders) > 2 else pairs
