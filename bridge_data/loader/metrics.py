"""Metrics of a loader: what it has handed out, how long the trainer waited for it, and the memory it uses.

A `LoaderMetrics` is made by the `Meter` of a rank, and joined with those of other ranks here. Counts are of batches
handed out, not of batches prefetched or made again by a replaced worker. They start at 0 when the loader is made, also
after a restore; `epochs` come from the position, so they continue. Nothing runs in the background.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bridge_data.counts import added
from bridge_data.later import torch
from bridge_data.order import BEGINNING
from bridge_data.order.cursor import entry_size
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.topology import WorkerConfig

if TYPE_CHECKING:
    from bridge_data.lanes.lane_dataset import LaneDataset

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SlowestSample:
    """The sample whose reading and encoding took longest so far. Reading a block counts for its first sample; for
    samples without hooks that take less than 0.2 ms, the first of a batch stands for the whole batch."""

    key: str
    """Its shard, a slash, and its key in the shard."""
    source: str
    seconds: float

    @property
    def shard(self) -> str:
        """The name of its shard."""
        return self.key.rpartition("/")[0]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoaderMetrics:
    """Counts since the loader was made, of `num_ranks` data-parallel ranks together; and rates.

    Over several ranks, counts and memory are sums; `elapsed_s`, `wait_s` and `epochs` are means. `since` returns the
    same for an interval.
    """

    num_ranks: int = 1
    elapsed_s: float = 0.0
    """Seconds of whole steps: from when a batch was handed out to when the next one was; of the first batch of an
    iteration, the wait alone."""
    wait_s: float = 0.0
    """Seconds of these that the trainer waited for batches."""
    batches: int = 0
    samples: int = 0
    """Samples in the batches; of a generator, each output counts."""
    tokens: int = 0
    """Tokens in the batches, without padding; 0 if they have neither `tokens` nor `input_ids`."""
    token_slots: int = 0
    """Tokens in the batches, with padding."""
    images: int = 0
    """Images decoded."""
    bytes_read: int = 0
    """Bytes read of shards and auxiliary files, as stored."""
    retries: int = 0
    """Reads retried after a transient fault."""
    damaged_images: int = 0
    """JPEGs whose content is damaged: their decoder has guessed the rest of the pixels."""
    first_frames: int = 0
    """Images of several frames or pages of which only the first was taken."""
    others: Mapping[str, int] = dataclasses.field(default_factory=collections.Counter)
    """What plug-ins count, by their names: 0 for any other name."""
    skipped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Samples skipped, by hook."""
    failed: int = 0
    """Skipped samples that were lost to an error."""
    truncated: int = 0
    """Samples cut because they were too long for a pack."""
    worker_restarts: int = 0
    ready_batches: int = 0
    """Batches that were ready when the trainer asked for one, added up over all times it asked a worker."""
    ready_slots: int = 0
    """How many would have been ready if the workers were always far enough ahead."""
    epochs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """By source, the epochs drawn by the lanes here, with the part of the one in progress: 1.25 is a quarter into the
    second. Empty for validation order."""
    slowest: SlowestSample | None = None
    trainer_bytes: int = 0
    """Resident memory of the trainer's process."""
    workers_bytes: int = 0
    """Resident memory of the workers, added up: what they share is counted in each."""

    @property
    def wait_share(self) -> float:
        """The part of the time that the trainer waited, in 0..1."""
        return _ratio(self.wait_s, self.elapsed_s)

    @property
    def batches_per_s(self) -> float:
        """Micro-batches a second, of all ranks here."""
        return _ratio(self.batches, self.elapsed_s)

    @property
    def samples_per_s(self) -> float:
        """Samples a second."""
        return _ratio(self.samples, self.elapsed_s)

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, without padding."""
        return _ratio(self.tokens, self.elapsed_s)

    @property
    def images_per_s(self) -> float:
        """Images a second."""
        return _ratio(self.images, self.elapsed_s)

    @property
    def bytes_per_s(self) -> float:
        """Bytes read a second."""
        return _ratio(self.bytes_read, self.elapsed_s)

    @property
    def prefetch_fill(self) -> float:
        """How far workers were ahead when a batch was asked for, in 0..1; 0 without workers."""
        return _ratio(self.ready_batches, self.ready_slots)

    @property
    def pack_fill(self) -> float:
        """The part of the batches' token slots that is not padding, in 0..1."""
        return _ratio(self.tokens, self.token_slots)

    def since(self, before: LoaderMetrics) -> LoaderMetrics:
        """The metrics of the interval between `before`, of the same loader and ranks, and these. Values that are not
        counts (epochs, the slowest sample, memory) are those of these."""
        counts = {name: getattr(self, name) - getattr(before, name) for name in _COUNTS}
        skipped = {hook: count - before.skipped.get(hook, 0) for hook, count in self.skipped.items()}
        others = {name: count - before.others.get(name, 0) for name, count in self.others.items()}
        skipped = {hook: count for hook, count in skipped.items() if count}
        return dataclasses.replace(self, **counts, skipped=skipped, others=collections.Counter(others))

    def values(self) -> dict[str, float]:
        """All numbers by name, as loggers want them: rates and shares, counts, `skipped/HOOK`, `epochs/SOURCE`,
        `slowest_sample_s`; and those of plug-ins, unless they have a name of these."""
        values: dict[str, float] = dict(self.others)
        values |= {name: getattr(self, name) for name in (*RATES, "num_ranks", *_COUNTS, *_MEMORY)}
        values |= {f"skipped/{hook}": count for hook, count in sorted(self.skipped.items())}
        values |= {f"epochs/{source}": epochs for source, epochs in self.epochs.items()}
        if self.slowest is not None:
            values["slowest_sample_s"] = self.slowest.seconds
        return values


