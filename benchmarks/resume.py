"""The cost of saving and restoring: eight lanes, with and without a packing buffer of 1,000.

Printed for 0 and 2 workers: time of `save_state_rank`, size of the state as JSON, and the time from a new loader to its
first batch, fresh and restored from a state in mid-run.

    python benchmarks/resume.py [--json FILE]
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from faults import Packer
from numbers_data import write_numbers

from bridge_data import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset

LANES, SAMPLES, ROUNDS = 8, 50_000, 7


def first_batch_ms(folder: Path, num_workers: int, packing: int | None, state: dict[str, Any] | None) -> float:
    """Milliseconds from making a data set and its loader to the first batch."""
    begin = time.perf_counter()
    with make_loader(folder, num_workers, packing) as loader:
        if state is not None:
            loader.restore_state_rank(state)
        next(iter(loader))
        return 1e3 * (time.perf_counter() - begin)


def make_loader(folder: Path, num_workers: int, packing: int | None) -> Any:
    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(0, 1, num_workers, num_lanes=LANES),
        batch_size=4,
        packing_buffer_size=packing,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=Packer() if packing else DefaultTaskEncoder(),
    )
    return get_savable_loader(dataset)


def measure(folder: Path, num_workers: int, packing: int | None) -> dict[str, Any]:
    with make_loader(folder, num_workers, packing) as loader:
        if num_workers:
            loader.wait_for_workers()
        for _ in zip(range(LANES * 12), loader, strict=False):
            pass
        saves = []
        for _ in range(100):
            begin = time.perf_counter()
            state = loader.save_state_rank()
            saves.append(1e3 * (time.perf_counter() - begin))
        sizes = [len(json.dumps(lane)) for lane in state["lanes"].values()]
    fresh, restored = [], []
    for _ in range(ROUNDS):  # in pairs, in turn
        fresh.append(first_batch_ms(folder, num_workers, packing, None))
        restored.append(first_batch_ms(folder, num_workers, packing, state))
    return {
        "workers": num_workers,
        "packing buffer": packing or 0,
        "save, ms": statistics.median(saves),
        "state, bytes": len(json.dumps(state)),
        "largest lane, bytes": max(sizes),
        "first batch fresh, ms": statistics.median(fresh),
        "first batch restored, ms": statistics.median(restored),
        "restored / fresh": statistics.median(r / f for r, f in zip(restored, fresh, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_numbers(folder, SAMPLES, 500)
        rows = [measure(folder, workers, packing) for packing in (None, 1_000) for workers in (0, 2)]
    for label in rows[0]:
        print(f"{label:28s}" + "".join(f"{row[label]:14.4g}" for row in rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
