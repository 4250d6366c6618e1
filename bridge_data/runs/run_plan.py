"""What a run will see, before it starts: steps, samples, tokens, epochs, the fill of packs, the loads of ranks.

Reads the order of a training data set and its cost index (`prepare --costs`); no sample is read. Returns the steps
one by one (`Planner.steps`), and a `RunPlan`: exact figures of the first steps, and of the whole run, which are
extrapolated from these if the run is longer. Packs are known ahead if they are planned, samples if there is no packing.
Of packs that are made while samples are read, and of groups, only steps and packs are known; without a cost index, only
samples and epochs, by arithmetic, as hooks may skip samples or make several of one. Raises a ConfigError for a length
that cannot be planned, which says what to give instead.
"""

import bisect
import dataclasses
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError, DatasetError, counted, listed
from bridge_data.extensions import Feature
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.options import MAX_STEPS, check_integer, check_number
from bridge_data.order.blends import BlendSchedule
from bridge_data.order.row import Ints
from bridge_data.order.state import LoaderState
from bridge_data.plan import Plan, Source

EXACT_SAMPLES = 1 << 18
"""Samples over which a plan is exact, unless a number of steps is given: some seconds."""

_MAX_COUNTED = 1 << 20
"""Lanes times sources for which the draws of each lane are counted; beyond it, those of the job as of one lane."""

_MAX_SHOWN = 20

_TOKENS = "tokens"


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
        if self.epochs == math.inf:
            raise ConfigError("epochs=inf: expected the number of epochs at which the run ends")
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


def passes_of(plan: Plan) -> list[int]:
    """The samples of each source in a pass over data that end."""
    times = plan.repetitions or (Fraction(1),) * len(plan.sources)
    return [math.floor(number * source.num_samples) for number, source in zip(times, plan.sources, strict=True)]


def drawn_of_sources(dataset: LaneDataset, draws: int, num_lanes: int) -> Ints | None:
    """How often each source is in the first `draws` draws, which so many lanes take in turn, a micro-batch each; of
    data that end, in all of them at most. None if that is no arithmetic, as weights count tokens."""
    order, num_sources, size = dataset.order, len(dataset.plan.sources), dataset.batching.batch_size or 1
    if dataset.finite:
        passes = passes_of(dataset.plan)
        drawn = min(draws, sum(passes))
        return np.array([round(Fraction(drawn, sum(passes)) * count) for count in passes])
    if num_sources == 1:
        return np.array([draws])
    num_lanes = num_lanes if num_lanes * num_sources <= _MAX_COUNTED else 1
    blend = order.blend(LoaderState({}, [order.first_generation(num_lanes)], 0, {}))
    if not isinstance(blend, BlendSchedule):
        return None
    rounds, left = divmod(draws, num_lanes * size)
    counts = np.zeros(num_sources, np.int64)
    for lane in range(num_lanes):
        more = min(max(left - lane * size, 0), size)
        counts += blend.counts(lane, num_lanes, rounds * size + more)
    return counts


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


class StepsAhead(Protocol):
    """What is known of the steps of a run before they are read."""

    names: Sequence[str]
    """The costs in the totals: those that all sources have."""
    load: str | None
    """The cost that ranks are compared by."""
    is_assigned: bool
    """Whether packs are assigned to the ranks by it."""

    def steps(self) -> Iterator[PlannedStep]:
        """The steps of the run, one by one, to the last whole one."""


MEASURED_WITH = Feature[Callable[[Source], Mapping[str, str]]]("measured_with")
"""By the `costs_key` of each encoder with which a source was measured, what it is called."""

