"""Migration: a state carried over to a plan with other weights, more data sets, or another micro-batch size.

Enters: a state, and the sources of the new plan. Leaves: a state of the new plan. Guarantee: every source goes on where
it was, so that nothing of it is repeated or lost; what changes is only which source is drawn when. A schedule of
weights goes by the samples that the job has drawn, under the old plan too.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from bridge_data.errors import StateError
from bridge_data.order import Cursor
from bridge_data.order.pending import Pending
from bridge_data.order.state import Generation, LaneState, LoaderState

TOLERATED = frozenset({"sources", "weights", "schedule", "batch_size"})
"""What may differ, by the names of the fingerprint."""


def migrate(
    state: LoaderState,
    fingerprint: dict[str, Any],
    make_cursor: Callable[[int], Cursor],
    new_generation: Callable[[int, Sequence[int]], Generation],
) -> LoaderState:
    """Carry a state over to the plan with `fingerprint`.

    `make_cursor` makes a cursor of a lane under the old plan; `new_generation` the geometry of all sources of the new
    plan, given the number of lanes and each source's first epoch.

    Raises:
        StateError: if more differs than can be carried over, or a source is gone.
    """
    state.check(fingerprint, tolerated=TOLERATED)
    old = [name for name, _ in state.fingerprint["sources"]]
    new = [name for name, _ in fingerprint["sources"]]
    gone = [label for name, label in state.fingerprint["sources"] if name not in new]
    if gone:
        raise StateError(
            f"the saved state has read from {', '.join(gone)}, which this plan lacks or has changed. Data sets can be "
            "added to a run; to stop drawing from one, keep it with weight 0."
        )
    if fingerprint["order"] == "ordered" and state.fingerprint != fingerprint:
        raise StateError(
            "a validation in progress cannot be carried over to other data or another batch size; begin it anew"
        )
    slots = [new.index(name) for name in old]
    weights = [[of.get("weights"), of.get("schedule")] for of in (state.fingerprint, fingerprint)]
    if slots == list(range(len(new))) and weights[0] == weights[1]:
        return dataclasses.replace(state, fingerprint=fingerprint)
    generations = []
    for num_lanes, geometry in state.generations:
        merged = new_generation(num_lanes, [0] * len(new))[1]
        for number, numbers in zip(slots, geometry, strict=True):
            merged[number] = numbers
        generations.append((num_lanes, merged))
    lanes = {
        lane: _moved(lane_state, make_cursor(lane), slots) if lane_state else {}
        for lane, lane_state in state.lanes.items()
    }
    return dataclasses.replace(state, fingerprint=fingerprint, generations=generations, lanes=lanes)


def _moved(state: LaneState, cursor: Cursor, slots: Sequence[int]) -> LaneState:
    """A lane's state with its sources under their new numbers, and all that is pending written out: the order that it
    was drawn in cannot be replayed any more."""
    pending = Pending.decode(state, cursor).explicit(slots).to_dict()
    cursors = {str(slots[int(source)]): position for source, position in state["cursors"].items()}
    moved: LaneState = {"draws": state["draws"], "cursors": cursors, "micro_batches": state["micro_batches"]}
    if "inbox" in state:
        moved["inbox"] = {str(slots[int(source)]): entries for source, entries in state["inbox"].items()}
    if pending:
        moved["pending"] = pending
    return moved
