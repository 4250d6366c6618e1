"""What leaves a lane: micro-batches, each with the lane's state after it, and counts for metrics."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar

from bridge_data.counts import NO_COUNTS, CountValues
from bridge_data.order.state import LaneState

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class Produced(Generic[T]):
    """A micro-batch of a lane, the lane's state after it (plain JSON), the samples skipped since the one before, by
    hook (those cut short or that failed, as `NO_STAGES`), counts, and what extras noted of it, by their names."""

    lane: int
    batch: T
    state: LaneState
    skipped: dict[str, int]
    counts: CountValues = dataclasses.field(default=NO_COUNTS, compare=False)
    """The values of a `BatchCounts`."""
    notes: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    ready_batches: int = dataclasses.field(default=0, compare=False)
    """How many batches its worker had ready when the trainer asked for this one, out of at most `ready_slots`; 0 and 0
    if the trainer made it."""
    ready_slots: int = dataclasses.field(default=0, compare=False)
