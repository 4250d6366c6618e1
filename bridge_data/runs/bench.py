"""How fast a user's own pipeline is, and where its time goes.

Reads what to measure (`BenchConfig`). `measure` returns `Figures`, rates and costs of a run without clocks, from when
workers have taken over and have filled their queues once. `profile` runs it again with a `Clock` as the observer of the
data set; each batch carries what its process did since the batch before, so workers send nothing else to the trainer.
Every nanosecond is charged to exactly one key, so shares of the stages are of all work in all processes, and add up to
one; idle time is separate. `advise` returns a few sentences: whether the data or the trainer is the limit, what takes
most of the time, and what helps there. Raises a BridgeDataError if data or settings are wrong.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import psutil

from bridge_data import samples
from bridge_data.data import RawSample
from bridge_data.data.prepared import tars_of
from bridge_data.data.records import bytes_of
from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.errors import ConfigError, bridge_command
from bridge_data.lanes.datasets import training_data
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader import SavableDataLoader
from bridge_data.loader.factory import open_loader
from bridge_data.options import check_at_least
from bridge_data.plan import Source
from bridge_data.plan.opening import Data
from bridge_data.plan.source import distinct_names
from bridge_data.prepare.executors import Progress, no_progress
from bridge_data.run_options import MODULE_DEFAULTS, RunOptions
from bridge_data.task import STAGES, TaskEncoder

CPU_EVERY = 8
"""CPU time is read in one of this many batches: it takes several times as long to read as the time."""

_OF_SOURCES = ("read", *STAGES[: STAGES.index("postencode_sample") + 1])
"""Stages that process one sample, so one source."""

_LIMIT = Path("/sys/fs/cgroup/cpu.max")


class Key(NamedTuple):
    """The work: `read`, the name of a hook, ...; and the number of its source, if it is for one."""

    what: str
    source: int | None = None


BETWEEN = Key("between")
"""A worker's time between batches: sending the batch, and waiting until it may continue."""

LANE = Key("order")
"""The time of making a batch, except for pieces with their own keys."""


@dataclasses.dataclass(slots=True)
class Tally:
    """How long some work took, and how often it was done. In `sampled_ns` of it, this thread computed for `cpu_ns`."""

    wall_ns: int = 0
    calls: int = 0
    sampled_ns: int = 0
    cpu_ns: int = 0

    def add(self, other: Self) -> None:
        """Add another's."""
        self.wall_ns += other.wall_ns
        self.calls += other.calls
        self.sampled_ns += other.sampled_ns
        self.cpu_ns += other.cpu_ns

    @property
    def waited(self) -> float:
        """The share of its time that the thread did not compute: it waited for a disk, a network, another thread, or
        for a core that others were using."""
        return min(1.0, max(0.0, 1 - self.cpu_ns / self.sampled_ns)) if self.sampled_ns else 0.0


@dataclasses.dataclass(slots=True)
class Clocked:
    """A batch, and what its process did since the batch before."""

    batch: Any
    tallies: dict[Key, Tally]
    delay_ns: int
    """How long the process had to wait for a core."""

    def pin_memory(self) -> "Clocked":
        """A copy with the batch in page-locked memory."""
        pinned = self.batch.pin_memory() if hasattr(self.batch, "pin_memory") else samples.pin(self.batch)
        return Clocked(pinned, self.tallies, self.delay_ns)


