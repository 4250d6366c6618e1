"""How fast a user's own pipeline is.

Reads what to measure (`BenchConfig`). Returns `Figures`, rates and costs of a run, from when workers have taken over
and have filled their queues once. Raises a BridgeDataError if data or settings are wrong.
"""

import contextlib
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from bridge_data.data import RawSample
from bridge_data.data.blocks import bytes_of
from bridge_data.lanes.datasets import training_data
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader import SavableDataLoader
from bridge_data.loader.factory import open_loader
from bridge_data.plan.opening import Data
from bridge_data.plugins.doctor.planned_run import PlannedRun
from bridge_data.run_options import MODULE_DEFAULTS, RunOptions
from bridge_data.task import TaskEncoder

_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def tree_cpu_s() -> float:
    """CPU seconds so far of this process and its live descendants."""
    total = time.process_time()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total


def num_cores() -> float:
    """The cores that this process may use; fewer than it may run on if its container has a CPU limit."""
    cores = float(len(os.sched_getaffinity(0)))
    try:
        limit = _LIMIT.read_text()
    except OSError:
        return cores
    return min(cores, allowed_cores(limit))


def allowed_cores(limit: str) -> float:
    """The cores allowed by a control group's `cpu.max`: microseconds per period of microseconds, or `max`."""
    quota, period = limit.split()
    return math.inf if quota == "max" else int(quota) / int(period)


def idle_cores_s() -> float:
    """Idle seconds so far of the cores that this process may run on, added up."""
    cores, own = psutil.cpu_times(percpu=True), os.sched_getaffinity(0)
    return sum(core.idle + core.iowait for number, core in enumerate(cores) if number in own)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Rates and costs of a run."""

    num_samples: int
    num_batches: int
    seconds: float
    cpu_s: float
    """Of all processes."""
    num_skipped: int
    sample_bytes: float
    """Mean bytes read of a sample."""
    first_batch_s: float
    """From opening the data."""
    workers_ready_s: float
    """From opening the data; until then batches come from the trainer's own process."""
    save_s: float
    state_bytes: int
    """As JSON."""
    restore_s: float
    """From opening the data to the first batch after a restore."""

    @property
    def samples_per_s(self) -> float:
        """Samples drawn per second, with those left out."""
        return self.num_samples / self.seconds

    @property
    def batches_per_s(self) -> float:
        """Batches handed out per second."""
        return self.num_batches / self.seconds

    @property
    def cpu_s_per_1000(self) -> float:
        """CPU seconds of 1,000 samples."""
        return self.cpu_s / self.num_samples * 1000 if self.num_samples else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            **dataclasses.asdict(self),
            "samples_per_s": self.samples_per_s,
            "batches_per_s": self.batches_per_s,
            "bytes_per_s": self.samples_per_s * self.sample_bytes,
            "cpu_s_per_1000_samples": self.cpu_s_per_1000,
        }


_SAVES = 10
_SIZED_SAMPLES = 64


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BenchConfig:
    """A run of the training data at `path` on one rank, for `num_batches`, or `seconds` if that is None. After each
    batch the trainer is busy for `step_s`."""

    path: Data
    options: RunOptions = MODULE_DEFAULTS
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None
    seconds: float = 10.0
    num_batches: int | None = None
    step_s: float = 0.0

    @classmethod
    def of(
        cls,
        run: PlannedRun,
        task_encoder: TaskEncoder[Any, Any, Any, Any] | None,
        seconds: float,
        *,
        with_steps: bool = False,
    ) -> Self:
        """A rank of a training run with its `task_encoder`; `with_steps` the trainer is as busy as in the run."""
        step_s = (run.batch_s or 0.0) if with_steps else 0.0
        return cls(path=run.data.path, options=run.options, task_encoder=task_encoder, seconds=seconds, step_s=step_s)

    def dataset(self) -> LaneDataset:
        """The data set, opened.

        Raises:
            ConfigError: for wrong settings.
            DatasetError: if the data cannot be opened.
        """
        return training_data(self.path, self.options.data, self.options.worker, self.task_encoder)

    def loader(self, dataset: LaneDataset) -> SavableDataLoader:
        """A loader of the data set."""
        return open_loader(dataset, self.options.loader)


