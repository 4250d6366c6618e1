"""Even ends: the ranks of a job that reads finite data take equally many batches.

A step is one micro-batch of each rank: those of `world_size` consecutive micro-batch indices. Reads, for each step, the
index where it starts, and this rank's next batch. Returns the index at which it ends, or the end of the pass; and a
batch for a rank that has none in the step. Every sample comes exactly once, in the same order on any number of ranks.
All ranks take the same number of steps, so no rank waits in a collective that others have left.

In validation order the number of micro-batches is arithmetic: a skipped sample only makes its lane end earlier. So the
ranks know without communication when the pass ends. Packs, groups, generators, shuffled data and resharded data have no
such number; then the ranks agree by one small all-reduce a step. There a rank whose batch fails reports it, and the
error of every other rank names it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from bridge_data.errors import ConfigError, WorkerError
from bridge_data.lanes.lane import Produced
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.later import torch
from bridge_data.loader.lane_pool import LanePool, LaneSchedule
from bridge_data.order.state import LoaderState
from bridge_data.topology import WorkerConfig, is_distributed, process_of

T = TypeVar("T")

logger = logging.getLogger("bridge_data")

_NO_INDEX = 2**62
_MAX_CHARACTERS = 500
"""Maximum length of the error of another rank."""


class EvenStep(NamedTuple):
    """The `micro_batch_index` after a step, and what this rank gets if it has no batch of its own."""

    end: int
    filling: Any | None


class EvenEnds:
    """Keeps this rank in step with the others; each rank makes one for its loader. `new_pool` opens another pool like
    that of the loader.

    Raises:
        ConfigError: for several ranks without torch.distributed.
    """

    def __init__(self, dataset: LaneDataset, new_pool: Callable[[], LanePool]) -> None:
        config = dataset.worker_config
        if config.world_size > 1 and not is_distributed():
            raise ConfigError(
                f'ends="even" has {config.world_size} data-parallel ranks end together, but torch.distributed is not '
                'initialised; call init_process_group first, or take ends="uneven"'
            )
        self.num_filled = 0
        """Steps in which this rank had no batch of its own, and got an empty one."""
        self.num_repeated = 0
        """Steps in which it got a real batch again, because that could not be emptied."""
        self._dataset, self._new_pool = dataset, new_pool
        self._num_micro_batches: int | None = None
        self._template: Any = None
        self._has_failed = False

    def begin(self, state: LoaderState) -> None:
        """Continue from `state`. All ranks must be at the same step."""
        self._has_failed = False
        self._num_micro_batches = num_micro_batches(self._dataset, state)

    def step(self, begin: int, batch: Any | None, own_end: int | None) -> EvenStep | None:
        """The step that begins with micro-batch `begin`; None if the pass is over. Every rank calls it once a step,
        with its next batch and the end of the step in which that comes, or with None.

        Raises:
            WorkerError: if another rank has no batch because of an error, or cannot be reached.
        """
        if batch is not None and self._template is None:
            self._template = _shallow(batch)  # the trainer may remove or add fields
        end = self._end_of_step(begin, own_end)
        if end is None:
            return None
        if own_end is not None and own_end <= end:
            return EvenStep(end, None)
        filling = self._fill()
        return None if filling is None else EvenStep(end, filling)

    def fetched(self, fetch: Callable[[], T]) -> T:
        """What `fetch` returns, which is called before each step. If it raises, and the ranks agree on ends, it is
        reported to the other ranks in their step: their errors name this rank. It waits for them once; then all end."""
        try:
            return fetch()
        except Exception as error:
            config = self._dataset.worker_config
            if config.world_size > 1 and self._num_micro_batches is None and not self._has_failed:
                self._has_failed = True
                logger.error("rank %d has no batch and informs the other ranks: %s", config.rank, _first_line(error))
                with contextlib.suppress(WorkerError):  # this rank raises its own error in any case
                    _agree(config.rank - config.world_size, config)
                    _tell(config.rank, _first_line(error), config)
            raise

    def _end_of_step(self, begin: int, own_end: int | None) -> int | None:
        config = self._dataset.worker_config
        if config.world_size == 1:
            return own_end
        if self._num_micro_batches is None:
            return _earliest(own_end, config)
        if begin < self._num_micro_batches:
            return begin + config.world_size
        if own_end is not None:
            encoder = type(self._dataset.task_encoder).__name__
            logger.warning(
                "rank %d has micro-batches after the last one of this pass, number %d, and drops them: a hook of %s "
                "makes several of one, but is no generator function (with `yield` in it), so they were not expected. "
                "Make it one",
                config.rank,
                self._num_micro_batches,
                encoder,
            )
        return None

    def _fill(self) -> Any | None:
        """A batch without loss, shaped like the first real one of this rank; if it never had one, like the first of the
        job. None, on all ranks, if the job has none.

        If `empty_batch` of the task encoder fails, the real batch comes again, with a warning: its samples then
        count twice in metrics, but the job continues.
        """
        if self._template is None:
            self._template = _first_of_job(self._dataset, self._new_pool)
        if self._template is None:
            return None
        self.num_filled += 1
        encoder = self._dataset.task_encoder
        try:
            return encoder.empty_batch(_shallow(self._template))
        except Exception as error:
            self.num_repeated += 1
            if self.num_repeated == 1:
                logger.warning(
                    "rank %d has no batch left and others have, and a batch cannot be emptied, so it takes its first "
                    "one again (even_ends.num_repeated of the loader counts them): those samples count twice in its "
                    "loss and metrics. Override empty_batch in %s, or give it micro-batches for all ranks. The "
                    "reason: %s: %s",
                    self._dataset.worker_config.rank,
                    type(encoder).__name__,
                    type(error).__name__,
                    error,
                )
        return _shallow(self._template)


def _first_of_job(dataset: LaneDataset, new_pool: Callable[[], LanePool]) -> Any | None:
    """The first batch of the job, whichever rank it is for; None if it has none. A pool of its own makes it."""
    state = dataset.new_state()
    every_lane = dataclasses.replace(state, lanes={lane: {} for lane in range(state.num_lanes)})
    schedule = LaneSchedule(every_lane, every_lane.lanes)
    with contextlib.closing(new_pool()) as pool:
        pool.begin(schedule.lanes, every_lane)
        while schedule:
            result = pool.take(schedule.lane)
            if isinstance(result, Produced):
                return result.batch
            schedule.end_lane()
    return None


def num_micro_batches(dataset: LaneDataset, state: LoaderState) -> int | None:
    """How many micro-batches of the job, from the first one on, are in the pass that `state` is in, some of them maybe
    empty as lanes end early; None if arithmetic does not say."""
    if not state.is_ordered or dataset.is_packing or dataset.may_multiply:
        return None
    [*earlier, generation] = state.generations
    is_resharded = bool(earlier) or generation.first_batch > 0
    return None if is_resharded else dataset.passes.num_in(state)


def _earliest(own_end: int | None, config: WorkerConfig) -> int | None:
    """The lowest end of all ranks; None if none has one."""
    lowest = _agree(_NO_INDEX if own_end is None else own_end, config)
    if lowest < 0:
        rank = lowest + config.world_size
        raise WorkerError(
            f"rank {config.rank} ends because data-parallel rank {rank} failed first, while it made its next batch: "
            f"{_tell(rank, '', config)}"
        )
    return None if lowest == _NO_INDEX else lowest


def _agree(own: int, config: WorkerConfig) -> int:
    """The lowest number of all ranks. A `micro_batch_index`, or the rank less the number of ranks if that rank has
    failed: if several fail in the same step, the first is named."""
    numbers = torch.tensor([own], device=_device_of(config))
    with _reaching_others(config):
        torch.distributed.all_reduce(numbers, op=torch.distributed.ReduceOp.MIN, group=config.data_parallel_group)
        return int(numbers.item())


def _tell(rank: int, text: str, config: WorkerConfig) -> str:
    """The text that `rank` sends: `text` on this rank, received on all others."""
    group, said = config.data_parallel_group, [text]
    with _reaching_others(config):
        torch.distributed.broadcast_object_list(
            said, src=process_of(rank, group), group=group, device=_device_of(config)
        )
    return said[0]


@contextlib.contextmanager
def _reaching_others(config: WorkerConfig) -> Iterator[None]:
    """Turn errors of the process group into an error that says where to look."""
    try:
        yield
    except RuntimeError as error:
        raise WorkerError(
            f"rank {config.rank} ends because another data-parallel rank has ended, or cannot be reached, while they "
            "agreed on the end of the pass. Look for the first error in the logs of the other ranks. "
            f"torch.distributed says: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    """An error in one short line."""
    [line, *_] = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {line[:_MAX_CHARACTERS]}"


def _device_of(config: WorkerConfig) -> torch.device:
    """The device of the tensors that the group's backend reduces."""
    backend = torch.distributed.get_backend(config.data_parallel_group)
    return torch.device("cuda", torch.cuda.current_device()) if "nccl" in backend else torch.device("cpu")


def _shallow(batch: Any) -> Any:
    """A copy with the same fields."""
    return copy.copy(batch) if isinstance(batch, dict) or dataclasses.is_dataclass(batch) else batch
