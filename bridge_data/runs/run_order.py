"""The order of a run: the samples of any step, the steps of any sample, and where two runs differ.

Reads the training data set of a run, the sizes of its steps, and the states that it saved, if any. Returns for a step
its samples, with source, key, epoch, lane, rank and position; for a sample the steps in which it comes; for two runs
the settings that differ and the first step whose samples do. How a step is found: `run_sections`. Steps that neither
states nor records tell are errors, or listed by `RunOrder.unknown`.
"""

import bisect
import dataclasses
import functools
import itertools
import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from bridge_data.data.blocks import RecordReader
from bridge_data.data.records import counts_of, names_of
from bridge_data.data.withheld import withheld
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError
from bridge_data.extensions import needed_package
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.order.cursor import SampleKey
from bridge_data.order.state import LoaderState
from bridge_data.runs.named_samples import find_sample
from bridge_data.runs.run_sections import NEEDS_ENCODER, RunSection, sections_of, skips_of
from bridge_data.runs.saved_files import RunRecords


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunSample:
    """A sample in a micro-batch of a run. `part` is the number of a generator hook's output, else 0."""

    source: str
    """The name of its source, `photos/train`."""
    source_number: int
    """The number of the source in the blend."""
    index: int
    """Its number in the source."""
    epoch: int
    part: int
    step: int
    micro_batch: int
    """The number of the micro-batch in the job, in the order they are handed out."""
    lane: int
    rank: int
    """The data-parallel rank, unless micro-batches are balanced over the ranks."""
    place: int
    """The position in the micro-batch, of the sample or of its pack."""
    place_in_pack: int | None
    """The position in the pack; None without packing."""
    names: "SampleNames" = dataclasses.field(repr=False, compare=False)

    @property
    def shard(self) -> str:
        """The name of its shard. No shard is opened for it."""
        return self.names.shard(self.source_number, self.index)

    @property
    def key(self) -> str:
        """Its key, `shard/key`, as in batches; read from the index, or else from the shard."""
        return self.names.key(self.source_number, self.index)

    @property
    def restore_key(self) -> tuple[str, int, int, int]:
        """Its `__restore_key__`, for `restore_sample`."""
        return self.names.fingerprints[self.source_number], self.epoch, self.index, self.part

    def to_dict(self) -> dict[str, str | int | None]:
        """All fields as plain data; the key is looked up."""
        shown = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "names"}
        return {**shown, "shard": self.shard, "key": self.key}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunStep:
    """The samples of a step, in the order of its micro-batches and positions. `num_replayed` samples were processed to
    find them; with `assumes_no_skips`, they are correct only if no hook skipped a sample before."""

    number: int
    micro_batches: range
    samples: Sequence[RunSample]
    num_replayed: int
    assumes_no_skips: bool


