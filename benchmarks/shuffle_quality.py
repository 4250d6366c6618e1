"""How well samples are mixed, side by side with Megatron-Energon, on the same data and settings.

Both loaders read one epoch of the same text data set (its samples numbered by their place on disk) with
`max_samples_per_sequence=100, shuffle_buffer_size=100` and batches of 32. A chunk is 100 neighbours on disk. Printed:

- same-chunk pairs: the share of pairs in a batch that come from one chunk (uniform: about 100 / samples);
- batch-mean inflation: variance of the mean of a quantity that neighbours on disk share, against that of batches drawn
  uniformly (1.0 is ideal; this is what correlated batches cost a training run);
- chunks in a batch: how many different chunks a batch of 32 has, on average;
- chunks in the poorest 1% of batches: the short tail at the end of an epoch shows here.

    python benchmarks/shuffle_quality.py --peer PYTHON_WITH_ENERGON [--json FILE]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numbers_data import write_numbers

CHUNK, BATCH = 100, 32

DRAW = """
import json, sys
if sys.argv[1] == "bridge_data":
    from bridge_data import WorkerConfig, get_loader, get_train_dataset
else:
    from megatron.energon import WorkerConfig, get_loader, get_train_dataset
config = WorkerConfig(rank=0, world_size=1, num_workers=0, seed_offset=int(sys.argv[4]))
data = get_train_dataset(sys.argv[2], worker_config=config, batch_size=None, shuffle_buffer_size=100,
                         max_samples_per_sequence=100)
taken = [int(sample.text) for sample, _ in zip(get_loader(data), range(int(sys.argv[3])))]
json.dump(taken, sys.stdout)
"""


def measure(taken: list[int], samples: int) -> dict[str, float]:
    """The measures of one drawn epoch."""
    batches = np.array(taken[: len(taken) // BATCH * BATCH]).reshape(-1, BATCH)
    chunks = batches // CHUNK
    distinct = np.array([len(np.unique(row)) for row in chunks])
    same = np.array([sum(n * (n - 1) / 2 for n in np.unique(row, return_counts=True)[1]) for row in chunks])
    rng = np.random.default_rng(0)
    inflation = []
    for _ in range(200):
        shared = rng.standard_normal(samples // CHUNK + 1)[chunks]
        inflation.append(shared.mean(axis=1).var() / (shared.var() / BATCH))
    return {
        "samples drawn": len(taken),
        "different samples": len(set(taken)),
        "same-chunk pairs, %": 100 * float(same.mean()) / (BATCH * (BATCH - 1) / 2),
        "batch-mean inflation": float(np.mean(inflation)),
        f"chunks in a batch of {BATCH}": float(distinct.mean()),
        "chunks in the poorest 1% of batches": float(np.sort(distinct)[: max(1, len(distinct) // 100)].mean()),
    }


def main() -> None:
    """Draw, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="a python that has megatron-energon")
    parser.add_argument("--shards", type=int, default=50)
    parser.add_argument("--per-shard", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    samples = arguments.shards * arguments.per_shard
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_numbers(Path(folder), samples, arguments.per_shard)
        for name, python in (("bridge_data", sys.executable), ("megatron-energon", arguments.peer)):
            runs = []
            for seed in range(arguments.seeds):
                command = [
                    python,
                    "-c",
                    DRAW,
                    name.replace("megatron-energon", "energon"),
                    folder,
                    str(samples),
                    str(seed),
                ]
                drawn = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                runs.append(measure(json.loads(drawn.splitlines()[-1]), samples))
            figures[name] = {measured: float(np.mean([run[measured] for run in runs])) for measured in runs[0]}
    ours, theirs = figures["bridge_data"], figures["megatron-energon"]
    print(f"{samples} samples in {arguments.shards} shards, one epoch, mean of {arguments.seeds} seeds")
    print(f"{'':38s}{'bridge_data':>14s}{'energon':>12s}")
    for name in ours:
        print(f"{name:38s}{ours[name]:14.2f}{theirs[name]:12.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
