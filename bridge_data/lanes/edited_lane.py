"""Lanes of a run that skips or repeats steps: which of their micro-batches are handed out, and from which states.

Enters: a state whose `edits` say the turns of the lane. Leaves: the micro-batches of these turns. Guarantees:
skipped micro-batches are made and discarded, so that hooks, packs and pending samples are the same as without the skip;
a repeat starts from the state that the lane had before its first micro-batch of the range.

`with_edits` adds ranges to a state, and `caught_up` prepares one for a re-deal.
"""

import collections
import dataclasses
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from bridge_data.errors import EDITED, ConfigError, StateError
from bridge_data.lanes.lane import Lane
from bridge_data.lanes.produced import Produced
from bridge_data.order.ledger import SAMPLE_BYTES
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.order.step_edits import StepEdits

logger = logging.getLogger("bridge_data")

SKIPPED = "skip_steps"
"""The stage under which samples of discarded micro-batches are counted."""

OpenLane: TypeAlias = Callable[[int, LoaderState], Lane]
"""Opens a lane at its position in a state, as `LaneDataset.lane` does."""


class EditedLane:
    """Lane number `lane` of a job that skips or repeats steps, from `state` on."""

    def __init__(self, lane: int, state: LoaderState, open_lane: OpenLane) -> None:
        assert state.edits is not None
        self._number, self._state, self._open = lane, state, open_lane
        self._turns = state.edits.turns(lane, state.num_lanes, state.next_slot)
        self._kept: LaneState | None = state.lanes[lane].get("kept")
        self._lane = open_lane(lane, state)
        self._place: int = state.lanes[lane].get("micro_batches", 0)
        self._skipped: collections.Counter[str] = collections.Counter()

    def next(self) -> Produced[Any]:
        """The micro-batch of the next turn; raises what `Lane.next` does.

        Raises:
            StateError: if the state lacks the start of the repeat.
        """
        turn = next(self._turns)
        if turn.place < self._place:
            self._begin_again(turn.place)
        while self._place < turn.place:
            made = self._lane.next()
            self._skipped.update(made.skipped)
            self._skipped[SKIPPED] += len(made.references) // SAMPLE_BYTES
            self._place += 1
        if turn.is_kept:
            self._kept = self._lane.state()
        made = self._lane.next()
        self._place += 1
        if self._kept is not None:
            made.state = {**made.state, "kept": self._kept}
        if self._skipped:
            self._skipped.update(made.skipped)
            made.skipped = self.take_skipped()
        return made

    def take_skipped(self) -> dict[str, int]:
        """The samples skipped since the last micro-batch, by stage; a call resets them."""
        skipped = dict(self._skipped)
        self._skipped.clear()
        return skipped

    def _begin_again(self, place: int) -> None:
        kept, self._kept = self._kept, None
        if kept is None or kept["micro_batches"] > place:
            raise StateError(
                f"lane {self._number} must repeat its micro-batch {place}, but its state does not say where that "
                f"begins; {EDITED}"
            )
        self._lane = self._open(self._number, dataclasses.replace(self._state, lanes={self._number: kept}))
        self._place = kept["micro_batches"]


def with_edits(state: LoaderState, edits: StepEdits) -> LoaderState:
    """`state` with more ranges that are skipped or repeated; of a skip, what comes after the position of the state.

    Raises:
        StateError: if a repeat starts before that position. ConfigError: if ranges overlap, or the data end.
    """
    if state.is_finite:
        raise ConfigError(
            f"{edits}: steps are skipped and repeated in endless training only, and these data end (validation, "
            "repeat=False, overfit_batches)"
        )
    before = state.edits
    if (ahead := edits.from_number(state.next_number)) is None:
        return state
    joined = ahead.joined(before)
    if (edit := joined.added_behind(before, state.next_slot)) is not None:
        raise StateError(
            f"{joined.name(edit)}: the state is at micro-batch {state.next_number} of the run, after their start. "
            "Resume from a checkpoint that was saved before them; or remove them from the settings"
        )
    return dataclasses.replace(state, extras=joined.in_extras(state.extras))


def caught_up(state: LoaderState, open_lane: OpenLane) -> LoaderState:
    """The whole `state` after each lane has made and discarded what is skipped before the next slot.

    Raises:
        StateError: if it is within a repeat: lanes that are dealt again cannot repeat.
    """
    state.check_complete()
    edits = state.edits
    assert edits is not None
    if (edit := edits.repeated_at(state.next_slot)) is not None:
        raise StateError(
            f"the state is within a repeat ({edit}), and the lanes must be dealt again, as the ranks cannot share "
            f"{state.num_lanes} lanes equally. Resume on ranks that can until the repeat is over; or from a checkpoint "
            "that was saved before it"
        )
    lanes, number = dict(state.lanes), edits.number(state.next_slot)
    num_discarded = 0
    for lane, lane_state in state.lanes.items():
        missing = -(-(number - lane) // state.num_lanes) - lane_state.get("micro_batches", 0)
        if missing <= 0:
            continue
        run = open_lane(lane, state)
        for _ in range(missing):
            run.next()
        num_discarded += missing
        extras = {"extras": lane_state["extras"]} if "extras" in lane_state else {}
        lanes[lane] = {**run.state(), **extras}
    if num_discarded:
        logger.info("made and discarded %d micro-batches of skipped steps, to deal the lanes again", num_discarded)
    return dataclasses.replace(state, lanes=lanes)