class Clock:
    """The clock of one thread of a process: the observer of a data set with these source keys. Observed batches come as
    `Clocked`."""

    def __init__(self, source_keys: Sequence[int] = ()) -> None:
        self._numbers: dict[int | None, int] = {key: number for number, key in enumerate(source_keys)}
        self._tallies: collections.defaultdict[Key, Tally] = collections.defaultdict(Tally)
        self._current = self._tallies[BETWEEN]
        self._outer: list[Tally] = []
        self._num_batches = 0
        self._reads_cpu = True
        self._wall_ns, self._cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self._schedule = _Schedule()

    def begin_batch(self) -> None:
        self._enter(LANE)
        self._reads_cpu = self._num_batches % CPU_EVERY == 0
        self._num_batches += 1

    def end_batch(self) -> None:
        self.end()
        if not self._reads_cpu:
            self._reads_cpu, self._cpu_ns = True, time.thread_time_ns()

    def begin(self, stage: str, source_key: int | None = None) -> None:
        self._enter(Key(stage, self._numbers.get(source_key) if stage in _OF_SOURCES else None))

    def end(self) -> None:
        self._charge()
        self._current = self._outer.pop()

    def finished(self, batch: Any) -> Clocked:
        return Clocked(batch, self.take(), self.take_delay_ns())

    def _enter(self, key: Key) -> None:
        self._charge()
        self._outer.append(self._current)
        self._current = self._tallies[key]
        self._current.calls += 1

    def take(self) -> dict[Key, Tally]:
        """The time charged since the last call. Call it outside all pieces of work."""
        assert not self._outer
        taken = self._tallies
        self._tallies = collections.defaultdict(Tally)
        self._current = self._tallies[BETWEEN]
        return dict(taken)

    def take_delay_ns(self) -> int:
        """How long since the last call the thread was ready to compute and no core was free for it."""
        return self._schedule.take_delay_ns()

    def _charge(self) -> None:
        current, now_ns = self._current, time.perf_counter_ns()
        passed_ns = now_ns - self._wall_ns
        current.wall_ns += passed_ns
        self._wall_ns = now_ns
        if self._reads_cpu:
            cpu_ns = time.thread_time_ns()
            current.sampled_ns += passed_ns
            current.cpu_ns += cpu_ns - self._cpu_ns
            self._cpu_ns = cpu_ns


class _Schedule:
    """The kernel's accounting of this thread, if it has any."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        with contextlib.suppress(OSError):
            self._file = open("/proc/thread-self/schedstat", "rb", buffering=0)  # noqa: SIM115 - for as long as this is
        self._delay_ns = 0
        self.take_delay_ns()

    def take_delay_ns(self) -> int:
        if self._file is None:
            return 0
        self._file.seek(0)
        delay_ns = int(self._file.read().split()[1])
        taken, self._delay_ns = delay_ns - self._delay_ns, delay_ns
        return taken


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


PROFILE_STAGES: Mapping[str, Sequence[str]] = {
    "read": ("read",),
    "decode": ("decode",),
    "cook": ("cook_crude_sample",),
    "encode": ("encode_sample", "preencode_sample", "postencode_sample"),
    "pack": ("select_samples_to_pack", "pack_selected_samples"),
    "batch": ("batch_group_criterion", "batch", "encode_batch"),
    "seed": ("seed",),
    "order": (LANE.what,),
    "transfer": ("transfer",),
}
"""The stages of the profile, and the work in each, by the first word: `seed encode_sample` is in `seed`."""

SEND, RECEIVE = "transfer send", "transfer receive"
"""Transferring a batch, at the worker's and at the trainer's end."""

_STAGE_OF = {what: stage for stage, parts in PROFILE_STAGES.items() for what in parts}


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


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """Seconds of one stage, over all processes; `waited` is the share of them without computing."""

    name: str
    seconds: float
    share: float
    waited: float


@dataclasses.dataclass(frozen=True, slots=True)
class SourceStages:
    """Seconds of the stages that process single samples of one data set; `share` is of all work."""

    number: int
    name: str
    num_samples: int
    seconds: dict[str, float]
    share: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """How the trainer spent its time: waiting for workers, receiving their batches, or in its own step."""

    seconds: float
    waiting_s: float
    receiving_s: float
    step_s: float

    @property
    def waiting(self) -> float:
        """The share of its time that it waits for batches."""
        return self.waiting_s / self.seconds


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The number of cores, the mean numbers used by the run and idle; and the share of time in which its workers
    (without workers, the trainer) were ready to compute and had to wait for a core."""

    num_cores: float
    used_cores: float
    idle_cores: float
    delayed: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Where the time of a run went: `work` by kind and source, and the time in which workers waited for the trainer
    (`idle_s`) or it for them."""

    work: Mapping[Key, Tally]
    idle_s: float
    num_workers: int
    trainer: Trainer
    machine: Machine
    num_samples: int
    num_batches: int
    sources: Sequence[Source]

    @functools.cached_property
    def total_s(self) -> float:
        """Seconds of all work."""
        return sum(tally.wall_ns for tally in self.work.values()) / 1e9

    @functools.cached_property
    def stages(self) -> list[Stage]:
        """The stages that took any time, in the order of the pipeline."""
        tallies: dict[str, Tally] = {name: Tally() for name in PROFILE_STAGES}
        for key, tally in self.work.items():
            tallies[stage_of(key)].add(tally)
        return [
            Stage(name, tally.wall_ns / 1e9, tally.wall_ns / 1e9 / self.total_s, tally.waited)
            for name, tally in tallies.items()
            if tally.wall_ns
        ]

    @functools.cached_property
    def by_source(self) -> list[SourceStages]:
        """The cost of each data set, the largest share first."""
        seconds: list[dict[str, float]] = [{} for _ in self.sources]
        counts, total_s = [0] * len(self.sources), self.total_s
        for key, tally in self.work.items():
            if key.source is not None:
                stage = stage_of(key)
                seconds[key.source][stage] = seconds[key.source].get(stage, 0.0) + tally.wall_ns / 1e9
                counts[key.source] += tally.calls if stage == "read" else 0
        found = [
            SourceStages(
                number,
                name,
                count,
                {stage: own[stage] for stage in PROFILE_STAGES if stage in own},
                sum(own.values()) / total_s,
            )
            for number, (name, count, own) in enumerate(zip(distinct_names(self.sources), counts, seconds, strict=True))
        ]
        return sorted(found, key=lambda source: source.share, reverse=True)

    @property
    def busy(self) -> float:
        """The share of the workers' time in which they work."""
        work_s = self.total_s - self.trainer.receiving_s
        return work_s / (work_s + self.idle_s) if work_s else 0.0

    def whats(self, stage: str) -> dict[str, float]:
        """Seconds of the work in a stage, by name, the largest first."""
        seconds: dict[str, float] = {}
        for key, tally in self.work.items():
            if stage_of(key) == stage:
                seconds[key.what] = seconds.get(key.what, 0.0) + tally.wall_ns / 1e9
        return dict(sorted(seconds.items(), key=lambda pair: pair[1], reverse=True))

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "num_samples": self.num_samples,
            "num_batches": self.num_batches,
            "num_workers": self.num_workers,
            "machine": dataclasses.asdict(self.machine),
            "trainer": dataclasses.asdict(self.trainer),
            "workers": {"work_s": self.total_s, "idle_s": self.idle_s},
            "stages": [dataclasses.asdict(stage) | {"parts": self.whats(stage.name)} for stage in self.stages],
            "sources": [dataclasses.asdict(source) for source in self.by_source],
        }


