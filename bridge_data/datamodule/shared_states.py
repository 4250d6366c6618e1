"""The states of data-parallel ranks that save and restore together: gathered to save, distributed to restore.

Reads the state of each rank. Returns, when saving, the whole state on rank 0, and on every other rank its own lanes, so
that the total size written by all ranks is linear in the job. Returns, when restoring, on each rank a state that it can
be restored from. If each rank has what it needs, only a few numbers are exchanged. Plain data is parsed here once;
`LoaderState` travels. All functions raise a StateError on all ranks if there is one on any, so no rank waits for
another.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bridge_data.errors import StateError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.later import torch
from bridge_data.loader.rank_states import by_first_rank, gather_objects, no_garbage_collection, rank_names, tell
from bridge_data.order.extras import StateExtra
from bridge_data.order.state import LoaderState, check_same_run, merge, num_lanes_after, parse_state
from bridge_data.topology import WorkerConfig, is_distributed, process_of, rank_in


def is_joined(config: WorkerConfig) -> bool:
    """Whether this rank can exchange states with others: torch.distributed has a group with exactly these ranks."""
    return config.world_size > 1 and rank_in(config.data_parallel_group)[1] == config.world_size


@no_garbage_collection()
def gather_whole_state(own: LoaderState, config: WorkerConfig, extras: Sequence[StateExtra] = ()) -> LoaderState:
    """The state of the whole job on data-parallel rank 0, where `extras` are told, on the others their own lanes at the
    same position. All ranks must call it.

    Raises:
        StateError: on every rank, if they are not at the same step; or if torch.distributed is not initialised.
    """
    if config.world_size == 1:
        tell(extras, own)
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
        tell(extras, own)
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


@no_garbage_collection()
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
