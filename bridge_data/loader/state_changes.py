"""Lane states on their way from a worker: of each only what the state before it does not have.

Enters: the states of a lane, one after another. Leaves: their changes, and from these the states again. Guarantee: the
states come out equal. What two states of a lane share as an object is kept, as states never change; so of a packing
buffer the packs are sent once, and from then on how many are left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bridge_data.order.state import LaneState

_NOTHING = object()


class StateChange(NamedTuple):
    """What makes a state of the one before it: the entries that are `kept`, and `new` ones. Of the packs that were
    chosen before, the last `num_packs` are left (0: they are among the new entries, or there are none)."""

    kept: list[str]
    new: dict[str, Any]
    num_packs: int = 0
    pending: StateChange | None = None


def change_of(before: LaneState, state: LaneState) -> StateChange:
    """What makes `state` of `before`, {} for the first one. Without anything pending it is all new, and small."""
    if not before or "pending" not in state:
        return StateChange([], state)
    return _difference(before, state)


def _difference(before: dict[str, Any], state: dict[str, Any]) -> StateChange:
    kept = [name for name, value in state.items() if before.get(name, _NOTHING) is value]
    new = {name: value for name, value in state.items() if name not in kept}
    packs, packs_before = state.get("packs"), before.get("packs")
    if packs and packs_before and packs[-1] is packs_before[-1]:
        new.pop("packs", None)
        return StateChange(kept, new, num_packs=len(packs))
    if "pending" in new and "pending" in before:
        return StateChange(kept, new, pending=_difference(before["pending"], new.pop("pending")))
    return StateChange(kept, new)


def changed(before: LaneState, change: StateChange) -> LaneState:
    """The state of which `change_of(before, ...)` made `change`."""
    state = {name: before[name] for name in change.kept} | change.new
    if change.num_packs:
        state["packs"] = before["packs"][-change.num_packs :]
    if change.pending is not None:
        state["pending"] = changed(before["pending"], change.pending)
    return state
