"""How many samples each side makes in a CPU second, by recipe, as shares of the bare loop."""

from pathlib import Path
from typing import Any

from benchmarks.recipes.sides import RECIPES, SIDES
from benchmarks.speed.programs import BARE


def draw(document: dict[str, Any], file: Path) -> None:
    """Write the picture as PNG; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
    bars = [(side, workers) for side in SIDES if side != BARE for workers in (0, 2)]
    width = 0.8 / len(bars)
    for column, (side, workers) in enumerate(bars):
        shares = []
        for name in RECIPES:
            loop = document["rates"][f"{name}/0"][BARE]["cpu_rate"]
            row = document["rates"].get(f"{name}/{workers}", {})
            shares.append(row.get(side, {}).get("cpu_rate", 0) / loop)
        at = [number + (column - len(bars) / 2 + 0.5) * width for number in range(len(RECIPES))]
        mode = f"{workers} workers" if workers else "in-process"
        color = plt.get_cmap("tab10")(column // 2)
        axes.bar(at, shares, width, label=f"{side}, {mode}", color=color, alpha=0.6 if workers else 1.0)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(RECIPES)), [recipe.label.replace(": ", "\n") for recipe in RECIPES.values()], fontsize=8)
    axes.set_ylabel("of the bare loop, by CPU time")
    axes.legend(fontsize=7, ncols=3)
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(file, dpi=110, metadata={"Software": None})
    plt.close(figure)
