"""Re-deal: what is left of a run's epochs in progress, dealt anew to another number of lanes.

Enters: a state with all lanes. Leaves: a state with `num_lanes` lanes. Guarantee: the new lanes hold exactly the
samples that the old ones had not emitted, each once, in equal shares (to one sample a source; in validation, to one
block); epochs that no lane had begun follow under the new geometry.

Nothing nests and no old state is carried on: a second re-deal cuts the same slices again. Lanes count their draws anew;
how many the job had drawn goes with them, for schedules of weights.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from bridge_data.order import BEGINNING, Cursor, Row
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
        1 + max(_last_touched(row, lane, old.cursor(lane, source)) for lane in range(len(old)))
        for source, row in enumerate(rows)
    ]
    generation = new_generation([row.first_epoch_of(end) for row, end in zip(rows, ends, strict=True)])
    dealt: list[dict[str, Any]] = [{} for _ in range(generation[0])]
    for source, (row, end) in enumerate(zip(rows, ends, strict=True)):
        left: list[Entry] = []
        counts = row.num_samples_to(end, [old.cursor(lane, source)[0] for lane in range(len(old))]).tolist()
        for lane in range(len(old)):
            shuffle, window, offset, taken = old.cursor(lane, source)
            refs = [[epoch, index, part] for s, epoch, index, part in old.loose[lane] if s == source]
            left += [refs] if refs else []
            left += old.states[lane].get("inbox", {}).get(str(source), [])
            count = counts[lane] - taken
            left += [[len(state.generations) - 1, lane, shuffle, window, offset, 0, count]] if count > 0 else []
        for lane, share in enumerate(deal(left, generation[0])):
            if share:
                dealt[lane][str(source)] = share
    lanes = [{"draws": 0, "cursors": {}, **({"inbox": inbox} if inbox else {})} for inbox in dealt]
    return _without_unused_generations(old.handed_on(lanes, generation))


def redeal_ordered(
    state: LoaderState, make_cursor: MakeCursor, streams: Sequence[Entry], block_size: int
) -> LoaderState:
    """Re-deal a validation order; `streams` are the whole streams of the new lanes, as slices of an inbox.

    From the first block on that no lane has touched, the new lanes take the blocks in turn, as from the beginning. So
    where nothing is left before it, as without filters and packs, the order of the job stays the same. What is left
    before it is dealt in whole blocks, beginning with the lane whose turn it is.
    """
    old, num_lanes = _Lanes(state, make_cursor), len(streams)
    geometry = state.generations[-1][1]
    first_block = geometry[0][0] if geometry else 0  # with which the streams of the old lanes began
    rests = [_rest_of_stream(old, lane, first_block, block_size) for lane in range(len(old))]
    for lane, rest in enumerate(rests):
        first_block = max(first_block, lane + (-(-rest[-2] // block_size) - 1) * len(old) + 1)
    left: list[Entry] = []
    for lane, rest in enumerate(rests):
        refs = [[source, index, part] for source, _, index, part in old.loose[lane]]
        before = min(rest[-1], _first_sample(first_block, lane, len(old), block_size) - rest[-2])
        entries = [entry for entry in old.states[lane]["inbox"] if entry_size(entry) and entry != rest]
        left += [*([refs] if refs else []), *entries]
        left += [cut_entry(rest, before)[0]] if before > 0 else []
    shares = deal_blocks(left, num_lanes, block_size, first_lane=old.num_emitted % num_lanes)
    for lane, stream in enumerate(streams):
        begin = _first_sample(first_block, lane, num_lanes, block_size)
        if begin < entry_size(stream):
            shares[lane].append(cut_entry(stream, begin)[1])
    return old.handed_on([{"draws": 0, "inbox": share} for share in shares], (num_lanes, [[first_block]]))


def _rest_of_stream(old: "_Lanes", lane: int, first_block: int, block_size: int) -> Entry:
    """What is left of the stream of an old lane that began with `first_block`, as a slice, which may be empty.

    Slices of earlier deals that look alike lie before that block.
    """
    length = entry_size(old.first_states[lane]["inbox"][0])
    for entry in old.states[lane]["inbox"][-1:]:
        if is_slice(entry) and entry[:2] == [len(old), lane] and entry_size(entry):
            last_block = lane + (entry[-2] + entry_size(entry) - 1) // block_size * len(old)
            if last_block >= first_block:
                return entry
    return [len(old), lane, length, 0]


def _first_sample(block: int, lane: int, num_lanes: int, block_size: int) -> int:
    """Where in the stream of a lane its first block from `block` on begins."""
    return -(-max(0, block - lane) // num_lanes) * block_size


def deal(entries: Sequence[Entry], num_lanes: int) -> list[list[Entry]]:
    """Cut a sequence of inbox entries into `num_lanes` runs of equal size, to one sample."""
    total = sum(map(entry_size, entries))
    ends = [(lane + 1) * total // num_lanes for lane in range(num_lanes)]
    return _cut(entries, [end - begin for begin, end in itertools.pairwise([0, *ends])])


def deal_blocks(entries: Sequence[Entry], num_lanes: int, block_size: int, *, first_lane: int) -> list[list[Entry]]:
    """Cut a sequence of inbox entries into a run for each lane from `first_lane` on, of equally many blocks, to one;
    the first ones have more, and the last one that has any may have a part of its last block."""
    total = sum(map(entry_size, entries))
    each, more = divmod(-(-total // block_size), num_lanes)
    sizes = [(each + (turn < more)) * block_size for turn in range(num_lanes)]
    shares = _cut(entries, sizes)
    return [shares[(lane - first_lane) % num_lanes] for lane in range(num_lanes)]


def _cut(entries: Sequence[Entry], sizes: Sequence[int]) -> list[list[Entry]]:
    """Cut a sequence of inbox entries into runs of these sizes; the last ones may have less."""
    shares: list[list[Entry]] = [[] for _ in sizes]
    rest = collections.deque(entries)
    for share, size in zip(shares, sizes, strict=True):
        missing = size
        while missing and rest:
            entry = rest.popleft()
            if entry_size(entry) > missing:
                entry, remainder = cut_entry(entry, missing)
                rest.appendleft(remainder)
            share.append(entry)
            missing -= entry_size(entry)
    return shares


class _Lanes:
    """The lanes of the old state; those that had not begun, at their beginning."""

    def __init__(self, state: LoaderState, make_cursor: MakeCursor) -> None:
        self._state = state
        self.states: list[LaneState] = []
        self.first_states: list[LaneState] = []
        """Of each lane, that at its beginning."""
        self.loose: list[list[list[int]]] = []
        """What each lane has drawn and not emitted, `[source, epoch, index, part]`, but for open batches."""
        self._pending: list[Pending[list[int], list[list[int]]]] = []
        for lane in range(state.num_lanes):
            cursor = make_cursor(lane)
            self.first_states.append(cursor.state())
            lane_state = state.lanes[lane] or self.first_states[lane]
            self.states.append(lane_state)
            self._pending.append(Pending.decode(lane_state, cursor).explicit())
            self.loose.append([*self._pending[-1].loose()])

    def __len__(self) -> int:
        return len(self.states)

    @property
    def num_emitted(self) -> int:
        """The micro-batches that the job has emitted: the slot with which it goes on. (Those of lanes that have ended
        go to other lanes now.)"""
        return sum(state.get("micro_batches", 0) for state in self.states)

    def cursor(self, lane: int, source: int) -> Sequence[int]:
        """The position of a lane in the row of a source."""
        position: Sequence[int] = self.states[lane]["cursors"].get(str(source), BEGINNING)
        return position

    def handed_on(self, lanes: Sequence[LaneState], generation: Generation) -> LoaderState:
        """The new state. Batches of which a part is out go on, whole, in the lane with their old lane's number."""
        num_lanes, slot = generation[0], self.num_emitted
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
            self._state, generations=generations, next_slot=slot, lanes=dict(enumerate(lanes)), drawn_before=drawn
        )


def _last_touched(row: Row, lane: int, position: Sequence[int]) -> int:
    shuffle, _, _, taken = position
    return row.last_touched(lane, shuffle, taken)


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
