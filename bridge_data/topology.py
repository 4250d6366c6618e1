"""Where this process stands in the job: its data-parallel rank, the lanes that it runs, and its workers.

Reads the rank and world size from the caller or from torch.distributed. Returns the lanes of the rank, by arithmetic
alone. Raises `ConfigError` for numbers that do not fit together.
"""

import copy
import dataclasses
import functools
import logging
import math
import warnings
from typing import TYPE_CHECKING, Any, NoReturn, Self

from bridge_data.errors import ConfigError, ErrorHandler, counted, log_exception, reraise_exception
from bridge_data.ignored import warn_ignored
from bridge_data.options import check_integer
from bridge_data.running_hook import active_hook, current_batch_index, current_sample_index

if TYPE_CHECKING:
    import torch.distributed


logger = logging.getLogger("bridge_data")

DEFAULT_OPEN_BYTES = 256 << 20
"""Memory for samples that a process reads together with others, before they are needed."""

LANES_PER_RANK = 8
"""The default number of lanes per rank: the same for 0 to 8 workers, so that the sequence is the same."""


def is_distributed() -> bool:
    """Whether torch.distributed is initialised."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def rank_in(group: Any) -> tuple[int, int]:
    """(rank, size) in a process group, None for all processes; (0, 1) outside a distributed run.

    Raises:
        ConfigError: if it is no process group.
    """
    import torch.distributed as dist

    if not is_distributed():
        return 0, 1
    try:
        return dist.get_rank(group), dist.get_world_size(group)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"group={group!r}: expected a process group of torch.distributed, of a DeviceMesh that of its "
            f'data-parallel dimension: mesh["dp"].get_group(). {error}'
        ) from error


def process_of(rank: int, group: Any) -> int:
    """The global rank of a rank of a process group, None for all processes."""
    import torch.distributed as dist

    return rank if group is None else dist.get_global_rank(group, rank)


class _Active:
    """The configuration of the loader whose hook runs in this thread; None outside hooks."""

    def __get__(self, config: "WorkerConfig | None", owner: type) -> "WorkerConfig | None":
        hook = active_hook.get()
        if hook is None:
            return None
        hook.is_positional = True
        active: WorkerConfig = hook.worker_config
        return active


class _LeftOut:
    """An attribute of Energon's class that nothing here may depend on."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, config: "WorkerConfig | None", owner: type) -> NoReturn:
        raise AttributeError(
            f"WorkerConfig has no {self._name}: the result for a sample must not depend on its worker. "
            "Random generators are seeded by the sample before each hook; task_encoder.current_sample_index and "
            "current_batch_index are numbers that are the same anywhere"
        )


