"""Summaries of many runs: medians, and ratios per round.

Reads the runs of a measurement by library. Returns for each library its median figures and, under `ratio`, the median,
lowest and highest of ours by theirs, above 1 where ours is more; or `{"failed": why}`.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.speed.costs import COSTS
from benchmarks.speed.programs import ENERGON, OURS, Figures

FIGURES = (
    "samples_per_s",
    "cpu_s_per_1000",
    "first_batch_s",
    "start_s",
    "save_s",
    "restore_s",
    "state_bytes",
    "pss_mb",
    "wall_s",
    "stalled_at_first_s",
    "stalled_share",
    "taking_share",
    "longest_wait_s",
)
"""The numbers of a run that are kept."""

Summary = dict[str, dict[str, Any]]


def summarize(runs: Mapping[str, list[Figures]]) -> Summary:
    """The summary of one measurement by library."""
    return {name: _one(name, figures, runs.get(OURS, [])) for name, figures in runs.items()}


def _one(name: str, runs: list[Figures], ours: list[Figures]) -> dict[str, Any]:
    good = [figures for figures in runs if "failed" not in figures]
    if not good:
        return {"failed": runs[0]["failed"] if runs else "not run"}
    summary: dict[str, Any] = {"ratio": {}}
    for figure in FIGURES:
        values = [figures[figure] for figures in good if figures.get(figure) is not None]
        if values:
            summary[figure] = four_digits(statistics.median(values))
        pairs = [(a.get(figure), b.get(figure)) for a, b in zip(ours, runs, strict=False)]
        ratios = [a / b for a, b in pairs if a is not None and b]
        if ratios and name != OURS:
            summary["ratio"][figure] = spread(ratios)
    for kept in ("settings", "check"):
        if kept in good[-1]:
            summary[kept] = good[-1][kept]
    failed = [figures[kind] for figures in runs for kind in ("failed", "restore_failed") if kind in figures]
    if failed:
        summary["failures"] = failed
    return summary


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest, to four digits."""
    three = statistics.median(values), min(values), max(values)
    return {key: four_digits(value) for key, value in zip(("ratio", "low", "high"), three, strict=True)}


def four_digits(value: float) -> float:
    """To four digits."""
    return float(f"{value:.4g}")


def rates_of(summaries: Mapping[str, Summary]) -> dict[str, Any]:
    """What is kept of rates: by workload and library the median, and the ratio of ours with its range."""
    found: dict[str, Any] = {}
    for at, summary in summaries.items():
        found[at] = {
            name: {"failed": one["failed"]}
            if "failed" in one
            else {"rate": one["samples_per_s"], **one["ratio"].get("samples_per_s", {})}
            for name, one in summary.items()
        }
    return found


def costs_of(summaries: Mapping[str, Summary]) -> dict[str, Any]:
    """The rows of `COSTS` that were measured: ours, what it is compared with, theirs, and the ratio with its range."""
    found = {}
    for cost in COSTS:
        ours, theirs = (summaries.get(cost.at, {}).get(name, {}) for name in (OURS, cost.other))
        if cost.figure in ours and cost.figure in theirs:
            other = "Energon" if cost.other == ENERGON else cost.other
            pair = {"ours": ours[cost.figure], "other": other, "theirs": theirs[cost.figure]}
            found[cost.label] = pair | ({} if "share of" in cost.label else theirs["ratio"].get(cost.figure, {}))
    return found
