"""Running a loader to measure it: once unchanged, and for a profile once more with a clock that observes it.

Enters: what to measure. Leaves: `Figures`, and a `Profile`. Guarantee: the measurement starts when workers have taken
over and have filled their queues once; the run that gives the figures has no clocks.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bridge_data.dataset_loaders import Data
from bridge_data.errors import ConfigError
from bridge_data.lanes.datasets import training_data
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader import SavableDataLoader
from bridge_data.loader.factory import open_loader
from bridge_data.options import check_at_least
from bridge_data.prepare.executors import Progress, no_progress
from bridge_data.run_options import RunOptions
from bridge_data.shards import RawSample
from bridge_data.shards.joined_records import JoinedRawSample
from bridge_data.shards.records import bytes_of
from bridge_data.task import TaskEncoder
from bridge_data.tools.bench.clock import BETWEEN, Clock, Clocked, Key, Tally, idle_cores_s, num_cores, tree_cpu_s
from bridge_data.tools.bench.figures import RECEIVE, SEND, Figures, Machine, Profile, Trainer

BENCH_OPTIONS = RunOptions.of(micro_batch_size=16, max_samples_per_sequence=100, num_workers=2)
"""The options of a run that is measured, or planned, unless they are given."""

_SAVES = 10
_SIZED_SAMPLES = 64
_TELL_EVERY_S = 0.5  # so that a progress bar does not slow the measured run


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BenchConfig:
    """A run of the training data at `path` on one rank, for `num_batches`, or `seconds` if that is None. After each
    batch the trainer is busy for `step_s`.

    Raises:
        ConfigError: if a number is out of range.
    """

    path: Data
    options: RunOptions = BENCH_OPTIONS
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None
    seconds: float = 10.0
    num_batches: int | None = None
    step_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ConfigError(f"seconds={self.seconds:g}: expected more than 0")
        check_at_least(self, 1, "num_batches")
        if not self.step_s >= 0:
            raise ConfigError(f"step_s={self.step_s:g}: expected 0 or more")

    def dataset(self) -> LaneDataset:
        """The data set, opened.

        Raises:
            ConfigError: for wrong settings. DatasetError: if the data cannot be opened.
        """
        return training_data(self.path, self.options.data, self.options.worker, self.task_encoder)

    def loader(self, dataset: LaneDataset) -> SavableDataLoader:
        """A loader of the data set."""
        return open_loader(dataset, self.options.loader)


@dataclasses.dataclass(slots=True)
class _Window:
    """Counts from the measured batches; `waiting_s` and `receiving_s` are the trainer's, while it requested batches."""

    num_batches: int = 0
    num_samples: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    idle_cores_s: float = 0.0
    waiting_s: float = 0.0
    receiving_s: float = 0.0
    step_s: float = 0.0


def measure(config: BenchConfig, on_progress: Progress = no_progress) -> Figures:
    """The rates and costs of a run. `on_progress` is called regularly with the measured batches or seconds, and their
    total.

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
        _warm_up(batches, config)
        skipped_before = sum(loader.skipped.values())
        window = _take(loader, batches, config, lambda batch: None, on_progress)
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


def profile(config: BenchConfig, on_progress: Progress = no_progress) -> Profile:
    """Where the time of a run goes. `on_progress` as in `measure`.

    Raises:
        BridgeDataError: if the data or the settings are wrong, or a hook fails too often.
    """
    dataset = config.dataset().observed(Clock)
    work: dict[Key, Tally] = {}
    delays_ns: list[int] = []

    def note(batch: Clocked) -> None:
        delays_ns.append(batch.delay_ns)
        for key, tally in batch.tallies.items():
            work.setdefault(key, Tally()).add(tally)

    with config.loader(dataset) as loader:
        batches = iter(loader)
        loader.wait_for_workers()
        _warm_up(batches, config)
        window = _take(loader, batches, config, note, on_progress)
    passed_s = sum(tally.wall_ns for tally in work.values()) / 1e9
    idle_s = _settle(work, window) if config.options.worker.num_workers else _settle_in_process(work, window)
    return Profile(
        work=work,
        idle_s=idle_s,
        num_workers=config.options.worker.num_workers,
        trainer=Trainer(
            seconds=window.seconds,
            waiting_s=window.waiting_s,
            receiving_s=window.receiving_s,
            step_s=window.step_s,
        ),
        machine=Machine(
            num_cores=num_cores(),
            used_cores=window.cpu_s / window.seconds,
            idle_cores=window.idle_cores_s / window.seconds,
            delayed=sum(delays_ns) / 1e9 / passed_s,
        ),
        num_samples=window.num_samples,
        num_batches=window.num_batches,
        sources=dataset.plan.sources,
    )


def _mean_bytes(samples: Sequence[RawSample]) -> float:
    """The mean number of bytes read of these samples."""
    members = [
        member
        for sample in samples
        for member in (sample.members if isinstance(sample, JoinedRawSample) else (sample,))
        if member is not None
    ]
    return sum(len(bytes_of(content)) for member in members for content in member.parts.values()) / len(samples)


def _settle(work: dict[Key, Tally], window: _Window) -> float:
    """Add the time of transfers to `work`; return the seconds in which workers waited for the trainer."""
    # Between two batches a worker computes only to send the first, and then waits until it may make the next one.
    between = work.pop(BETWEEN)
    work[Key(SEND)] = Tally(between.cpu_ns, between.calls, between.cpu_ns, between.cpu_ns)
    _enter_receiving(work, window)
    return max(0.0, (between.wall_ns - between.cpu_ns) / 1e9)


def _settle_in_process(work: dict[Key, Tally], window: _Window) -> float:
    """The same if the trainer makes the batches: all other time in a request for a batch is the loader's."""
    work.pop(BETWEEN)
    lanes_s = sum(tally.wall_ns for tally in work.values()) / 1e9
    asking_s = window.waiting_s + window.receiving_s
    window.waiting_s, window.receiving_s = 0.0, max(0.0, asking_s - lanes_s)
    _enter_receiving(work, window)
    return 0.0


def _enter_receiving(work: dict[Key, Tally], window: _Window) -> None:
    receiving_ns = round(window.receiving_s * 1e9)
    work[Key(RECEIVE)] = Tally(receiving_ns, window.num_batches, receiving_ns, receiving_ns)


def _warm_up(batches: Iterator[Any], config: BenchConfig) -> None:
    """Take as many batches as workers prefetch."""
    for _ in range(max(2, config.options.worker.num_workers * config.options.loader.prefetch_factor)):
        next(batches)


def _take(
    loader: SavableDataLoader,
    batches: Iterator[Any],
    config: BenchConfig,
    note: Callable[[Any], None],
    on_progress: Progress,
) -> _Window:
    """Take batches for as long as `config` says, and pass each to `note`."""
    window = _Window()
    draws_before, cpu_before, idle_before = _draws(loader), tree_cpu_s(), idle_cores_s()
    start = now = told = time.perf_counter()
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
        if now - told > _TELL_EVERY_S:
            told = now
            if config.num_batches is None:
                on_progress(int(now - start), math.ceil(config.seconds))
            else:
                on_progress(window.num_batches, config.num_batches)
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
