"""The position of a rank in the job's sequence of micro-batches: whose turn it is, and the state to save.

Micro-batch m of the job is made by lane `m mod num_lanes`, and rank r of D gets those with `m mod D == r`, but for
those that are skipped. Reads a state, and what is noted of each micro-batch. Returns the lanes in the order of their
micro-batches, without those that have ended. Promises that the order depends on the lanes alone: micro-batch number n
of lane l is that of index `n * num_lanes + l`.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import logging
from collections.abc import Iterable

from bridge_data.order.state import LaneState, LoaderState
from bridge_data.order.step_skips import StepSkips
from bridge_data.topology import WorkerConfig

logger = logging.getLogger("bridge_data")


class LaneSchedule:
    """Whose turn it is among some lanes after `state`: that of the lane whose next micro-batch is the first."""

    def __init__(self, state: LoaderState, lanes: Iterable[int]) -> None:
        self._num_lanes = state.num_lanes
        self._next = [(state.next_of(lane), lane) for lane in lanes]
        heapq.heapify(self._next)

    def __bool__(self) -> bool:
        return bool(self._next)

    @property
    def index(self) -> int:
        """The micro-batch that is next."""
        return self._next[0][0]

    @property
    def lane(self) -> int:
        """The lane whose turn it is."""
        return self._next[0][1]

    @property
    def lanes(self) -> list[int]:
        """The lanes that have not ended, by their next micro-batches."""
        return [lane for _, lane in sorted(self._next)]

    def following(self, count: int) -> list[int]:
        """The lanes of the next `count` turns, if no lane ends."""
        return [*itertools.islice(itertools.cycle(self.lanes), count)]

    def advance(self) -> None:
        """Note that the lane whose turn it is has made its micro-batch."""
        index, lane = self._next[0]
        heapq.heapreplace(self._next, (index + self._num_lanes, lane))

    def end_lane(self) -> None:
        """Note that the lane whose turn it is has no more batches."""
        heapq.heappop(self._next)


class Position:
    """The cursor of one rank. `state` is what to save at any time."""

    def __init__(self, config: WorkerConfig, state: LoaderState, virtual_epoch_length: int = 0) -> None:
        self._rank, self._world_size = config.rank, config.world_size
        self._epoch_length = virtual_epoch_length
        self._schedule, self._has_begun = LaneSchedule(state, state.lanes), False
        self.state = state

    @property
    def is_at_virtual_epoch(self) -> bool:
        """Whether a virtual epoch starts here."""
        return bool(self._epoch_length) and not self.state.epoch_batches

    def turn(self) -> int | None:
        """The lane whose turn it is; None if all of this rank have ended."""
        if not self._schedule:
            return None
        if self.state.next_of(self._schedule.lane) > self._schedule.index:
            self._schedule.advance()  # `advance` was interrupted after it had noted the state
        return self._schedule.lane

    @property
    def index(self) -> int:
        """The micro-batch of the lane whose turn it is."""
        return self._schedule.index

    @property
    def is_skipped(self) -> bool:
        """Whether the micro-batch of the lane whose turn it is goes to no rank."""
        return self.state.skips is not None and self._schedule.index in self.state.skips

    def begin(self, named: StepSkips | None) -> None:
        """Check that the ranks can share what comes between skips, and log these once, and what came before the state,
        so that it cannot be skipped; `named` are those from the settings, as named there.

        Raises:
            ConfigError: if they cannot.
        """
        skips, index = self.state.skips, self.state.micro_batch_index
        if self._has_begun:
            return
        if skips is not None:
            skips.check_shared(index, self._world_size)
        self._has_begun = True
        if self._rank == 0 and named is not None and (behind := named.not_skipped(skips)):
            logger.warning(
                "not skipped, as the run handed them out before this state was saved: micro-batches %s. To skip these "
                "too, resume from a checkpoint that was saved before them",
                "; ".join(behind),
            )
        ahead = [one for one in skips.ranges if one.stop >= index] if self._rank == 0 and skips is not None else []
        if ahead:
            words = StepSkips(()).name if named is None else named.name
            logger.info("from micro-batch %d of the job on: %s", index, ", ".join(map(words, ahead)))

    def lanes(self) -> list[int]:
        """The lanes of this rank that have not ended, by their next micro-batches."""
        return self._schedule.lanes

    def discard(self, state: LaneState) -> None:
        """Note that the lane whose turn it is has made a micro-batch that is skipped; `state` is the lane's after
        it."""
        lane = self._schedule.lane
        self.state = dataclasses.replace(self.state, lanes={**self.state.lanes, lane: state})
        self._schedule.advance()

    def advance(self, state: LaneState) -> None:
        """Note that the batch of the lane whose turn it is has been handed out; `state` is the lane's after it."""
        before, lane = self.state, self._schedule.lane
        # In one assignment, so that an interrupt (Ctrl-C, a signal handler that saves) finds all of it or none.
        # Not by `dataclasses.replace`, which takes longer than all the rest: a new field must be handed on here.
        self.state = LoaderState(
            fingerprint=before.fingerprint,
            generations=before.generations,
            micro_batch_index=self.next_index(),
            lanes={**before.lanes, lane: state},
            drawn_before=before.drawn_before,
            epoch_batches=self._next_epoch_batches(),
            extras=before.extras,
            repetition=before.repetition,
            skips=before.skips,
        )
        self._schedule.advance()

    def next_index(self) -> int:
        """The `micro_batch_index` of the state after the current turn: the same on all ranks, which get one micro-batch
        each at a time."""
        begin, skips = self.state.micro_batch_index, self.state.skips
        if skips is not None:  # of endless data, in which no rank lacks a turn
            return skips.index_after(skips.num_handed_out(begin) + self._world_size)
        return self._schedule.index - (self._schedule.index - begin) % self._world_size + self._world_size

    def pass_over(self, micro_batch_index: int) -> None:
        """Note that other ranks have got the micro-batches before this one; this rank has none of these."""
        self.state = dataclasses.replace(
            self.state, micro_batch_index=micro_batch_index, epoch_batches=self._next_epoch_batches()
        )

    def _next_epoch_batches(self) -> int:
        return (self.state.epoch_batches + 1) % self._epoch_length if self._epoch_length else 0

    def end_lane(self) -> None:
        """Note that the lane whose turn it is has no more batches."""
        self._schedule.end_lane()

    def end_pass(self) -> None:
        """Note that the pass is over: a state saved now starts the next one."""
        self.state = dataclasses.replace(self.state, ended=True)
