"""This machine: cores, memory, process limits, decoding libraries, and whether it keeps up with the trainer.

Enters: data of the kernel and of this process's control group; for the rate, what `bridge-data bench` measures for one
rank. Leaves: a `MachineLimits`, and findings for a planned run. Guarantee: only this machine and shell are checked; the
nodes of a job may have other limits. Figures for more workers are estimates, as only the given number was measured.
"""

import dataclasses
import importlib.metadata
import math
import os
import resource
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Self

from bridge_data.decode.av import AV_EXTENSIONS
from bridge_data.plan import Source
from bridge_data.storage.locations import MAX_OPEN
from bridge_data.tools.bench import Figures
from bridge_data.tools.bench.clock import num_cores
from bridge_data.tools.doctor.planned_run import Finding, Level, PlannedRun
from bridge_data.topology import busy_workers

FILES_BESIDE = 128
"""Open files of a process besides those of data: libraries, sockets, logs."""

FILES_PER_WORKER = 4
"""Open files of a trainer for each worker: its socket, a pidfd, and the shared memory of batches in transit."""

NCCL_SHM_BYTES = 1 << 30
"""Shared memory of a container that NCCL's documentation recommends, with unlimited locked memory."""

_LIBRARIES = ("simplejpeg", "pillow", "av", "torchcodec")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_SHM = Path("/dev/shm")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """What a process may use here. `num_files` is the soft limit of open files, `max_files` the hard limit;
    `locked_bytes` is the limit of locked memory (`math.inf`: none). `shm_bytes` is the size of /dev/shm, None if there
    is none. `libraries` are decoding libraries, with their versions."""

    num_cores: float
    memory_bytes: int
    num_files: float
    max_files: float
    locked_bytes: float
    shm_bytes: int | None
    libraries: dict[str, str]

    @classmethod
    def read(cls) -> Self:
        """What this process may use of this machine."""
        files, max_files = map(_limit, resource.getrlimit(resource.RLIMIT_NOFILE))
        return cls(
            num_cores=num_cores(),
            memory_bytes=_memory_bytes(),
            num_files=files,
            max_files=max_files,
            locked_bytes=_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
            shm_bytes=_size_bytes(_SHM),
            libraries=dict(_versions()),
        )


def check_environment(environment: MachineLimits, run: PlannedRun) -> Iterator[Finding]:
    """What this machine lacks for a run with any data."""
    num_workers = run.ranks_per_node * run.num_workers
    if num_workers > environment.num_cores:
        fitting = max(1, int(environment.num_cores / run.ranks_per_node))
        yield Finding(
            code="few-cores",
            level=Level.SLOWS,
            what=f"{environment.num_cores:g} cores for {num_workers} workers: {run.ranks_per_node} ranks "
            f"× num_workers={run.num_workers}",
            change=f"set num_workers={fitting}" if fitting < run.num_workers else "give the job more cores",
            factor=num_workers / environment.num_cores,
        )
    needed = MAX_OPEN + FILES_BESIDE + FILES_PER_WORKER * run.num_workers
    if environment.num_files < needed:
        raised = f"ulimit -n {max(needed, 4096)}"
        beyond = environment.max_files < needed
        yield Finding(
            code="few-open-files",
            level=Level.SLOWS,
            what=f"a process may open {environment.num_files:g} files, of which the data would use about {needed}: "
            "shards are opened again and again, and other libraries may run out of files",
            change=f"run `{raised}` before the job"
            + (f"; the hard limit is {environment.max_files:g}, so an administrator has to" if beyond else ""),
        )
    held_bytes = run.ranks_per_node * max(1, run.num_workers) * run.options.worker.max_open_bytes
    if held_bytes > environment.memory_bytes / 2:
        share = environment.memory_bytes // (4 * run.ranks_per_node * max(1, run.num_workers)) >> 20
        yield Finding(
            code="little-memory",
            level=Level.NOTE,
            what=f"workers may hold {held_bytes / 1e9:.1f} GB of samples that were read ahead, of "
            f"{environment.memory_bytes / 1e9:.1f} GB of memory",
            change=f"set WorkerConfig(max_open_bytes={max(1, share)} << 20)",
        )
    if run.ranks_per_node > 1 and (environment.shm_bytes or 0) < NCCL_SHM_BYTES:
        yield Finding(
            code="small-dev-shm",
            level=Level.NOTE,
            what=f"/dev/shm has {(environment.shm_bytes or 0) / 1e6:.0f} MB: batches do not use it, but NCCL does "
            "between ranks of a machine",
            change="start the container with --shm-size=1g or more, or --ipc=host",
        )
    if run.num_ranks > 1 and environment.locked_bytes < math.inf:
        yield Finding(
            code="locked-memory",
            level=Level.NOTE,
            what=f"a process may lock {environment.locked_bytes / 1e6:.1f} MB of memory: nothing here locks any, but "
            "NCCL does on networks with RDMA",
            change="run `ulimit -l unlimited` before the job, or start the container with --ulimit memlock=-1",
        )