@dataclasses.dataclass(slots=True, eq=False)
class WorkerConfig:
    """The data-parallel rank of this process, and its workers and lanes.

    `rank` is the *data-parallel* rank: tensor, context and pipeline ranks of one replica share it, and so read the
    same data. `num_workers` 0 works in the training process. `num_lanes` is the number of independent streams of the
    whole job, a multiple of `world_size`. A resumed run keeps it, unless another one is given or the ranks cannot share
    the lanes equally: then the data are resharded. By default a rank has 8 lanes, so that 0 to 8
    workers give the same sequence; with more workers, as many as workers; and one, if the training data have too few
    samples for more (see `for_samples`). Both are logged. Samples stored next to each other are read together; a
    process (a worker, or this one without workers) keeps at most `max_open_bytes` of them until they are needed.
    Sources that do not fit are read sample by sample. `seed_offset` is the seed of order and augmentation.
    `worker_log_level` and `worker_debug_path` have no effect (see `ignored`).

    >>> config = WorkerConfig(rank=1, world_size=2, num_workers=4, num_lanes=16)
    >>> list(config.lanes)
    [1, 3, 5, 7, 9, 11, 13, 15]

    Raises:
        ConfigError: if a number is out of range.
    """

    rank: int
    world_size: int
    num_workers: int
    data_parallel_group: "torch.distributed.ProcessGroup | None" = None
    seed_offset: int = 0
    worker_debug_path: dataclasses.InitVar[str | None] = None
    worker_log_level: dataclasses.InitVar[int] = 0
    global_error_handler: ErrorHandler = log_exception
    restore_error_handler: ErrorHandler = reraise_exception
    num_lanes: int = dataclasses.field(default=0, kw_only=True)
    max_open_bytes: int = dataclasses.field(default=DEFAULT_OPEN_BYTES, kw_only=True)
    num_lanes_given: bool = dataclasses.field(init=False, repr=False)
    """Whether `num_lanes` was given."""

    active_worker_config = _Active()
    rank_worker_id = _LeftOut()
    global_worker_id = _LeftOut()
    worker_seed = _LeftOut()

    def __post_init__(self, worker_debug_path: str | None, worker_log_level: int) -> None:
        check_integer("WorkerConfig: world_size", self.world_size, 1)
        for name in ("rank", "num_workers", "num_lanes", "max_open_bytes"):
            check_integer(f"WorkerConfig: {name}", getattr(self, name), 0, or_none=name == "num_lanes")
        check_integer("WorkerConfig: seed_offset", self.seed_offset, -(2**63))
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"WorkerConfig(rank={self.rank}, world_size={self.world_size}): expected 0 <= rank < world_size. "
                "The rank is that of the data-parallel group, not the global rank."
            )
        if worker_log_level or worker_debug_path:
            warn_ignored(worker_log_level=worker_log_level or None, worker_debug_path=worker_debug_path)
        self.num_lanes_given = bool(self.num_lanes)
        self.num_lanes = self.num_lanes or self.world_size * self._default_lanes_per_rank()
        if self.num_lanes % self.world_size:
            raise ConfigError(
                f"WorkerConfig(num_lanes={self.num_lanes}, world_size={self.world_size}): "
                "num_lanes must be a positive multiple of world_size, so that each rank has as many lanes as another. "
                "A resumed run may set another num_lanes: the rest of its epoch is then resharded"
            )

    def changed(self, **fields: Any) -> Self:
        """This config with other values of some fields; lanes by default stay so."""
        return dataclasses.replace(self, **{"num_lanes": self.num_lanes if self.num_lanes_given else 0} | fields)

    def for_samples(self, num_samples: int, batch_size: int) -> Self:
        """This config; but if `num_lanes` was not given, and so many lanes could not fill a micro-batch of `batch_size`
        each from `num_samples` training samples, with one lane for each rank. Two samples in eight lanes would come as
        [1, 1], [0, 0]. Only the plan is read for it, so all ranks agree."""
        if self.num_lanes_given or num_samples >= self.num_lanes * batch_size or self.num_lanes == self.world_size:
            return self
        _warn_few_samples(num_samples, batch_size, self.num_lanes, self.world_size)
        fitting = copy.copy(self)
        fitting.num_lanes, fitting.data_parallel_group = self.world_size, self.data_parallel_group
        return fitting

    def _default_lanes_per_rank(self) -> int:
        """The lanes of each rank, if nobody says how many; a derived class may have others."""
        return _default_lanes_per_rank(self.num_workers)

    @classmethod
    def default_worker_config(
        cls,
        num_workers: int = 4,
        data_parallel_group: "torch.distributed.ProcessGroup | None" = None,
        *,
        num_lanes: int | None = None,
    ) -> Self:
        """Rank and world size from `torch.distributed` (of `data_parallel_group`, or of all processes), else 0 of 1.
        The default number of workers is that of Energon."""
        rank, world_size = rank_in(data_parallel_group)
        group = data_parallel_group if is_distributed() else None
        options: dict[str, Any] = {} if num_lanes is None else {"num_lanes": num_lanes}
        return cls(rank, world_size, num_workers, group, **options)

    def config(self) -> dict[str, int | None]:
        """The ranks and workers as plain numbers; `data_parallel_group` is the size of the group."""
        group = self.data_parallel_group
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "num_workers": self.num_workers,
            "data_parallel_group": None if group is None else group.size(),
        }

    @property
    def lanes(self) -> range:
        """The lanes that this rank serves: `l mod world_size == rank`."""
        return range(self.rank, self.num_lanes, self.world_size)

    def warn_of_idle_workers(self, num_lanes: int) -> None:
        """Warn if some workers of this rank have none of its lanes, of the `num_lanes` of the job, or if they share
        them so unequally that they wait for each other for a fifth of their time or more."""
        if not self.num_lanes_given and num_lanes == self.num_lanes == self.world_size:
            return  # few samples: `for_samples` has warned
        num_here = len(range(self.rank, num_lanes, self.world_size))
        num_busy = busy_workers(num_here, self.num_workers)
        if num_busy <= 0.8 * self.num_workers or num_here < self.num_workers:
            warnings.warn(
                f"num_workers={self.num_workers} share {counted(num_here, 'lane')} (num_lanes={num_lanes}, world_size="
                f"{self.world_size}), and make as many batches as {num_busy:.3g} workers. A number that divides the "
                f"lanes is shared equally, such as {equal_workers(num_here, self.num_workers)}; a new run with "
                f"WorkerConfig(num_lanes={self.world_size * self.num_workers}) has a lane for each.",
                stacklevel=4,
            )

    @property
    def active_worker_sample_index(self) -> int:
        """`current_sample_index` of the task encoder."""
        return current_sample_index()

    @property
    def active_worker_batch_index(self) -> int:
        """`current_batch_index` of the task encoder."""
        return current_batch_index()

    def global_rank(self) -> int:
        """The rank among all processes of the job, 0 outside a distributed run."""
        return rank_in(None)[0]

    def __getstate__(self) -> dict[str, object]:
        """A process group cannot leave its process: workers get the numbers without it."""
        state = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return state | {"data_parallel_group": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def busy_workers(num_lanes: int, num_workers: int) -> float:
    """How many workers would be as fast, if they never waited, as these are with their lanes: batches are taken from
    lane to lane, so the workers with the most lanes set the pace."""
    return num_lanes / max(1, math.ceil(num_lanes / num_workers))


def equal_workers(num_lanes: int, num_workers: int) -> int:
    """The greatest number of workers, up to `num_workers`, that share the lanes equally."""
    return max(number for number in range(1, num_workers + 1) if num_lanes % number == 0)


@functools.cache  # so that it is logged once
def _default_lanes_per_rank(num_workers: int) -> int:
    if num_workers > LANES_PER_RANK:
        logger.warning(
            "num_workers=%d: each rank has a lane for each, not the %d lanes of up to %d workers, and so another order "
            "of samples. WorkerConfig(num_lanes=...) fixes the order whatever the workers",
            num_workers,
            LANES_PER_RANK,
            LANES_PER_RANK,
        )
    return max(num_workers, LANES_PER_RANK)


@functools.cache  # so that it is logged once
def _warn_few_samples(num_samples: int, batch_size: int, num_lanes: int, world_size: int) -> None:
    logger.warning(
        "%d samples are too few to fill micro-batches of %d in %d lanes, so each rank has one lane (num_lanes=%d), and "
        "one worker is busy. num_lanes=%d keeps the usual number",
        num_samples,
        batch_size,
        num_lanes,
        world_size,
        num_lanes,
    )
