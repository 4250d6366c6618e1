"""Numbers as geometry for inline SVG: histograms, and lines over steps.

Enters: values. Leaves: bars, points and ticks in the units of a `viewBox`; the templates draw them.
"""

import dataclasses
import math
from collections.abc import Sequence

WIDTH, HEIGHT = 640, 220
"""The `viewBox` of a chart."""

LEFT, BOTTOM, TOP = 52, 28, 10
"""Margins for the ticks."""

NUM_BINS = 24

MAX_POINTS = 600
"""Points of a line that can be followed to a step; of more steps, the largest loss of each group is kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis, at `at` units along it."""

    at: float
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class HistogramBar:
    """A bar of a histogram, and what it says."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """`values` in bins; on a scale of powers of ten if they differ by more than that."""

    title: str
    num_values: int
    summary: str
    bars: tuple[HistogramBar, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def histogram(title: str, unit: str, values: Sequence[float]) -> Histogram:
    """The histogram of at least one value."""
    ordered = sorted(values)
    least, most = ordered[0], ordered[-1]
    is_log = least > 0 and most / least > 50
    low, high = (math.log10(least), math.log10(most)) if is_log else (least, most)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    span = (high - low) * (1 + 1e-9)
    counts = [0] * NUM_BINS
    for value in ordered:
        counts[int(((math.log10(value) if is_log else value) - low) / span * NUM_BINS)] += 1
    top = max(counts)

    def shown(at: float) -> str:
        value = 10**at if is_log else at
        return number_text(value)

    step, inner = (WIDTH - LEFT) / NUM_BINS, HEIGHT - BOTTOM - TOP
    bars = []
    for number, count in enumerate(counts):
        first, last = (shown(low + span * (number + edge) / NUM_BINS) for edge in (0, 1))
        height = inner * count / top
        text = f"{count:,} from {first} to {last} {unit}"
        bars.append(HistogramBar(LEFT + number * step + 1, TOP + inner - height, step - 2, height, text))
    x_ticks = tuple(Tick(LEFT + (WIDTH - LEFT) * part / 4, shown(low + span * part / 4)) for part in range(5))
    middle = ordered[len(ordered) // 2]
    return Histogram(
        title=title,
        num_values=len(ordered),
        summary=f"{number_text(least)} to {number_text(most)} {unit}, median {number_text(middle)}",
        bars=tuple(bars),
        x_ticks=x_ticks,
        y_ticks=(Tick(TOP + inner, "0"), Tick(TOP, f"{top:,}")),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class StepPoint:
    """A step on a line."""

    x: float
    y: float
    step: int
    value: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """Values over steps; `path` is the `d` of an SVG path."""

    points: tuple[StepPoint, ...]
    path: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    num_steps: int


def step_line(values: Sequence[tuple[int, float]]) -> StepLine:
    """The line through `(step, value)`, at least one, in the sequence of steps. Of many, each group's largest value."""
    group = -(-len(values) // MAX_POINTS)
    kept = [max(values[at : at + group], key=lambda pair: pair[1]) for at in range(0, len(values), group)]
    first, last = kept[0][0], max(kept[-1][0], kept[0][0] + 1)
    low, high = min(value for _, value in kept), max(value for _, value in kept)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    inner = HEIGHT - BOTTOM - TOP - 8
    points = [
        StepPoint(
            round(LEFT + (WIDTH - LEFT - 8) * (step - first) / (last - first), 2),
            round(TOP + inner * (1 - (value - low) / (high - low)), 2),
            step,
            value,
        )
        for step, value in kept
    ]
    path = "M" + " L".join(f"{point.x:g},{point.y:g}" for point in points)
    steps = [first + (last - first) * part // 4 for part in range(5)]
    places = (LEFT + (WIDTH - LEFT - 8) * (step - first) / (last - first) for step in steps)
    return StepLine(
        points=tuple(points),
        path=path,
        x_ticks=tuple(Tick(at, f"{step:,}") for at, step in zip(places, steps, strict=True)),
        y_ticks=(Tick(TOP + inner, number_text(low)), Tick(TOP, number_text(high))),
        num_steps=len(values),
    )


def number_text(value: float) -> str:
    """`12,000`, `3.4`, `0.0012`."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
