"""The rates with two workers as a plot, by workload."""

from pathlib import Path
from typing import Any

from benchmarks.speed.programs import OURS, PEERS, WORKLOADS


def draw(document: dict[str, Any], file: Path) -> None:
    """Write the picture as PNG; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(11, 5), layout="constrained")
    rows = {name: document["rates"][f"{name}/2"] for name in WORKLOADS if f"{name}/2" in document["rates"]}
    libraries = [OURS, *PEERS]
    width = 0.8 / len(libraries)
    for column, library in enumerate(libraries):
        values = [row.get(library, {}).get("rate", 0) for row in rows.values()]
        at = [number + (column - len(libraries) / 2) * width for number in range(len(rows))]
        axes.bar(at, values, width, label=library, color=plt.get_cmap("tab10")(column))
    axes.set_yscale("log")
    axes.set_xticks(range(len(rows)), list(rows))
    axes.set_title(f"samples (packs) a second with 2 workers, {document['machine']}", fontsize=10)
    axes.margins(y=0.2)
    axes.legend(fontsize=7, ncols=len(libraries) // 2, loc="upper center")
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(file, dpi=110, metadata={"Software": None})
    plt.close(figure)
