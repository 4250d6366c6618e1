"""What the ledger and `loader.metrics()` cost: CPU time of all processes with them, over that without.

Both run at the same time, as a pair, so that they have the same machine; the one that starts first alternates. Without
counting, the functions that count are replaced by ones that do nothing, in the trainer and in the workers. Text of
200 B takes the least time a sample, so counting costs the largest share there. Printed: the median of the pairs'
ratios, with the interval that 90 of 100 such medians are in, by resampling the pairs.

    python -m benchmarks.metrics_cost [--rounds 20] [--data .bench] [--json FILE]
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from bridge_data import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.lanes import lane
from bridge_data.lanes.tallies import NO_COUNTS, LaneTally
from bridge_data.loader.position import Meter

ROOT = Path(__file__).parents[1]
BATCH_SIZE = 32
CASES = {("text", 0): 4000, ("text", 2): 6000, ("jpeg", 0): 80, ("jpeg", 2): 120}
"""Workload and number of workers: how many batches are measured."""

OFF_VARIABLE = "BRIDGE_DATA_BENCH_UNCOUNTED"


def stop_counting() -> None:
    """Have this process count nothing, and sum up nothing in the ledger."""

    def unchanged(_: Any, *arguments: Any) -> Any:
        return arguments[-1]

    def nothing(*_: Any) -> None:
        return None

    LaneTally.each = Meter.timed = unchanged  # type: ignore[method-assign]
    LaneTally.note_draw = Meter.note = nothing  # type: ignore[method-assign]
    LaneTally.take = lambda *_: NO_COUNTS  # type: ignore[method-assign]
    lane.references_of = lambda *_: b""


if os.environ.get(OFF_VARIABLE):  # in a worker, too, which imports this module for the encoder
    stop_counting()


class Counted(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Leaves texts as they are, and decodes images to uint8."""

    decoder = SampleDecoder(image_decode="torchrgb8")


def run(workload: str, num_workers: int, folder: str) -> None:
    """Print the microseconds of CPU time of a sample, of this process and its workers."""
    dataset = get_train_dataset(
        Path(folder) / "tars",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        batch_size=BATCH_SIZE,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        task_encoder=Counted(),
    )
    num_batches = CASES[workload, num_workers]
    with get_savable_loader(dataset) as loader:
        batches: Iterator[Any] = iter(loader)
        next(batches)
        loader.wait_for_workers()
        for _ in range(num_batches // 4):
            next(batches)
        before = cpu_s()
        for _ in range(num_batches):
            next(batches)
        print((cpu_s() - before) / num_batches / BATCH_SIZE * 1e6, flush=True)


def cpu_s() -> float:
    """CPU seconds of this process and those that it has started."""
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        total += times.user + times.system
    return total


def pair(workload: str, num_workers: int, folder: Path, *, counted_first: bool) -> tuple[float, float]:
    """Microseconds of a sample (without, with) counting, run at the same time."""
    running = {}
    for is_counted in (counted_first, not counted_first):
        code = f"from benchmarks.metrics_cost import run; run({workload!r}, {num_workers}, {str(folder)!r})"
        running[is_counted] = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {OFF_VARIABLE: "" if is_counted else "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
    without, counted = (float(running[is_counted].communicate(timeout=600)[0]) for is_counted in (False, True))
    return without, counted


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure and print all cases."""
    from benchmarks.speed import data

    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--data", type=Path, default=ROOT / ".bench")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    print("the ledger and loader.metrics(), CPU time of all processes over that without")
    for workload, num_workers in CASES:
        folder = data.make(workload, chosen.data.absolute())
        pairs = [pair(workload, num_workers, folder, counted_first=bool(n % 2)) for n in range(chosen.rounds)]
        ratios = [counted / without for without, counted in pairs]
        medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(10_000))
        name = f"{workload}, {num_workers} workers"
        results[name] = {
            "ratio": statistics.median(ratios),
            "interval": [medians[500], medians[9500]],
            "us_per_sample": statistics.median(without for without, _ in pairs),
            "pairs": len(pairs),
        }
        print(
            f"  {name:<18} {results[name]['ratio']:.4f} ({medians[500]:.4f}–{medians[9500]:.4f}) of "
            f"{results[name]['us_per_sample']:,.1f} µs/sample, {len(pairs)} pairs",
            flush=True,
        )
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    return results


if __name__ == "__main__":
    main()