def stage_of(key: Key) -> str:
    """The stage of some work."""
    return _STAGE_OF[key.what.partition(" ")[0]]


KEEPS_UP = 0.05
"""A trainer that waits for less than this share of its time is not held up by its data."""

_ALL_CORES = 0.85
"""A machine that computes for this share of its time has no capacity for another worker."""

_CROWDED = 0.2
"""A process is held up if it waits for a core for this share of its time while others use this much of a core."""

_MOSTLY = 0.5


def advise(profile: Profile) -> list[str]:
    """The advice, as sentences."""
    if not profile.total_s:
        return []
    return [*_limit(profile), *_greatest(profile), *_workers(profile)]


def _limit(profile: Profile) -> Iterator[str]:
    trainer = profile.trainer
    if not profile.num_workers:
        yield "The trainer does all of this itself, between its steps."
    elif trainer.step_s and trainer.waiting < KEEPS_UP:
        yield (
            f"The data keep up with these steps: the trainer waits {trainer.waiting:.0%} of its time, workers work "
            f"{profile.busy:.0%} of theirs. Faster data would not make training faster."
        )
    elif trainer.step_s:
        yield f"The data hold the trainer up: it waits {trainer.waiting:.0%} of its time."


def _keeps_up(profile: Profile) -> bool:
    trainer = profile.trainer
    return bool(profile.num_workers and trainer.step_s and trainer.waiting < KEEPS_UP)


def _greatest(profile: Profile) -> Iterator[str]:
    """The largest stage of the work, and what helps there."""
    if _keeps_up(profile):
        return
    stage = max(profile.stages, key=lambda stage: stage.share)
    where, source = "", _source_of(profile, stage.name)
    if source is not None and len(profile.sources) > 1:
        where = f", most of it for {source.name}"
    yield f"{stage.name} takes {stage.share:.0%} of the work{where}. {_help(profile, stage.name, source, stage.waited)}"


def _source_of(profile: Profile, stage: str) -> SourceStages | None:
    """The data set that takes more than half of a stage."""
    total_s = sum(profile.whats(stage).values())
    return next((s for s in profile.by_source if s.seconds.get(stage, 0.0) > _MOSTLY * total_s), None)


