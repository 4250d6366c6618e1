"""The process groups of this rank, and its data-parallel rank.

Reads a `ProcessGroupCollection`, or Megatron's parallel state, where it is initialised. Returns the groups, the
`WorkerConfig` of this rank, and its position in its replica. All callers look the groups up here, so they see the same
ranks.

The rank is the pure data-parallel rank. The context-parallel ranks of a replica work on parts of the same sequences, so
they read the same data, as tensor- and pipeline-parallel ranks do. The group of data and context parallelism together
(`dp_cp`) would give each of them different data.
"""

import sys
from typing import Any, NamedTuple

from bridge_data.topology import WorkerConfig


class RankGroups(NamedTuple):
    """The data-, pipeline-, context- and tensor-parallel groups of this rank; None for one that is not known."""

    dp: Any
    pp: Any
    cp: Any
    tp: Any

    @property
    def coordinates(self) -> tuple[tuple[int, int], ...]:
        """(rank, size) in each of them; (0, 1) if it is not known."""
        return tuple((0, 1) if group is None else (group.rank(), group.size()) for group in self)


def groups_of(pg_collection: Any = None) -> RankGroups:
    """The groups of `pg_collection`; one that it lacks is that of Megatron's parallel state, if it is initialised, and
    has no other data-parallel group."""
    given = RankGroups(*(getattr(pg_collection, axis, None) for axis in RankGroups._fields))
    if None not in given or not has_megatron_groups():
        return given
    from megatron.core.process_groups_config import ProcessGroupCollection

    collection = ProcessGroupCollection.use_mpu_process_groups(list(RankGroups._fields))
    others = RankGroups(*(getattr(collection, axis) for axis in RankGroups._fields))
    if given.dp not in (None, others.dp):
        return given
    return RankGroups(*(other if own is None else own for own, other in zip(given, others, strict=True)))


def has_megatron_groups() -> bool:
    """Whether Megatron's parallel state is initialised."""
    parallel_state = sys.modules.get("megatron.core.parallel_state")  # not imported: not initialised either
    return parallel_state is not None and bool(parallel_state.model_parallel_is_initialized())


def on_this_rank(worker: WorkerConfig, pg_collection: Any) -> WorkerConfig:
    """`worker` on this rank of the job: that of the data-parallel group, else of all processes of the job."""
    group = groups_of(pg_collection).dp
    if group is not None:
        return worker.changed(rank=group.rank(), world_size=group.size(), data_parallel_group=group)
    default = WorkerConfig.default_worker_config(worker.num_workers)
    return worker.changed(rank=default.rank, world_size=default.world_size)


def is_first_of_replica(pg_collection: Any = None) -> bool:
    """Whether this rank is the first of its data-parallel replica; alone if no groups are known."""
    _, *beside = groups_of(pg_collection).coordinates
    return all(rank == 0 for rank, _ in beside)


def groups_beside(pg_collection: Any = None) -> list[Any]:
    """The context- and tensor-parallel groups of several ranks that this rank is in, whose ranks get the same
    batches."""
    groups = groups_of(pg_collection)
    return [group for group in (groups.cp, groups.tp) if group is not None and group.size() > 1]
