"""A training run as it is checked and measured: with its machines, and the time of its steps."""

import dataclasses
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.options import check_integer, check_number
from bridge_data.plan.declared import WHERE_KEYS
from bridge_data.runs.training_run import TrainingRun


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun(TrainingRun):
    """A training run of which `ranks_per_node` ranks share a machine, `later_ranks` are numbers of ranks that it may
    have later, and `step_s` are the trainer's seconds per step (None: not known).

    Raises:
        ConfigError: if a number is out of range.
    """

    later_ranks: tuple[int, ...] = ()
    ranks_per_node: int = 1
    step_s: float | None = None

    def __post_init__(self) -> None:
        TrainingRun.__post_init__(self)
        for number in (self.ranks_per_node, *self.later_ranks):
            check_integer("ranks", number, 1)
        check_number("step_s", self.step_s, "a positive number of seconds", or_none=True)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        own = {name: getattr(self, name) for name in _OWN}
        return own | {name: self.options.get(name) for name in _SHOWN} | {"num_lanes": self.num_lanes}

    @property
    def num_workers(self) -> int:
        """Workers of a rank."""
        return self.options.worker.num_workers

    @property
    def step_size(self) -> int:
        """Samples (packs) of a step, over all ranks."""
        size = self.options.trainer.global_batch_size
        return size or self.micro_batch_size * self.num_ranks * self.num_accumulated

    @property
    def batch_s(self) -> float | None:
        """The trainer's seconds per micro-batch of a rank; None if those of a step are not known."""
        return None if self.step_s is None else self.step_s * self.micro_batch_size * self.num_ranks / self.step_size

    def units(self, steps: int) -> int:
        """The samples (packs) of so many steps; if their sizes do not fit each other, of steps of one size."""
        try:
            return self.schedule.micro_batches(steps).start * self.micro_batch_size
        except ConfigError:
            return steps * self.step_size


_OWN = tuple(field.name for field in dataclasses.fields(PlannedRun) if field.name not in ("data", "source", "assumed"))
_SHOWN = (
    "num_workers",
    "num_lanes",
    "micro_batch_size",
    "global_batch_size",
    "packing_buffer_size",
    "shuffle_buffer_size",
    "max_samples_per_sequence",
    "prefetch_factor",
    *WHERE_KEYS,
)
