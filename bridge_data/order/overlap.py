"""How far epochs overlap: lanes draw at equal rates, but their shares of an epoch differ where chunks do.

A lane that is through with its share of an epoch goes on with the next. So N draws of a job, where an epoch has N
samples, are not exactly one epoch: as many samples of the next are among them as there are of this one left.

Enters: the chunks of a source, the number of lanes. Leaves: how far shares differ, and how many draws overlap.
Guarantee: the bounds hold for every seed; they follow from the lengths of the chunks and how many a lane has.
"""

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from bridge_data.order.chunks import ChunkTable


@dataclasses.dataclass(frozen=True, slots=True)
class Overlap:
    """Of the first epochs, each of which permutes the chunks anew.

    A lane has `fewest` to `most` of their samples. When the lanes have drawn equally many samples, in all those of
    these epochs, then at most `most_repeats` draws are of a later epoch, and as many samples are still to come; over
    seeds, `mean_repeats` on the average. `share_std` is the standard deviation of a lane's share.
    """

    fewest: int
    most: int
    most_repeats: int
    mean_repeats: float
    share_std: float


def overlap(chunks: ChunkTable, num_lanes: int, num_epochs: int = 1) -> Overlap:
    """How far the first epochs overlap with later ones. Of `most_repeats`: lanes that have more than an equal share
    have at most as many of the longest chunks as they have chunks. Means take sums of chunks as normally distributed.
    """
    lengths, counts = chunks.counts_by_length()
    num_chunks, num_samples = chunks.num_chunks * num_epochs, chunks.num_samples * num_epochs
    least, num_longer = divmod(num_chunks, num_lanes)  # the chunks of a lane; how many lanes have one more
    ends = np.concatenate(([0], np.cumsum(counts * num_epochs)))
    sums = np.concatenate(([0], np.cumsum(counts * lengths * num_epochs)))

    def of_shortest(number: NDArray[np.int64]) -> NDArray[np.int64]:
        """Samples in so many of the shortest chunks."""
        at = np.minimum(np.searchsorted(ends, number, side="right") - 1, len(lengths) - 1)
        return np.asarray(sums[at] + (number - ends[at]) * lengths[at])

    lanes = np.arange(1, num_lanes + 1)
    others = num_chunks - lanes * least - np.minimum(lanes, num_longer)
    surplus = num_samples - of_shortest(others) - lanes * (num_samples / num_lanes)
    fewest, rest = of_shortest(np.array([least, num_chunks - least - (num_longer > 0)]))

    mean = chunks.num_samples / chunks.num_chunks
    variance = float(np.average((lengths - mean) ** 2, weights=counts)) / max(1, chunks.num_chunks - 1)

    def std(number: int) -> float:
        """The standard deviation of the samples in so many chunks: in each epoch, drawn without replacement."""
        return math.sqrt(variance * number * max(0.0, chunks.num_chunks - number / num_epochs))

    distances = (
        group * _mean_distance(number * mean - num_samples / num_lanes, std(number))
        for group, number in ((num_longer, least + 1), (num_lanes - num_longer, least))
    )
    return Overlap(
        fewest=int(fewest),
        most=int(num_samples - rest),
        most_repeats=math.ceil(surplus.max() - 1e-6),
        mean_repeats=sum(distances) / 2,
        share_std=std(least),
    )


def _mean_distance(mean: float, std: float) -> float:
    """The mean distance from 0 of a normally distributed number."""
    if not std:
        return abs(mean)
    spread = std * math.sqrt(2 / math.pi) * math.exp(-(mean**2) / (2 * std**2))
    return spread + mean * math.erf(mean / (std * math.sqrt(2)))
