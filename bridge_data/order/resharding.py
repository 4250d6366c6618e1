"""Continuing a run with another number of lanes.

A reshard converts a state with all lanes to `num_lanes` lanes. The new lanes get exactly the samples of the epochs in
progress that the old lanes had not emitted, each once, in equal shares (to one sample per source; in validation, to one
micro-batch). Epochs that no lane had started follow, under the new geometry.

The leftovers become the inboxes of the new lanes. Nothing nests: a second reshard cuts the same slices again. Draws are
counted from 0 again; the number of samples that the job has drawn is kept, for schedules of weights.
"""

import bisect
import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import DAMAGED_STATE, StateError
from bridge_data.order.blends import SampleBlend
from bridge_data.order.cursor import BEGINNING, Cursor, Entry, cut_entry, entry_size, is_slice
from bridge_data.order.ordered import OrderedRow
from bridge_data.order.pending import Pending
from bridge_data.order.row import Row
from bridge_data.order.state import Generation, LaneState, LoaderState, Resharded, has_started

MakeCursor: TypeAlias = Callable[[int], Cursor]
"""Lane number -> a cursor at the start of that lane, under the old geometry."""


def reshard_shuffled(
    state: LoaderState,
    rows: Sequence[Row],
    make_cursor: MakeCursor,
    new_generation: Callable[[Sequence[int]], Generation],
    lanes: Collection[int],
    blend: SampleBlend | None = None,
) -> LoaderState:
    """Reshard a training order. The new state holds only `lanes`, the new lanes that this process needs.

    `rows` are the current rows of the sources; `new_generation` makes the new geometry from the first epoch of each
    source's new row; `blend` is that of the lanes, if it looks at samples. Time is linear in the old lanes and in
    `lanes`, not in the number of new lanes.
    """
    old, generation_left = _OldLanes(state, make_cursor), len(state.generations) - 1
    ends = [1 + old.last_touched(source, row) for source, row in enumerate(rows)]
    generation = new_generation([row.first_epoch_of(end) for row, end in zip(rows, ends, strict=True)])
    assigned: dict[int, LaneState] = {lane: {"draws": 0, "cursors": {}} for lane in lanes}
    if blend is not None:
        states = [lane["blend"] for lane in old.states]
        for lane, new in assigned.items():
            new["blend"] = blend.resharded(states, lane, generation.num_lanes)
    used, given = {len(state.generations)}, []
    for source, (row, end) in enumerate(zip(rows, ends, strict=True)):
        positions = old.positions(source)
        counts = row.num_samples_to(end, positions[:, 0])
        left = counts - positions[:, 3]
        if (left < 0).any():
            lane = int(left.argmin())
            raise old.error(lane, source, f"the lane has {counts[lane]} samples of the shuffles in progress")
        places = zip(positions[:, :3].tolist(), left.tolist(), strict=True)
        entries: list[Entry] = [[generation_left, lane, *place, 0, count] for lane, (place, count) in enumerate(places)]
        used |= {generation_left} if left.any() else set()
        if before := old.before_row(source):
            entries = [entry for lane, own in enumerate(entries) for entry in (*before.get(lane, ()), own)]
            used |= {entry[0] for of_lane in before.values() for entry in of_lane if is_slice(entry)}
        given.append(sum(map(entry_size, entries)))
        for lane, share in assign(entries, generation.num_lanes, lanes).items():
            if share:
                assigned[lane].setdefault("inbox", {})[str(source)] = share
    return _without_unused_generations(old.new_state(assigned, generation, given), used)