RATES = (
    "batches_per_s",
    "samples_per_s",
    "tokens_per_s",
    "images_per_s",
    "bytes_per_s",
    "wait_share",
    "prefetch_fill",
    "pack_fill",
)
"""The properties that are rates and shares."""
_MEMORY = ("trainer_bytes", "workers_bytes")
_TIMES = ("elapsed_s", "wait_s")
_COUNTS = tuple(
    field.name
    for field in dataclasses.fields(LoaderMetrics)
    if isinstance(field.default, int | float) and field.name not in ("num_ranks", *_MEMORY)
)
"""Fields that are counted from the start: an interval has the difference of two."""


def of_all_ranks(own: LoaderMetrics, config: WorkerConfig) -> LoaderMetrics:
    """The metrics of all data-parallel ranks together, on each of them. All must call it."""
    if config.world_size == 1:
        return own
    ranks: list[LoaderMetrics | None] = [None] * config.world_size
    torch.distributed.all_gather_object(ranks, own, group=config.data_parallel_group)
    return together_of([rank for rank in ranks if rank is not None])


def together_of(ranks: Sequence[LoaderMetrics]) -> LoaderMetrics:
    """The metrics of several ranks, or loaders, in one."""
    skipped: collections.Counter[str] = collections.Counter()
    for rank in ranks:
        skipped.update(rank.skipped)
    sums = {name: sum(getattr(rank, name) for rank in ranks) for name in ("num_ranks", *_COUNTS, *_MEMORY)}
    means = {name: sums[name] / len(ranks) for name in _TIMES}
    sources = dict.fromkeys(source for rank in ranks for source in rank.epochs)
    slow = [rank.slowest for rank in ranks if rank.slowest is not None]
    return LoaderMetrics(
        **{**sums, **means},
        skipped=dict(skipped),
        others=collections.Counter(added(rank.others for rank in ranks)),
        epochs={source: _mean(rank.epochs[source] for rank in ranks if source in rank.epochs) for source in sources},
        slowest=max(slow, key=lambda sample: sample.seconds, default=None),
    )


def _mean(numbers: Iterable[float]) -> float:
    found = list(numbers)
    return sum(found) / len(found)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def resident_bytes(process: int) -> int:
    """Resident memory of a process; 0 if it has ended, or if unknown."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def epochs_of(state: LoaderState, dataset: LaneDataset) -> dict[str, float]:
    """By the names of the sources: the epochs that the lanes here have drawn. Samples of earlier epochs that a reshard
    has left to a lane are not drawn yet."""
    epochs: dict[str, float] = {}
    if state.fingerprint["order"] != "shuffled" or not state.lanes:
        return epochs
    state = dataset.pack_sources.drawn(dataset, state)
    for number, (_, label) in enumerate(state.fingerprint["sources"]):
        share = dataset.plan.sources[number].num_samples / state.num_lanes  # of an epoch, for one lane
        of_shuffle = state.num_together(number) * share
        drawn = _mean(_drawn(lane, number, of_shuffle) for lane in state.lanes.values())
        first_epoch = state.generations[-1].first_epoch(number)
        epochs[f"{label} ({number})" if label in epochs else label] = first_epoch + drawn / share
    return epochs


def _drawn(lane: LaneState, number: int, shuffle_samples: float) -> float:
    """The samples of a source that a lane has drawn since the last reshard, less those it still has from before;
    a shuffle gives it `shuffle_samples`."""
    shuffle, _, _, taken = lane.get("cursors", {}).get(str(number), BEGINNING)
    left = sum(map(entry_size, lane.get("inbox", {}).get(str(number), ())))
    return float(shuffle * shuffle_samples + taken - left)
