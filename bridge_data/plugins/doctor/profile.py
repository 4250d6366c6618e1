"""Where the time of a run goes: `bridge-data plan --measure S --profile`.

Reads what to measure (`BenchConfig`), and runs it with a `Clock` as the observer of the data set. Returns a `Profile`:
the shares of the stages are of all work in all processes, and add up to one; idle time is separate. `advise` returns a
few sentences: whether the data or the trainer is the limit, what takes most of the time, and what helps there.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bridge_data.cli.terminal import table
from bridge_data.data.prepared import tars_of
from bridge_data.datamodule.trainer_loaders import distinct_names
from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.errors import bridge_command
from bridge_data.plan import Source
from bridge_data.plugins.doctor.bench import BenchConfig, Figures, MeasuredBatches, num_cores, take_batches, warm_up
from bridge_data.plugins.doctor.clock import BETWEEN, LANE, Clock, Clocked, Key, Tally

_MAX_SOURCES = 20
"""Maximum data sets shown of a profile; of a large blend, the most expensive ones."""


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
            "advice": advise(self),
        }

    def lines(self, figures: Figures) -> Iterator[str]:
        """The lines that show it; `figures` are those of the same run without clocks."""
        return shown_profile(self, figures)


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
            f"A batch costs {batch_ms:.2f} ms there: a larger micro_batch_size costs less for a sample; uint8, "
            "converted on the device, less for a pixel than float32."
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
        more = f"try num_workers={profile.num_workers + 1}"
        yield f"{idle:.1f} of {machine.num_cores:g} cores have nothing to do: {more}."
    elif machine.delayed > _CROWDED and machine.num_cores - machine.used_cores - machine.idle_cores > _CROWDED:
        yield (
            f"{machine.delayed:.0%} of the time goes by until a core is free, while the run uses "
            f"{machine.used_cores:.1f} of {machine.num_cores:g}: other programs are running on this machine."
        )


def profile(config: BenchConfig) -> Profile:
    """Where the time of a run goes.

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
        warm_up(batches, config)
        window = take_batches(loader, batches, config, note)
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


def _charge_transfers(work: dict[Key, Tally], window: MeasuredBatches) -> float:
    """Add the time of transfers to `work`; return the seconds in which workers waited for the trainer."""
    # Between two batches a worker computes only to send the first, and then waits until it may make the next one.
    between = work.pop(BETWEEN)
    work[Key(SEND)] = Tally(between.cpu_ns, between.calls, between.cpu_ns, between.cpu_ns)
    _enter_receiving(work, window)
    return max(0.0, (between.wall_ns - between.cpu_ns) / 1e9)


def _charge_in_process(work: dict[Key, Tally], window: MeasuredBatches) -> float:
    """The same if the trainer makes the batches: all other time in a request for a batch is the loader's."""
    work.pop(BETWEEN)
    lanes_s = sum(tally.wall_ns for tally in work.values()) / 1e9
    asking_s = window.waiting_s + window.receiving_s
    window.waiting_s, window.receiving_s = 0.0, max(0.0, asking_s - lanes_s)
    _enter_receiving(work, window)
    return 0.0


def _enter_receiving(work: dict[Key, Tally], window: MeasuredBatches) -> None:
    receiving_ns = round(window.receiving_s * 1e9)
    work[Key(RECEIVE)] = Tally(receiving_ns, window.num_batches, receiving_ns, receiving_ns)


def shown_profile(profile: Profile, figures: Figures) -> Iterator[str]:
    """The lines that show a profile; `figures` are those of the same run without clocks."""
    yield ""
    per_sample, per_batch = 1e6 / max(1, profile.num_samples), 1e3 / profile.num_batches
    rows = [
        [s.name, f"{s.seconds * per_sample:,.1f}", f"{s.seconds * per_batch:,.2f}", f"{s.share:.1%}", f"{s.waited:.0%}"]
        for s in profile.stages
    ]
    total_s = profile.total_s
    rows.append(["all work", f"{total_s * per_sample:,.1f}", f"{total_s * per_batch:,.2f}", "100.0%", ""])
    yield table(["stage", "µs/sample", "ms/batch", "share", "waits"], rows)
    yield ""
    trainer = profile.trainer
    if profile.num_workers:
        yield f"workers  work {profile.busy:.0%} of their time, wait for the trainer {1 - profile.busy:.0%}"
        parts = {
            "waits for batches": trainer.waiting_s,
            "receives": trainer.receiving_s,
            "does its step": trainer.step_s,
        }
        yield "trainer  " + ", ".join(f"{what} {seconds / trainer.seconds:.0%}" for what, seconds in parts.items())
    rate = profile.num_samples / trainer.seconds
    yield f"clocks   {rate:,.1f} samples/s with them, {figures.samples_per_s:,.1f} without"
    if len(profile.sources) > 1:
        yield ""
        yield _sources(profile)
    yield ""
    yield from advise(profile)


def _sources(profile: Profile) -> str:
    """Table of µs per sample of each data set, by stage."""
    stages = [stage.name for stage in profile.stages if any(stage.name in s.seconds for s in profile.by_source)]
    rows = []
    for source in profile.by_source[:_MAX_SOURCES]:
        scale = 1e6 / max(1, source.num_samples)
        times = [source.seconds[stage] * scale if stage in source.seconds else None for stage in stages]
        shown = ["" if time is None else f"{time:,.1f}" for time in times]
        every = f"{sum(source.seconds.values()) * scale:,.1f}"
        rows.append([source.name, f"{source.num_samples:,}", *shown, every, f"{source.share:.1%}"])
    shown_table = table(["data set, µs/sample", "samples", *stages, "all", "share"], rows)
    more = len(profile.sources) - len(rows)
    return shown_table + (f"\n… and {more} more that cost less" if more > 0 else "")
