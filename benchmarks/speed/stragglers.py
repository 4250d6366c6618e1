"""Samples of which 1% take a hundred times as long, beside samples that all take as long as these on average.

By sleeping: 8 workers, 5 and 500 ms, so that the cores of the machine do not matter. By computing: 2 workers, 2 and
200 ms of processor time. A worker's batches are in order in both; what differs is who has to wait.
"""

import itertools
import sys
import time
from typing import Any

from benchmarks.speed import data
from benchmarks.speed.programs import OURS, Figures
from benchmarks.speed.rounds import Extent, Runs
from bridge_data import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset, stateless

SHARE, TIMES, BATCH = 100, 100, 32
WARM_UP = 24
"""Batches before the clock starts: workers find out how long samples take."""
ALIKE, ALONE = "samples alike", "workers that do not help"


class Costly(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Texts on which work takes `usual_s`, on one in a hundred a hundred times as long; or all the same, on average. If
    it is `alone`, it asks for the number of its batch, which a worker that helps does not know."""

    def __init__(self, usual_s: float, *, computes: bool, alike: bool = False, alone: bool = False) -> None:
        super().__init__()
        self.usual_s, self.computes, self.alike, self.alone = usual_s, computes, alike, alone

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if self.alone:
            self.current_batch_index  # noqa: B018 - it is asked for
        is_slow = int(sample.__key__[-6:]) % SHARE == 0
        mean = (SHARE - 1 + TIMES) / SHARE
        seconds = self.usual_s * (mean if self.alike else TIMES if is_slow else 1)
        if self.computes:
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
        else:
            time.sleep(seconds)
        return {"number": int(sample.__key__[-6:])}


def measure(extent: Extent) -> Runs:
    """The runs by sleeping and by computing."""
    folder = data.make("ten_thousand", extent.folder, extent.scale)
    results: Runs = {}
    for name, workers, usual_s, computes in (("sleeping", 8, 0.005, False), ("computing", 2, 0.002, True)):
        runs: dict[str, list[Figures]] = {OURS: [], ALIKE: [], ALONE: []}
        for _ in range(extent.other_rounds):
            for library, found in runs.items():
                encoder = Costly(usual_s, computes=computes, alike=library == ALIKE, alone=library == ALONE)
                found.append(_run(str(folder / "tars"), encoder, workers, 8 * extent.seconds))
                print(f"{name}, {library}: {found[-1]['samples_per_s']:.1f} samples a second", file=sys.stderr)
        results[f"{name}/{workers}"] = runs
    return results


def _run(folder: str, encoder: Costly, num_workers: int, seconds: float) -> Figures:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=8)
    dataset = get_train_dataset(
        folder,
        worker_config=config,
        batch_size=BATCH,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        task_encoder=encoder,
    )
    with get_loader(dataset) as loader:
        loader.wait_for_workers()
        batches = iter(loader)
        for _ in itertools.islice(batches, WARM_UP):
            pass
        begin, num_samples = time.perf_counter(), 0
        while time.perf_counter() < begin + seconds:
            num_samples += len(next(batches)["number"])
        return {"samples_per_s": num_samples / (time.perf_counter() - begin)}
