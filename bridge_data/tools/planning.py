"""What a run will see, before it starts: steps, samples, tokens, epochs, the fill of packs, the loads of ranks.

Reads the order of a training data set and its cost index (`prepare --costs`); no sample is read. Returns the steps
one by one (`Planner.steps`), and a `RunPlan`: exact figures of the first steps, and of the whole run, which are
extrapolated from these if the run is longer. Packs are known ahead if they are planned, samples if there is no packing.
Of packs that are made while samples are read, and of groups, only steps and packs are known; without a cost index, only
samples and epochs, by arithmetic, as hooks may skip samples or make several of one. Raises a ConfigError for a length
that cannot be planned, which says what to give instead.
"""

import bisect
import contextlib
import dataclasses
import itertools
import math
import operator
from collections.abc import Container, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError, DatasetError, counted, listed
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.options import check_integer, check_number
from bridge_data.order import SampleRef
from bridge_data.order.cursor import Cursor
from bridge_data.order.random_draws import Schedule
from bridge_data.order.row import Ints
from bridge_data.order.state import LoaderState
from bridge_data.plugins.forget.forgotten import forgotten_in
from bridge_data.plugins.planned.costs import CostTable
from bridge_data.plugins.planned.planned import (
    SAMPLES,
    TOKENS,
    LanePacks,
    PlannedPack,
    longest_first,
    parts_of,
    table_of,
)
from bridge_data.plugins.planned.planned_sources import assigned_to, costs_of_sources, planned_of
from bridge_data.topology import WorkerConfig

EXACT_SAMPLES = 1 << 18
"""Samples over which a plan is exact, unless a number of steps is given: some seconds."""

_AT_ONCE = 4096
"""Samples that are drawn together, if there is no packing."""

_PACKS_AT_ONCE = 256

_OF_LANE = 16
"""Samples that each lane draws at least."""

_MAX_COUNTED = 1 << 20
"""Lanes times sources for which the draws of each lane are counted; beyond it, those of the job as of one lane."""

_MAX_STEPS = 1 << 40

_MAX_SHOWN = 20

_PLACED, _SKIPPED, _TOO_LONG = range(3)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunLength:
    """How long a run is: `steps`, or the fewest steps that have `tokens`, or `epochs` of all data (as many samples as
    these have; of a blend, from whatever source), or of the source that is named `source`.

    Raises:
        ConfigError: if it is not one of them, or is out of range.
    """

    steps: int | None = None
    tokens: int | None = None
    epochs: float | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        check_integer("steps", self.steps, 1, or_none=True)
        check_integer("tokens", self.tokens, 1, or_none=True)
        check_number("epochs", self.epochs, "a positive number", or_none=True)
        if [self.steps, self.tokens, self.epochs].count(None) != 2 or (self.source and self.epochs is None):
            raise ConfigError(f"{self}: expected one of steps, tokens and epochs, and a source with epochs alone")

    def __str__(self) -> str:
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return f"a run of {', '.join(f'{name}={value!r}' for name, value in given.items() if value is not None)}"


class Totals(NamedTuple):
    """The sums over some steps."""

    steps: int
    units: int
    """Packs; without packing samples, or parts of them."""
    samples: int | None
    """Sequences in the units, as batches count them; None: not known."""
    skipped: int
    """Samples left out as the encoder skips them, or as they are forgotten."""
    too_long: int
    """Samples left out as they are longer than a pack."""
    room: int
    """Tokens for which planned packs have room; one that is too long and alone in its pack fills it."""
    costs: Ints
    """Each cost, in the order of names of the plan."""
    drawn: Ints | None
    """Samples drawn of each source, with those that are left out; None: not known."""

    def plus(self, other: Self) -> Self:
        """The sums of both; all are known."""
        return type(self)(*map(operator.add, self, other))


class PlannedStep(NamedTuple):
    """A step before it is read, counted from 0: its sums, and the load of each data-parallel rank, if micro-batch n
    goes to rank n mod the number of ranks (`in_turn`), and if packs are assigned by their loads (`assigned`)."""

    number: int
    totals: Totals
    in_turn: Sequence[int]
    assigned: Sequence[int]


