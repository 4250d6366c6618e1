"""Planned packs: which samples share a pack, decided from the costs of samples before any of them is read.

Reads the draws of the whole job, as those of one lane, and the cost index of each source. `PackPlanner` takes the draws
in windows and packs each window, so that pack number m of the job is a function of the plan alone, not of ranks,
workers or lanes. Micro-batch n is made of packs n * batch_size to (n + 1) * batch_size - 1, by lane n mod num_lanes, as
ever. Nothing waits, so the state of a lane is where a window begins, and how many packs the lane has taken.

With a `StepAssignment`, the packs of a step are assigned to the data-parallel ranks by their loads, so that all ranks
are done at the same time. With a `ContextAssignment`, which is for hybrid context parallelism, the samples of a step
are assigned, long ones to several ranks. No sample moves between ranks: each reads what it was assigned.
"""

import bisect
import collections
import contextlib
import dataclasses
import heapq
import itertools
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import ConfigError, StateError
from bridge_data.order import ALL_OUTPUTS, BEGINNING, Cursor, SampleRef
from bridge_data.order.cursor import CursorState
from bridge_data.order.random_draws import Permutation, key64
from bridge_data.order.row import Ints
from bridge_data.order.state import LaneState, LoaderState, has_started
from bridge_data.plugins.planned.costs import CostTable
from bridge_data.task.packers import Packing, packs_within

SAMPLES = "samples"
"""A cost of 1 of each sample, which needs no measuring."""
TOKENS, ATTENTION = "tokens", "attention"

_PACK_STAGE = 5
_SLACK = 2048
"""One of so many tokens of a window is left free: without any, best fit needs one more pack, nearly empty."""
_RULES = 1
"""The version of these rules: it changes with the packs that they make of the same samples."""
_MAX_WINDOWS, _MAX_BEGINS = 32, 1 << 12
"""Windows that a process keeps, and places where windows begin."""
_MAX_ASSIGNED = 4
"""Assigned steps that a process keeps: those in progress."""
_MAX_EMPTY = 1 << 10
"""Windows without a pack after which nothing is expected to come."""


@dataclasses.dataclass(slots=True)
class PlannedPack:
    """A pack before it is read: its members, the cost of each by column (members, columns), what each costs a rank
    (`loads`), by which packs are assigned, whether it is the first part of its sample in a pack (`is_first`), how many
    parts that has in all (`num_parts`), and the samples before it that are in no pack, as the encoder skips them
    (`skipped`) or as they are `too_long`."""

    members: list[SampleRef]
    costs: Ints
    loads: Ints
    is_first: NDArray[np.bool_]
    num_parts: Ints
    number: int = 0
    """Its number in the job."""
    skipped: Sequence[SampleRef] = ()
    too_long: Sequence[SampleRef] = ()
    step: "ContextStep | None" = None
    """If this is not a pack, but what a rank has of a step."""

    @property
    def num_left_out(self) -> int:
        """The samples before it that are in no pack."""
        return len(self.skipped) + len(self.too_long)

    def planned(self) -> "dict[SampleRef, PlannedMember]":
        """Its members, as planned."""
        columns = (self.costs.tolist(), self.num_parts.tolist(), self.is_first.tolist())
        return dict(zip(self.members, map(PlannedMember, *columns), strict=True))


@dataclasses.dataclass(slots=True)
class PackWindow:
    """Packs number `first` to `end` - 1 of the job, made of the draws from `begin` to `after`."""

    first: int
    begin: CursorState
    after: CursorState
    packs: list[PlannedPack]

    @property
    def end(self) -> int:
        return self.first + len(self.packs)


class PlannedMember(NamedTuple):
    """A member of a pack as planned: its costs, the number of parts of its sample, and whether it is the first of these
    in a pack."""

    costs: list[int]
    num_parts: int
    is_first: bool


