"""Where a rank stands in the job's sequence of micro-batches: whose turn it is, and the state to save.

Slot number m of the job is served by lane `m mod num_lanes`; rank r of D serves the slots with `m mod D == r`.
Enters: the lane of each batch handed out with its state, and lanes that ended. Leaves: the lanes in the order of
their turns. Guarantee: a lane that has ended keeps its slots, which are passed over; so the turns of the others depend
on nothing but the lanes.
"""

from bridge_data.state import LaneState, LoaderState
from bridge_data.worker import WorkerConfig


class Position:
    """The cursor of one rank. `state` is at any moment what to save."""

    def __init__(self, config: WorkerConfig, state: LoaderState) -> None:
        self._rank, self._world_size = config.rank, config.world_size
        self.state = state
        self._ended: set[int] = set()

    @property
    def num_delivered(self) -> int:
        """Batches that the lanes of this rank have handed out since the stream began."""
        return sum(state.get("micro_batches", 0) for state in self.state.lanes.values())

    def turn(self) -> int | None:
        """The lane whose turn it is; None if all of this rank have ended."""
        if not self._ended:
            return self._slot() % self.state.num_lanes
        return next(iter(self.turns()), None)

    def turns(self) -> list[int]:
        """The lanes of this rank that have not ended, from the one whose turn it is."""
        slots = range(self._slot(), self._slot() + self.state.num_lanes, self._world_size)
        return [lane for lane in (slot % self.state.num_lanes for slot in slots) if lane not in self._ended]

    def advance(self, lane: int, state: LaneState) -> None:
        """Note that a batch of `lane`, whose turn it was, has been handed out."""
        before = self.state
        passed_over = (lane - self._slot()) % before.num_lanes
        next_slot = before.next_slot + passed_over + self._world_size
        lanes = {**before.lanes, lane: state}
        # In one assignment, so that whoever interrupts (Ctrl-C, a signal handler that saves) finds all of it or none.
        # Not by `dataclasses.replace`, which takes longer than all the rest of it.
        self.state = LoaderState(
            before.fingerprint, before.generations, next_slot, lanes, before.drawn_before, before.extras
        )

    def end(self, lane: int) -> None:
        """Note that `lane` has no more batches."""
        self._ended.add(lane)

    def _slot(self) -> int:
        """The first slot of this rank from `next_slot` on."""
        return self.state.next_slot + (self._rank - self.state.next_slot) % self._world_size