class RunOrder:
    """The order of the run of `dataset` (from `get_train_dataset`, with the run's current settings).

    `states` are those that the run saved, in any order; each must have all lanes. `schedule` is the global batch size
    of each step, by default one micro-batch for each rank. Steps are counted from 0. With `replay`, hooks are always
    run. Micro-batches in `records` are taken from there, without a replay; their packs are not distinguished.
    `num_ranks` are the data-parallel ranks of the starts that saved states, by the number of micro-batches that were
    handed out before; later ones are taken by the ranks of `dataset`.

    Raises:
        ConfigError: for a data set that is not shuffled.
        StateError: for states of other data, or of several continuations of a run.
    """

    def __init__(
        self,
        dataset: LaneDataset,
        *,
        schedule: BatchSchedule | None = None,
        states: Sequence[LoaderState] = (),
        replay: bool = False,
        records: RunRecords | None = None,
        num_ranks: Mapping[int, int] = types.MappingProxyType({}),
    ) -> None:
        if dataset.order.shuffle is None:
            raise ConfigError("RunOrder: expected a data set for training, from get_train_dataset")
        self.dataset = dataset
        size = dataset.batching.batch_size or 1
        self.world_size = dataset.worker_config.world_size
        self.schedule = schedule or BatchSchedule(size * self.world_size, size)
        self._names = SampleNames(dataset)
        self._records = records
        self._num_ranks = sorted(num_ranks.items())
        self._numbers = {name: number for number, name in enumerate(dataset.source_ids)}
        self.skips = skips_of(dataset, states)
        """The steps that the run skips."""
        self._sections = sections_of(dataset, states, replay=replay)
        self._begins = [section.begin for section in self._sections]

    @property
    def num_lanes(self) -> int:
        """The current number of lanes of the job."""
        return self._sections[-1].num_lanes

    def num_ranks(self, num_handed_out: int) -> int:
        """The data-parallel ranks of the job when it took the micro-batch after so many."""
        later = self._num_ranks[bisect.bisect_right(self._num_ranks, (num_handed_out, sys.maxsize)) :]
        return later[0][1] if later else self.world_size

    def is_withheld(self, key: str | None = None, *, source: str | int = "", index: int | None = None) -> bool:
        """Whether the sample, named as for `when`, is forgotten: from then on it is in no step."""
        number, at = self._names.find(key, source, index)
        return at in withheld(self.dataset.plan.sources[number].records)

    def micro_batches(self, step: int) -> range:
        """The micro-batches of the job in a step, as they are handed out."""
        if step < 0:
            raise ConfigError(f"step {step}: steps are counted from 0")
        return self.schedule.micro_batches(step)

    def step_of(self, micro_batch: int) -> int:
        """The step of a micro-batch of the job."""
        return self.schedule.step_after(micro_batch * self.schedule.micro_batch_size)

    def plain_steps(self, step: int) -> list[int]:
        """The steps of the run without skips that have the data of this step; usually one."""
        return sorted({self.step_of(index) for index in map(self._index, self.micro_batches(step))})

    def at(self, step: int, *, rank: int | None = None) -> RunStep:
        """The samples of the global batch of a step, or of one data-parallel rank in it.

        Raises:
            ConfigError: if the states begin after the step.
            FatalSampleError: from hooks that are run again.
        """
        numbers = self.micro_batches(step)
        size = self.num_ranks(numbers.start)
        if rank is not None and not 0 <= rank < size:
            raise ConfigError(f"rank={rank}: the run has {size} data-parallel ranks")
        before = self.num_replayed
        indices = map(self._index, numbers)
        mine = [index for index in indices if rank is None or index % size == rank]
        samples = [sample for index in mine for sample in self._samples(step, index)]
        assumes = any(self._section(n).assumes_no_skips for n in mine if self._recorded(n) is None)
        return RunStep(
            number=step,
            micro_batches=numbers,
            samples=samples,
            num_replayed=self.num_replayed - before,
            assumes_no_skips=assumes,
        )

    def micro_batch(self, number: int) -> list[RunSample]:
        """The samples of one micro-batch of the job, as they are handed out; none after the end of finite data."""
        return list(self._samples(self.step_of(number), self._index(number)))

    def when(
        self,
        key: str | None = None,
        *,
        source: str | int = "",
        index: int | None = None,
        steps: range,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RunSample]:
        """Where a sample comes in these steps: the one with this key (`KEY`, or `SHARD:KEY` or `SHARD/KEY` if several
        shards have it), or number `index` of `source`, by name or number. Steps that are `unknown` are left out.
        `on_progress` gets how many micro-batches were looked through, and of how many, where that is necessary.

        Raises:
            ConfigError: if there is no such sample, or several.
        """
        found = self._names.find(key, source, index)
        begin, end = (self._index(number) for number in self._bounds(steps))
        numbers = {number for number in self._recorded_with(found) if begin <= number < end}
        recorded = {number for number, _ in self._records or () if begin <= number < end}
        num_seen = 0

        def saw(count: int) -> None:
            nonlocal num_seen
            num_seen += count
            if on_progress is not None:
                on_progress(num_seen, end - begin)

        for section, stop in zip(self._sections, [*self._begins[1:], end], strict=True):
            here = range(max(begin, section.begin), min(end, stop))
            if here and not section.unknown and sum(number in here for number in recorded) < len(here):
                there = section.find(*found, here, saw)
                numbers |= {one for one in there if self.skips is None or one not in self.skips} - recorded
        return [
            one
            for index in sorted(numbers)
            for one in self._samples(self.step_of(self._num_handed_out(index)), index)
            if (one.source_number, one.index) == found
        ]

    def unknown(self, steps: range) -> list[tuple[range, str]]:
        """(steps, reason) of those of the steps that have micro-batches which neither states nor records tell."""
        begin, end = (self._index(number) for number in self._bounds(steps))
        spans = [(0, self._begins[0], self._before_first)]
        ends = [*self._begins[1:], end]
        spans += [(one.begin, stop, one.unknown) for one, stop in zip(self._sections, ends, strict=True)]
        found: list[tuple[range, str]] = []
        for first, stop, reason in spans:
            left = self._between(max(begin, first), min(stop, end)) if reason else ()
            if self._records is not None:
                left = [number for number in left if self._recorded(number) is None]
            if left:
                one, last = (self.step_of(self._num_handed_out(index)) for index in (left[0], left[-1]))
                found.append((range(one, last + 1), reason))
        return found

    def _bounds(self, steps: range) -> tuple[int, int]:
        """The first micro-batch of the steps, and the first after them."""
        return self.micro_batches(steps[0]).start, self.micro_batches(steps[-1]).stop

    @property
    def num_replayed(self) -> int:
        """The samples that hooks have processed so far."""
        return sum(section.num_replayed for section in self._sections)

    @property
    def assumes_no_skips(self) -> bool:
        """Whether some steps assume that no hook skipped a sample."""
        return any(section.assumes_no_skips for section in self._sections)

    @property
    def needs_encoder(self) -> bool:
        """Whether some steps are unknown for want of the run's own task encoder."""
        return any(section.unknown == NEEDS_ENCODER for section in self._sections)

    def _section(self, number: int) -> RunSection:
        """The section of the run with this micro-batch."""
        section = self._sections[max(0, bisect.bisect_right(self._begins, number) - 1)]
        reason = section.unknown if number >= self._begins[0] else self._before_first
        if reason and self._recorded(number) is None:
            raise ConfigError(f"micro-batch {number}: {reason}")
        return section

    @property
    def _before_first(self) -> str:
        return (
            f"comes before the first given state, after micro-batch {self._begins[0]}, and the lanes had been assigned "
            "again before it: give an earlier state"
        )

    def _index(self, num_handed_out: int) -> int:
        """The index of the micro-batch that comes after so many were handed out."""
        return num_handed_out if self.skips is None else self.skips.index_after(num_handed_out)

    def _num_handed_out(self, index: int) -> int:
        return index if self.skips is None else self.skips.num_handed_out(index)

    def is_recorded(self, number: int) -> bool:
        """Whether the records have a micro-batch, by how many were handed out before it."""
        return self._recorded(self._index(number)) is not None

    def _between(self, begin: int, stop: int) -> Sequence[int]:
        """The micro-batches from `begin` to `stop - 1` that are handed out."""
        between = range(begin, stop)
        return between if self.skips is None else [index for index in between if index not in self.skips]

    def _recorded(self, number: int) -> Sequence[SampleKey] | None:
        if self._records is None:
            return None
        try:
            return self._records.micro_batch(number)
        except ConfigError:
            return None

    def _recorded_with(self, found: tuple[int, int]) -> list[int]:
        """The micro-batches that contain a sample, by the records."""
        wanted = (self.dataset.source_ids[found[0]], found[1])
        return sorted(
            number
            for number, keys in self._records or ()
            if any((self._known(number, key).source, key.index) == wanted for key in keys)
        )

    def _samples(self, step: int, index: int) -> Iterator[RunSample]:
        section, number = self._section(index), self._num_handed_out(index)
        lane, rank = index % section.num_lanes, index % self.num_ranks(number)
        made = functools.partial(RunSample, step=step, micro_batch=number, lane=lane, rank=rank, names=self._names)
        recorded = self._recorded(index)
        if recorded is not None:
            for place, key in enumerate(recorded):
                source = self._numbers[self._known(number, key).source]
                yield made(
                    source=self.dataset.plan.sources[source].name,
                    source_number=source,
                    index=key.index,
                    epoch=key.epoch,
                    part=max(0, key.output),
                    place=place,
                    place_in_pack=None,
                )
            return
        for place, unit in enumerate(section.units(index)):
            for place_in_pack, (source, epoch, index, part) in enumerate(unit):
                yield made(
                    source=section.source_labels[source],
                    source_number=section.source_numbers[source],
                    index=index,
                    epoch=epoch,
                    part=max(0, part),
                    place=place,
                    place_in_pack=place_in_pack if section.is_packing else None,
                )

    def _known(self, micro_batch: int, key: SampleKey) -> SampleKey:
        """A recorded sample, after a check that its source is one of the run.

        Raises:
            ConfigError: if it is not.
        """
        if key.source not in self._numbers:
            names = ", ".join(source.name for source in self.dataset.plan.sources)
            raise ConfigError(
                f"the records are of another run, or its data have changed: micro-batch {micro_batch} has a sample "
                f"of a source with fingerprint {key.source}, which is none of {names}"
            )
        return key


