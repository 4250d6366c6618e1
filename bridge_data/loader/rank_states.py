"""The states of the data-parallel ranks: gathered when saved, distributed when restored.

Reads the state of each rank. Returns, when saving, the whole state on rank 0, and on every other rank its own lanes, so
that the total size written by all ranks is linear in the job; or the states of all on one rank, as Energon's loader
gives them. Returns, when restoring, on each rank a state that it can be restored from. If each rank has what it needs,
only a few numbers are exchanged. Plain data is parsed here once; `LoaderState` travels.

`gather_whole_state`, `distribute_state` and `check_agreement` raise a StateError on all ranks if there is one on any,
so no rank waits for another. `gather_rank_states` and `broadcast_state` raise where they find one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from bridge_data.errors import StateError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.later import torch
from bridge_data.order.extras import StateExtra
from bridge_data.order.state import LoaderState, check_same_run, merge, num_lanes_after, parse_state
from bridge_data.topology import WorkerConfig, is_distributed, process_of, rank_in

T = TypeVar("T")


def is_joined(config: WorkerConfig) -> bool:
    """Whether this rank can exchange states with others: torch.distributed has a group with exactly these ranks."""
    return config.world_size > 1 and rank_in(config.data_parallel_group)[1] == config.world_size


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
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
    process = process_of(0, group) if process is None else process
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


@_no_garbage_collection()
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
    _tell(extras, merge(states, rank_names(states)))
    return [state.to_dict() for state in states]


def rank_names(states: Sequence[LoaderState]) -> list[str]:
    """What messages call the states of all ranks, in their order."""
    return [f"data-parallel rank {rank}" for rank in range(len(states))]


@_no_garbage_collection()
def gather_whole_state(own: LoaderState, config: WorkerConfig, extras: Sequence[StateExtra] = ()) -> LoaderState:
    """The state of the whole job on data-parallel rank 0, where `extras` are told, on the others their own lanes at the
    same position. All ranks must call it.

    Raises:
        StateError: on every rank, if they are not at the same step; or if torch.distributed is not initialised.
    """
    if config.world_size == 1:
        _tell(extras, own)
        return own
    if not is_distributed():
        raise StateError(
            f"the states of {config.world_size} data-parallel ranks cannot be gathered: torch.distributed is not "
            "initialised. Save each rank's own with the loader's save_state_rank, and join them with merge_states"
        )
    states = gather_objects(own, config.data_parallel_group)

    def merged() -> dict[str, Any]:
        nonlocal own
        own = merge(states or [], rank_names(states or []))
        # Near the end of finite data the ranks are at different positions, and the job at the lowest.
        return {"micro_batch_index": own.micro_batch_index, "epoch_batches": own.epoch_batches, "ended": own.ended}

    of_job = by_first_rank(merged, config.data_parallel_group)  # which has replaced `own` there
    own = dataclasses.replace(own, **of_job)
    if states is not None:
        _tell(extras, own)
    return own


def distribute_state(state: LoaderState | dict[str, Any] | None, config: WorkerConfig) -> LoaderState:
    """A state that this rank can be restored from: `state`, if every rank got the lanes that it needs, else its
    part of the whole state that one of them got. All data-parallel ranks must call it, with None if a rank has no
    state, such as a new rank.

    Raises:
        StateError: on every rank, if a state is not a loader state, if states are of different steps, or if lanes are
            missing and no rank has all.
    """
    distributed = distribute_state_if_any(state, config)
    if distributed is None:
        raise StateError(
            "no data-parallel rank was given a state: give rank 0 the one that it saved, or do not restore"
        )
    return distributed


def distribute_state_if_any(state: LoaderState | dict[str, Any] | None, config: WorkerConfig) -> LoaderState | None:
    """`distribute_state`, or None if no rank has a state."""
    if config.world_size == 1 or not is_distributed():
        return None if state is None else parse_state(state)
    summary, given = _look_at(state, config)
    summaries: list[Any] = [None] * config.world_size
    torch.distributed.all_gather_object(summaries, summary, group=config.data_parallel_group)
    _check(summaries)
    if not any(summary.num_lanes for summary in summaries):
        return None
    num_lanes = next(summary.num_lanes for summary in summaries if summary.num_lanes)
    source = next((rank for rank, summary in enumerate(summaries) if summary.is_whole), None)
    is_resharded = num_lanes_after(config, num_lanes) != num_lanes
    # Only with all lanes is it known whether finite data is at its end, from where the next pass begins.
    takes_all = is_resharded or (source is not None and any(summary.is_finite for summary in summaries))
    lacking = [
        rank for rank, summary in enumerate(summaries) if not (summary.is_whole if takes_all else summary.has_own)
    ]
    if not lacking:
        return given
    if source is None:
        raise StateError(
            f"data-parallel ranks {lacking[:16]} of {config.world_size} lack lanes of {num_lanes} that they need to "
            "restore, and no rank got a state with all. The state that rank 0 saved has them: restore it "
            "on rank 0, or merge the states of all ranks (merge_states) and restore the result on each"
        )
    is_source = rank_in(config.data_parallel_group)[0] == source
    return _sent(given if is_source else None, source, takes_all, config)


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


class _RankSummary(NamedTuple):
    """A summary of the state that a rank got: 0 lanes if none, `problem` if it is not valid."""

    problem: str = ""
    num_lanes: int = 0
    micro_batch_index: int = 0
    is_finite: bool = False
    is_whole: bool = False
    has_own: bool = False


def _look_at(
    state: LoaderState | dict[str, Any] | None, config: WorkerConfig
) -> tuple[_RankSummary, LoaderState | None]:
    if state is None:
        return _RankSummary(), None
    try:
        given = parse_state(state)
    except StateError as error:
        return _RankSummary(problem=str(error)), None
    mine = range(config.rank, given.num_lanes, config.world_size)
    summary = _RankSummary(
        num_lanes=given.num_lanes,
        micro_batch_index=given.micro_batch_index,
        is_finite=given.is_finite,
        is_whole=given.is_whole,
        has_own=all(lane in given.lanes for lane in mine),
    )
    return summary, given


def _check(summaries: list[_RankSummary]) -> None:
    """Check that all states are valid, and that they are of the same step."""
    for rank, summary in enumerate(summaries):
        if summary.problem:
            raise StateError(f"the state that data-parallel rank {rank} was given: {summary.problem}")
    given = [(rank, summary) for rank, summary in enumerate(summaries) if summary.num_lanes]
    first_rank, first = given[0] if given else (0, summaries[0])
    for rank, summary in given:
        is_elsewhere = summary.micro_batch_index != first.micro_batch_index and not summary.is_finite
        if summary.num_lanes != first.num_lanes or is_elsewhere:
            raise StateError(
                f"the states that data-parallel ranks {rank} and {first_rank} were given are of different steps: got "
                f"micro-batch {summary.micro_batch_index} of {summary.num_lanes} lanes and micro-batch "
                f"{first.micro_batch_index} of {first.num_lanes}. Give every rank the state of the same checkpoint"
            )


@_no_garbage_collection()
def _sent(whole: LoaderState | None, source: int, takes_all: bool, config: WorkerConfig) -> LoaderState:
    """The part that this rank needs of the whole state of rank `source`, which alone has to give it."""
    group, process = config.data_parallel_group, process_of(source, config.data_parallel_group)
    received: list[Any] = [whole]
    if takes_all:
        torch.distributed.broadcast_object_list(received, src=process, group=group)
    else:
        size = config.world_size
        shares = None if whole is None else [whole.of_rank(rank, size) for rank in range(size)]
        torch.distributed.scatter_object_list(received, shares, src=process, group=group)
    state: LoaderState = received[0]
    return state


def _tell(extras: Sequence[StateExtra], whole: LoaderState) -> None:
    for extra in extras:
        extra.gathered(whole)


def check_agreement(dataset: LaneDataset, groups_beside: Sequence[Any] = ()) -> None:
    """Check that data, settings, and what extras have found are the same on all data-parallel ranks, and on the ranks
    of `groups_beside`. All of them must call it; only a digest is exchanged.

    Raises:
        StateError: on every rank of a group in which they differ.
    """
    if not is_distributed():
        return
    config = dataset.worker_config
    found = {extra.name: agreed for extra in dataset.extras if (agreed := extra.agreed()) is not None}
    own = {**dataset.fingerprint(), "num_lanes": config.num_lanes}, found
    digest = hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=16).digest()
    groups = [("data-parallel", config.data_parallel_group)] if config.world_size > 1 else []
    differing = []
    for kind, group in [*groups, *(("model-parallel", group) for group in groups_beside)]:
        digests: list[Any] = [None] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(digests, digest, group=group)
        if len(set(digests)) > 1:
            of_ranks: list[Any] = [None] * len(digests)
            torch.distributed.all_gather_object(of_ranks, own, group=group)
            differing.append((kind, of_ranks))
    for kind, of_ranks in differing:  # after the last exchange, as this ends the rank
        (first, _), *_ = of_ranks
        for rank, (fingerprint, _) in enumerate(of_ranks):
            check_same_run(fingerprint, first, f"{kind} rank {rank}", f"{kind} rank 0")
        _check_equal([found for _, found in of_ranks], kind)


def _check_equal(of_ranks: Sequence[Mapping[str, Any]], kind: str) -> None:
    for rank, found in enumerate(of_ranks):
        for name in sorted({*found, *of_ranks[0]}):
            if found.get(name) != of_ranks[0].get(name):
                raise StateError(
                    f"{kind} ranks {rank} and 0 have found different data of {name!r}: "
                    f"{found.get(name, 'none')} and {of_ranks[0].get(name, 'none')}. It was written while the ranks "
                    "started, or a shared file system shows it to only some of them: restart all ranks"
                )
