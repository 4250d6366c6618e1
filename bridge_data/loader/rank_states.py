"""The states of the data-parallel ranks as Energon's loader gives them, all on one rank; and what ranks exchange.

Reads the state of each rank. Returns those of all on one rank, or on each rank the state that one of them has. Raises
a StateError on the rank that finds the fault; `by_first_rank` raises it on all of them. (The DataModule saves and
restores all ranks together: see `datamodule.shared_states`.)
"""

from __future__ import annotations

import contextlib
import gc
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from bridge_data.errors import ConfigError, StateError
from bridge_data.later import torch
from bridge_data.order.extras import StateExtra
from bridge_data.order.state import LoaderState, merge, parse_state
from bridge_data.topology import WorkerConfig, process_of, rank_in

T = TypeVar("T")


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Switch the garbage collector off: with millions of lists in a large state it would take most of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def gather_objects(own: T, group: Any, process: int | None = None) -> list[T] | None:
    """What each rank of a group has, in their order, on one of its processes, by default its first; else None."""
    rank, size = rank_in(group)
    if size <= 1:  # -1: this process is not in the group
        return [own]
    processes = torch.distributed.get_process_group_ranks(group or torch.distributed.group.WORLD)
    process = processes[0] if process is None else process
    if process not in processes:
        raise ConfigError(
            f"process {process} of the job is not in this data-parallel group, of {reprlib.repr(processes)}: gather "
            f"the states on one of these, such as global_dst_rank={processes[0]} (each group has its own)"
        )
    receives = torch.distributed.get_rank() == process
    all_of_them: list[Any] | None = [None] * size if receives else None
    # All ranks send as many bytes as the one that sends most: the receiver, whose state may be whole, sends none.
    torch.distributed.gather_object(None if receives else own, all_of_them, dst=process, group=group)
    if all_of_them is not None:
        all_of_them[rank] = own
    return all_of_them


def by_first_rank(act: Callable[[], T], group: Any) -> T:
    """What `act` returns on the first rank of a group, which alone does it. All its ranks must call it.

    Raises:
        StateError: on every rank, if it fails.
    """
    rank, size = rank_in(group)
    outcome: list[Any] = [None, ""]
    if rank == 0:
        try:
            outcome[0] = act()
        except Exception as error:  # of any kind: the other ranks wait for this one
            outcome[1] = described(error)
    if size > 1:
        torch.distributed.broadcast_object_list(outcome, src=process_of(0, group), group=group)
    result, problem = outcome
    if problem:
        raise StateError(problem)
    return cast(T, result)


def described(error: Exception) -> str:
    """The message of an error, with its class if that does not say what it is of."""
    return str(error) if isinstance(error, (OSError, StateError)) else f"{type(error).__name__}: {error}"


@no_garbage_collection()
def gather_rank_states(
    own: LoaderState, config: WorkerConfig, global_dst_rank: int, extras: Sequence[StateExtra] = ()
) -> list[dict[str, Any]] | None:
    """The states of all ranks as plain data, in their order, on the process `global_dst_rank`, else None; `extras` are
    told there. All ranks must call it.

    Raises:
        StateError: there, if the ranks are not at the same step.
    """
    states = [own] if config.world_size == 1 else gather_objects(own, config.data_parallel_group, global_dst_rank)
    if states is None:
        return None
    tell(extras, merge(states, rank_names(states)))
    return [state.to_dict() for state in states]


def rank_names(states: Sequence[LoaderState]) -> list[str]:
    """What messages call the states of all ranks, in their order."""
    return [f"data-parallel rank {rank}" for rank in range(len(states))]


def broadcast_state(
    state: dict[str, Any] | list[dict[str, Any]] | None, config: WorkerConfig, src_rank: int | None
) -> LoaderState:
    """`state`, of the whole job or those of all ranks; with `src_rank`, that of the process of this global rank.

    Raises:
        StateError: if there is none, or the list is not complete.
    """
    if src_rank is not None and config.world_size > 1:
        box = [state]
        torch.distributed.broadcast_object_list(box, src=src_rank, group=config.data_parallel_group)
        state = box[0]
    if state is None:
        raise StateError("restore_state_global: got None; pass it on every rank, or src_rank=... of its rank")
    return merge(list(map(parse_state, state))) if isinstance(state, list) else parse_state(state)


def tell(extras: Sequence[StateExtra], whole: LoaderState) -> None:
    for extra in extras:
        extra.gathered(whole)