@dataclasses.dataclass(slots=True)
class MeasuredBatches:
    """Counts from the measured batches; `waiting_s` and `receiving_s` are the trainer's, while it requested batches."""

    num_batches: int = 0
    num_samples: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    idle_cores_s: float = 0.0
    waiting_s: float = 0.0
    receiving_s: float = 0.0
    step_s: float = 0.0


def measure(config: BenchConfig) -> Figures:
    """The rates and costs of a run.

    Raises:
        BridgeDataError: if the data or the settings are wrong, or a hook fails too often.
    """
    start = time.perf_counter()
    with config.loader(config.dataset()) as loader:
        batches = iter(loader)
        next(batches)
        first_batch_s = time.perf_counter() - start
        loader.wait_for_workers()
        workers_ready_s = time.perf_counter() - start
        warm_up(batches, config)
        skipped_before = sum(loader.skipped.values())
        window = take_batches(loader, batches, config, lambda batch: None)
        num_skipped = sum(loader.skipped.values()) - skipped_before
        save_s, state = _save(loader)
    return Figures(
        num_samples=window.num_samples,
        num_batches=window.num_batches,
        seconds=window.seconds,
        cpu_s=window.cpu_s,
        num_skipped=num_skipped,
        sample_bytes=_mean_bytes(config.dataset().raw_samples(_SIZED_SAMPLES)),
        first_batch_s=first_batch_s,
        workers_ready_s=workers_ready_s,
        save_s=save_s,
        state_bytes=len(json.dumps(state)),
        restore_s=_restore(config, state),
    )


def _mean_bytes(samples: Sequence[RawSample]) -> float:
    """The mean number of bytes read of these samples."""
    members = [member for sample in samples for member in sample.made_of if member is not None]
    return sum(len(bytes_of(content)) for member in members for content in member.parts.values()) / len(samples)


def warm_up(batches: Iterator[Any], config: BenchConfig) -> None:
    """Take as many batches as workers prefetch."""
    for _ in range(max(2, config.options.worker.num_workers * config.options.loader.prefetch_factor)):
        next(batches)


def take_batches(
    loader: SavableDataLoader, batches: Iterator[Any], config: BenchConfig, note: Callable[[Any], None]
) -> MeasuredBatches:
    """Take batches for as long as `config` says, and pass each to `note`."""
    window = MeasuredBatches()
    draws_before, cpu_before, idle_before = _draws(loader), tree_cpu_s(), idle_cores_s()
    start = now = time.perf_counter()
    while now - start < config.seconds if config.num_batches is None else window.num_batches < config.num_batches:
        cpu = time.thread_time()
        batch = next(batches)
        computed_s, asked_s = time.thread_time() - cpu, time.perf_counter() - now
        window.receiving_s += computed_s
        window.waiting_s += max(0.0, asked_s - computed_s)
        window.num_batches += 1
        note(batch)
        del batch
        if config.step_s:
            step_start = time.perf_counter()
            time.sleep(config.step_s)
            window.step_s += time.perf_counter() - step_start
        now = time.perf_counter()
    window.seconds, window.cpu_s = now - start, tree_cpu_s() - cpu_before
    window.idle_cores_s = idle_cores_s() - idle_before
    window.num_samples = _draws(loader) - draws_before
    return window


def _draws(loader: SavableDataLoader) -> int:
    """Samples drawn for the batches handed out so far."""
    return sum(lane.get("draws", 0) for lane in loader.save_state_rank()["lanes"].values())


def _save(loader: SavableDataLoader) -> tuple[float, dict[str, Any]]:
    """The fewest seconds of a save, and the state."""
    seconds = []
    for _ in range(_SAVES):
        start = time.perf_counter()
        state = loader.save_state_rank()
        seconds.append(time.perf_counter() - start)
    return min(seconds), state


def _restore(config: BenchConfig, state: dict[str, Any]) -> float:
    """Seconds from opening the data to the first batch after `state`."""
    start = time.perf_counter()
    with config.loader(config.dataset()) as loader:
        loader.restore_state_rank(state)
        next(iter(loader))
        return time.perf_counter() - start