def load_ratios(loads: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """The greatest over the mean load of the ranks in each step."""
    table = np.array(loads, dtype=np.float64)
    return np.where(table.any(1), table.max(1) / np.maximum(table.mean(1), 1e-9), 1.0)


class Spread(NamedTuple):
    """The greatest over the mean load of the ranks in a step: its mean, 99th percentile and maximum over the steps, and
    the worst step. 1 is balanced."""

    mean: float
    p99: float
    worst: float
    worst_step: int

    @classmethod
    def of(cls, loads: Sequence[Sequence[int]]) -> Self:
        """Of the loads of all ranks in each of at least one step."""
        ratios = load_ratios(loads)
        worst = int(ratios.argmax())
        return cls(float(ratios.mean()), float(np.percentile(ratios, 99)), float(ratios[worst]), worst)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """What a run will see. `exact` is of its first steps; `run` of all, extrapolated unless the plan `is_exact`."""

    num_ranks: int
    unit: str
    """"packs" or "samples", of which steps are made."""
    names: Sequence[str]
    """Of the costs."""
    sources: Sequence[tuple[str, int]]
    """(name, samples) of each source."""
    exact: Totals
    run: Totals
    is_exact: bool
    reaches: bool = True
    """Whether the data suffice for the length."""
    load: str | None = None
    """The cost by which packs are, or would be, assigned to ranks; "attention" is the square of tokens."""
    is_assigned: bool = False
    """Whether the run assigns packs by their loads."""
    in_turn: Spread | None = None
    assigned: Spread | None = None
    notes: Sequence[str] = ()
    """What is not known, or not as asked."""
    steps: Sequence[PlannedStep] = ()
    """The exact ones."""

    @property
    def fill(self) -> float | None:
        """The share of the room in planned packs that has tokens, over the exact steps."""
        return int(self.exact.costs[0]) / self.exact.room if self.exact.room else None

    @property
    def columns(self) -> list[tuple[str, Totals]]:
        """(heading, totals) of what is shown: the run, and its exact first steps if these are fewer."""
        if self.is_exact:
            return [("the run", self.exact)]
        first = f"first {self.exact.steps:,} step{'s' * (self.exact.steps > 1)}"
        return [(first, self.exact), ("the run, about", self.run)]

    @property
    def shown_sources(self) -> list[int]:
        """The numbers of the sources that are shown: of a large blend, those with the most samples drawn."""
        drawn = [] if self.run.drawn is None else self.run.drawn.tolist()
        return sorted(range(len(drawn)), key=lambda number: -drawn[number])[:_MAX_SHOWN]

    def tables(self) -> Iterator[tuple[list[str], list[list[str]]]]:
        """(headings, rows) of the totals, and of the `shown_sources` if it is known how often they are drawn."""
        heads, columns = zip(*self.columns, strict=True)
        rows = [("steps", [one.steps for one in columns]), (self.unit, [one.units for one in columns])]
        if self.unit == "packs" and self.run.samples is not None:
            rows.append(("samples in them", [one.samples for one in columns]))
        rows += [(name, [one.costs[at] for one in columns]) for at, name in enumerate(self.names)]
        if self.names:
            rows.append(("left out: skipped", [one.skipped for one in columns]))
            rows.append(("left out: too long", [one.too_long for one in columns]))
        yield ["", *heads], [[name, *(f"{value:,}" for value in values)] for name, values in rows]
        if self.run.drawn is not None:
            of_all, shown = [self.epochs(one) or [] for one in columns], self.shown_sources
            facts = [(at, *self.sources[at], self.run.drawn[at]) for at in shown]
            yield (
                ["data set", "samples", "drawn", *(f"epochs, {head}" for head in heads)],
                [
                    [name, f"{size:,}", f"{drawn:,}", *(f"{epochs[at]:,.3f}" for epochs in of_all)]
                    for at, name, size, drawn in facts
                ],
            )

    def facts(self) -> Iterator[tuple[str, str]]:
        """(heading, text) of the fill of packs and the loads of ranks."""
        if self.fill is not None:
            yield "packs", f"{self.fill:.2%} full, {1 - self.fill:.2%} padding"
        for heading, spread in (("in turn", self.in_turn), ("assigned", self.assigned)):
            if spread is not None and self.num_ranks > 1:
                yield (
                    heading,
                    f"greatest over mean {self.load} of {counted(self.num_ranks, 'rank')}: mean {spread.mean:.3f}, p99 "
                    f"{spread.p99:.3f}, worst {spread.worst:.3f} in step {spread.worst_step:,}"
                    + ("" if self.is_assigned is (heading == "assigned") else ", if it were so (balance)"),
                )

    def epochs(self, totals: Totals) -> list[float] | None:
        """The epochs of each source in `exact` or `run`: samples drawn over samples."""
        if totals.drawn is None:
            return None
        return [int(count) / size for count, (_, size) in zip(totals.drawn, self.sources, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del found["names"], found["steps"]
        for name in ("exact", "run"):
            totals: Totals = found[name]
            costs = dict(zip(self.names, totals.costs.tolist(), strict=True))
            drawn = None if totals.drawn is None else totals.drawn.tolist()
            found[name] = {**totals._asdict(), "costs": costs, "drawn": drawn, "epochs": self.epochs(totals)}
        for name in ("in_turn", "assigned"):
            found[name] = found[name] and found[name]._asdict()
        sources = [{"name": name, "num_samples": size} for name, size in self.sources]
        return {"version": 1, **found, "fill": self.fill, "sources": sources}


class _Units(NamedTuple):
    """Consecutive packs (or samples) of the job, as micro-batches have them: their costs (units, names), the loads
    (units, 2) by which they are assigned, and without forgotten samples, their numbers before they are assigned,
    numbers of samples and room; and a row (unit, source, what became of it) of each sample drawn for them, sorted by
    unit."""

    costs: Ints
    loads: Ints
    numbers: Ints
    samples: Ints
    room: Ints
    draws: Ints

    def joined(self, other: "_Units") -> "_Units":
        *columns, draws = other
        shifted = draws + np.array([len(self.loads), 0, 0])
        return _Units(*(np.concatenate(pair) for pair in zip(self, (*columns, shifted), strict=True)))

    def only(self, kept: Sequence[bool]) -> "_Units":
        """Those of them that are `kept`."""
        *columns, draws = self
        mask = np.array(kept, dtype=bool)
        draws = draws[mask[draws[:, 0]]]
        draws = np.column_stack([(np.cumsum(mask) - 1)[draws[:, 0]], draws[:, 1:]])
        return _Units._make([*(column[mask] for column in columns), draws])

    def cut(self, count: int) -> tuple["_Units", "_Units"]:
        """The first `count`, and the others."""
        *columns, draws = self
        at = int(np.searchsorted(draws[:, 0], count))
        rest = draws[at:] - np.array([count, 0, 0])
        return (
            _Units._make([*(column[:count] for column in columns), draws[:at]]),
            _Units._make([*(column[count:] for column in columns), rest]),
        )


def of_ranks(dataset: LaneDataset, config: WorkerConfig) -> LaneDataset:
    """`dataset` for the ranks of `config`."""
    return assigned_to(dataset.changed(worker_config=config), config.world_size)


class Planner:
    """Plans the run of `dataset` (from `get_train_dataset`), with its settings; `schedule` is the global batch size of
    each step, by default one micro-batch for each rank.

    Raises:
        ConfigError: if the ranks cannot share a step equally, or packs are planned and the data were not measured.
    """

    def __init__(self, dataset: LaneDataset, schedule: BatchSchedule | None = None) -> None:
        self.dataset = dataset
        self._size, self._num_ranks = dataset.batching.batch_size or 1, dataset.worker_config.world_size
        self._schedule = schedule or BatchSchedule(self._size * self._num_ranks, self._size)
        self._schedule.check(0, self._num_ranks)
        self._sources = [(source.name, source.num_samples) for source in dataset.plan.sources]
        self._is_packed = dataset.batching.packing_buffer_size is not None
        self._planned = planned_of(dataset)
        planner = None if self._planned is None else self._planned.packs(dataset).planner
        self._tables: list[CostTable] = []
        self._is_open = planner is None and (self._is_packed or dataset.work().groups)
        """Whether the samples of a step are chosen when they are read."""
        self._unknown = "which samples share a pack (or a group) is decided when they are read: no step has a known "
        self._unknown += "number of samples and tokens before. packing='planned' makes packs from the cost index"
        if not self._is_open:
            try:
                self._tables, self._unknown = costs_of_sources(dataset), ""
            except (ConfigError, DatasetError) as error:
                self._unknown = str(error)
        budgets = () if planner is None else planner.names
        others = [name for table in self._tables[:1] for name in table.names if name not in budgets]
        self.names = (*budgets, *(name for name in others if all(name in table.names for table in self._tables)))
        """The costs in the totals: those that all sources have."""
        self._forgotten: Container[SampleRef] = forgotten_in(dataset) or ()
        self._columns = [[(*table.names, SAMPLES).index(name) for name in self.names] for table in self._tables]

    def steps(self) -> Iterator[PlannedStep]:
        """The steps of the run, one by one, to the last whole one.

        Raises:
            ConfigError: if they are not known before samples are read.
        """
        if not self._tables:
            raise ConfigError(self._unknown)
        blocks = self._unskipped(self._packs() if self._is_packed else self._samples())
        left = next(blocks, None)
        consumed = 0
        for number in itertools.count():
            size = self._schedule.size_after(consumed)
            while left is not None and len(left.loads) < size:
                block = next(blocks, None)
                left = None if block is None else left.joined(block)
            if left is None:
                return
            units, left = left.cut(size)
            consumed += size
            yield self._step(number, units)

    def _unskipped(self, blocks: Iterator[_Units]) -> Iterator[_Units]:
        """The units of micro-batches that no `skip_steps` leaves out."""
        first, skips = 0, self.dataset.skips
        for block in blocks:
            numbers = range(first, first := first + len(block.loads))
            yield block if skips is None else block.only([one // self._size not in skips for one in numbers])

    def _step(self, number: int, units: _Units) -> PlannedStep:
        planned, loads = units.loads.T
        in_place: list[int] = loads.reshape(-1, self._num_ranks, self._size).sum((0, 2)).tolist()
        if self._planned is not None and self._planned.assignment is not None:
            in_order = loads[np.argsort(units.numbers, kind="stable")]
            in_turn, assigned = in_order.reshape(-1, self._num_ranks, self._size).sum((0, 2)).tolist(), in_place
        else:
            groups = longest_first(planned.tolist(), self._num_ranks) if self._is_packed else ()
            in_turn, assigned = in_place, [int(loads[group].sum()) for group in groups]
        _, skipped, too_long = np.bincount(units.draws[:, 2], minlength=3).tolist()
        sums = int(units.samples.sum()), skipped, too_long, int(units.room.sum()), units.costs.sum(0)
        drawn = np.bincount(units.draws[:, 1], minlength=len(self._sources))
        return PlannedStep(number, Totals(1, len(loads), *sums, drawn), in_turn, assigned)

    def _packs(self) -> Iterator[_Units]:
        """The planned packs of micro-batches, some at a time, until a lane ends."""
        num_lanes = self.dataset.worker_config.num_lanes
        assert self._planned is not None
        packs_of_job = self._planned.packs(self.dataset)
        lanes = [LanePacks(packs_of_job, lane, num_lanes) for lane in range(num_lanes)]
        packs: list[_Pack] = []
        with contextlib.suppress(StopIteration):
            for place in itertools.count():
                packs.append(self._next_pack(lanes[place // self._size % num_lanes]))
                if len(packs) == _PACKS_AT_ONCE:
                    yield self._packs_of(packs)
                    packs = []
        if packs:
            yield self._packs_of(packs)

    def _next_pack(self, lane: LanePacks) -> "_Pack":
        """The next pack of a lane of which something is left, as the lane takes it."""
        left_out: list[tuple[int, int]] = []
        while True:
            pack = lane.next()
            left_out += [(ref.source, _SKIPPED) for ref in pack.skipped]
            left_out += [(ref.source, _TOO_LONG) for ref in pack.too_long]
            here = [ref not in self._forgotten for ref in pack.members]
            if any(here):
                return _Pack(pack, here, left_out)
            left_out += [(ref.source, _SKIPPED) for ref in pack.members]

    def _packs_of(self, taken: Sequence["_Pack"]) -> _Units:
        assert self._planned is not None
        planner, packs = self._planned.packs(self.dataset).planner, [one.pack for one in taken]
        sizes = np.array([len(pack.members) for pack in packs])
        members = table_of([ref for pack in packs for ref in pack.members])
        here = np.concatenate([one.here for one in taken])
        units, begins = np.repeat(np.arange(len(packs)), sizes), np.cumsum(sizes) - sizes
        fields = ("costs", "loads", "is_first")
        costs, loads, is_first = (np.concatenate([getattr(pack, name) for pack in packs]) for name in fields)
        if len(self.names) > costs.shape[1]:
            _, _, measured = parts_of(self._tables, self._columns, members)
            costs = np.concatenate([costs, measured[:, costs.shape[1] :]], axis=1)
        sums = np.add.reduceat(np.column_stack([here, loads, loads * here, costs * here[:, None]]), begins)
        left_out = [(unit, *row) for unit, one in enumerate(taken) for row in one.left_out]
        rows = np.array(left_out, dtype=np.int64).reshape(-1, 3)
        placed = np.column_stack([units, members[:, 0], np.where(here, _PLACED, _SKIPPED)])
        rows = np.concatenate([rows, placed[is_first]])
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        numbers, costs = np.array([pack.number for pack in packs]), sums[:, 3:]
        return _Units(costs, sums[:, 1:3], numbers, sums[:, 0], np.maximum(costs[:, 0], planner.budgets[0]), rows)

    def _samples(self) -> Iterator[_Units]:
        """The samples of micro-batches, some rounds of all lanes at a time, until a lane ends."""
        order, num_lanes, size = self.dataset.order, self.dataset.worker_config.num_lanes, self._size
        state = LoaderState({}, [order.first_generation(num_lanes)], 0, {})
        cursors = [order.cursor(lane, state) for lane in range(num_lanes)]
        lanes = [_LaneSamples(cursor, self._tables, self._columns, self._forgotten) for cursor in cursors]
        rounds = max(1, _AT_ONCE // (num_lanes * size), _OF_LANE // size)
        while have := min(lane.fill(rounds * size) for lane in lanes) // size:
            numbers = np.arange(have * size)
            first = numbers // size * (num_lanes * size) + numbers % size  # places of the samples of lane 0
            costs = np.empty((have * num_lanes * size, len(self.names)), np.int64)
            draws = []
            for lane, one in enumerate(lanes):
                places = first + lane * size
                costs[places], rows = one.take(have * size)
                draws.append(np.column_stack([places[rows[:, 0]], rows[:, 1:]]))
            rows, ones = np.concatenate(draws), np.ones(len(costs), np.int64)
            rows = rows[np.argsort(rows[:, 0], kind="stable")]
            loads = costs[:, [0, 0]] if self.names else np.zeros((len(costs), 2), np.int64)
            yield _Units(costs, loads, ones, ones, 0 * ones, rows)

    def plan(
        self, length: RunLength | None = None, *, exact_steps: int | None = None, exact_samples: int = EXACT_SAMPLES
    ) -> RunPlan:
        """The plan of a run of this length (None: to the end of the data, or one epoch). It is exact over the first
        `exact_steps`, by default those that draw `exact_samples`.

        Raises:
            ConfigError: if the length cannot be planned, or names no source.
        """
        data, names = self.dataset, [name for name, _ in self._sources]
        if length is None and not data.finite:
            length = RunLength(epochs=1)
        if length is not None and length.source is not None and length.source not in names:
            raise ConfigError(f"{length}: no source is named so; there is {listed(names)}")
        facts: dict[str, Any] = {"num_ranks": self._num_ranks, "unit": "packs" if self._is_packed else "samples"}
        facts |= {"names": self.names, "sources": self._sources}
        if not self._tables:
            run = self._without_costs(length)
            notes = [self._unknown] if self._is_open else [f"only samples are known, no costs: {self._unknown}"]
            notes += () if self._is_open else ("it is assumed that hooks skip no sample, and make one of each",)
            return self._made(run, run, length, is_exact=True, notes=notes, **facts)
        exact, is_over, steps = None, False, []
        for step in self.steps():
            exact = step.totals if exact is None else exact.plus(step.totals)
            steps.append(step)
            is_over = self._reaches(length, exact)
            assert exact.drawn is not None
            if is_over or (exact.steps >= exact_steps if exact_steps else exact.drawn.sum() >= exact_samples):
                break
        else:  # without packing, lanes end one after another: of the last steps, only the number is known
            is_over = self._is_packed
        if exact is None:
            raise ConfigError(
                "the data end within the first step, or before each lane has a micro-batch: lower global_batch_size or "
                "num_lanes, or repeat them"
            )
        run = exact if is_over else self._extrapolated(exact, length)
        facts |= {"load": self.names[0] if self.names else None, "steps": steps}
        facts["in_turn"] = Spread.of([step.in_turn for step in steps])
        if self._planned is not None:
            assignment = self._planned.assignment
            facts |= {"load": assignment.by if assignment else TOKENS, "is_assigned": assignment is not None}
            facts["assigned"] = Spread.of([step.assigned for step in steps])
        return self._made(exact, run, length, is_exact=is_over, notes=[], **facts)

    def _made(self, exact: Totals, run: Totals, length: RunLength | None, *, notes: list[str], **facts: Any) -> RunPlan:
        """The plan, with what differs from a run of these totals."""
        data, reaches = self.dataset, not self.dataset.finite or length is None or self._reaches(length, run)
        if not reaches:
            notes.append(f"the data end before {length}, after {run.steps:,} steps")
        if data.skips is not None and not self.names:
            notes.append(f"samples are those of the run without skips ({data.skips})")
        if forgotten_in(data) is not None and not self.names:
            notes.append("forgotten samples are counted, too")
        if self.names and not self._is_packed:
            notes.append("how much padding a batch has, the encoder decides when it makes it")
        return RunPlan(exact=exact, run=run, reaches=reaches, notes=notes, **facts)

    def num_steps(self, length: RunLength, max_samples: int) -> int:
        """The steps of a run of this length, exactly: the fewest that reach it.

        Raises:
            ConfigError: if that takes more than `max_samples` samples, or if the data end before.
        """
        plan = self.plan(length, exact_samples=max_samples)
        if not plan.reaches:
            raise ConfigError(f"{length}: the data end before, after {plan.run.steps:,} steps")
        if not plan.is_exact:
            raise ConfigError(
                f"{length}: it has about {plan.run.steps:,} steps, which cannot be counted within max_planned_samples="
                f"{max_samples}: give train_steps, or a larger number there"
            )
        return plan.run.steps

    def _reaches(self, length: RunLength | None, totals: Totals) -> bool:
        if length is None:
            return False
        has, asked = self._progress(length, totals)
        return has >= asked

    def _progress(self, length: RunLength, totals: Totals) -> tuple[int, int]:
        """(what the totals have, what the length asks for)."""
        if length.steps is not None:
            return totals.steps, length.steps
        if length.tokens is not None and TOKENS in self.names:
            return int(totals.costs[self.names.index(TOKENS)]), length.tokens
        if length.epochs is None or totals.drawn is None:
            raise ConfigError(f"{length}: {self._unknown}. Or give the length in steps")
        chosen = [length.source in (None, name) for name, _ in self._sources]
        size = sum(size for (_, size), is_chosen in zip(self._sources, chosen, strict=True) if is_chosen)
        return int(totals.drawn[chosen].sum()), math.ceil(Fraction(str(length.epochs)) * size)

    def _units_of(self, steps: int) -> int:
        return self._schedule.micro_batches(steps).start * self._size

    def _steps_of(self, units: int) -> int:
        """The fewest steps that have so many packs or samples."""
        steps = self._schedule.step_after(units)
        return steps + (self._units_of(steps) < units)

    def _extrapolated(self, exact: Totals, length: RunLength | None) -> Totals:
        """The totals of the run, at the rates of its first steps."""
        assert exact.drawn is not None
        num_drawn = int(exact.drawn.sum())
        most = self._schedule.step_after(exact.units * sum(self._passes) // num_drawn) if self.dataset.finite else None
        steps = most or 0
        if length is not None:
            has, asked = self._progress(length, exact)
            if not has:
                raise ConfigError(f"{length}: the first {exact.steps:,} steps have none of it: give more exact_steps")
            steps = length.steps or self._steps_of(-(-exact.units * asked // has))
        steps = max(exact.steps, steps if most is None else min(most, steps))
        units = self._units_of(steps)
        ratio = units / exact.units
        drawn = None if self.dataset.finite else self._drawn_by_blend(round(num_drawn * ratio), 1)
        whole = [np.rint(np.asarray(value) * ratio).astype(np.int64) for value in exact]
        samples, skipped, too_long, room = map(int, whole[2:6])
        return Totals(steps, units, samples, skipped, too_long, room, whole[6], whole[7] if drawn is None else drawn)

    @property
    def _passes(self) -> list[int]:
        """The samples of each source in a pass over data that end."""
        times = self.dataset.plan.repetitions or (Fraction(1),) * len(self._sources)
        return [math.floor(n * size) for n, (_, size) in zip(times, self._sources, strict=True)]

    def _drawn_by_blend(self, draws: int, num_lanes: int) -> Ints | None:
        """How often each source is in the first `draws` draws of data without end, which lanes take in turn, a
        micro-batch each; None if that is no arithmetic."""
        if len(self._sources) == 1:
            return np.array([draws])
        order = self.dataset.order
        num_lanes = num_lanes if num_lanes * len(self._sources) <= _MAX_COUNTED else 1
        blend = order.blend(LoaderState({}, [order.first_generation(num_lanes)], 0, {}))
        if not isinstance(blend, Schedule):
            return None
        rounds, left = divmod(draws, num_lanes * self._size)
        counts = np.zeros(len(self._sources), np.int64)
        for lane in range(num_lanes):
            more = min(max(left - lane * self._size, 0), self._size)
            counts += blend.counts(lane, num_lanes, rounds * self._size + more)
        return counts

    def _without_costs(self, length: RunLength | None) -> Totals:
        """What is known of the run without a cost index: the samples, if hooks skip none and make one of each."""
        data = self.dataset
        most = self._schedule.step_after(sum(self._passes)) if data.finite and not self._is_open else _MAX_STEPS

        def totals(steps: int) -> Totals:
            units, drawn = self._units_of(steps), None
            if data.finite and not self._is_open:
                share = Fraction(units, sum(self._passes))
                drawn = np.array([round(share * count) for count in self._passes])
            elif not self._is_open:
                drawn = self._drawn_by_blend(units, data.worker_config.num_lanes)
            samples = None if self._is_open else units
            return Totals(steps, units, samples, 0, 0, 0, np.empty(0, np.int64), drawn)

        if length is None:
            return totals(most)
        steps = length.steps or bisect.bisect_left(
            range(_MAX_STEPS), True, key=lambda steps: self._reaches(length, totals(steps))
        )
        if steps == _MAX_STEPS:
            raise ConfigError(f"{length}: it is never reached")
        return totals(min(steps, most))


class _Pack(NamedTuple):
    """A pack that a lane takes: which of its members are `here`, as they are not forgotten; and (source, what became of
    it) of the samples before it that are in no pack."""

    pack: PlannedPack
    here: Sequence[bool]
    left_out: Sequence[tuple[int, int]]


class _LaneSamples:
    """The samples of a lane without packing, with their costs; those that the encoder skips, or that are forgotten, are
    passed over."""

    def __init__(
        self,
        cursor: Cursor,
        tables: Sequence[CostTable],
        columns: Sequence[Sequence[int]],
        forgotten: Container[SampleRef],
    ) -> None:
        self._cursor, self._tables, self._columns, self._forgotten = cursor, tables, columns, forgotten
        self._costs, self._draws = np.empty((0, len(columns[0])), np.int64), np.empty((0, 3), np.int64)

    def fill(self, count: int) -> int:
        """Draw until there are `count` samples (or parts of them), or the data end; return how many there are."""
        while (missing := count - len(self._costs)) > 0:
            try:
                drawn = [ref for _, ref in self._cursor.take(missing)]
            except StopIteration:
                break
            refs, here = table_of(drawn), np.array([ref not in self._forgotten for ref in drawn])
            at, _, costs = parts_of(self._tables, self._columns, refs)
            at, costs = at[here[at]], costs[here[at]]
            numbers = np.arange(len(refs))
            # a sample is drawn for its first part, or, if it is skipped, for the next one that is not
            units = len(self._costs) + np.searchsorted(at, numbers)
            what = np.where(np.isin(numbers, at), _PLACED, _SKIPPED)
            rows = np.column_stack([units, refs[:, 0], what])
            self._draws, self._costs = np.concatenate([self._draws, rows]), np.concatenate([self._costs, costs])
        return len(self._costs)

    def take(self, count: int) -> tuple[Ints, Ints]:
        """(costs, draws) of the first `count`."""
        at = int(np.searchsorted(self._draws[:, 0], count))
        taken = self._costs[:count], self._draws[:at]
        self._costs, self._draws = self._costs[count:], self._draws[at:] - np.array([count, 0, 0])
        return taken