def reshard_ordered(
    state: LoaderState, row: OrderedRow, make_cursor: MakeCursor, firsts: Sequence[int], num_lanes: int
) -> LoaderState:
    """Reshard a validation order; `firsts` are the numbers in the current `row` of each source's first sample.

    The new lanes take micro-batches round-robin from the first one that no lane has touched. If nothing is left before
    it, as without filters and packing, the order of the job does not change. What is left before it is assigned in
    whole micro-batches, starting with the lane whose turn it is.
    """
    old = _OldLanes(state, make_cursor)
    taken = old.positions(0)[:, 2].tolist()
    first_batch = max(row.untouched_batch(lane, taken[lane]) for lane in range(len(old)))
    left: list[Entry] = []
    for lane in range(len(old)):
        if refs := [[epoch, firsts[source] + index, output] for source, epoch, index, output in old.loose(lane)]:
            left.append(refs)
        left += old.inbox(lane, 0)
        before = row.num_samples_to(first_batch, lane) - taken[lane]
        left += [[len(state.generations) - 1, lane, 0, 0, taken[lane], 0, before]] if before > 0 else []
    shares = assign_batches(left, num_lanes, row.batch_size, first_lane=old.next_number % num_lanes)
    assigned: dict[int, LaneState] = {
        lane: {"draws": 0, "cursors": {}, **({"inbox": {"0": share}} if share else {})}
        for lane, share in enumerate(shares)
    }
    used = {len(state.generations), *(entry[0] for entry in left if is_slice(entry))}
    given = sum(map(entry_size, left))
    return _without_unused_generations(old.new_state(assigned, Generation(num_lanes, [[first_batch]]), [given]), used)


