"""Load of the slowest data-parallel rank in a step, divided by the mean load: without and with balancing.

First, micro-batches of long-tailed vision loads, 8 ranks x 4 micro-batches, in megapixels. Image sizes are log-normal
around 0.5 (sigma 1), at least 0.003 and, as processors resize images, at most a bound. Shown are the mean over the
steps, the 99th percentile with balancing, the optimum for whole micro-batches, and what is sent: micro-batches moved,
and bytes per rank (float32, 3 channels).

Then the remedy where single micro-batches are too large: the same samples, packed by `lpt_balanced`, as a task encoder
would with a buffer of 256 samples per lane.

Last, the time of one assignment, for up to 1,000 ranks x 8 micro-batches.

    python benchmarks/balance.py [--steps N] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bridge_data.plugins.sharing.assignment import assign, imbalance, least_possible, round_robin
from bridge_data.task.packers import lpt_balanced

RANKS, PER_RANK = 8, 4
BYTES = 12e6
"""Of a mega-pixel."""
BUFFER = 256

Load: TypeAlias = Callable[[np.random.Generator, int], np.ndarray]
"""The cost of a number of samples."""


def pictures(rng: np.random.Generator, count: int, most: float) -> np.ndarray:
    return np.clip(rng.lognormal(np.log(0.5), 1, count), 0.003, most)


def one(rng: np.random.Generator, count: int) -> np.ndarray:
    return pictures(rng, count, 2)


def several(rng: np.random.Generator, count: int) -> np.ndarray:
    """1 to 8 images per sample, usually few."""
    numbers = np.minimum(rng.geometric(0.45, count), 8)
    ends = np.cumsum(numbers)
    return np.add.reduceat(pictures(rng, int(ends[-1]), 1), ends - numbers)


def with_clips(rng: np.random.Generator, count: int) -> np.ndarray:
    """One sample in ten is a clip of 8 to 32 frames of 0.2 megapixels."""
    frames = np.where(rng.random(count) < 0.1, rng.integers(8, 33, count), 0)
    return np.where(frames > 0, frames * 0.2, pictures(rng, count, 1))


LOADS: dict[str, tuple[Load, int]] = {
    "1 picture a sample, 4 samples": (one, 4),
    "1 picture a sample, 1 sample": (one, 1),
    "1-8 pictures a sample, 4 samples": (several, 4),
    "1-8 pictures a sample, 2 samples": (several, 2),
    "10% clips, 4 samples": (with_clips, 4),
    "10% clips, 1 sample": (with_clips, 1),
}
"""What is in a micro-batch."""


def measure(name: str, load: Load, micro_batch_size: int, num_steps: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    count = RANKS * PER_RANK
    home = round_robin(count, RANKS)
    unbalanced, balanced, least, moved, sent = [], [], [], [], []
    for _ in range(num_steps):
        costs = load(rng, count * micro_batch_size).reshape(count, micro_batch_size).sum(1).tolist()
        made = assign(costs, RANKS)
        unbalanced.append(imbalance(home, costs))
        balanced.append(imbalance(made, costs))
        least.append(least_possible(costs, RANKS) / (sum(costs) / RANKS))
        away = [number for rank, group in enumerate(made) for number in group if number % RANKS != rank]
        moved.append(len(away) / count)
        sent.append(sum(costs[number] for number in away) * BYTES / RANKS)
    return {
        "micro-batch": name,
        "as read": statistics.mean(unbalanced),
        "balanced": statistics.mean(balanced),
        "balanced, p99": float(np.quantile(balanced, 0.99)),
        "at best": statistics.mean(least),
        "steps <= 1.05": statistics.mean(value <= 1.05 for value in balanced),
        "moved": statistics.mean(moved),
        "MB/rank": statistics.mean(sent) / 1e6,
    }


def measure_packs(name: str, load: Load, num_steps: int) -> dict[str, Any]:
    """Each micro-batch of a step is a pack from a different lane's buffer."""
    rng = np.random.default_rng(0)
    count = RANKS * PER_RANK
    home = round_robin(count, RANKS)
    unbalanced, balanced, filled = [], [], []
    capacity = 1_000 * 8  # in thousandths of a mega-pixel: more than the largest sample
    lanes: list[list[int]] = [[] for _ in range(count)]
    for _ in range(num_steps):
        for packs in lanes:
            if not packs:
                lengths = np.round(load(rng, BUFFER) * 1_000).astype(int).tolist()
                packs += [sum(lengths[number] for number in pack) for pack in lpt_balanced(lengths, capacity)]
        costs = [packs.pop() for packs in lanes]
        unbalanced.append(imbalance(home, costs))
        balanced.append(imbalance(assign(costs, RANKS), costs))
        filled.append(sum(costs) / capacity / count)
    return {
        "packs of 8 mega-pixels": name,
        "as read": statistics.mean(unbalanced),
        "balanced": statistics.mean(balanced),
        "filled": statistics.mean(filled),
    }


def measure_time(num_ranks: int, per_rank: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(5):
        costs = several(rng, num_ranks * per_rank).tolist()
        begin = time.perf_counter()
        assign(costs, num_ranks)
        seconds.append(time.perf_counter() - begin)
    return {"one assignment": f"{num_ranks} ranks x {per_rank}", "ms": 1e3 * statistics.median(seconds)}


def show(rows: list[dict[str, Any]]) -> None:
    cells = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(list(rows[0]), *cells, strict=True)]
    for line in ([*rows[0]], *cells):
        first, *others = (text.rjust(width) for text, width in zip(line, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *others]))
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    tables = [
        [measure(name, load, size, arguments.steps) for name, (load, size) in LOADS.items()],
        [
            measure_packs(name, load, arguments.steps)
            for name, load in (("1-8 pictures a sample", several), ("10% clips", with_clips))
        ],
        [measure_time(num_ranks, per_rank) for num_ranks, per_rank in ((8, 4), (128, 8), (1_000, 8))],
    ]
    for table in tables:
        show(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(tables, indent=1))


if __name__ == "__main__":
    main()
