"""The figures of a run: rates and costs, and a profile of where the time went.

Enters: counts and seconds. Leaves: rates, stages with their shares, the same of each data set, and plain data for JSON.
Guarantee: the shares of the stages are of all work that was done, in whatever process, and add up to one; time in which
nobody worked stands apart from it.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from bridge_data.plan import Source
from bridge_data.plan.source import distinct_names
from bridge_data.tools.bench.clock import LANE, Key, Tally

STAGES: Mapping[str, Sequence[str]] = {
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
"""The stages of the profile, and what belongs to each, by the first word: `seed encode_sample` to `seed`."""

SEND, RECEIVE = "transfer send", "transfer receive"
"""Handing a batch over, at the worker's and at the trainer's end."""

_STAGE_OF = {what: stage for stage, parts in STAGES.items() for what in parts}


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
    """Read of a sample, on the average."""
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
        """Samples drawn in a second, left-out ones included."""
        return self.num_samples / self.seconds

    @property
    def batches_per_s(self) -> float:
        """Batches handed out in a second."""
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
    """Seconds of the stages in which samples of one data set are worked on by themselves; `share` is of all work."""

    number: int
    name: str
    num_samples: int
    seconds: dict[str, float]
    share: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """What the trainer's seconds went to: waiting for workers, receiving what they made, or its own step."""

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
    """The cores there are, how many of them the run used and how many nobody did, on the average; and the share of
    their time in which its workers (without workers, the trainer) were ready to compute and had to wait for one."""

    num_cores: float
    used_cores: float
    idle_cores: float
    delayed: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Where the time of a run went: `work` by what was done for which source, and the time in which workers waited for
    the trainer (`idle_s`) or it for them."""

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
        """The stages in the order of the pipeline, those left out that there were not."""
        tallies: dict[str, Tally] = {name: Tally() for name in STAGES}
        for key, tally in self.work.items():
            tallies[stage_of(key)].add(tally)
        return [
            Stage(name, tally.wall_ns / 1e9, tally.wall_ns / 1e9 / self.total_s, tally.waited)
            for name, tally in tallies.items()
            if tally.wall_ns
        ]

    @functools.cached_property
    def by_source(self) -> list[SourceStages]:
        """What each data set costs, the greatest share first."""
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
                {stage: own[stage] for stage in STAGES if stage in own},
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
        """Seconds of what belongs to a stage, by name, most first."""
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
    """The stage that something belongs to."""
    return _STAGE_OF[key.what.partition(" ")[0]]
