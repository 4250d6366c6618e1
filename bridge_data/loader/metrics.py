"""Metrics of a loader: what it has handed out, how long the trainer waited for it, and the memory it uses.

Reads the counts that came with the batches, the times of an iteration (`Timed`), and the position. Returns a
`LoaderMetrics`, made by the `Meter` of a rank, of this rank or of all. Counts are of batches handed out, not of batches
prefetched or made again by a replaced worker. They start at 0 when the loader is made, also after a restore; `epochs`
come from the position, so they continue. Nothing runs in the background.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bridge_data.counts import NO_COUNTS, NONE_SLOWEST, BatchCounts, CountValues, added, summed
from bridge_data.errors import DatasetError
from bridge_data.later import profiler_is_active, torch
from bridge_data.order import BEGINNING, SampleRef
from bridge_data.order.cursor import entry_size
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.plan.source import multiplied, together
from bridge_data.task import FAILED, TRUNCATED
from bridge_data.topology import WorkerConfig

if TYPE_CHECKING:
    from bridge_data.lanes.lane_dataset import LaneDataset

logger = logging.getLogger("bridge_data")

T = TypeVar("T")

_MAX_COUNTED = 1 << 8
"""Maximum number of batches whose counts wait to be summed up."""
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
    """The same with padding."""
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
    *("batches_per_s", "samples_per_s", "tokens_per_s", "images_per_s", "bytes_per_s"),
    *("wait_share", "prefetch_fill", "pack_fill"),
)
"""The properties that are rates and shares."""
_MEMORY = ("trainer_bytes", "workers_bytes")
_TIMES = ("elapsed_s", "wait_s")
_COUNTS = tuple(
    field.name
    for field in dataclasses.fields(LoaderMetrics)
    if field.type in ("int", "float") and field.name not in ("num_ranks", *_MEMORY)
)
"""Fields that are counted from the start: an interval has the difference of two."""


class Meter:
    """Counts what one rank gets, what was skipped on the way, and how long it waits, since its loader
    was made."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.batches = 0
        self._counted: tuple[CountValues, list[CountValues]] = NO_COUNTS, []  # summed up, and since
        self._ready_batches = self._ready_slots = 0
        self.skipped: dict[str, int] = {}
        """Samples skipped, by stage."""
        self.num_truncated = self.num_failed = 0
        self.elapsed_s = self.wait_s = 0.0
        self._slowest_key = NONE_SLOWEST, ""  # the slowest sample whose key was read last, and its key

    def count_skips(self, skipped: Mapping[str, int]) -> None:
        """Count what a lane has skipped since its last batch."""
        for stage, count in skipped.items():
            if stage == TRUNCATED:
                self.num_truncated += count
            elif stage == FAILED:
                self.num_failed += count
            else:
                self.skipped[stage] = self.skipped.get(stage, 0) + count

    def note(self, counts: CountValues, ready_batches: int, ready_slots: int) -> None:
        """Count a batch that was handed out; the numbers are those of its `Produced`."""
        self.batches += 1
        self._ready_batches += ready_batches
        self._ready_slots += ready_slots
        _, counted = self._counted
        counted.append(counts)
        if len(counted) == _MAX_COUNTED:  # summing many together costs little
            self._counted = self._sums(), []

    def _sums(self) -> CountValues:
        """The sums over all batches noted. Any thread may call it."""
        before, counted = self._counted
        return summed([before, *counted])

    def measured(
        self, dataset: LaneDataset, state: LoaderState, workers: Sequence[int], num_restarts: int
    ) -> LoaderMetrics:
        """The metrics of this rank, at the position `state`, with the process ids of `workers`, and how often one was
        replaced."""
        counts = dataclasses.asdict(BatchCounts(*self._sums()))
        return LoaderMetrics(
            elapsed_s=self.elapsed_s,
            wait_s=self.wait_s,
            batches=self.batches,
            slowest=self._slowest(dataset, counts.pop("slowest")),
            others=collections.Counter(counts.pop("others")),
            **counts,
            skipped=dict(self.skipped),
            failed=self.num_failed,
            truncated=self.num_truncated,
            worker_restarts=num_restarts,
            ready_batches=self._ready_batches,
            ready_slots=self._ready_slots,
            epochs=_epochs(state, dataset),
            trainer_bytes=_resident_bytes(os.getpid()),
            workers_bytes=sum(map(_resident_bytes, workers)),
        )

    def _slowest(self, dataset: LaneDataset, slowest: tuple[int, int, int, int]) -> SlowestSample | None:
        took_ns, number, epoch, index = slowest
        if not took_ns:
            return None
        source = dataset.plan.sources[number]
        if self._slowest_key[0] != slowest:
            try:
                key = source.records.reader().read(index, ()).full_key
            except DatasetError:
                key = dataset.describe(SampleRef(number, epoch, index))
            self._slowest_key = slowest, key
        return SlowestSample(key=self._slowest_key[1], source=source.name, seconds=took_ns / 1e9)

    def sum_up(self) -> None:
        """Log, at the end, how many samples were skipped, if some of them failed."""
        if self.num_failed:
            logger.warning(
                "rank %d skipped %d samples in all (%s); of these, %d failed: see the errors logged before",
                self._rank,
                sum(self.skipped.values()),
                ", ".join(f"{count} in {stage}" for stage, count in sorted(self.skipped.items())),
                self.num_failed,
            )


class Timed(Iterator[T]):
    """An iteration whose batches come from `_next`. Reports to `meter` how long they and the steps between take."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._last_s: float | None = None

    @abc.abstractmethod
    def _next(self) -> T:
        """The next batch; `StopIteration` after the last one."""

    def __next__(self) -> T:
        clock, meter = time.perf_counter, self._meter
        begun_s = clock()
        try:
            if profiler_is_active():
                with torch.profiler.record_function("bridge_data.wait"):
                    return self._next()
            return self._next()
        finally:
            now_s = clock()
            meter.wait_s += now_s - begun_s
            meter.elapsed_s += now_s - (begun_s if self._last_s is None else self._last_s)
            self._last_s = now_s


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


def _resident_bytes(process: int) -> int:
    """Resident memory of a process; 0 if it has ended, or if unknown."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def _epochs(state: LoaderState, dataset: LaneDataset) -> dict[str, float]:
    """By the names of the sources: the epochs that the lanes here have drawn. Samples of earlier epochs that a reshard
    has left to a lane are not drawn yet."""
    epochs: dict[str, float] = {}
    if state.fingerprint["order"] != "shuffled" or not state.lanes:
        return epochs
    for number, (name, label) in enumerate(state.fingerprint["sources"]):
        own = state.fingerprint.get("epochs_of_sources", {}).get(name, 1)
        num_together = together(multiplied(state.fingerprint.get("epochs_per_shuffle", 1), own)) or 1
        share = dataset.plan.sources[number].num_samples / state.num_lanes  # of an epoch, for one lane
        drawn = _mean(_drawn(lane, number, num_together * share) for lane in state.lanes.values())
        first_epoch = state.generations[-1][1][number][-1]
        epochs[f"{label} ({number})" if label in epochs else label] = first_epoch + drawn / share
    return epochs


def _drawn(lane: LaneState, number: int, shuffle_samples: float) -> float:
    """The samples of a source that a lane has drawn since the last reshard, less those it still has from before;
    a shuffle gives it `shuffle_samples`."""
    shuffle, _, _, taken = lane.get("cursors", {}).get(str(number), BEGINNING)
    left = sum(map(entry_size, lane.get("inbox", {}).get(str(number), ())))
    return float(shuffle * shuffle_samples + taken - left)