def _help(profile: Profile, stage: str, source: SourceStages | None, waited: float) -> str:
    """What helps if `stage` is the largest."""
    if stage == "read":
        return _help_reading(profile, source, waited)
    if stage == "decode":
        sources = profile.sources if source is None else [profile.sources[source.number]]
        if any(map(_has_images, sources)):
            return (
                "If the images are made smaller later, SampleDecoder(image_size=..., resize='torch', dct_scaling=True) "
                "does it while it decodes, faster, with pixels that differ a little."
            )
        return "Only what the field map names, or the cooker asks for, is decoded: leave out what is not needed."
    if stage == "seed":
        hooks = [what.removeprefix("seed ") for what in profile.whats(stage) if what != "seed"]
        return f"Mark hooks that draw no random numbers as @stateless: {', '.join(hooks)}."
    if stage == "transfer":
        batch_ms = sum(profile.whats(stage).values()) / profile.num_batches * 1000
        return (
            f"A batch costs {batch_ms:.2f} ms there: a larger batch_size costs less for a sample; uint8, converted on "
            "the device, less for a pixel than float32."
        )
    if stage == "order":
        return "That is the fixed cost of handling samples: they, or the data set, are small."
    hook = next(iter(profile.whats(stage)))
    if waited > _MOSTLY:
        return (
            f"It is {hook}, which waits {waited:.0%} of that rather than compute: more workers wait at the same time."
        )
    return f"It is {hook}: what it recomputes for the same sample in each epoch can be prepared once, with the data."


def _help_reading(profile: Profile, source: SourceStages | None, waited: float) -> str:
    if waited > _MOSTLY:
        return f"Of that, {waited:.0%} is waiting for the storage: more workers wait at the same time."
    sources = profile.sources if source is None else [profile.sources[source.number]]
    for shards in (tars_of(source.records) for source in sources):
        if shards is not None and shards.index is None:
            fix_command = bridge_command("prepare", shards.root, "--tar-index-only")
            return f"The offsets of the parts are not in an index: run `{fix_command}`."
    return "Larger chunks (max_samples_per_sequence) are read from fewer places."


def _has_images(source: Source) -> bool:
    """Whether some of the parts read are images, by their names."""
    names = source.records.reader().part_names(0) if source.records.shards else None
    wanted = [name for name in names or () if source.parts is None or name in source.parts]
    return any(name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS for name in wanted)


def _workers(profile: Profile) -> Iterator[str]:
    """Whether more or fewer workers would help."""
    machine = profile.machine
    idle = min(machine.idle_cores, machine.num_cores - machine.used_cores)
    if _keeps_up(profile):
        return
    if machine.used_cores > _ALL_CORES * machine.num_cores:
        yield f"It computes on all {machine.num_cores:g} cores: more workers would not help."
    elif profile.busy > _ALL_CORES and idle >= 1:
        more = f"try --num-workers {profile.num_workers + 1}"
        yield f"{idle:.1f} of {machine.num_cores:g} cores have nothing to do: {more}."
    elif machine.delayed > _CROWDED and machine.num_cores - machine.used_cores - machine.idle_cores > _CROWDED:
        yield (
            f"{machine.delayed:.0%} of the time goes by until a core is free, while the run uses "
            f"{machine.used_cores:.1f} of {machine.num_cores:g}: other programs are running on this machine."
        )


_SAVES = 10
_SIZED_SAMPLES = 64
_REPORT_EVERY_S = 0.5  # so that a progress bar does not slow the measured run


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BenchConfig:
    """A run of the training data at `path` on one rank, for `num_batches`, or `seconds` if that is None. After each
    batch the trainer is busy for `step_s`.

    Raises:
        ConfigError: if a number is out of range.
    """

    path: Data
    options: RunOptions = MODULE_DEFAULTS
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
            ConfigError: for wrong settings.
            DatasetError: if the data cannot be opened.
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
    idle_s = _charge_transfers(work, window) if config.options.worker.num_workers else _charge_in_process(work, window)
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
    members = [member for sample in samples for member in sample.made_of if member is not None]
    return sum(len(bytes_of(content)) for member in members for content in member.parts.values()) / len(samples)


def _charge_transfers(work: dict[Key, Tally], window: _Window) -> float:
    """Add the time of transfers to `work`; return the seconds in which workers waited for the trainer."""
    # Between two batches a worker computes only to send the first, and then waits until it may make the next one.
    between = work.pop(BETWEEN)
    work[Key(SEND)] = Tally(between.cpu_ns, between.calls, between.cpu_ns, between.cpu_ns)
    _enter_receiving(work, window)
    return max(0.0, (between.wall_ns - between.cpu_ns) / 1e9)


def _charge_in_process(work: dict[Key, Tally], window: _Window) -> float:
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
    start = now = reported = time.perf_counter()
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
        if now - reported > _REPORT_EVERY_S:
            reported = now
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
