"""What the cost index tells of the steps of a run before they are read: a plan is made of it (`runs.run_plan`).

Reads the order of a training data set, its planned packs, if any, and the cost index of each source. Returns the steps,
of packs or else of samples as micro-batches have them, with the sums of their costs, and the loads of ranks. Raises a
ConfigError if the samples were not measured for the encoder, and a DatasetError if the data have changed since.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.order import SampleRef
from bridge_data.order.cursor import Cursor
from bridge_data.order.extras import LaneExtras
from bridge_data.order.row import Ints
from bridge_data.order.state import LoaderState
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
from bridge_data.plugins.planned.planned_sources import costs_of_sources, planned_of
from bridge_data.runs.run_plan import PlannedStep, Totals

_AT_ONCE = 4096
"""Samples that are drawn together, if there is no packing."""

_PACKS_AT_ONCE = 256

_OF_LANE = 16
"""Samples that each lane draws at least."""


PLACED, SKIPPED, TOO_LONG = range(3)
"""What became of a sample that was drawn for a unit."""


class Units(NamedTuple):
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

    def joined(self, other: "Units") -> "Units":
        *columns, draws = other
        shifted = draws + np.array([len(self.loads), 0, 0])
        return Units(*(np.concatenate(pair) for pair in zip(self, (*columns, shifted), strict=True)))

    def only(self, kept: Sequence[bool]) -> "Units":
        """Those of them that are `kept`."""
        *columns, draws = self
        mask = np.array(kept, dtype=bool)
        draws = draws[mask[draws[:, 0]]]
        draws = np.column_stack([(np.cumsum(mask) - 1)[draws[:, 0]], draws[:, 1:]])
        return Units._make([*(column[mask] for column in columns), draws])

    def cut(self, count: int) -> tuple["Units", "Units"]:
        """The first `count`, and the others."""
        *columns, draws = self
        at = int(np.searchsorted(draws[:, 0], count))
        rest = draws[at:] - np.array([count, 0, 0])
        return (
            Units._make([*(column[:count] for column in columns), draws[:at]]),
            Units._make([*(column[count:] for column in columns), rest]),
        )


class SamplesAhead:
    """The steps of the run of `dataset` (from `get_train_dataset`), of the sizes of `schedule`, in packs if these are
    planned: see `StepsAhead`."""

    def __init__(self, dataset: LaneDataset, schedule: BatchSchedule) -> None:
        self._schedule = schedule
        self._dataset, self._planned = dataset, planned_of(dataset)
        self._size, self._num_ranks = dataset.batching.batch_size or 1, dataset.worker_config.world_size
        planner = None if self._planned is None else self._planned.packs(dataset).planner
        self._costs: list[CostTable] = costs_of_sources(dataset)
        budgets = () if planner is None else planner.names
        others = [name for name in self._costs[0].names if name not in budgets]
        self.names = (*budgets, *(name for name in others if all(name in table.names for table in self._costs)))
        self._columns = [[(*table.names, SAMPLES).index(name) for name in self.names] for table in self._costs]
        assignment = None if self._planned is None else self._planned.assignment
        self.is_assigned, self.load = assignment is not None, self.names[0] if self.names else None
        if planner is not None:
            self.load = TOKENS if assignment is None else assignment.by
        extras = LaneExtras(dataset.extras, 0, dataset.new_state())
        self._is_left_out = extras.is_left_out if extras.may_leave_out else _none

    def steps(self) -> Iterator[PlannedStep]:
        """The steps of the run, one by one, to the last whole one."""
        blocks = self._unskipped(self._samples() if self._planned is None else self._packs())
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

    def _unskipped(self, blocks: Iterator[Units]) -> Iterator[Units]:
        """The units of micro-batches that no `skip_steps` leaves out."""
        first, skips = 0, self._dataset.skips
        for block in blocks:
            numbers = range(first, first := first + len(block.loads))
            yield block if skips is None else block.only([one // self._size not in skips for one in numbers])

    def _step(self, number: int, units: Units) -> PlannedStep:
        in_turn, assigned = self._loads(units)
        _, skipped, too_long = np.bincount(units.draws[:, 2], minlength=3).tolist()
        sums = int(units.samples.sum()), skipped, too_long, int(units.room.sum()), units.costs.sum(0)
        drawn = np.bincount(units.draws[:, 1], minlength=len(self._costs))
        return PlannedStep(number, Totals(1, len(units.loads), *sums, drawn), in_turn, assigned)

    def _loads(self, units: Units) -> tuple[list[int], list[int]]:
        """The loads of the ranks in a step of these units, in turn and assigned (none without packs)."""
        planned, loads = units.loads.T
        in_place: list[int] = loads.reshape(-1, self._num_ranks, self._size).sum((0, 2)).tolist()
        if self.is_assigned:
            in_order = loads[np.argsort(units.numbers, kind="stable")]
            return in_order.reshape(-1, self._num_ranks, self._size).sum((0, 2)).tolist(), in_place
        groups = () if self._planned is None else longest_first(planned.tolist(), self._num_ranks)
        return in_place, [int(loads[group].sum()) for group in groups]

    def _packs(self) -> Iterator[Units]:
        num_lanes = self._dataset.worker_config.num_lanes
        assert self._planned is not None
        packs_of_job = self._planned.packs(self._dataset)
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
            left_out += [(ref.source, SKIPPED) for ref in pack.skipped]
            left_out += [(ref.source, TOO_LONG) for ref in pack.too_long]
            here = [not self._is_left_out(ref) for ref in pack.members]
            if any(here):
                return _Pack(pack, here, left_out)
            left_out += [(ref.source, SKIPPED) for ref in pack.members]

    def _packs_of(self, taken: Sequence["_Pack"]) -> Units:
        assert self._planned is not None
        planner, packs = self._planned.packs(self._dataset).planner, [one.pack for one in taken]
        sizes = np.array([len(pack.members) for pack in packs])
        members = table_of([ref for pack in packs for ref in pack.members])
        here = np.concatenate([one.here for one in taken])
        units, begins = np.repeat(np.arange(len(packs)), sizes), np.cumsum(sizes) - sizes
        fields = ("costs", "loads", "is_first")
        costs, loads, is_first = (np.concatenate([getattr(pack, name) for pack in packs]) for name in fields)
        if len(self.names) > costs.shape[1]:
            _, _, measured = parts_of(self._costs, self._columns, members)
            costs = np.concatenate([costs, measured[:, costs.shape[1] :]], axis=1)
        sums = np.add.reduceat(np.column_stack([here, loads, loads * here, costs * here[:, None]]), begins)
        left_out = [(unit, *row) for unit, one in enumerate(taken) for row in one.left_out]
        rows = np.array(left_out, dtype=np.int64).reshape(-1, 3)
        placed = np.column_stack([units, members[:, 0], np.where(here, PLACED, SKIPPED)])
        rows = np.concatenate([rows, placed[is_first]])
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        numbers, costs = np.array([pack.number for pack in packs]), sums[:, 3:]
        return Units(costs, sums[:, 1:3], numbers, sums[:, 0], np.maximum(costs[:, 0], planner.budgets[0]), rows)

    def _samples(self) -> Iterator[Units]:
        """Some rounds of all lanes at a time."""
        order, num_lanes, size = self._dataset.order, self._dataset.worker_config.num_lanes, self._size
        state = LoaderState({}, [order.first_generation(num_lanes)], 0, {})
        cursors = [order.cursor(lane, state) for lane in range(num_lanes)]
        lanes = [_LaneSamples(cursor, self._costs, self._columns, self._is_left_out) for cursor in cursors]
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
            yield Units(costs, loads, ones, ones, 0 * ones, rows)


class _Pack(NamedTuple):
    """A pack that a lane takes: which of its members are `here`, as they are not forgotten; and (source, what became of
    it) of the samples before it that are in no pack."""

    pack: PlannedPack
    here: Sequence[bool]
    left_out: Sequence[tuple[int, int]]


def _none(ref: SampleRef) -> bool:
    return False


class _LaneSamples:
    """The samples of a lane without packing, with their costs; those that the encoder skips, or that are forgotten, are
    passed over."""

    def __init__(
        self,
        cursor: Cursor,
        tables: Sequence[CostTable],
        columns: Sequence[Sequence[int]],
        is_left_out: Callable[[SampleRef], bool],
    ) -> None:
        self._cursor, self._tables, self._columns, self._is_left_out = cursor, tables, columns, is_left_out
        self._costs, self._draws = np.empty((0, len(columns[0])), np.int64), np.empty((0, 3), np.int64)

    def fill(self, count: int) -> int:
        """Draw until there are `count` samples (or parts of them), or the data end; return how many there are."""
        while (missing := count - len(self._costs)) > 0:
            try:
                drawn = [ref for _, ref in self._cursor.take(missing)]
            except StopIteration:
                break
            refs, here = table_of(drawn), np.array([not self._is_left_out(ref) for ref in drawn])
            at, _, costs = parts_of(self._tables, self._columns, refs)
            at, costs = at[here[at]], costs[here[at]]
            numbers = np.arange(len(refs))
            # a sample is drawn for its first part, or, if it is skipped, for the next one that is not
            units = len(self._costs) + np.searchsorted(at, numbers)
            what = np.where(np.isin(numbers, at), PLACED, SKIPPED)
            rows = np.column_stack([units, refs[:, 0], what])
            self._draws, self._costs = np.concatenate([self._draws, rows]), np.concatenate([self._costs, costs])
        return len(self._costs)

    def take(self, count: int) -> tuple[Ints, Ints]:
        """(costs, draws) of the first `count`."""
        at = int(np.searchsorted(self._draws[:, 0], count))
        taken = self._costs[:count], self._draws[:at]
        self._costs, self._draws = self._costs[count:], self._draws[at:] - np.array([count, 0, 0])
        return taken
