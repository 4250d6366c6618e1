"""Workers on Ray beside local workers, on one machine: the JPEGs of `benchmarks.speed`, as many workers of each.

The cluster is a head without CPUs, to which the trainer belongs, and a node with a CPU for each worker. The trainer
takes the batches where they are, in shared memory (`Ray here`), and as if the workers were on another machine, over the
loopback device (`Ray afar`). Each run is a process, in turns; the ratio is between runs of the same round, and CPU is
that of all processes, those of the cluster included. With as many workers as cores, local workers leave nothing idle,
and what moving batches costs is taken from decoding them; with fewer, it is not.

    python -m benchmarks.ray_workers [--only photos,jpeg] [--workers 1,2] [--rounds N] [--seconds S]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.figures import ROOT
from benchmarks.speed import data

STORE_BYTES = 200 << 20
LOCAL, HERE, AFAR, LIMIT_S = "local", "Ray here", "Ray afar", 120
PROGRAM = """
import contextlib, os, sys; sys.path.insert(0, "benchmarks/peers")
import energon_tasks, measure, ours, psutil
from bridge_data import get_savable_loader
from bridge_data.plugins.ray import ray_batches
where, address = sys.argv.pop(1), sys.argv.pop(1)
if where == "Ray afar":
    ray_batches.is_on_this_machine = lambda door: False
def cpu_s():
    found = 0.0
    for process in psutil.Process(os.getppid()).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += sum(process.cpu_times()[:2])
    return found
measure.cpu_s = cpu_s
class Loader(ours.Loader):
    def __init__(self, workload, folder, workers):
        super().__init__(workload, folder, workers)
        if where != "local":
            self.loader.close()
            on_ray = {"pool": "ray", "address": address, "required": True}
            self.loader = get_savable_loader(self.loader.dataset, workers=on_ray)
        self.loader.wait_for_workers()
measure.main(Loader)
"""


def measured(where: tuple[str, str], workload: str, folder: Path, workers: int, seconds: float) -> tuple[float, float]:
    """Samples per second, and milliseconds of CPU a sample."""
    settings = ["--workload", workload, "--data", str(folder), "--workers", str(workers), "--seconds", str(seconds)]
    command = [sys.executable, "-c", PROGRAM, *where, "run", *settings]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=LIMIT_S, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    figures = json.loads(done.stdout.splitlines()[-1])
    return figures["samples_per_s"], figures["cpu_s_per_1000"]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.ray_workers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default="photos,jpeg")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--data", type=Path, default=ROOT / ".bench")
    chosen = parser.parse_args()

    from ray.cluster_utils import Cluster

    counts = [int(count) for count in chosen.workers.split(",")]
    options = {"object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False} | options)
    try:
        cluster.add_node(num_cpus=max(counts), **options)
        for workload in chosen.only.split(","):
            folder = data.make(workload, chosen.data)
            data.warm(folder)
            for count in counts:
                rounds = []
                for _ in range(chosen.rounds):
                    ways = [(way, cluster.address) for way in (LOCAL, HERE, AFAR)]
                    rounds.append([measured(way, workload, folder, count, chosen.seconds) for way in ways])
                for way, runs in zip((LOCAL, HERE, AFAR), zip(*rounds, strict=True), strict=True):
                    rate, cpu_ms = (statistics.median(column) for column in zip(*runs, strict=True))
                    ratios = [run[0] / local[0] for run, (local, *_) in zip(runs, rounds, strict=True)]
                    times = f"{statistics.median(ratios):.2f} times ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"
                    figures = f"{rate:7,.0f} samples/s, {cpu_ms:5.2f} ms of CPU a sample, {times}"
                    print(f"{workload:8} {count} workers, {way:8}: {figures}", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