def assign(entries: Sequence[Entry], num_lanes: int, lanes: Collection[int]) -> dict[int, list[Entry]]:
    """Cut inbox entries into `num_lanes` runs that are equal to one sample; return those of `lanes`."""
    ends = [0, *itertools.accumulate(map(entry_size, entries))]
    bounds = {lane: (lane * ends[-1] // num_lanes, (lane + 1) * ends[-1] // num_lanes) for lane in lanes}
    return {lane: _between(entries, ends, *bound) for lane, bound in bounds.items()}


def assign_batches(entries: Sequence[Entry], num_lanes: int, batch_size: int, *, first_lane: int) -> list[list[Entry]]:
    """Cut inbox entries into one run of whole micro-batches per lane, starting with `first_lane`.

    Their numbers are equal to one, the first lanes have more; the very last micro-batch may be incomplete.
    """
    ends = [0, *itertools.accumulate(map(entry_size, entries))]
    bounds = batch_bounds(ends[-1], num_lanes, batch_size)
    shares = [_between(entries, ends, *bound) for bound in itertools.pairwise(bounds)]
    return [shares[(lane - first_lane) % num_lanes] for lane in range(num_lanes)]


def batch_bounds(num_samples: int, num_lanes: int, batch_size: int) -> list[int]:
    """Where the runs of `assign_batches` begin, and where the last one ends."""
    each, more = divmod(-(-num_samples // batch_size), num_lanes)
    return [min(num_samples, (turn * each + min(turn, more)) * batch_size) for turn in range(num_lanes + 1)]


def _between(entries: Sequence[Entry], ends: Sequence[int], start: int, stop: int) -> list[Entry]:
    """Samples `start` to `stop` - 1 of the concatenated entries; entry i ends before sample `ends[i + 1]`."""
    share: list[Entry] = []
    number = bisect.bisect_right(ends, start) - 1
    while start < stop:
        entry = entries[number]
        if start > ends[number]:
            _, entry = cut_entry(entry, start - ends[number])
        if stop < ends[number + 1]:
            entry, _ = cut_entry(entry, stop - start)
        if ends[number] < ends[number + 1]:
            share.append(entry)
        number += 1
        start = ends[number]
    return share


class _OldLanes:
    """The lanes of the old state, including those that had not started."""

    def __init__(self, state: LoaderState, make_cursor: MakeCursor) -> None:
        self._state = state
        self.states: list[LaneState] = []
        self._pending: dict[int, Pending[list[int], list[list[int]]]] = {}
        for lane in range(state.num_lanes):
            own = state.lanes[lane]
            lane_state = own if has_started(own) else cast("LaneState", make_cursor(lane).state())
            self.states.append(lane_state)
            if "pending" in lane_state:
                self._pending[lane] = Pending.decode(lane_state, make_cursor(lane)).explicit()
        self._with_inbox = [lane for lane, lane_state in enumerate(self.states) if "inbox" in lane_state]

    def __len__(self) -> int:
        return len(self.states)

    def last_touched(self, source: int, row: Row) -> int:
        """The last shuffle of a row that any lane has drawn from, or -1."""
        positions = self.positions(source)
        last = int(positions[positions[:, 3] > 0, 0].max(initial=-1))
        between = np.flatnonzero((positions[:, 3] == 0) & (positions[:, 0] > last))
        return max([last, *(row.last_before(lane, int(positions[lane, 0])) for lane in between.tolist())])

    def error(self, lane: int, source: int, fault: str) -> StateError:
        """The error for a lane's position in the row of a source."""
        return StateError(
            f"lanes.{lane}.cursors.{source}: {self.positions(source)[lane].tolist()}: {fault}; {DAMAGED_STATE}"
        )

    def loose(self, lane: int) -> list[list[int]]:
        """`[source, epoch, index, output]` of what a lane has drawn but not emitted, without partly emitted batches."""
        return [*self._pending[lane].loose()] if lane in self._pending else []

    def before_row(self, source: int) -> dict[int, list[Entry]]:
        """What each lane has to read of a source before its row: samples drawn but not emitted, then the inbox."""
        found: dict[int, list[Entry]] = collections.defaultdict(list)
        for lane, outputs in self._loose_of[source].items():
            found[lane].append(outputs)
        for lane in self._with_inbox:
            found[lane] += self.inbox(lane, source)
        return {lane: entries for lane, entries in found.items() if entries}

    @functools.cached_property
    def _loose_of(self) -> dict[int, dict[int, list[list[int]]]]:
        """`[epoch, index, output]` of `loose`, by source and lane."""
        found: dict[int, dict[int, list[list[int]]]] = collections.defaultdict(dict)
        for lane in self._pending:
            for source, *output in self.loose(lane):
                found[source].setdefault(lane, []).append(output)
        return found

    @property
    def next_number(self) -> int:
        """The number of the next micro-batch of the job: the lanes have made all before it."""
        return sum(state.get("micro_batches", 0) for state in self.states)

    def positions(self, source: int) -> NDArray[np.int64]:
        """The position of each lane in the row of a source, (lanes, 4)."""
        name = str(source)
        return np.array([state["cursors"].get(name, BEGINNING) for state in self.states], dtype=np.int64)

    def inbox(self, lane: int, source: int) -> Sequence[Entry]:
        """The entries of a lane's inbox for a source."""
        inbox = self.states[lane].get("inbox")
        return inbox.get(str(source), ()) if inbox else ()

    def new_state(self, lanes: dict[int, LaneState], generation: Generation, given: Sequence[int]) -> LoaderState:
        """The state with the new `lanes`, of all of which the inboxes have `given` samples of each source. Partly
        emitted batches go as a whole to lane (old lane mod `num_lanes`)."""
        num_lanes, number = generation.num_lanes, self.next_number
        for lane, new in lanes.items():
            new["micro_batches"] = -(-max(0, number - lane) // num_lanes)
        whole: dict[int, Pending[list[int], list[list[int]]]] = collections.defaultdict(Pending)
        for lane, pending in self._pending.items():
            whole[lane % num_lanes].open += pending.open
        for lane, pending in whole.items():
            if pending.open and lane in lanes:
                lanes[lane]["pending"] = pending.to_dict()
        generations = [*self._state.generations, generation]
        drawn = self._state.drawn_before + sum(state["draws"] for state in self.states)
        drawn -= sum(len(self.loose(lane)) for lane in self._pending)  # these will be drawn again, output by output
        return dataclasses.replace(
            self._state,
            generations=generations,
            micro_batch_index=number,
            lanes=lanes,
            drawn_before=max(0, drawn),
            resharded=Resharded(number, [count for count in given if count]) if self._state.is_finite else None,
        )


def _without_unused_generations(state: LoaderState, used: Collection[int]) -> LoaderState:
    """Drop generations that no slice refers to, and renumber the others."""
    kept = sorted(used)
    number = {generation: position for position, generation in enumerate(kept)}
    for lane in state.lanes.values():
        for source, entries in lane.get("inbox", {}).items():
            lane["inbox"][source] = [[number[e[0]], *e[1:]] if is_slice(e) else e for e in entries]
    return dataclasses.replace(state, generations=[state.generations[generation] for generation in kept])
