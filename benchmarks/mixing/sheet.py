"""The figures of a geometry as a Markdown table, each beside the limit that a good order keeps, where there is one."""

import math
from collections.abc import Mapping

from benchmarks.mixing import statistics
from benchmarks.mixing.orders import BATCH, BUFFER, NUM_LANES, Geometry
from benchmarks.mixing.statistics import RUN, Figure

SMALLEST_P = 0.001
Figures = Mapping[str, Figure] | str
"""Figures by measure, or why there are none."""


def chunk_lengths(geometry: Geometry) -> list[int]:
    """Samples of each chunk as `max_samples_per_sequence` cuts them."""
    size = geometry.chunk or max(geometry.counts)
    return [min(size, count - first) for count in geometry.counts for first in range(0, count, size)]


def correlation_limit(geometry: Geometry, pairs: int) -> float:
    """5/√(C·S): five standard deviations of the mean of S correlations between permutations of C whole chunks.

    C = N²/Σc², the number of chunks of c samples, where unequal ones count less.
    """
    lengths = chunk_lengths(geometry)
    chunks = sum(lengths) ** 2 / sum(length**2 for length in lengths)
    return 5 / math.sqrt(chunks * pairs)


def inflation_limit(geometry: Geometry, group: int) -> float:
    """1 + (B−1)·Σm(m−1)/(W(W−1)): a batch of B out of a fully permuted window of W samples, m of each group.

    W is 64 chunks, at least 1,024 samples, at most what a lane has of an epoch: small data has few groups a lane.
    """
    lengths = chunk_lengths(geometry)
    chunk = sum(length**2 for length in lengths) / sum(lengths)
    window = min(sum(lengths) / NUM_LANES, max(BUFFER, 1_024, 64 * chunk))
    return 1 + (BATCH - 1) * (min(group, chunk) - 1) / (window - 1)


def limit(measure: str, geometry: Geometry, count: int) -> float | None:
    """What the figure of a good order does not go beyond; a p-value stays above it."""
    if measure in (statistics.FIRST_POSITION_P, statistics.FIRST_OFFSET_P):
        return SMALLEST_P
    if measure.startswith("correlation"):
        return correlation_limit(geometry, count)
    if measure == statistics.RUN_INFLATION:
        return inflation_limit(geometry, RUN)
    if measure == statistics.SHARD_INFLATION:
        return inflation_limit(geometry, max(geometry.counts))
    return None


def keeps_limit(measure: str, figure: Figure, bound: float | None) -> bool:
    """Whether a figure is within its limit, two standard errors of an inflation allowed."""
    if bound is None:
        return True
    if measure.startswith("correlation"):
        return abs(figure.mean) <= bound
    if measure.startswith("inflation"):
        return figure.mean - 2 * (0.0 if math.isnan(figure.error) else figure.error) <= bound
    return figure.mean >= bound


def table(geometry: Geometry, columns: Mapping[str, Figures]) -> str:
    """Rows: measures; columns: libraries. A figure beyond the limit is bold."""
    measured = next(figures for figures in columns.values() if not isinstance(figures, str))
    lines = [
        "| measure | limit | " + " | ".join(columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for measure, sample in measured.items():
        bound = limit(measure, geometry, sample.count)
        cells = [_cell(measure, figures, bound) for figures in columns.values()]
        lines.append(f"| {measure} | {_limit(measure, bound)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _limit(measure: str, bound: float | None) -> str:
    if bound is None:
        return ""
    return f"≥ {bound:g}" if measure.startswith("first sample") else f"≤ {bound:.2f}"


def _cell(measure: str, figures: Figures, bound: float | None) -> str:
    if isinstance(figures, str):
        return figures
    figure = figures[measure]
    digits = 3 if abs(figure.mean) < 2 else 2
    spread = "" if math.isnan(figure.error) else f" ± {figure.error:.{digits}f}"
    text = f"{figure.mean:.{digits}f}"
    if measure.startswith("first sample"):
        text = f"{figure.mean:.2f}" if figure.mean >= 0.01 else f"{figure.mean:.0e}"
        spread = f" ({figure.count} seeds)"
    return (text if keeps_limit(measure, figure, bound) else f"**{text}**") + spread
