"""What the loader asks of a dataset: lanes that can be opened anywhere, and run here or in a worker.

Enters: a dataset and a state. Leaves: batches of the lanes asked for, each with its lane's state after it.
Guarantee: a lane opened from the state that came with a batch goes on with the batch after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from bridge_data.collate import build_in

if TYPE_CHECKING:
    import torch

    from bridge_data.cache import CachePool
    from bridge_data.lane import LaneBatch
    from bridge_data.order import SampleRef
    from bridge_data.state import LaneState, LoaderState
    from bridge_data.task import TaskEncoder
    from bridge_data.worker import WorkerConfig

T = TypeVar("T")

Watch: TypeAlias = "Callable[[SampleRef], None]"


class Lane(Protocol):
    """One independent stream of batches with its own cursor."""

    def next(self) -> LaneBatch:
        """The next batch, the lane's state after it, and the samples left out on the way to it by stage;
        `StopIteration` at a finite end, however often it is called there.

        The state is plain data that later batches do not change; its "micro_batches" counts the lane's batches."""

    def take_skipped(self) -> dict[str, int]:
        """The samples left out since the last batch, by stage, which are counted with this."""


class LaneDataset(Protocol):
    """A dataset as the loader sees it. With workers it must also survive cloudpickle."""

    @property
    def worker_config(self) -> WorkerConfig:
        """The rank and its number of workers."""

    @property
    def virtual_epoch_length(self) -> int:
        """Batches of this rank after which an iteration ends; 0: never."""

    @property
    def task_encoder(self) -> TaskEncoder[Any, Any, Any, Any]:
        """Makes the empty batches of even ends."""

    @property
    def modules(self) -> Sequence[str]:
        """The modules that its lanes will import, beside those that unpickling it does."""

    def with_cache_pool(self, cache_pool: CachePool) -> LaneDataset:
        """The same data set, whose cookers get this cache pool."""

    def new_state(self, num_lanes: int | None = None) -> LoaderState:
        """The state before the first batch, of this rank's lanes; of so many lanes in all, or as configured."""

    def check_state(self, data: dict[str, Any], *, strict: bool = True) -> LoaderState:
        """The lanes of this rank out of a saved state, its own or a merged one. Raises `StateError`."""

    def describe(self, ref: SampleRef) -> str:
        """A sample in words, for messages."""

    def restore_sample(self, key: Any) -> Any:
        """The sample, pack or batch with a `__restore_key__`, once more."""

    def lane(self, lane: int, state: LoaderState, watch: Watch | None = None) -> Lane:
        """A lane where `state` has it. `watch` is called with each sample before it is worked on."""


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
