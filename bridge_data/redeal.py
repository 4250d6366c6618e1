"""Re-deal: what is left of a run's epochs in progress, dealt anew to another number of lanes.

Enters: a state with all lanes. Leaves: a state with `num_lanes` lanes. Guarantee: the new lanes hold exactly the
samples that the old ones had not emitted, each once, in equal shares (to one sample a source; in validation, to one
block); epochs that no lane had begun follow under the new geometry.

Nothing nests and no old state is carried on: a second re-deal cuts the same slices again. Lanes count their draws anew;
how many the job had drawn goes with them, for schedules of weights.
"""

import bisect
import collections
import dataclasses
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from bridge_data.errors import EDITED, StateError
from bridge_data.order import BEGINNING, Cursor, OrderedRow, Row
from bridge_data.order.inbox import Entry, cut_entry, entry_size, is_slice
from bridge_data.pending import Pending
from bridge_data.state import Generation, LaneState, LoaderState

MakeCursor: TypeAlias = Callable[[int], Cursor]
"""Lane number -> a cursor of the old geometry at its beginning."""


def redeal_shuffled(
    state: LoaderState,
    rows: Sequence[Row],
    make_cursor: MakeCursor,
    new_generation: Callable[[Sequence[int]], Generation],
    lanes: Collection[int],
) -> LoaderState:
    """Re-deal a training order; the new state holds `lanes`, those that this process needs.

    `rows` are the current rows of the sources; `new_generation` makes the new geometry, given for each source the epoch
    with which its row begins. The work grows with the old lanes and with `lanes`, not with all new lanes.
    """
    old = _Lanes(state, make_cursor)
    for source, row in enumerate(rows):
        old.check(source, row)
    ends = [1 + _last_touched(row, old.positions(source)) for source, row in enumerate(rows)]
    generation = new_generation([row.first_epoch_of(end) for row, end in zip(rows, ends, strict=True)])
    loose = old.loose_by_source()
    dealt: dict[int, LaneState] = {lane: {"draws": 0, "cursors": {}} for lane in lanes}
    current = len(state.generations) - 1
    used = {current + 1}
    for source, (row, end) in enumerate(zip(rows, ends, strict=True)):
        left: list[Entry] = []
        positions = old.positions(source)
        counts = row.num_samples_to(end, [shuffle for shuffle, *_ in positions]).tolist()
        for lane, ((shuffle, window, offset, taken), count) in enumerate(zip(positions, counts, strict=True)):
            if refs := loose.get((lane, source)):
                left.append(refs)
            if inbox := old.inbox(lane, source):
                left += inbox
                used |= {entry[0] for entry in inbox if is_slice(entry)}
            if count < taken:
                raise old.error(lane, source, f"the lane has {count} samples of the shuffles in progress")
            if count > taken:
                left.append([current, lane, shuffle, window, offset, 0, count - taken])
                used.add(current)
        for lane, share in deal(left, generation[0], lanes).items():
            if share:
                dealt[lane].setdefault("inbox", {})[str(source)] = share
    return _without_unused_generations(old.handed_on(dealt, generation), used)


def redeal_ordered(
    state: LoaderState, row: OrderedRow, make_cursor: MakeCursor, firsts: Sequence[int], num_lanes: int
) -> LoaderState:
    """Re-deal a validation order; `firsts` are the numbers of the first samples of the sources in the current `row`.

    From the first block on that no lane has touched, the new lanes take the blocks in turn, as from the beginning. So
    where nothing is left before it, as without filters and packs, the order of the job stays the same. What is left
    before it is dealt in whole blocks, beginning with the lane whose turn it is.
    """
    old = _Lanes(state, make_cursor)
    old.check(0, row)
    taken = [offset for _, _, offset, _ in old.positions(0)]
    first_block = max(row.untouched_block(lane, taken[lane]) for lane in range(len(old)))
    left: list[Entry] = []
    for lane in range(len(old)):
        if refs := [[epoch, firsts[source] + index, part] for source, epoch, index, part in old.loose(lane)]:
            left.append(refs)
        left += old.inbox(lane, 0)
        before = row.num_samples_to(first_block, lane) - taken[lane]
        left += [[len(state.generations) - 1, lane, 0, 0, taken[lane], 0, before]] if before > 0 else []
    shares = deal_blocks(left, num_lanes, row.block_size, first_lane=old.num_emitted % num_lanes)
    dealt: dict[int, LaneState] = {
        lane: {"draws": 0, "cursors": {}, **({"inbox": {"0": share}} if share else {})}
        for lane, share in enumerate(shares)
    }
    used = {len(state.generations), *(entry[0] for entry in left if is_slice(entry))}
    return _without_unused_generations(old.handed_on(dealt, (num_lanes, [[first_block]])), used)


