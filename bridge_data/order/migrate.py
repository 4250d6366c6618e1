"""Migration: continue a run with other weights, additional sources, or another micro-batch size.

Input: a state, the fingerprint of the new plan. Output: a state of the new plan. Guarantee: every source continues
where it was, with nothing repeated or lost; only which source is drawn when changes. Schedules of weights count the
samples that the job has drawn, including those under the old plan.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from bridge_data.errors import StateError
from bridge_data.order import Cursor
from bridge_data.order.pending import Pending
from bridge_data.order.state import Generation, LaneState, LoaderState

TOLERATED = frozenset({"sources", "weights", "schedule", "batch_size"})
"""Items of the fingerprint that may differ."""


def migrate(
    state: LoaderState,
    fingerprint: dict[str, Any],
    make_cursor: Callable[[int], Cursor],
    new_generation: Callable[[int, Sequence[int]], Generation],
) -> LoaderState:
    """Convert a state to the plan with `fingerprint`.

    `make_cursor` makes a cursor of a lane under the old plan. `new_generation` makes the geometries of the new plan's
    sources from the number of lanes and each source's first epoch.

    Raises:
        StateError: if more differs than `TOLERATED`, or a source is missing from the new plan.
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
            "a validation in progress cannot go on with other data or another batch size; start it from the beginning"
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
        lane: _renumbered(lane_state, make_cursor(lane), slots) if lane_state else {}
        for lane, lane_state in state.lanes.items()
    }
    return dataclasses.replace(state, fingerprint=fingerprint, generations=generations, lanes=lanes)


def _renumbered(state: LaneState, cursor: Cursor, slots: Sequence[int]) -> LaneState:
    """A lane's state with renumbered sources. Pending items become explicit: their draws can no longer be replayed."""
    pending = Pending.decode(state, cursor).explicit(slots).to_dict()
    cursors = {str(slots[int(source)]): position for source, position in state["cursors"].items()}
    moved: LaneState = {"draws": state["draws"], "cursors": cursors, "micro_batches": state["micro_batches"]}
    if "inbox" in state:
        moved["inbox"] = {str(slots[int(source)]): entries for source, entries in state["inbox"].items()}
    if pending:
        moved["pending"] = pending
    return moved
