"""What is measured beside rates: memory, starts, a cold start, imports, `prepare`, growth, an object store, two jobs.

Each function returns the runs by measurement and library; `COSTS` are the rows that are made of them.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.speed import data, object_store, shared_decode, stragglers
from benchmarks.speed.programs import ENERGON, OURS, Figures, limited, python_of, run
from benchmarks.speed.rounds import Extent, Runs, report
from benchmarks.speed.stragglers import ALIKE, ALONE, IDEAL

MEMORY_ROWS = (("text", 4, 1.0), ("jpeg", 4, 1.0), ("sources", 8, 20.0))
"""Data sets, workers, and seconds of reading: buffers of many sources fill slowly."""
WORKERS, IMPORTS, COMMAND_LIMIT_S = 2, 7, 120
BUSY_S = 3.0
IMPORTED = {
    OURS: "from bridge_data import TaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset",
    "torch": "import torch",
}
STARTED = (("text", 0.0), ("jpeg", BUSY_S))
"""Data sets, and the seconds that the trainer computes, as if it built its model, before it takes a batch."""
GROWN = {OURS: "million", "10,000 samples": "ten_thousand"}


class Cost(NamedTuple):
    """A figure of a measurement: ours, beside that of another."""

    label: str
    at: str
    other: str
    figure: str


COSTS = (
    Cost("first batch, text, 2 workers, s", "text/2", ENERGON, "first_batch_s"),
    Cost("first batch, JPEG, 2 workers, s", "jpeg/2", ENERGON, "first_batch_s"),
    Cost("first batch of a new process, its imports included, text, 2 workers, s", "start_text/2", ENERGON, "start_s"),
    Cost(f"the same, JPEG, less {BUSY_S:.0f} s that the trainer computes before", "start_jpeg/2", ENERGON, "start_s"),
    Cost("first batch after a restore, text, 2 workers, s", "text/2", ENERGON, "restore_s"),
    Cost("first batch after a restore, JPEG, 2 workers, s", "jpeg/2", ENERGON, "restore_s"),
    Cost("first batch of 10,000 cold shards, 2 workers, s", "cold/2", ENERGON, "first_batch_s"),
    Cost("imports of a training script, s", "import", "torch", "wall_s"),
    Cost("memory (PSS), 4 workers, text, MB", "text/4", ENERGON, "pss_mb"),
    Cost("memory (PSS), 4 workers, JPEG, MB", "jpeg/4", ENERGON, "pss_mb"),
    Cost("memory (PSS), 8 workers, 300 sets of JPEGs, MB", "sources/8", ENERGON, "pss_mb"),
    Cost("`prepare` of 50,000 texts, 2 workers, s", "prepare", ENERGON, "wall_s"),
    Cost("texts a second of 1,000,000, in-process", "growth/0", "10,000 samples", "samples_per_s"),
    Cost("texts a second of 1,000,000, 2 workers", "growth/2", "10,000 samples", "samples_per_s"),
    Cost("1% of samples 100 × slower, sleeping, 8 workers: samples a second", "sleeping/8", IDEAL, "samples_per_s"),
    Cost("the same, beside samples that all take as long", "sleeping/8", ALIKE, "samples_per_s"),
    Cost("the same, beside workers that do not help", "sleeping/8", ALONE, "samples_per_s"),
    Cost("1% of samples 100 × slower, computing, 2 workers: samples a second", "computing/2", IDEAL, "samples_per_s"),
    Cost("the same, computing, beside samples that all take as long", "computing/2", ALIKE, "samples_per_s"),
    Cost("S3 at 20 ms, half the local rate: CPU s of 1,000 JPEGs", "s3/2", "local shards", "cpu_s_per_1000"),
    Cost("the same: share of the time that the trainer waits for a batch", "s3/2", "local shards", "stalled_share"),
    Cost("the same: share of the time that it computes to take one", "s3/2", "local shards", "taking_share"),
    Cost("first batch of a new process from S3 at 20 ms, s", "s3/2", "local shards", "first_batch_s"),
    Cost("the same: seconds of waiting in the 2 s after it", "s3/2", "local shards", "stalled_at_first_s"),
    Cost("S3 at 100 ms, as fast as it can: JPEGs a second", "far/2", "local shards", "samples_per_s"),
    Cost("two jobs that share photos: CPU s of 1,000, each", "memo", shared_decode.APART, "cpu_s_per_1000"),
    Cost("the same: photos a second, each", "memo", shared_decode.APART, "samples_per_s"),
)


def _compared(extent: Extent) -> list[str]:
    return [OURS, *(name for name in (ENERGON,) if name in extent.peers)]


def memory(extent: Extent) -> Runs:
    """Memory of all processes."""
    results = {}
    for workload, workers, seconds in MEMORY_ROWS:
        folder = data.make(workload, extent.folder, extent.scale)
        data.warm(folder)
        runs: dict[str, list[Figures]] = {name: [] for name in _compared(extent)}
        for _ in range(extent.other_rounds):
            for name, found in runs.items():
                figures = run(name, workload, folder, workers, seconds, ["--memory"])
                report(workload, workers, name, figures)
                found.append({key: figures[key] for key in ("pss_mb", "failed") if key in figures})
        results[f"{workload}/{workers}"] = runs
    return results


def starts(extent: Extent) -> Runs:
    """The first batch of a new process: imports, data set, workers, and with a trainer that computes meanwhile."""
    results = {}
    for workload, busy_s in STARTED:
        folder = data.make(workload, extent.folder, extent.scale)
        data.warm(folder)
        runs: dict[str, list[Figures]] = {name: [] for name in _compared(extent)}
        for _ in range(extent.rounds):
            for name, found in runs.items():
                found.append(run(name, workload, folder, WORKERS, 0, ["--busy", str(busy_s)]))
                report(workload, WORKERS, name, found[-1])
        results[f"start_{workload}/{WORKERS}"] = runs
    return results


def cold(extent: Extent) -> Runs:
    """The first batch of a new process from 10,000 shards of 5 texts, after their pages are dropped from the cache."""
    folder = data.make("cold", extent.folder, extent.scale)
    runs: dict[str, list[Figures]] = {name: [] for name in _compared(extent)}
    for _ in range(extent.rounds):
        for name, found in runs.items():
            _drop_page_cache(folder)
            found.append(run(name, "cold", folder, WORKERS, 0))
            report("cold", WORKERS, name, found[-1])
    return {"cold/2": runs}


def _drop_page_cache(folder: Path) -> None:
    """Drop the pages of all files below a folder from the page cache, after writing dirty ones."""
    os.sync()
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def imports(extent: Extent) -> Runs:
    """New processes that import, and nothing else."""
    results: dict[str, list[Figures]] = {name: [] for name in IMPORTED}
    for _ in range(1 + (IMPORTS if extent.rounds > 1 else 3)):
        for name, statement in IMPORTED.items():
            results[name].append(_timed([sys.executable, "-c", statement]))
    return {"import": {name: runs[1:] for name, runs in results.items()}}  # the first may have read files from disk


def prepare(extent: Extent) -> Runs:
    """`prepare` of shards without an index, with two workers each."""
    folder = data.make("text", extent.folder, extent.scale)
    options = ["--non-interactive", "--split-ratio", "1,0,0", "--num-workers", str(WORKERS), *data.KINDS["text"]]
    commands = {OURS: [sys.executable, "-m", "bridge_data.cli"]}
    energon = python_of(ENERGON).parent / "energon"
    if ENERGON in extent.peers and energon.exists():
        commands[ENERGON] = [str(energon)]
    results: dict[str, list[Figures]] = {name: [] for name in commands}
    for _ in range(extent.rounds):
        for name, command in commands.items():
            with tempfile.TemporaryDirectory(dir=extent.folder) as copy:
                for shard in (folder / "tars").glob("*.tar"):
                    os.link(shard, Path(copy) / shard.name)
                results[name].append(_timed([*command, "prepare", copy, *options]))
    return {"prepare": results}


def _timed(command: Sequence[str]) -> Figures:
    begin = time.monotonic()
    status, _, errors = limited(command, COMMAND_LIMIT_S)
    wall = time.monotonic() - begin
    if status != 0:
        return {"failed": (errors.strip().splitlines() or [f"exit status {status}"])[-1][:200]}
    return {"wall_s": wall}


def growth(extent: Extent) -> Runs:
    """Our rate over a million texts and over ten thousand."""
    folders = {name: data.make(size, extent.folder, extent.scale) for name, size in GROWN.items()}
    for folder in folders.values():
        data.warm(folder)
    results = {}
    for workers in (0, WORKERS):
        runs: dict[str, list[Figures]] = {name: [] for name in GROWN}
        for _ in range(extent.rounds):
            for name, size in GROWN.items():
                figures = run(OURS, size, folders[name], workers, extent.seconds)
                figures.pop("check", None)
                report(size, workers, OURS, figures)
                runs[name].append(figures)
        results[f"growth/{workers}"] = runs
    return results


MEASURED: dict[str, Callable[[Extent], Runs]] = {
    "memory": memory,
    "start": starts,
    "cold": cold,
    "import": imports,
    "prepare": prepare,
    "growth": growth,
    "stragglers": stragglers.measure,
    "s3": object_store.measure,
    "memo": shared_decode.measure,
}