def steps_text(steps: range) -> str:
    """`step 3`, `steps 3 to 5`."""
    return f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"


class SampleNames:
    """Source and number of a sample from its key, shard and key from its number. A key is one look-up in the key index
    of each data set; a shard is opened only to read a key that no index has."""

    def __init__(self, dataset: LaneDataset) -> None:
        self.sources, self.fingerprints = dataset.plan.sources, dataset.source_ids
        self._ends: dict[int, list[int]] = {}
        self._readers: dict[int, RecordReader] = {}

    def shard(self, source: int, index: int) -> str:
        """The name of the shard of a sample."""
        records = self.sources[source].records
        if source not in self._ends:
            self._ends[source] = list(itertools.accumulate(counts_of(records)))
        return names_of(records)[bisect.bisect_right(self._ends[source], index)]

    def key(self, source: int, index: int) -> str:
        """The key of a sample, `shard/key`."""
        if source not in self._readers:
            self._readers[source] = self.sources[source].records.reader()
        return self._readers[source].read(index, ()).full_key

    def find(self, key: str | None, source: str | int, index: int | None) -> tuple[int, int]:
        """(number of the source, index) of the sample with a key, or of sample `index` of a source.

        Raises:
            ConfigError: if there is no such sample, or several.
        """
        if (key is None) == (index is None):
            raise ConfigError("give a key, or a source and an index")
        numbers = self._numbers(source)
        if index is not None:
            if len(numbers) != 1:
                names = ", ".join(self.sources[number].name for number in numbers)
                raise ConfigError(f"index={index}: give its source, too, one of {names}")
            size = self.sources[numbers[0]].num_samples
            if not 0 <= index < size:
                raise ConfigError(f"index={index}: {self.sources[numbers[0]].name} has {size:,} samples")
            return numbers[0], index
        assert key is not None
        found = find_sample([self.sources[number].records for number in numbers], key)
        if len(found) > 1:
            names = ", ".join(self.sources[numbers[one.records]].name for one in found)
            raise ConfigError(f"sample {found[0].name} is in several sources, {names}: say which one")
        return numbers[found[0].records], found[0].index

    def _numbers(self, source: str | int) -> list[int]:
        if source == "":
            return list(range(len(self.sources)))
        names = [one.name for one in self.sources]
        found = [number for number, name in enumerate(names) if source in (number, str(number), name)]
        if not found:
            raise ConfigError(f"source={source!r}: there is none of this name or number; there is {', '.join(names)}")
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class RunDifference:
    """`reasons` are differences of the settings, in words. `step` is the first compared step whose samples differ, or
    None; `first` and `second` are the samples of the two runs at the first position that differs, None if a run has no
    sample there."""

    reasons: list[str]
    step: int | None
    first: RunSample | None = None
    second: RunSample | None = None