def deal(entries: Sequence[Entry], num_lanes: int, lanes: Collection[int]) -> dict[int, list[Entry]]:
    """Of a sequence of inbox entries, cut into `num_lanes` runs of equal size, to one sample, those of `lanes`."""
    ends = [0, *itertools.accumulate(map(entry_size, entries))]
    bounds = {lane: (lane * ends[-1] // num_lanes, (lane + 1) * ends[-1] // num_lanes) for lane in lanes}
    return {lane: _between(entries, ends, *bound) for lane, bound in bounds.items()}


def deal_blocks(entries: Sequence[Entry], num_lanes: int, block_size: int, *, first_lane: int) -> list[list[Entry]]:
    """Cut a sequence of inbox entries into a run for each lane from `first_lane` on, of equally many blocks, to one;
    the first ones have more, and the last one that has any may have a part of its last block."""
    ends = [0, *itertools.accumulate(map(entry_size, entries))]
    each, more = divmod(-(-ends[-1] // block_size), num_lanes)
    bounds = [min(ends[-1], (turn * each + min(turn, more)) * block_size) for turn in range(num_lanes + 1)]
    shares = [_between(entries, ends, *bound) for bound in itertools.pairwise(bounds)]
    return [shares[(lane - first_lane) % num_lanes] for lane in range(num_lanes)]


def _between(entries: Sequence[Entry], ends: Sequence[int], start: int, stop: int) -> list[Entry]:
    """Samples `start` to `stop` - 1 of a sequence of entries; entry i ends before sample `ends[i + 1]`."""
    share: list[Entry] = []
    number = bisect.bisect_right(ends, start) - 1
    while start < stop:
        entry = entries[number]
        if start > ends[number]:
            _, entry = cut_entry(entry, start - ends[number])
        if stop < ends[number + 1]:
            entry, _ = cut_entry(entry, stop - start)
        share.append(entry)
        number += 1
        start = ends[number]
    return share


class _Lanes:
    """The lanes of the old state; those that had not begun, at their beginning."""

    def __init__(self, state: LoaderState, make_cursor: MakeCursor) -> None:
        self._state = state
        self.states: list[LaneState] = []
        self._pending: dict[int, Pending[list[int], list[list[int]]]] = {}
        for lane in range(state.num_lanes):
            lane_state = state.lanes[lane] or make_cursor(lane).state()
            self.states.append(lane_state)
            if "pending" in lane_state:
                self._pending[lane] = Pending.decode(lane_state, make_cursor(lane)).explicit()

    def __len__(self) -> int:
        return len(self.states)

    def check(self, source: int, row: Row | OrderedRow) -> None:
        """See that no lane stands where it cannot be in the row of a source. Windows and offsets are seen to where they
        are used.

        Raises:
            StateError: naming the lane.
        """
        positions = self.positions(source)
        lane = max(range(len(positions)), key=lambda lane: positions[lane][0])
        if fault := row.fault(lane, positions[lane], self.states[lane]["draws"]):
            raise self.error(lane, source, fault)

    def error(self, lane: int, source: int, fault: str) -> StateError:
        """The error of a position in the row of a source."""
        return StateError(f"lanes.{lane}.cursors.{source}: {[*self.positions(source)[lane]]}: {fault}; {EDITED}")

    def loose(self, lane: int) -> list[list[int]]:
        """What a lane has drawn and not emitted, `[source, epoch, index, part]`, but for open batches."""
        return [*self._pending[lane].loose()] if lane in self._pending else []

    def loose_by_source(self) -> dict[tuple[int, int], list[list[int]]]:
        """The same of all lanes, `[epoch, index, part]` by lane and source."""
        found: dict[tuple[int, int], list[list[int]]] = collections.defaultdict(list)
        for lane in self._pending:
            for source, *place in self.loose(lane):
                found[lane, source].append(place)
        return found

    @property
    def num_emitted(self) -> int:
        """The micro-batches that the job has emitted: the slot with which it goes on. (Those of lanes that have ended
        go to other lanes now.)"""
        return sum(state.get("micro_batches", 0) for state in self.states)

    def positions(self, source: int) -> list[Sequence[int]]:
        """The position of each lane in the row of a source."""
        name = str(source)
        return [state["cursors"].get(name, BEGINNING) for state in self.states]

    def inbox(self, lane: int, source: int) -> Sequence[Entry]:
        """What is left to a lane of earlier rows of a source."""
        inbox = self.states[lane].get("inbox")
        return inbox.get(str(source), ()) if inbox else ()

    def handed_on(self, lanes: dict[int, LaneState], generation: Generation) -> LoaderState:
        """The new state. Batches of which a part is out go on, whole, in the lane with their old lane's number."""
        num_lanes, slot = generation[0], self.num_emitted
        for lane, new in lanes.items():
            new["micro_batches"] = -(-max(0, slot - lane) // num_lanes)
        whole: dict[int, Pending[list[int], list[list[int]]]] = collections.defaultdict(Pending)
        for lane, pending in self._pending.items():
            whole[lane % num_lanes].open += pending.open
        for lane, pending in whole.items():
            if pending and lane in lanes:
                lanes[lane]["pending"] = pending.to_dict()
        generations = [*self._state.generations, generation]
        drawn = self._state.drawn_before + sum(state["draws"] for state in self.states)
        drawn -= sum(len(self.loose(lane)) for lane in self._pending)  # which are drawn again
        return dataclasses.replace(
            self._state, generations=generations, next_slot=slot, lanes=lanes, drawn_before=drawn
        )


def _last_touched(row: Row, positions: Sequence[Sequence[int]]) -> int:
    """The last shuffle of a row that a lane has drawn from, -1 if none."""
    begun = max((shuffle for shuffle, _, _, taken in positions if taken), default=-1)
    ended = [(lane, shuffle) for lane, (shuffle, _, _, taken) in enumerate(positions) if not taken and shuffle > begun]
    return max([begun, *(row.last_before(lane, shuffle) for lane, shuffle in ended)])


def _without_unused_generations(state: LoaderState, used: Collection[int]) -> LoaderState:
    """Forget geometries that no slice of any lane refers to."""
    kept = sorted(used)
    number = {generation: position for position, generation in enumerate(kept)}
    for lane in state.lanes.values():
        for source, entries in lane.get("inbox", {}).items():
            lane["inbox"][source] = [[number[e[0]], *e[1:]] if is_slice(e) else e for e in entries]
    return dataclasses.replace(state, generations=[state.generations[generation] for generation in kept])
