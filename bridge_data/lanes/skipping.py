"""Lanes of a run that skips steps: which of their micro-batches are handed out.

Enters: a state whose `skips` say which micro-batches are not. Leaves: the others. Guarantee: skipped micro-batches are
made and discarded, so that hooks, packs and pending samples are the same as without the skip.

`with_skips` adds ranges to a state, and `caught_up` prepares one for a re-deal.
"""

import collections
import dataclasses
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from bridge_data.errors import ConfigError
from bridge_data.lanes.lane import Lane
from bridge_data.lanes.produced import Produced
from bridge_data.order.state import LoaderState
from bridge_data.order.step_skips import StepSkips
from bridge_data.plugins.ledger.ledger import SAMPLE_BYTES

logger = logging.getLogger("bridge_data")

SKIPPED = "skip_steps"
"""The stage under which samples of discarded micro-batches are counted."""

OpenLane: TypeAlias = Callable[[int, LoaderState], Lane]
"""Opens a lane at its position in a state, as `LaneDataset.lane` does."""


class SkippingLane:
    """Lane number `lane` of a job that skips steps, from `state` on; `loader.lane_runner` opens it."""

    def __init__(self, lane: int, state: LoaderState, open_lane: OpenLane) -> None:
        assert state.skips is not None
        self._skips, self._num_lanes = state.skips, state.num_lanes
        self._lane = open_lane(lane, state)
        self.number, self.work = lane, self._lane.work
        self._number = state.number_of(lane)
        self._skipped: collections.Counter[str] = collections.Counter()

    def next(self) -> Produced[Any]:
        """The next micro-batch that is not skipped; raises what `Lane.next` does."""
        while self._skips.range_with(self._number) is not None:
            made = self._lane.next()
            self._skipped.update(made.skipped)
            self._skipped[SKIPPED] += len(made.references) // SAMPLE_BYTES
            self._number += self._num_lanes
        made = self._lane.next()
        self._number += self._num_lanes
        if self._skipped:
            self._skipped.update(made.skipped)
            made.skipped = self.take_skipped()
        return made

    def take_skipped(self) -> dict[str, int]:
        """The samples skipped since the last micro-batch, by stage; a call resets them."""
        skipped = dict(self._skipped)
        self._skipped.clear()
        return skipped


def with_skips(state: LoaderState, skips: StepSkips) -> LoaderState:
    """`state` with more ranges that are skipped: of each, what comes after the position of the state.

    Raises:
        ConfigError: if the data end.
    """
    if state.is_finite:
        raise ConfigError(
            f"{skips}: steps are skipped in endless training only, and these data end (validation, "
            "repeat=False, overfit_batches)"
        )
    ahead = skips.from_number(state.next_number)
    return (
        state if ahead is None else dataclasses.replace(state, extras=ahead.joined(state.skips).in_extras(state.extras))
    )


def caught_up(state: LoaderState, open_lane: OpenLane) -> LoaderState:
    """The whole `state` after each lane has made and discarded what is skipped before the next slot."""
    state.check_complete()
    lanes, number = dict(state.lanes), state.next_number
    num_discarded = 0
    for lane, lane_state in state.lanes.items():
        missing = -(-(number - lane) // state.num_lanes) - state.place_of(lane)
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
