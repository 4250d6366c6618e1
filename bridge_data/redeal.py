"""Re-deal: what is left of a run's epochs in progress, dealt anew to another number of lanes.

Enters: a state with all lanes. Leaves: a state with `num_lanes` lanes. Guarantee: the new lanes hold exactly the
samples that the old ones had not emitted, each once, in equal shares (to one sample a source); epochs that no lane had
begun follow under the new geometry.

Nothing nests and no old state is carried on: a second re-deal cuts the same slices again. Lanes count their draws anew;
how many the job had drawn goes with them, for schedules of weights.
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from bridge_data.order import Cursor, Row
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
) -> LoaderState:
    """Re-deal a training order.

    `rows` are the current rows of the sources; `new_generation` makes the new geometry, given for each source the epoch
    with which its row begins.
    """
    old = _Lanes(state, make_cursor)
    ends = [
        1 + max(_last_touched(row, *old.cursor(lane, source)) for lane in range(len(old)))
        for source, row in enumerate(rows)
    ]
    generation = new_generation([row.first_epoch_of(end) for row, end in zip(rows, ends, strict=True)])
    dealt: list[dict[str, Any]] = [{} for _ in range(generation[0])]
    for source, (row, end) in enumerate(zip(rows, ends, strict=True)):
        left: list[Entry] = []
        counts = row.num_samples_to(end, [old.cursor(lane, source)[1] for lane in range(len(old))]).tolist()
        for lane in range(len(old)):
            _, taken, offset = old.cursor(lane, source)
            refs = [[epoch, index, part] for s, epoch, index, part in old.loose[lane] if s == source]
            left += [refs] if refs else []
            left += old.states[lane].get("inbox", {}).get(str(source), [])
            count = counts[lane] - offset
            left += [[len(state.generations) - 1, lane, taken, offset, 0, count]] if count > 0 else []
        for lane, share in enumerate(deal(left, generation[0])):
            if share:
                dealt[lane][str(source)] = share
    cursors = [[0, 0] for _ in rows]
    lanes = [{"draws": 0, "cursors": cursors, **({"inbox": inbox} if inbox else {})} for inbox in dealt]
    return _without_unused_generations(old.handed_on(lanes, generation))


def redeal_ordered(state: LoaderState, make_cursor: MakeCursor, generation: Generation) -> LoaderState:
    """Re-deal a validation order."""
    old = _Lanes(state, make_cursor)
    left: list[Entry] = []
    for lane in range(len(old)):
        refs = [[source, index, part] for source, _, index, part in old.loose[lane]]
        left += [refs] if refs else []
        left += [entry for entry in old.states[lane]["inbox"] if entry_size(entry)]
    lanes = [{"draws": 0, "inbox": share} for share in deal(left, generation[0])]
    return old.handed_on(lanes, generation)


def deal(entries: Sequence[Entry], num_lanes: int) -> list[list[Entry]]:
    """Cut a sequence of inbox entries into `num_lanes` runs of equal size, to one sample."""
    total = sum(map(entry_size, entries))
    ends = [(lane + 1) * total // num_lanes for lane in range(num_lanes)]
    shares: list[list[Entry]] = [[] for _ in range(num_lanes)]
    lane, place = 0, 0
    rest = collections.deque(entries)
    while rest:
        room = ends[lane] - place
        if not room:
            lane += 1
            continue
        entry = rest.popleft()
        if entry_size(entry) > room:
            entry, remainder = cut_entry(entry, room)
            rest.appendleft(remainder)
        shares[lane].append(entry)
        place += entry_size(entry)
    return shares


class _Lanes:
    """The lanes of the old state; those that had not begun, at their beginning."""

    def __init__(self, state: LoaderState, make_cursor: MakeCursor) -> None:
        self._state = state
        self.states: list[LaneState] = []
        self.loose: list[list[list[int]]] = []
        """What each lane has drawn and not emitted, `[source, epoch, index, part]`, but for open batches."""
        self._pending: list[Pending[list[int], list[list[int]]]] = []
        for lane in range(state.num_lanes):
            cursor = make_cursor(lane)
            lane_state = state.lanes[lane] or cursor.state()
            self.states.append(lane_state)
            self._pending.append(Pending.decode(lane_state, cursor).explicit())
            self.loose.append([*self._pending[-1].loose()])

    def __len__(self) -> int:
        return len(self.states)

    def cursor(self, lane: int, source: int) -> tuple[int, int, int]:
        """(lane, chunks taken, offset in the window) in the row of a source."""
        taken, offset = self.states[lane]["cursors"][source]
        return lane, taken, offset

    def handed_on(self, lanes: Sequence[LaneState], generation: Generation) -> LoaderState:
        """The new state. Batches of which a part is out go on, whole, in the lane with their old lane's number."""
        num_lanes, slot = generation[0], self._state.next_slot
        for lane, new in enumerate(lanes):
            new["micro_batches"] = -(-max(0, slot - lane) // num_lanes)
        whole: list[Pending[list[int], list[list[int]]]] = [Pending() for _ in lanes]
        for lane, pending in enumerate(self._pending):
            whole[lane % num_lanes].open += pending.open
        for new, pending in zip(lanes, whole, strict=True):
            if pending:
                new["pending"] = pending.to_dict()
        generations = [*self._state.generations, generation]
        drawn = self._state.drawn_before + sum(state["draws"] for state in self.states)
        drawn -= sum(map(len, self.loose))  # which are drawn again
        return dataclasses.replace(
            self._state, generations=generations, lanes=dict(enumerate(lanes)), drawn_before=drawn
        )


def _last_touched(row: Row, lane: int, taken: int, offset: int) -> int:
    """The last shuffle of the row that the lane has drawn from, -1 if none."""
    chunk = taken if offset else taken - 1
    return row.shuffle_of(lane, chunk) if chunk >= 0 else -1


def _without_unused_generations(state: LoaderState) -> LoaderState:
    """Forget geometries that no slice refers to any more."""
    slices = [
        entry
        for lane in state.lanes.values()
        for entries in lane.get("inbox", {}).values()
        for entry in entries
        if is_slice(entry)
    ]
    used = sorted({entry[0] for entry in slices} | {len(state.generations) - 1})
    number = {generation: position for position, generation in enumerate(used)}
    for lane in state.lanes.values():
        for source, entries in lane.get("inbox", {}).items():
            lane["inbox"][source] = [[number[e[0]], *e[1:]] if is_slice(e) else e for e in entries]
    return dataclasses.replace(state, generations=[state.generations[generation] for generation in used])