def check_codecs(environment: MachineLimits, sources: Collection[Source]) -> Iterator[Finding]:
    """Libraries that the data need and that are not installed."""
    if "av" in environment.libraries:
        return
    for source in sources:
        wanted = [name for name in _part_names(source) if name.rpartition(".")[2].lower() in AV_EXTENSIONS]
        if wanted:
            yield Finding(
                code="no-av",
                level=Level.STOPS,
                what=f"{source.name} has {', '.join(wanted)}, and PyAV is not installed",
                change='run `pip install "bridge-data[av]"`, or leave these parts out of the field map',
            )
            return


def _part_names(source: Source) -> list[str]:
    """The parts read from samples of the first shard, if an index lists them."""
    names = [
        name
        for member in source.members
        if member.records.names
        for name in member.records.part_names(0) or ()
        if member.parts is None or name in member.parts
    ]
    return sorted(set(names))


def _limit(value: int) -> float:
    return math.inf if value == resource.RLIM_INFINITY else value


def _memory_bytes() -> int:
    """The memory of the machine, or of its share for this control group."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _MEMORY_LIMIT.read_text().strip()
    except OSError:
        return total
    return total if limit == "max" else min(total, int(limit))


def _size_bytes(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def _versions() -> Iterator[tuple[str, str]]:
    for name in _LIBRARIES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


RESERVE = 1.1
"""How much faster than needed the data should be."""


def needed_batches_per_s(run: PlannedRun) -> float | None:
    """Micro-batches that a rank needs per second; None if the time of a step is not known."""
    return None if run.step_s is None else run.step_size / run.micro_batch_size / run.num_ranks / run.step_s


def samples_per_unit(figures: Figures | None, run: PlannedRun) -> float:
    """Samples drawn for each sample of a batch (with packing, for each pack), with those that filters skip."""
    if figures is None or not figures.num_samples:
        return 1.0
    return figures.num_samples / (figures.num_batches * run.micro_batch_size)


def check_rate(figures: Figures, run: PlannedRun, environment: MachineLimits) -> Iterator[Finding]:
    """Whether one rank, and all ranks of a machine together, make as many batches as the trainer needs."""
    needed = needed_batches_per_s(run)
    if needed is None or run.step_s is None:
        return
    cores = needed * figures.cpu_s / figures.num_batches * run.ranks_per_node
    of_samples = figures.num_samples / figures.num_batches
    if cores > environment.num_cores:
        yield Finding(
            code="slow-cores",
            level=Level.SLOWS,
            what=f"steps of {run.step_s:g} s need {cores:.1f} cores for the data of {run.ranks_per_node} ranks; there "
            f"are {environment.num_cores:g}",
            change="make the data cheaper (`bridge-data bench --profile` shows what costs most), or use more cores",
            gain=f"steps of {run.step_s:.3g} s instead of at least {run.step_s * cores / environment.num_cores:.3g} s",
            factor=cores / environment.num_cores,
        )
    elif figures.batches_per_s < needed:
        factor = needed / figures.batches_per_s
        lanes = run.worker_config().num_lanes // run.num_ranks
        busy = busy_workers(lanes, max(1, run.num_workers)) * factor * RESERVE
        workers = next((n for n in range(1, lanes + 1) if busy_workers(lanes, n) >= busy), math.ceil(busy))
        yield Finding(
            code="slow-data",
            level=Level.SLOWS,
            what=f"a rank makes {figures.batches_per_s * of_samples:,.0f} samples/s with num_workers={run.num_workers}"
            f", and needs {needed * of_samples:,.0f}",
            change=f"set num_workers={workers}, and measure again",
            gain=f"steps of {run.step_s:.3g} s instead of {run.step_s * factor:.3g} s, if the rate grows with them",
            factor=factor,
        )
