"""Two hundred workers killed in one run: the stream must not change, and the cost is measured.

One epoch of 20,000 samples is packed by two workers, once undisturbed and once with a random worker SIGKILLed every few
batches. Printed: whether the streams are equal, kills while a sample was processed, time per kill, and memory and file
handles over the run.

    python benchmarks/faults.py [--kills 200] [--json FILE]
"""

import argparse
import json
import logging
import os
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from numbers_data import write_numbers

from bridge_data import (
    DefaultTaskEncoder,
    LaneDataset,
    TextSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

CAPACITY, SAMPLES = 60, 20_000


class Packer(DefaultTaskEncoder[Any, Any, Any, Any]):
    """First-fit packing, with some work per sample that a kill can interrupt."""

    @stateless
    def encode_sample(self, sample: TextSample) -> TextSample:
        sum(number * number for number in range(6_000))
        return sample

    def select_samples_to_pack(self, samples: list[TextSample]) -> list[list[TextSample]]:
        packs: list[list[TextSample]] = []
        free: list[int] = []
        for sample in sorted(samples, key=length_of, reverse=True):
            first_fit = next((n for n, left in enumerate(free) if left >= length_of(sample)), len(packs))
            if first_fit == len(packs):
                packs.append([])
                free.append(CAPACITY)
            packs[first_fit].append(sample)
            free[first_fit] -= length_of(sample)
        return packs if len(packs) == 1 else packs[:-1]

    @stateless
    def pack_selected_samples(self, samples: list[TextSample]) -> list[int]:
        return [int(sample.text) for sample in samples]

    @stateless
    def batch(self, samples: list[list[int]]) -> list[list[int]]:
        return samples


def length_of(sample: TextSample) -> int:
    return 1 + int(sample.text) * 7 % 40


class Restarts(logging.Handler):
    """Counts restarts, and those of workers that were processing a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.in_flight = 0

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "restart" in message:
            self.count += 1
            self.in_flight += "on sample" in message


def make_dataset(folder: Path, num_workers: int) -> LaneDataset:
    return get_train_dataset(
        folder,
        worker_config=WorkerConfig(0, 1, num_workers, num_lanes=4),
        batch_size=2,
        packing_buffer_size=100,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=Packer(),
        repeat=False,
    )


def busy_workers() -> list[int]:
    """The grandchildren of this process (workers, forked by the server) that are running now."""
    servers = psutil.Process().children()
    return [worker.pid for server in servers for worker in server.children() if worker.status() == "running"]


def run(folder: Path, kills: int) -> tuple[list[Any], dict[str, Any]]:
    """The stream of samples with `kills` kills, and the figures."""
    rng, restarts = random.Random(0), Restarts()
    logger = logging.getLogger("bridge_data")
    logger.addHandler(restarts)
    logger.propagate = False
    trainer, stream = psutil.Process(), []
    memory, handles, gaps = [], [], []
    with get_savable_loader(make_dataset(folder, 2), max_worker_restarts=kills + 10) as loader:
        loader.wait_for_workers()
        killed, due = 0, 7
        begin = time.perf_counter()
        for batch in loader:
            stream.append(batch)
            if killed < kills and len(stream) >= due and (pids := busy_workers()):
                os.kill(rng.choice(pids), signal.SIGKILL)
                killed, due = killed + 1, len(stream) + 7
                gaps.append(-time.perf_counter())
            elif gaps and gaps[-1] < 0:
                gaps[-1] += time.perf_counter()
            if len(stream) % 50 == 0:
                memory.append(trainer.memory_info().rss / 1e6)
                handles.append(trainer.num_fds())
        seconds = time.perf_counter() - begin
    logger.removeHandler(restarts)
    return stream, {
        "kills": killed,
        "restarts": restarts.count,
        "kills with a sample in work": restarts.in_flight,
        "batches": len(stream),
        "samples": sum(len(pack) for batch in stream for pack in batch),
        "seconds": seconds,
        "next batch after a kill, ms, median": 1e3 * statistics.median(gaps) if gaps else None,
        "trainer RSS, MB, first / last": [memory[0], memory[-1]],
        "trainer file handles, first / last / most": [handles[0], handles[-1], max(handles)],
        "processes left": len(psutil.Process().children(recursive=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_numbers(folder, SAMPLES, 500)
        undisturbed, quiet = run(folder, 0)
        disturbed, figures = run(folder, arguments.kills)
    figures["stream equals the undisturbed one"] = disturbed == undisturbed
    figures["every sample exactly once"] = sorted(n for b in disturbed for p in b for n in p) == list(range(SAMPLES))
    figures["seconds undisturbed"] = quiet["seconds"]
    for name_, value in figures.items():
        print(f"{name_:44s}{value if not isinstance(value, float) else format(value, '.1f')}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    if disturbed != undisturbed:
        raise SystemExit("the streams differ")


if __name__ == "__main__":
    main()
