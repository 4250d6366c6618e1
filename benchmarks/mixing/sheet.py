"""The figures of a geometry as a Markdown table: one column per library, and the limits next to each of ours."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.mixing import statistics
from benchmarks.mixing.statistics import Figure, Layout

SMALLEST_P = 0.001
MOST_TIME = 0.03
MOST_INFLATION, MOST_INFLATION_UNEQUAL = 1.15, 1.4
UNEQUAL = 0.5
"""Chunk lengths count as very unequal if N²/Σc² is below this fraction of the number of chunks."""

Figures = Mapping[str, Figure] | str
"""Figures by measure, or why there are none."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The allowed range of a figure's mean, and its text."""

    least: float
    most: float
    text: str

    def keeps(self, figure: Figure) -> bool:
        return self.least <= figure.mean <= self.most

    @classmethod
    def below(cls, most: float) -> "Limit":
        return cls(-math.inf, most, f"≤ {most:.2f}")

    @classmethod
    def of_correlation(cls, most: float) -> "Limit":
        return cls(-most, most, f"± {most:.3f}")


def limits(figures: Mapping[str, Figure], layout: Layout, expected: float) -> dict[str, Limit]:
    """The limits for an order with fully permuted windows; `expected` is their inflation of a value per chunk.

    The mean of S correlations of positions is within 5/√(C·S), five standard deviations of that of orders that permute
    C chunks. The offset in a shard may vary as the shard itself does, as it is common to neighbours.
    """
    pairs = (statistics.BETWEEN_EPOCHS, statistics.BETWEEN_SEEDS)
    unequal = layout.num_equal_chunks < UNEQUAL * layout.num_chunks
    return {
        **{name: Limit.of_correlation(5 / math.sqrt(layout.num_equal_chunks * figures[name].count)) for name in pairs},
        statistics.CHUNK_OFFSET_TIME: Limit.of_correlation(MOST_TIME),
        statistics.SHARD_OFFSET_TIME: Limit.of_correlation(MOST_TIME),
        statistics.CHUNK_OFFSET_INFLATION: Limit.below(MOST_INFLATION_UNEQUAL if unequal else MOST_INFLATION),
        statistics.SHARD_OFFSET_INFLATION: Limit.below(MOST_INFLATION * figures[statistics.SHARD_INFLATION].mean),
        statistics.CHUNK_INFLATION: Limit(0.85 * expected, 1.15 * expected, f"{expected:.2f} ± 15%"),
        statistics.FIRST_POSITION_P: Limit(SMALLEST_P, 1, f"≥ {SMALLEST_P:g}"),
        statistics.FIRST_OFFSET_P: Limit(SMALLEST_P, 1, f"≥ {SMALLEST_P:g}"),
    }


def table(columns: Mapping[str, Figures], limits_of: Mapping[str, Mapping[str, Limit]]) -> str:
    """Rows: measures; columns: libraries, those with limits followed by them. A figure beyond its limit is bold."""
    measures = next(iter(figures for figures in columns.values() if not isinstance(figures, str)))
    headings = ["measure"]
    for library in columns:
        headings += [library, "limit"] if library in limits_of else [library]
    lines = [headings, ["---"] * len(headings)]
    for measure in measures:
        line = [measure]
        for library, figures in columns.items():
            limit = limits_of.get(library, {}).get(measure)
            line.append(_cell(measure, figures, limit))
            if library in limits_of:
                line.append(limit.text if limit else "")
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(measure: str, figures: Figures, limit: Limit | None) -> str:
    if isinstance(figures, str):
        return figures
    if measure not in figures:
        return ""
    figure = figures[measure]
    digits = 3 if abs(figure.mean) < 2 else 2
    spread = "" if math.isnan(figure.error) else f" ± {figure.error:.{digits}f}"
    text = f"{figure.mean:.{digits}f}"
    if measure.startswith("first sample"):
        text = f"{figure.mean:.2f}" if figure.mean >= 0.01 else f"{figure.mean:.0e}"
        spread = f" ({figure.count} seeds)"
    return (text if limit is None or limit.keeps(figure) else f"**{text}**") + spread
