"""Which ranks of a data-parallel replica need its batches, and which of them reads.

Enters: the tensor, context, pipeline and data-parallel groups of this rank. Leaves: a process group of all tensor- and
context-parallel ranks in the replica's first and last pipeline stage, and one of the ranks that read. Ranks of the
stages between need no data. Guarantee: all ranks of the job create the same groups in the same order.

The groups use gloo and belong to one loader, so its transfers, which run during the training step, never interfere with
the collectives of the step.
"""

import dataclasses
import sys
from typing import Any

import torch.distributed as dist

from bridge_data.errors import ConfigError

_AXES = ("dp", "pp", "cp", "tp")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Replica:
    """The role of this rank in its replica.

    `reader` is the global rank that reads. `members` is the group of ranks that get its batches, None on a rank that
    needs none. `readers` are the reading ranks of all replicas, None on a rank that does not read.
    """

    reader: int
    members: Any
    readers: "Peers | None"

    @property
    def needs_data(self) -> bool:
        """Whether this rank is on the first or the last pipeline stage."""
        return self.members is not None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Peers:
    """One rank of each replica: a gloo group, and the global ranks in the order of data-parallel ranks."""

    group: Any
    ranks: tuple[int, ...]


def join_peers(data_parallel_group: Any = None) -> Peers:
    """A new group of the ranks of a data-parallel group (None: all of the job). All ranks of the job must call it, the
    same number of times.

    Raises:
        ConfigError: outside a distributed run.
    """
    _check_distributed("balance exchanges batches between ranks", "leave balance out")
    own = tuple(dist.get_process_group_ranks(data_parallel_group))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    groups = {ranks: dist.new_group(sorted(ranks), backend="gloo") for ranks in sorted(set(everyone))}
    return Peers(group=groups[own], ranks=own)


def join_replica(pg_collection: Any = None) -> Replica:
    """The role of this rank, from the groups of `pg_collection` or else of Megatron's parallel state. All ranks of the
    job must call it, the same number of times.

    Raises:
        ConfigError: outside a distributed run, or without model-parallel groups.
    """
    _check_distributed('share="broadcast" sends batches between ranks', 'take share="replicate"')
    groups = pg_collection if pg_collection is not None else _megatron_groups()
    own = tuple(_coordinate(getattr(groups, axis, None)) for axis in _AXES)
    coordinates: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(coordinates, own)
    replicas: dict[int, dict[tuple[int, ...], int]] = {}
    for rank, ((dp, _), (pp, num_stages), (cp, _), (tp, _)) in enumerate(coordinates):
        if pp in (0, num_stages - 1):
            members = replicas.setdefault(dp, {})
            if (pp, cp, tp) in members:
                raise ConfigError(
                    f"ranks {members[pp, cp, tp]} and {rank} both have data-parallel rank {dp} and pipeline, context "
                    f"and tensor ranks {pp}, {cp}, {tp}: the groups of pg_collection are not those of one job"
                )
            members[pp, cp, tp] = rank
    reader_of = {dp: members[min(members)] for dp, members in sorted(replicas.items())}
    groups_of = {dp: dist.new_group(sorted(replicas[dp].values()), backend="gloo") for dp in reader_of}
    readers = Peers(
        group=dist.new_group(sorted(reader_of.values()), backend="gloo"),
        ranks=tuple(reader_of[dp] for dp in sorted(reader_of)),
    )
    dp, rank = own[0][0], dist.get_rank()
    return Replica(
        reader=reader_of[dp],
        members=groups_of[dp] if rank in replicas[dp].values() else None,
        readers=readers if rank == reader_of[dp] else None,
    )


def is_first_of_replica(pg_collection: Any = None) -> bool:
    """Whether this rank is the first of its data-parallel replica, by the same groups; alone if there are none."""
    if pg_collection is None and not _has_megatron_groups():
        return True
    groups = pg_collection if pg_collection is not None else _megatron_groups()
    return all(_coordinate(getattr(groups, axis, None))[0] == 0 for axis in _AXES if axis != "dp")


def _check_distributed(why: str, way_out: str) -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            f"{why}, but torch.distributed is not initialised; call init_process_group first, or {way_out}"
        )


def _coordinate(group: Any) -> tuple[int, int]:
    """(rank, size) in a group; (0, 1) if there is none."""
    return (0, 1) if group is None else (group.rank(), group.size())


def _has_megatron_groups() -> bool:
    parallel_state = sys.modules.get("megatron.core.parallel_state")
    return parallel_state is not None and bool(parallel_state.model_parallel_is_initialized())


def _megatron_groups() -> Any:
    if not _has_megatron_groups():
        raise ConfigError(
            'share="broadcast" needs to know the replicas: pass pg_collection, or call '
            "megatron.core.parallel_state.initialize_model_parallel first"
        )
    from megatron.core.process_groups_config import ProcessGroupCollection

    return ProcessGroupCollection.use_mpu_process_groups()
