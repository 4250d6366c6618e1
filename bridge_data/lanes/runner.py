"""Running lanes, in this process or in a worker.

Enters: a dataset and a state. Leaves: batches of the lanes asked for, each with its lane's state after it.
Guarantee: a lane opened from the state that came with a batch goes on with the batch after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from bridge_data.lanes.lane import Lane
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.samples.collation import build_in

if TYPE_CHECKING:
    import torch

    from bridge_data.order import SampleRef
    from bridge_data.order.state import LaneState, LoaderState

T = TypeVar("T")

Watch: TypeAlias = "Callable[[SampleRef], None]"


@dataclasses.dataclass(frozen=True, slots=True)
class Produced(Generic[T]):
    """A batch, the lane's state after it, and the samples left out on the way to it."""

    lane: int
    batch: T
    state: LaneState
    skipped: dict[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """The lane has no more batches; these samples were left out after its last one."""

    lane: int
    skipped: dict[str, int]


class BatchMemory(Protocol):
    """Where batches are built; see `collate.build_in`."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """A tensor with any contents; None if it had better be elsewhere."""


class LaneRunner:
    """Runs lanes of one dataset in this process, each opened where `state` has it when it is first wanted.

    Tensors are collated in `memory`.
    """

    def __init__(
        self, dataset: LaneDataset, state: LoaderState, memory: BatchMemory, watch: Watch | None = None
    ) -> None:
        self._dataset, self._state, self._watch, self._memory = dataset, state, watch, memory
        self._lanes: dict[int, Lane] = {}

    def take(self, lane: int) -> Produced[Any] | Ended:
        """The next item of `lane`. After an exception the runner is spent: make another from the last states."""
        if lane not in self._lanes:
            self._lanes[lane] = self._dataset.lane(lane, self._state, self._watch)
        run = self._lanes[lane]
        build_in(self._memory.allocate)
        try:
            item = run.next()
        except StopIteration:
            return Ended(lane, run.take_skipped())
        finally:
            build_in(None)
        return Produced(lane, item.batch, item.state, item.skipped)
