"""Workers on Ray beside local workers, on one machine: the JPEGs of `benchmarks.speed`, as many workers of each.

The cluster is a head without CPUs, to which the trainer belongs, and a node with a CPU for each worker, so every batch
goes over the loopback device. Each run is a process, in turns; the ratio is between runs of the same round. With as
many workers as cores, local workers leave nothing idle, and what moving batches costs is taken from decoding them; with
fewer, it is not.

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
LOCAL, LIMIT_S = "local", 120
PROGRAM = """
import sys; sys.path.insert(0, "benchmarks/peers")
import energon_tasks, measure, ours
from bridge_data import get_savable_loader
where = sys.argv.pop(1)
class Loader(ours.Loader):
    def __init__(self, workload, folder, workers):
        super().__init__(workload, folder, workers)
        if where != "local":
            self.loader.close()
            self.loader = get_savable_loader(self.loader.dataset, workers={"address": where, "required": True})
        self.loader.wait_for_workers()
measure.main(Loader)
"""


def rate(where: str, workload: str, folder: Path, workers: int, seconds: float) -> float:
    """Samples per second with local workers, or with those of a cluster."""
    settings = ["--workload", workload, "--data", str(folder), "--workers", str(workers), "--seconds", str(seconds)]
    command = [sys.executable, "-c", PROGRAM, where, "run", *settings]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=LIMIT_S, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    figures = json.loads(done.stdout.splitlines()[-1])
    return float(figures["samples_per_s"])


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
                pairs = []
                for _ in range(chosen.rounds):
                    local, remote = (
                        rate(where, workload, folder, count, chosen.seconds) for where in (LOCAL, cluster.address)
                    )
                    pairs.append((local, remote))
                ratio = statistics.median(remote / local for local, remote in pairs)
                local, remote = (statistics.median(column) for column in zip(*pairs, strict=True))
                rates = f"local {local:7,.0f} samples/s, Ray {remote:7,.0f}"
                ratios = ", ".join(f"{remote / local:.2f}" for local, remote in pairs)
                print(f"{workload:8} {count} workers: {rates}, {ratio:.2f} times ({ratios})", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