class PackPlanner:
    """Plans the packs of the draws of `cursor`, in windows of `window_size` samples; `costs` are those of the sources.
    `packing` says what a pack holds, `key` seeds the order of the packs of a window, `load` is the cost by which they
    are assigned (see `StepAssignment`).

    Raises:
        ConfigError: if the cost index lacks a cost.
    """

    def __init__(
        self,
        cursor: Cursor,
        costs: Sequence[CostTable],
        packing: Packing,
        window_size: int,
        key: int,
        load: str = TOKENS,
    ) -> None:
        self._cursor, self.costs, self.packing = cursor, costs, packing
        self._size, self._key = window_size, key
        self.names = (TOKENS, *packing.budgets)
        self.budgets = np.array([packing.capacity, *packing.budgets.values()], dtype=np.int64)
        self._load = load
        loads = TOKENS if load == ATTENTION else load
        for name in (*self.names, loads):
            for table in costs:
                if name not in (*table.names, SAMPLES):
                    raise ConfigError(
                        f"packing='planned' needs the cost {name!r}, and the cost index has {', '.join(table.names)}: "
                        "have the encoder's `costs` return it, and measure again (`bridge-data prepare --costs`)"
                    )
        wanted = (*self.names, loads)
        self._columns = [[(*table.names, SAMPLES).index(name) for name in wanted] for table in costs]
        self._begins: dict[int, CursorState] = {0: cursor.state()}
        self._firsts = [0]
        self._windows: collections.OrderedDict[int, PackWindow] = collections.OrderedDict()
        self.left_at_end = -1, 0
        """When the data have ended, if the last samples are in no pack: the number of packs, and of these samples."""

    def members_of(self, ref: SampleRef) -> dict[SampleRef, PlannedMember]:
        """All parts of a sample that are in packs."""
        rows = self._rows([ref])
        placed = np.arange(len(rows.at)) if self.packing.overlong == "alone" else np.flatnonzero(~rows.is_long)
        return {
            ref._replace(output=int(rows.parts[row])): PlannedMember(
                rows.costs[row].tolist(), len(rows.at), row == placed[0]
            )
            for row in placed.tolist()
        }

    def fingerprint(self, digests: Sequence[str]) -> dict[str, Any]:
        """What must be equal for pack numbers to mean the same packs, beside the order of the samples; `digests` are
        those of the costs of the sources."""
        limits = dict(zip(self.names, self.budgets.tolist(), strict=True))
        return {"rules": _RULES, "costs": [*digests], "budgets": limits, "overlong": self.packing.overlong}

    def note(self, first: int, begin: CursorState) -> None:
        """Note that the window whose first pack is number `first` begins at the position `begin`."""
        if first in self._begins:
            return
        self._begins[first] = begin
        bisect.insort(self._firsts, first)
        if len(self._firsts) > _MAX_BEGINS:
            for old in self._firsts[1 : _MAX_BEGINS // 2]:
                del self._begins[old]
            del self._firsts[1 : _MAX_BEGINS // 2]

    def window(self, number: int) -> PackWindow:
        """The window of pack `number`, found from the latest known one before it.

        Raises:
            StopIteration: if the data end before it.
        """
        found = self._at(self._firsts[bisect.bisect_right(self._firsts, number) - 1])
        while number >= found.end:
            found = self.following(found)
        return found

    def following(self, window: PackWindow) -> PackWindow:
        """The window after another; `StopIteration` at the end of the data."""
        self.note(window.end, window.after)
        return self._at(window.end)

    def _at(self, first: int) -> PackWindow:
        if first not in self._windows:
            self._windows[first] = self._planned(first, self._begins[first])
            if len(self._windows) > _MAX_WINDOWS:
                self._windows.popitem(last=False)
        self._windows.move_to_end(first)
        return self._windows[first]

    def _planned(self, first: int, begin: CursorState) -> PackWindow:
        """The next window that has a pack."""
        started = begin
        skipped: list[SampleRef] = []
        too_long: list[SampleRef] = []
        for _ in range(_MAX_EMPTY):
            try:
                refs, rows = self._drawn(begin)
            except StopIteration:
                self.left_at_end = first, len(skipped) + len(too_long)
                raise
            packs, placed = self._packs(refs, rows, key64(self._key, _PACK_STAGE, first))
            left_out, measured = np.setdiff1d(np.arange(len(refs)), placed), np.isin(np.arange(len(refs)), rows.at)
            for at in left_out.tolist():
                (too_long if measured[at] else skipped).append(refs[at])
            after = self._cursor.state()
            if packs:
                packs[0].skipped, packs[0].too_long = skipped, too_long
                for number, pack in enumerate(packs, first):
                    pack.number = number
                return PackWindow(first, started, after, packs)
            begin = after
        raise ConfigError(
            f"none of {_MAX_EMPTY * self._size:,} samples is in a pack: by the cost index, the encoder skips all of "
            f"them, or all are longer than a pack holds ({self._shown()})"
        )

    def _drawn(self, begin: CursorState) -> tuple[list[SampleRef], "_Rows"]:
        """The samples of a window, and their costs. It ends where the samples so far fill packs best, within the last
        pack's worth: what is drawn after that would be in a pack that is not full."""
        self._cursor.seek(begin)
        refs = [ref for _, ref in self._cursor.take(self._size)]
        rows = self._rows(refs)
        lengths, capacity = np.where(rows.is_long, 0, rows.costs[:, 0]), int(self.budgets[0])
        sums = np.cumsum(lengths)
        if len(refs) == self._size and len(sums) and sums[-1] >= 2 * capacity:
            ends = np.flatnonzero((sums > sums[-1] - capacity) & (np.diff(rows.at, append=len(refs)) > 0))
            last = int(ends[np.argmax((sums[ends] - 1 + sums[-1] // _SLACK) % capacity)])
            count = int(rows.at[last]) + 1
            if count < len(refs):
                self._cursor.seek(begin)
                self._cursor.take(count)
                refs, rows = refs[:count], rows.first(last + 1)
        return refs, rows

    def _packs(self, refs: list[SampleRef], rows: "_Rows", key: int) -> tuple[list[PlannedPack], Ints]:
        """The packs of some samples, in the order that `key` gives, and the numbers of the samples that are in one."""
        alone = np.flatnonzero(rows.is_long) if self.packing.overlong == "alone" else np.empty(0, np.int64)
        fitting = np.flatnonzero(~rows.is_long)
        groups = [fitting[group] for group in packs_within(rows.costs[fitting], self.budgets.tolist())]
        groups += [alone[number : number + 1] for number in range(len(alone))]
        if not groups:
            return [], np.empty(0, np.int64)
        placed, is_first = np.sort(np.concatenate(groups)), np.zeros(len(rows.at), dtype=bool)
        is_first[placed[np.unique(rows.at[placed], return_index=True)[1]]] = True
        made = []
        for members in _in_order([np.sort(group) for group in groups], rows, key):
            pairs = zip(rows.at[members].tolist(), rows.parts[members].tolist(), strict=True)
            refs_of = [refs[at]._replace(output=part) for at, part in pairs]
            of_members = (rows.costs[members], rows.loads[members], is_first[members], rows.num_parts[members])
            made.append(PlannedPack(refs_of, *of_members))
        return made, rows.at[placed]

    def _rows(self, refs: list[SampleRef]) -> "_Rows":
        """All parts of some samples, in order."""
        at, parts, costs = parts_of(self.costs, self._columns, table_of(refs))
        loads, costs = costs[:, -1], costs[:, :-1]
        if self.packing.overlong == "truncate":
            costs[:, 0] = np.minimum(costs[:, 0], self.budgets[0])
        if self._load in (TOKENS, ATTENTION):
            loads = costs[:, 0] ** (2 if self._load == ATTENTION else 1)
        is_long: NDArray[np.bool_] = np.logical_or.reduce(costs > self.budgets, axis=1)
        return _Rows(at, parts, costs, is_long, loads, np.bincount(at)[at])

    def _shown(self) -> str:
        return ", ".join(f"{name} {most:,}" for name, most in zip(self.names, self.budgets.tolist(), strict=True))


class _Rows(NamedTuple):
    """Parts of samples: the position of the sample among those drawn, the number of the part, its costs (rows,
    budgets), whether it exceeds a budget, the cost by which packs are assigned, and how many parts its sample has."""

    at: Ints
    parts: Ints
    costs: Ints
    is_long: NDArray[np.bool_]
    loads: Ints
    num_parts: Ints

    def first(self, count: int) -> "_Rows":
        """The first `count` of them."""
        at, parts, costs, is_long, loads, num_parts = self
        return _Rows(at[:count], parts[:count], costs[:count], is_long[:count], loads[:count], num_parts[:count])


def _in_order(groups: list[Ints], rows: _Rows, key: int) -> list[Ints]:
    """Packs in the order that `key` gives; but the parts of one sample come in consecutive packs, unless one of these
    has a part of an earlier sample, too."""
    places = Permutation(len(groups), key)(np.arange(len(groups))).tolist()
    is_part = rows.num_parts > 1
    if not is_part.any():
        return [group for _, group in sorted(zip(places, groups, strict=True), key=lambda pair: pair[0])]
    first: dict[int, int] = {}
    keys = []
    for place, group in zip(places, groups, strict=True):
        row = next((row for row in group.tolist() if is_part[row]), None)
        sample, part = (-1, 0) if row is None else (int(rows.at[row]), int(rows.parts[row]))
        if row is not None:
            first[sample] = min(place, first.get(sample, place))
        keys.append((sample, place, part))
    ranked = [(first.get(sample, place), part, place) for sample, place, part in keys]
    return [groups[number] for number in sorted(range(len(groups)), key=ranked.__getitem__)]


def table_of(refs: Sequence[SampleRef]) -> Ints:
    """References as rows (source, epoch, index, output)."""
    numbers = np.fromiter(itertools.chain.from_iterable(refs), np.int64, 4 * len(refs))
    return numbers.reshape(-1, 4)


def parts_of(tables: Sequence[CostTable], columns: Sequence[Sequence[int]], asked: Ints) -> tuple[Ints, Ints, Ints]:
    """(number of the row, number of the part, costs in the `columns` of its source) of all parts of the samples in at
    least one row of `asked` (see `table_of`), in order. Of a reference to one part, it is only that."""
    found = []
    for source in np.unique(asked[:, 0]).tolist():
        positions = np.flatnonzero(asked[:, 0] == source)
        at, parts, costs = tables[source].parts(asked[positions, 2])
        part = asked[positions, 3][at]
        kept = (part < 0) | (part == parts)
        counted = np.concatenate([costs[kept], np.ones((int(kept.sum()), 1), np.int64)], axis=1)  # SAMPLES comes last
        found.append((positions[at][kept], parts[kept], counted[:, columns[source]]))
    at, parts, costs = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(at, kind="stable")
    return at[order], parts[order], costs[order]


class Steps(Protocol):
    """Which micro-batches of the job are one step."""

    def step_with(self, micro_batch: int) -> range:
        """The micro-batches of the step that this one is in."""

    def check(self, consumed_samples: int, world_size: int) -> None:
        """Raise a ConfigError if the ranks cannot share every step from there equally."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepAssignment:
    """How the packs of a step are shared by `num_ranks` data-parallel ranks: by the sum of the cost `by` of their
    samples; "attention" is the square of their tokens."""

    steps: Steps
    num_ranks: int
    by: str


Groups: TypeAlias = list[list[list[int]]]
"""Of each group of a step, which its ranks begin together: by rank, the numbers of its samples."""


class ContextStep(NamedTuple):
    """A step under hybrid context parallelism: its samples, by number; the padded lengths of this rank's; the groups of
    all ranks."""

    members: Sequence[SampleRef]
    lengths: Mapping[int, int]
    groups: Groups


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContextAssignment:
    """How the samples of a step are shared by ranks, of which this is `rank`: `schedule` makes groups of (number,
    tokens), by these `modules`. A sample that c > 1 ranks share is padded to a multiple of 2 * c * `multiple` tokens,
    others of `multiple`."""

    rank: int
    schedule: Callable[[list[tuple[int, int]]], Groups]
    modules: tuple[str, ...] = ()
    multiple: int = 1

    def part(self, packs: Sequence[PlannedPack]) -> PlannedPack:
        """This rank's samples of the packs of a step, each once. Rank 0 tells of those that are in no pack."""
        members = [ref for pack in packs for ref in pack.members]
        fields = ("costs", "loads", "is_first", "num_parts")
        costs, loads, is_first, num_parts = (np.concatenate([getattr(pack, name) for pack in packs]) for name in fields)
        tokens = costs[:, 0].tolist()
        groups = self.schedule([*enumerate(tokens)])
        shared = collections.Counter(number for group in groups for mine in group for number in mine)
        mine = sorted({number for group in groups for number in group[self.rank]})
        multiples = {one: self.multiple * (1 if shared[one] == 1 else 2 * shared[one]) for one in mine}
        lengths = {one: -(-tokens[one] // multiple) * multiple for one, multiple in multiples.items()}
        left_out = [ref for pack in packs if self.rank == 0 for ref in (*pack.skipped, *pack.too_long)]
        step = ContextStep(members, lengths, groups)
        chosen = [members[number] for number in mine]
        of_mine = (costs[mine], loads[mine], is_first[mine], num_parts[mine])
        return PlannedPack(chosen, *of_mine, skipped=left_out, step=step)


class Taken(NamedTuple):
    """A pack of a slot: its number; of its step, where the window of the first pack begins, as (first pack of that
    window, position), and how the step is assigned (see `JobPacks.step`)."""

    number: int
    pack: PlannedPack
    begin: tuple[int, CursorState]
    step: tuple[int, int, int, int]


class JobPacks:
    """The packs of the job as micro-batches have them: slot s has a pack, of micro-batch s div `batch_size`."""

    def __init__(self, planner: PackPlanner, batch_size: int, assignment: StepAssignment | None) -> None:
        self.planner, self.batch_size, self._assignment = planner, batch_size, assignment
        self._assigned: collections.OrderedDict[tuple[int, int], tuple[tuple[int, CursorState], Any]]
        self._assigned = collections.OrderedDict()
        self._steps: collections.deque[range] = collections.deque(maxlen=_MAX_ASSIGNED)

    def step(self, micro_batch: int) -> tuple[int, int, int, int]:
        """How the step of a micro-batch is assigned: its first micro-batch, the one after the last, the number of
        ranks, and a number for the cost; zeros without an assignment."""
        if self._assignment is None:
            return 0, 0, 0, 0
        step = next((one for one in self._steps if micro_batch in one), None)
        if step is None:  # after a ramp, finding it takes as long as there were steps in the ramp
            step = self._assignment.steps.step_with(micro_batch)
            self._steps.append(step)
        return step.start, step.stop, self._assignment.num_ranks, zlib.crc32(self._assignment.by.encode())

    def take(self, slot: int, shift: int) -> Taken:
        """The pack of a slot. The micro-batch of a slot is `shift` before that of its own number, if the lanes were
        assigned when some packs had been lost.

        Raises:
            StopIteration: if the data end before it.
        """
        size = self.batch_size
        step = self.step(slot // size - shift)
        if self._assignment is not None:
            first = (step[0] + shift) * size
            begin, packs = self._assigned_step(first, (step[1] - step[0]) * size)
            if packs is not None:
                number, pack = packs[slot - first]
                return Taken(number, pack, begin, step)
        window = self.planner.window(slot)
        return Taken(slot, window.packs[slot - window.first], (window.first, window.begin), step)

    def _assigned_step(self, first: int, count: int) -> tuple[tuple[int, CursorState], Any]:
        """Where the window of pack `first` begins, and (number, pack) of each slot of the step of `count` packs from
        there; None if the data end within it."""
        if (first, count) not in self._assigned:
            window = self.planner.window(first)
            self._assigned[first, count] = (window.first, window.begin), self._assignment_of(first, count, window)
            if len(self._assigned) > _MAX_ASSIGNED:
                self._assigned.popitem(last=False)
        self._assigned.move_to_end((first, count))
        return self._assigned[first, count]

    def _assignment_of(self, first: int, count: int, window: PackWindow) -> list[tuple[int, PlannedPack]] | None:
        assert self._assignment is not None
        packs: list[PlannedPack] = []
        try:
            while True:
                packs += window.packs[max(0, first - window.first) :]
                if len(packs) >= count:
                    break
                window = self.planner.following(window)
        except StopIteration:
            return None
        size, num_ranks = self.batch_size, self._assignment.num_ranks
        assigned: dict[int, tuple[int, PlannedPack]] = {}
        for rank, mine in enumerate(longest_first([int(pack.loads.sum()) for pack in packs[:count]], num_ranks)):
            batches = range((rank - first // size) % num_ranks, count // size, num_ranks)
            places = (batch * size + place for batch in batches for place in range(size))
            assigned |= {place: (first + one, packs[one]) for place, one in zip(places, mine, strict=True)}
        return [assigned[place] for place in range(count)]


def longest_first(loads: Sequence[int], num_ranks: int) -> list[list[int]]:
    """The numbers of packs of each rank, as many for each: the heaviest goes to the rank with the smallest load so far
    that has room.

    Source: R. L. Graham, Bounds on multiprocessing timing anomalies (1969).
    """
    room = len(loads) // num_ranks
    heap = [(0, rank) for rank in range(num_ranks)]
    groups: list[list[int]] = [[] for _ in range(num_ranks)]
    for number in sorted(range(len(loads)), key=lambda one: (-loads[one], one)):
        load, rank = heapq.heappop(heap)
        groups[rank].append(number)
        if len(groups[rank]) < room:
            heapq.heappush(heap, (load + loads[number], rank))
    return groups


class LanePacks:
    """The packs that one lane of the job takes, from `state`, its own (None: from the start); with `context`, what this
    rank has of the steps, of a micro-batch each."""

    def __init__(
        self,
        packs: JobPacks,
        lane: int,
        num_lanes: int,
        state: Mapping[str, Any] | None = None,
        context: ContextAssignment | None = None,
    ) -> None:
        self._packs, self._lane, self._num_lanes, self._context = packs, lane, num_lanes, context
        self._part: tuple[int, PlannedPack] | None = None
        self.packing, self.budgets = packs.planner.packing, packs.planner.budgets.tolist()
        self._members: dict[SampleRef, PlannedMember] = {}
        position: list[int] = [0] * _NUM_FIXED if state is None else state["position"]
        first, self._taken, self._slot, self._number = position[:4]
        self._step, self._done = tuple(position[4:_NUM_FIXED]), frozenset(position[_NUM_FIXED:])
        self._begin = first, packs.planner.window(0).begin if state is None else state["begin"]
        packs.planner.note(*self._begin)

    def next(self) -> PlannedPack:
        """The lane's next pack, or part of a step; `StopIteration` at the end of the data."""
        if self._context is None:
            return self._next()
        packs = [self._next() for _ in range(self._packs.batch_size)]
        if self._part is None or self._part[0] != self._taken:
            self._part = self._taken, self._context.part(packs)
        part = self._part[1]
        self._members = part.planned()
        return part

    def _next(self) -> PlannedPack:
        self._packs.planner.note(*self._begin)
        while True:
            taken = self._packs.take(self.next_slot(), self._shift)
            self._begin, self._step = taken.begin, taken.step
            self._taken += 1
            if taken.number not in self._done:
                self._members = taken.pack.planned()
                return taken.pack

    @property
    def num_taken(self) -> int:
        """The packs that it has taken since the lanes were assigned."""
        return self._taken

    @property
    def num_left_at_end(self) -> int:
        """The last samples of the data, if they are in no pack: the lane whose pack would be next counts them."""
        number, count = self._packs.planner.left_at_end
        return count if number == self.next_slot() else 0

    def member(self, ref: SampleRef, part: int) -> PlannedMember | None:
        """A member of what was taken last, or before the lane's state was saved; None if it is in no pack."""
        ref = ref._replace(output=part)
        return self._members.get(ref) or self._packs.planner.members_of(ref._replace(output=ALL_OUTPUTS)).get(ref)

    @property
    def _shift(self) -> int:
        return self._slot // self._packs.batch_size - self._number

    def next_slot(self) -> int:
        """The slot from which the lane takes its next pack, if the data do not end before."""
        place, within = divmod(self._taken, self._packs.batch_size)
        return self._slot + (place * self._num_lanes + self._lane - self._number) * self._packs.batch_size + within

    def drawn(self) -> LaneState:
        """How far the job has drawn, if its other lanes have taken as many packs: the cursors, with the numbers of
        samples taken."""
        planner, end = self._packs.planner, self.next_slot() - self._lane * self._packs.batch_size
        window = planner.window(self._begin[0])
        with contextlib.suppress(StopIteration):
            while end > window.end:
                window = planner.following(window)
        taken = collections.Counter[int]()
        for pack in window.packs[: max(0, end - window.first)]:
            taken.update(ref.source for ref in itertools.compress(pack.members, pack.is_first))
        cursors = {**window.begin["cursors"]}
        for source, count in taken.items():
            shuffle, number, offset, before = cursors.get(str(source), BEGINNING)
            cursors[str(source)] = shuffle, number, offset, before + count
        return {"cursors": cursors}

    def upcoming(self) -> PlannedPack | None:
        """The pack that `next` returns next, without taking it; None at the end of the data."""
        before = self._taken, self._begin, self._step, self._members
        try:
            return self.next()
        except StopIteration:
            return None
        finally:
            self._taken, self._begin, self._step, self._members = before

    def taken_from(self, slot: int) -> set[int]:
        """The numbers of the packs that the lane has taken in a slot or later ones, and that others had before."""
        found, last = set(self._done), self._taken
        for self._taken in range(last - 1, -1, -1):
            if self.next_slot() < slot:
                break
            found.add(self._packs.take(self.next_slot(), self._shift).number)
        self._taken = last
        return found

    def state(self) -> dict[str, Any]:
        """Where a window begins, and the position: the number of its first pack; how many packs the lane has taken; the
        slot and the number of the micro-batch from which the lanes were assigned; how the last pack's step was
        assigned; later packs that are taken."""
        first, begin = self._begin
        done = [number for number in sorted(self._done) if number >= first]
        return {"begin": begin, "position": [first, self._taken, self._slot, self._number, *self._step, *done]}


_NUM_FIXED = 8
"""Numbers in the position of a lane, beside the packs that others have taken."""


def check_step(state: LoaderState, packs: JobPacks) -> None:
    """Check that a state is not from the middle of a step that is assigned otherwise now.

    Raises:
        StateError: if it is.
    """
    number = state.micro_batch_index
    positions = [own["pack_source"]["position"][4:_NUM_FIXED] for own in state.lanes.values() if has_started(own)]
    was, now = tuple(max(positions, default=[0, 0, 0, 0])), packs.step(number)
    if was != now and (was[0] < number < was[1] or now[0] < number < now[1]):
        raise StateError(
            f"the state was saved after micro-batch {number}, in the middle of a step whose packs are assigned to the "
            "ranks otherwise now: other ranks, global batch sizes and costs to assign by need a state from the end of "
            "a step"
        )


def resharded(state: LoaderState, num_lanes: int, lanes: Collection[int], packs: JobPacks) -> LoaderState:
    """The whole `state` for another number of lanes, of which only `lanes` are made. The packs and their order stay as
    they are; one that a lane took early, as another was lost or its own had ended, is not taken again.

    Raises:
        StateError: if lanes are missing, or a micro-batch is partly handed out.
    """
    state.check_complete()
    for lane, own in state.lanes.items():
        if own.get("pending"):
            raise StateError(
                f"lanes.{lane}: has samples that wait for their batch or group: other lanes need a state without such"
            )
    size, number = packs.batch_size, sum(lane.get("micro_batches", 0) for lane in state.lanes.values())
    old = [LanePacks(packs, lane, state.num_lanes, own.get("pack_source")) for lane, own in sorted(state.lanes.items())]
    slot = min(lane.next_slot() for lane in old) // size * size
    done = sorted({one for lane in old for one in lane.taken_from(slot)})
    start: dict[str, Any] = {"begin": {"draws": 0, "cursors": {}}, "position": [0]}
    begun = [own["pack_source"] for own in state.lanes.values() if has_started(own)]
    known = [own for own in begun if own["position"][0] <= slot]
    best = max(known, key=lambda own: int(own["position"][0]), default=start)
    assigned: dict[int, LaneState] = {}
    for lane in lanes:
        place = -(-max(0, number - lane) // num_lanes)
        position = [best["position"][0], place * size, slot, number, *packs.step(number), *done]
        kept = {"begin": best["begin"], "position": position}
        assigned[lane] = {"draws": 0, "cursors": {}, "micro_batches": place, "pack_source": kept}
    return dataclasses.replace(
        state,
        generations=[state.generations[-1]._replace(num_lanes=num_lanes)],
        micro_batch_index=number,
        lanes=assigned,
    )
