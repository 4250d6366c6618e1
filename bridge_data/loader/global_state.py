"""The states of all data-parallel ranks, for `save_state_global` and `restore_state_global` of a loader.

Enters: the state of this rank; those of all ranks, or one merged of them. Leaves: a list of the ranks' states, as
Energon's loader gives it; one merged state to restore. All ranks call each function.
"""

from __future__ import annotations

from typing import Any

from bridge_data.errors import StateError
from bridge_data.later import torch
from bridge_data.order.state import LoaderState, ledger_log, merge_states
from bridge_data.topology import WorkerConfig


def gather_global_state(
    state: dict[str, Any], config: WorkerConfig, global_dst_rank: int
) -> list[dict[str, Any]] | None:
    """The states of all ranks, in their order, on the process `global_dst_rank`, else None; their ledger is logged.

    Raises:
        StateError: there, if the ranks are not at the same step.
    """
    states: list[Any] | None = [state]
    if config.world_size > 1:
        is_destination = torch.distributed.get_rank() == global_dst_rank
        states = [None] * config.world_size if is_destination else None
        torch.distributed.gather_object(state, states, dst=global_dst_rank, group=config.data_parallel_group)
    if states is not None:
        ledger_log.note(LoaderState.from_dict(merge_states(states)))
    return states


def spread_global_state(
    state: dict[str, Any] | list[dict[str, Any]] | None, config: WorkerConfig, src_rank: int | None
) -> dict[str, Any]:
    """`state`, merged if it is a list; with `src_rank`, that of the process of this global rank.

    Raises:
        StateError: if there is none, or the list is not complete.
    """
    if src_rank is not None and config.world_size > 1:
        box = [state]
        torch.distributed.broadcast_object_list(box, src=src_rank, group=config.data_parallel_group)
        state = box[0]
    if state is None:
        raise StateError("restore_state_global: got None; pass it on every rank, or src_rank=... of its rank")
    return merge_states(state) if isinstance(state, list) else state
