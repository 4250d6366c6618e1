"""What `loader.metrics()` and the sums of the ledger cost: CPU time with each, and with both, over that without.

Without them, the functions that count are replaced by ones that do nothing, in the trainer and in the workers; see
`turns`. Left in are two readings of a clock and an entry of a chain for each batch, some 0.3 µs. Text of 200 B takes
the least time a sample, so counting costs the largest share there.

    python -m benchmarks.metrics_cost [--rounds 100] [--data .bench] [--json FILE]
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from benchmarks.turns import ROOT, Replaced, Slices, line, measure
from bridge_data.lanes import lane
from bridge_data.lanes.lane import Lane
from bridge_data.lanes.produced import NO_COUNTS
from bridge_data.lanes.work import Work
from bridge_data.loader.metrics import Meter, Timed
from bridge_data.order.state import LoaderState

CASES = {("text", 0): 400, ("text", 2): 400, ("jpeg", 0): 4, ("jpeg", 2): 16}
"""Workload and number of workers: batches of a slice."""


def metrics() -> list[Replaced]:
    """What counts for `loader.metrics()`."""
    return [
        (Work, "note_time", lambda *_: 0),
        (Lane, "_counts", lambda *_: NO_COUNTS),
        (Meter, "note", lambda *_: None),
        (Timed, "__next__", lambda iteration: iteration._next()),
    ]


def sums() -> list[Replaced]:
    """What packs references, and sums them up."""
    return [
        (lane, "references_of", lambda *_: b""),
        (LoaderState, "settled", lambda state: dataclasses.replace(state, uncounted=None)),
    ]


def both() -> list[Replaced]:
    """Both."""
    return metrics() + sums()


VARIANTS = {"neither": both, "metrics": sums, "sums of the ledger": metrics, "both": list}
"""What is in; and what is replaced."""


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure and print all cases."""
    from benchmarks.speed import data

    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--data", type=Path, default=ROOT / ".bench")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    print("metrics and the ledger, CPU time of all processes over that without")
    for (workload, num_workers), num_batches in CASES.items():
        folder = data.make(workload, chosen.data.absolute())
        found = measure(folder, VARIANTS, Slices(num_rounds=chosen.rounds, num_batches=num_batches), num_workers)
        results[f"{workload}, {num_workers} workers"] = found
        for name in list(VARIANTS)[1:]:
            print(line(f"{workload}, {num_workers} workers, {name}", found[name], found["neither"]["us_per_sample"]))
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    return results


if __name__ == "__main__":
    main()
