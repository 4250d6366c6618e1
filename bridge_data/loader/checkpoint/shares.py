"""Who keeps what of a state: the lanes of each data-parallel rank."""

from typing import Any

import torch.distributed as dist

from bridge_data.order.state import LoaderState
from bridge_data.topology import WorkerConfig


def share_of(state: LoaderState, rank: int, world_size: int) -> LoaderState:
    """What `rank` keeps of a whole state, or of its own: every `world_size`-th lane.

    Raises:
        StateError: if lanes that it should keep are not in `state`.
    """
    return state.of_rank(WorkerConfig(rank=rank, world_size=world_size, num_workers=0))


def place_in(group: Any) -> tuple[int, int]:
    """(rank, size) in a process group, None for all processes; (0, 1) outside a distributed run."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def process_of(rank: int, group: Any) -> int:
    """The global rank of a rank of a process group, None for all processes."""
    return rank if group is None else dist.get_global_rank(group, rank)
