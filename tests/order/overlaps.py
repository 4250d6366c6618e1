"""How far epochs overlap, as `docs/order.md` says: the bounds for every seed, and what is typical."""

import dataclasses
import math

import numpy as np

from bridge_data.order.row import ChunkTable


@dataclasses.dataclass(frozen=True, slots=True)
class Overlap:
    """How far the first epochs of a source overlap with later ones.

    All lanes draw at the same rate, but their shares of an epoch differ if chunk lengths do, and a lane that has
    finished its share continues with the next epoch. So N draws of an epoch of N samples are not exactly that epoch: up
    to `most_repeats` of them (`mean_repeats` on average over seeds) are from a later epoch, and as many samples are
    still to come. A lane's share is `fewest` to `most` samples, with a standard deviation of `share_std` over seeds.
    """

    fewest: int
    most: int
    most_repeats: int
    mean_repeats: float
    share_std: float


def overlap(chunks: ChunkTable, num_lanes: int, num_epochs: int = 1) -> Overlap:
    """How far the first `num_epochs` epochs overlap with later ones.

    The bounds hold for every seed: a lane has at most as many of the longest (and shortest) chunks as it has chunks.
    The means approximate sums of chunk lengths by a normal distribution.
    """
    lengths, counts = chunks.counts_by_length()
    num_chunks, num_samples = chunks.num_chunks * num_epochs, chunks.num_samples * num_epochs
    least, num_longer = divmod(num_chunks, num_lanes)  # chunks per lane; number of lanes with one more
    lanes = np.arange(1, num_lanes + 1)
    others = num_chunks - lanes * least - np.minimum(lanes, num_longer)
    surplus = num_samples - chunks.least_samples(others, num_epochs) - lanes * (num_samples / num_lanes)
    fewest, rest = chunks.least_samples(np.array([least, num_chunks - least - (num_longer > 0)]), num_epochs)

    mean = chunks.num_samples / chunks.num_chunks
    variance = float(np.average((lengths - mean) ** 2, weights=counts)) / max(1, chunks.num_chunks - 1)

    def std(number: int) -> float:
        """Standard deviation of the samples in `number` chunks, drawn without replacement within each epoch."""
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
    """The mean absolute value of a normally distributed number."""
    if not std:
        return abs(mean)
    spread = std * math.sqrt(2 / math.pi) * math.exp(-(mean**2) / (2 * std**2))
    return spread + mean * math.erf(mean / (std * math.sqrt(2)))