def first_difference(one: RunOrder, other: RunOrder, *, steps: Sequence[int]) -> RunDifference:
    """The difference between two runs in these steps."""
    reasons = [
        text.replace("the state has", "the first has").replace("this run has", "the second")
        for _, text in LoaderState(one.dataset.fingerprint(), [], 0, {}).differences(other.dataset.fingerprint())
    ]
    settings = [
        ("num_lanes", one.num_lanes, other.num_lanes),
        ("global_batch_size", one.schedule.global_batch_size, other.schedule.global_batch_size),
        ("rampup_batch_size", one.schedule.rampup_batch_size, other.schedule.rampup_batch_size),
    ]
    reasons += [f"{name}: the first has {a}, the second {b}" for name, a, b in settings if a != b]
    for step in steps:
        samples = [run.at(step).samples for run in (one, other)]
        names = [[_identity(run, sample) for sample in found] for run, found in zip((one, other), samples, strict=True)]
        if names[0] == names[1]:
            continue
        same = next((at for at, pair in enumerate(zip(*names, strict=False)) if pair[0] != pair[1]), None)
        place = min(map(len, names)) if same is None else same
        first, second = (found[place] if place < len(found) else None for found in samples)
        return RunDifference(reasons, step, first, second)
    return RunDifference(reasons, None)


