"""Summaries of many runs: medians, spread, and ratios per round.

Input: the runs of `rounds` by library. Output: for each library `{"samples_per_s": {"median", "low",
"high"}, ..., "ratio": ...}`, in which `ratio` is ours by theirs, above 1 where ours is more; or `{"failed": why}`.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.speed.programs import BARE, OURS, PEERS, Figures

FIGURES = (
    "samples_per_s",
    "cpu_s_per_1000",
    "first_batch_s",
    "from_start_s",
    "import_s",
    "save_s",
    "restore_s",
    "state_bytes",
    "pss_mb",
    "wall_s",
    "stalled_share",
    "longest_wait_s",
)
"""The numbers of a run that are kept."""

Summary = dict[str, dict[str, Any]]


def summarize(runs: dict[str, list[Figures]]) -> Summary:
    """The summary of one measurement by library."""
    return {name: _one(name, figures, runs.get(OURS, [])) for name, figures in runs.items()}


def _one(name: str, runs: list[Figures], ours: list[Figures]) -> dict[str, Any]:
    good = [figures for figures in runs if "failed" not in figures]
    if not good:
        return {"failed": runs[0]["failed"] if runs else "not run"}
    summary: dict[str, Any] = {"rounds": len(good)}
    for figure in FIGURES:
        values = [figures[figure] for figures in good if figures.get(figure) is not None]
        if values:
            summary[figure] = spread(values)
    if name != OURS:
        summary["ratio"] = {}
        for figure in FIGURES:
            pairs = [(a.get(figure), b.get(figure)) for a, b in zip(ours, runs, strict=False)]
            ratios = [a / b for a, b in pairs if a is not None and b]
            if ratios:
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
    return {key: float(f"{value:.4g}") for key, value in zip(("median", "low", "high"), three, strict=True)}


def median(summary: Summary, name: str, figure: str) -> float | None:
    """A library's figure; None if there is none."""
    found = summary.get(name, {}).get(figure)
    return None if found is None else found["median"]


def ratio(summary: Summary, name: str, figure: str) -> dict[str, float] | None:
    """Ours by theirs, with its spread; None if there is none."""
    return summary.get(name, {}).get("ratio", {}).get(figure)


def best_peer(summary: Summary, without: Sequence[str] = ()) -> str | None:
    """The fastest peer."""
    rates = {name: median(summary, name, "samples_per_s") for name in PEERS if name not in (*without, BARE)}
    found = {name: rate for name, rate in rates.items() if rate is not None}
    return max(found, key=found.__getitem__) if found else None
