"""Scatter plots of orders: position in epoch 0 against epoch 1, and offset in chunk against time, per library."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.mixing import statistics
from benchmarks.mixing.statistics import Layout

POINTS, DPI, SEED = 2_500, 72, 1 << 40


def draw(streams: Mapping[str, np.ndarray], layouts: Mapping[str, Layout], title: str, file: Path) -> None:
    """Write the plots as PNG, one column per library; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    size = 2.6 * len(streams)
    figure, axes = plt.subplots(2, len(streams), figsize=(size, 5.6), layout="constrained", squeeze=False)
    samples = next(iter(layouts.values())).samples
    shown = np.random.default_rng(SEED).permutation(samples)[:POINTS]  # not the seed of an order
    for column, (library, stream) in enumerate(streams.items()):
        one, two = statistics.positions(stream, samples, 2)[:, shown]
        axes[0, column].scatter(one, two, s=1, linewidths=0)
        axes[0, column].set(title=library, xlabel="position in epoch 0", ylabel="position in epoch 1")
        axes[1, column].scatter(one, layouts[library].offset_in_chunk[shown], s=1, linewidths=0)
        axes[1, column].set(xlabel="position in epoch 0", ylabel="offset in chunk")
    figure.suptitle(f"{title}; an even cloud is a good shuffle", fontsize=10)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=DPI, metadata={"Software": None})
    plt.close(figure)
