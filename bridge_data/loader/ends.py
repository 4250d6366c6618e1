"""Even ends: the ranks of a job that reads finite data get equally many batches.

Enters: the slots of this rank that have a batch. Leaves: those that are served next, one of each rank at most; and for
a rank that has none there, an empty batch, whose loss mask is zero. Guarantee: every sample exactly once, in the same
order on every number of ranks, and no rank waits in a collective that others have left.
"""

from __future__ import annotations

from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.later import torch
from bridge_data.topology import WorkerConfig

_NO_SLOT = 2**62


class EvenEnds:
    """Keeps this rank in step with the others; each of them makes one for its own loader.

    Raises:
        ConfigError: if there are other ranks and no process group to meet them in.
    """

    def __init__(self, dataset: LaneDataset) -> None:
        config = dataset.worker_config
        if config.world_size > 1 and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise ConfigError(
                f'ends="even" has {config.world_size} data-parallel ranks agree at every step, but torch.distributed '
                'is not initialised; call init_process_group first, or take ends="uneven"'
            )
        self._dataset = dataset
        self._template: Any = None

    def agree(self, batch: Any | None, next_slot: int | None) -> int | None:
        """What the ranks serve in this step: the slots after which `next_slot` is the number returned; None at the end
        of all. All ranks ask once a step, each with its next batch and the `next_slot` after it, or with None."""
        if batch is not None:
            self._template = batch
        config = self._dataset.worker_config
        if config.world_size == 1:
            return next_slot
        lowest = torch.tensor([_NO_SLOT if next_slot is None else next_slot], device=_device_of(config))
        torch.distributed.all_reduce(lowest, op=torch.distributed.ReduceOp.MIN, group=config.data_parallel_group)
        return None if lowest.item() == _NO_SLOT else int(lowest.item())

    def empty_batch(self) -> Any:
        """A batch that counts for nothing, like the last real one; where this rank never had one, like the job's first
        one, which is made here."""
        if self._template is None:
            self._template = self._dataset.lane(0, self._dataset.new_state()).next().batch
        return self._dataset.task_encoder.empty_batch(self._template)


def _device_of(config: WorkerConfig) -> torch.device:
    """Where the group's backend takes its tensors."""
    backend = torch.distributed.get_backend(config.data_parallel_group)
    return torch.device("cuda", torch.cuda.current_device()) if "nccl" in backend else torch.device("cpu")
