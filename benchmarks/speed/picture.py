"""The result as a plot: rates with two workers by workload, and how far each target is reached."""

from pathlib import Path
from typing import Any

from benchmarks.speed.programs import OURS, PEERS
from benchmarks.speed.summary import median
from benchmarks.speed.workloads import WORKLOADS

COLOURS = ("#1f5fbf", "#7a7a7a", "#c98a2b", "#5a9e6f", "#b0524f", "#8468a8", "#4aa3b5")


def draw(document: dict[str, Any], file: Path) -> None:
    """Write the picture as PNG; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(11, 11), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[1, 1.2])
    _rates(above.subplots(), document)
    _targets(below.subplots(), document["targets"])
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _rates(axes: Any, document: dict[str, Any]) -> None:
    names = [name for name in WORKLOADS if f"{name}/2" in document["results"]]
    libraries = [OURS, *PEERS]
    width = 0.8 / len(libraries)
    for column, library in enumerate(libraries):
        values = [median(document["results"][f"{name}/2"], library, "samples_per_s") or 0 for name in names]
        at = [number + (column - len(libraries) / 2) * width for number in range(len(names))]
        axes.bar(at, values, width, label=library, color=COLOURS[column % len(COLOURS)])
    axes.set_yscale("log")
    axes.set_xticks(range(len(names)), names)
    axes.set_title(f"samples (packs) a second with 2 workers, {document['machine']}", fontsize=10)
    axes.margins(y=0.2)
    axes.legend(fontsize=7, ncols=len(libraries), loc="upper center")
    axes.grid(axis="y", alpha=0.3)


def _targets(axes: Any, rows: list[dict[str, Any]]) -> None:
    """The reached share of each target, cut at four times it."""
    rows = [row for row in reversed(rows) if row["value"] is not None]
    shares = []
    for row in rows:
        value, target = row["value"], row["target"]
        shares.append(min(4.0, value / target if row["wanted"] == "≥" else target / value if value else 4.0))
    axes.barh(range(len(rows)), shares, color=["#5a9e6f" if row["met"] else "#b0524f" for row in rows])
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [f"{row['label']} {row['wanted']} {row['target']:g}" for row in rows], fontsize=7)
    axes.set_title("how far the targets are reached: 1 is the target, longer is better", fontsize=10)