def _identity(run: RunOrder, sample: RunSample) -> tuple[Any, ...]:
    source = run.dataset.source_ids[sample.source_number]
    return source, sample.epoch, sample.index, sample.part, sample.place, sample.place_in_pack


_ROWS = 1 << 16
"""Rows of a row group of Parquet."""


def write_order(run: RunOrder, steps: Sequence[int], file: Path | None) -> None:
    """Write the samples of `steps` to `file`, `.jsonl` or `.parquet`; None: as JSON lines to standard output.

    Raises:
        ConfigError: for another file name, a file that cannot be written, or for Parquet without pyarrow.
    """
    if file is None:
        _write_lines(run, steps, sys.stdout)
        return
    if file.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"{file}: expected a file named .jsonl or .parquet")
    try:
        if file.suffix == ".parquet":
            _write_parquet(run, steps, file)
        else:
            with file.open("w", encoding="utf-8") as lines:
                _write_lines(run, steps, lines)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error}") from error


def _write_lines(run: RunOrder, steps: Sequence[int], lines: TextIO) -> None:
    lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(run, steps))


def _rows(run: RunOrder, steps: Sequence[int]) -> Iterator[dict[str, Any]]:
    return (sample.to_dict() for step in steps for sample in run.at(step).samples)


def _write_parquet(run: RunOrder, steps: Sequence[int], file: Path) -> None:
    parquet = needed_package("pyarrow.parquet", f"{file}: Parquet", "write .jsonl")
    arrow, rows = needed_package("pyarrow", str(file)), _rows(run, steps)
    numbers = ("source_number", "index", "epoch", "part", "step", "micro_batch", "lane", "rank", "place")
    columns = dict.fromkeys(("source", *numbers, "place_in_pack", "shard", "key"), arrow.int64())
    schema = arrow.schema(columns | dict.fromkeys(("source", "shard", "key"), arrow.string()))
    with parquet.ParquetWriter(file, schema) as writer:
        while some := list(itertools.islice(rows, _ROWS)):
            writer.write_table(arrow.Table.from_pylist(some, schema))