_AHEAD = Feature[Callable[[LaneDataset, BatchSchedule], StepsAhead]]("steps_ahead")
"""What the cost index tells of a data set; `ConfigError` if its samples were not measured for its encoder."""


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
        are_planned = dataset.pack_sources.are_planned
        self._is_open = not are_planned and (self._is_packed or dataset.batcher().groups)
        """Whether the samples of a step are chosen when they are read."""
        self._unknown = "which samples share a pack (or a group) is decided when they are read: no step has a known "
        self._unknown += "number of samples and tokens before. packing='planned' makes packs from the cost index"
        self._ahead: StepsAhead | None = None
        if not self._is_open:
            try:
                self._ahead = _AHEAD.get("a plan with costs")(dataset, self._schedule)
            except (ConfigError, DatasetError) as error:
                if are_planned:
                    raise
                self._unknown = str(error)
        measured_with = MEASURED_WITH.find()
        self._is_measured = measured_with is not None and any(map(measured_with, dataset.plan.sources))
        """Whether the data have costs, if of another encoder."""
        self.names: Sequence[str] = self._ahead.names if self._ahead else ()
        """The costs in the totals."""

    def steps(self) -> Iterator[PlannedStep]:
        """The steps of the run, one by one, to the last whole one.

        Raises:
            ConfigError: if they are not known before samples are read.
        """
        if self._ahead is None:
            raise ConfigError(self._unknown)
        return self._ahead.steps()

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
        if self._ahead is None:
            run = self._without_costs(length)
            notes = [self._unknown] if self._is_open else []
            if not self._is_open:
                notes += [f"only samples are known, no costs: {self._unknown}"] if self._is_measured else []
                notes.append("it is assumed that hooks skip no sample, and make one of each")
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
        facts |= {"load": self._ahead.load, "is_assigned": self._ahead.is_assigned, "steps": steps}
        facts["in_turn"] = Spread.of([step.in_turn for step in steps])
        if steps[0].assigned:
            facts["assigned"] = Spread.of([step.assigned for step in steps])
        return self._made(exact, run, length, is_exact=is_over, notes=[], **facts)

    def _made(self, exact: Totals, run: Totals, length: RunLength | None, *, notes: list[str], **facts: Any) -> RunPlan:
        """The plan, with what differs from a run of these totals."""
        data, reaches = self.dataset, not self.dataset.finite or length is None or self._reaches(length, run)
        if not reaches:
            notes.append(f"the data end before {length}, after {run.steps:,} steps")
        if data.skips is not None and not self.names:
            notes.append(f"samples are those of the run without skips ({data.skips})")
        if any(extra.leaves_out for extra in data.extras) and not self.names:
            notes.append("forgotten samples are counted, too")
        if self.names and not self._is_packed:
            notes.append("how much padding a batch has, the encoder decides when it makes it")
        return RunPlan(exact=exact, run=run, reaches=reaches, notes=notes, **facts)

    def _reaches(self, length: RunLength | None, totals: Totals) -> bool:
        if length is None:
            return False
        has, asked = self._progress(length, totals)
        return has >= asked

    def _progress(self, length: RunLength, totals: Totals) -> tuple[int, int]:
        """(what the totals have, what the length asks for)."""
        if length.steps is not None:
            return totals.steps, length.steps
        if length.tokens is not None and _TOKENS in self.names:
            return int(totals.costs[self.names.index(_TOKENS)]), length.tokens
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
        passes = sum(passes_of(self.dataset.plan))
        most = self._schedule.step_after(exact.units * passes // num_drawn) if self.dataset.finite else None
        steps = most or 0
        if length is not None:
            has, asked = self._progress(length, exact)
            if not has:
                raise ConfigError(f"{length}: the first {exact.steps:,} steps have none of it: give more exact_steps")
            steps = length.steps or self._steps_of(-(-exact.units * asked // has))
        steps = max(exact.steps, steps if most is None else min(most, steps))
        units = self._units_of(steps)
        ratio = units / exact.units
        drawn = None if self.dataset.finite else drawn_of_sources(self.dataset, round(num_drawn * ratio), 1)
        whole = [np.rint(np.asarray(value) * ratio).astype(np.int64) for value in exact]
        samples, skipped, too_long, room = map(int, whole[2:6])
        return Totals(steps, units, samples, skipped, too_long, room, whole[6], whole[7] if drawn is None else drawn)

    def _without_costs(self, length: RunLength | None) -> Totals:
        """What is known of the run without a cost index: the samples, if hooks skip none and make one of each."""
        data = self.dataset
        passes = passes_of(data.plan)
        ends = data.finite and not self._is_open
        most = self._schedule.step_after(data.passes.num_in_pass * self._size) if ends else MAX_STEPS

        def totals(steps: int) -> Totals:
            units, drawn = self._units_of(steps), None
            if ends:
                units = min(units, sum(passes))  # lanes end with smaller micro-batches
            if not self._is_open:
                drawn = drawn_of_sources(data, units, data.worker_config.num_lanes)
            samples = None if self._is_open else units
            return Totals(steps, units, samples, 0, 0, 0, np.empty(0, np.int64), drawn)

        if length is None:
            return totals(most)
        steps = length.steps or bisect.bisect_left(
            range(MAX_STEPS), True, key=lambda steps: self._reaches(length, totals(steps))
        )
        if steps == MAX_STEPS:
            raise ConfigError(f"{length}: it is never reached")
        return totals(min(steps, most))
