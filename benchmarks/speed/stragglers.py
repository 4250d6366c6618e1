"""Samples of which 1% take a hundred times as long, beside samples that all take as long as these on average.

By sleeping: 8 workers, 5 and 500 ms, so that the cores of the machine do not matter. By computing: 2 workers, 2 and
200 ms of processor time. A worker's batches are in order in both; what differs is who has to wait.
"""

import itertools
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.speed import data
from benchmarks.speed.programs import OURS, Figures
from benchmarks.speed.rounds import Extent, Runs
from bridge_data import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset, stateless

SHARE, TIMES, BATCH = 100, 100, 32
WARM_UP = 24
"""Batches before the clock starts: workers find out how long samples take."""
MEAN = (SHARE - 1 + TIMES) / SHARE
"""What a sample takes on average, by what it usually takes."""
ALIKE, ALONE, IDEAL = "samples alike", "workers that do not help", "the ideal"


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
        seconds = self.usual_s * (MEAN if self.alike else TIMES if is_slow else 1)
        if self.computes:
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
        else:
            time.sleep(seconds)
        return {"number": int(sample.__key__[-6:])}


class Case(NamedTuple):
    """By sleeping or by computing, with so many workers."""

    name: str
    num_workers: int
    usual_s: float
    computes: bool

    def encoder(self, library: str) -> Costly:
        """What makes the samples of a run."""
        return Costly(self.usual_s, computes=self.computes, alike=library == ALIKE, alone=library == ALONE)

    @property
    def ideal(self) -> float:
        """Samples a second of workers that do nothing else and never wait."""
        return self.num_workers / (self.usual_s * MEAN)


CASES = (Case("sleeping", 8, 0.005, computes=False), Case("computing", 2, 0.002, computes=True))


def measure(extent: Extent) -> Runs:
    """The runs by sleeping and by computing."""
    folder = data.make("ten_thousand", extent.folder, extent.scale)
    results: Runs = {}
    for case in CASES:
        runs: dict[str, list[Figures]] = {OURS: [], ALIKE: [], ALONE: []}
        for _ in range(extent.other_rounds):
            for library, found in runs.items():
                times = taken_at(folder, case, library, 8 * extent.seconds)
                found.append({"samples_per_s": BATCH * len(times) / times[-1]})
                print(f"{case.name}, {library}: {found[-1]['samples_per_s']:.1f} samples a second", file=sys.stderr)
        runs[IDEAL] = [{"samples_per_s": case.ideal} for _ in runs[OURS]]
        results[f"{case.name}/{case.num_workers}"] = runs
    return results


def taken_at(folder: Path, case: Case, library: str, seconds: float) -> list[float]:
    """The seconds at which batches were taken, for so long, by a trainer that does nothing else."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=case.num_workers, num_lanes=8)
    dataset = get_train_dataset(
        str(folder / "tars"),
        worker_config=config,
        batch_size=BATCH,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        task_encoder=case.encoder(library),
    )
    with get_loader(dataset) as loader:
        loader.wait_for_workers()
        batches = iter(loader)
        for _ in itertools.islice(batches, WARM_UP):
            pass
        begin, times = time.perf_counter(), [0.0]
        while times[-1] < seconds:
            next(batches)
            times.append(time.perf_counter() - begin)
        return times[1:]
