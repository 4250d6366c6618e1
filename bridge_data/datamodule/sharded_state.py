"""The state of the data in a checkpoint of `megatron.core.dist_checkpointing`, with model and optimizer.

Reads a rank's state, or the path of a checkpoint. Returns a sharded state dict with one shard for each data-parallel
rank, or one merged state. A checkpoint loads at any data-parallel size, since a load asks for the shards that are
there, and not for those that this run would write. Saving and loading are Megatron's: collective over all processes,
from a script with a main guard, and with pickle inside: load only checkpoints that you trust, as you must for the
model.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from bridge_data.errors import StateError
from bridge_data.order.state import LoaderState, merge_states
from bridge_data.topology import is_distributed, rank_in

if TYPE_CHECKING:
    from megatron.core.dist_checkpointing.mapping import ShardedObject

SHARD_KEY = "train_dataloader"


def sharded_state(state: dict[str, Any], group: "dist.ProcessGroup | None" = None) -> "dict[str, ShardedObject]":
    """Entries to merge into the sharded state dict before saving: the lanes of this rank of the data-parallel `group`.

    Every process calls it. `state` is the rank's own or a whole one. The groups of all replicas (tensor, context,
    pipeline) must cover all processes; that of process 0 writes.

    Raises:
        StateError: if `state` lacks lanes of this rank, or outside a distributed run.
    """
    _check_joined()
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    rank, world_size = rank_in(group)
    replica = min(dist.get_process_group_ranks(group or dist.group.WORLD))
    share = LoaderState.from_dict(state).of_rank(rank, world_size).to_dict()
    return {SHARD_KEY: ShardedObject(SHARD_KEY, share, (world_size,), (rank,), replica_id=replica)}


def load_sharded_state(path: str | Path) -> dict[str, Any]:
    """The state of the whole job from a checkpoint written by any number of ranks; all processes call it.
    `loader.restore_state_rank` takes it on every rank.

    Raises:
        StateError: if `path` is not such a checkpoint, has no data state, or lacks a shard of it; or outside a
            distributed run.
    """
    _check_joined()
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.core import CheckpointingException
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    try:
        saved = dist_checkpointing.serialization.load_sharded_metadata(str(path))
    except (CheckpointingException, OSError) as error:
        raise StateError(
            f"{path}: is not a checkpoint of megatron.core.dist_checkpointing: {error}. "
            "Give the folder of one iteration, which has a metadata.json."
        ) from error
    shards = [name for name, item in saved.items() if isinstance(item, ShardedObject) and item.key == SHARD_KEY]
    if not shards:
        raise StateError(
            f"{path}: holds no data state: expected objects named {SHARD_KEY!r} among its {len(saved)} entries. "
            "Was it saved without sharded_state(...)? The folder may have state files instead: load_states reads these."
        )
    _check_all(path, [saved[name] for name in shards])
    # The replica number makes process 0 the owner of each shard; the others read copies.
    request = {name: ShardedObject.empty_from_unique_key(name, replica_id=dist.get_rank()) for name in shards}
    loaded = dist_checkpointing.load(request, str(path))
    return merge_states([loaded[name] for name in shards])


def _check_joined() -> None:
    if not is_distributed():
        raise StateError(
            "megatron.core.dist_checkpointing needs a process group, even for one process: "
            "torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)"
        )


def _check_all(path: str | Path, shards: "list[ShardedObject]") -> None:
    sizes = {shard.global_shape[0] for shard in shards}
    missing = sorted(set(range(max(sizes))) - {shard.global_offset[0] for shard in shards})
    if len(sizes) > 1 or missing:
        raise StateError(
            f"{path}: the data state is not whole: got {len(shards)} shards of runs with "
            f"{' and '.join(map(str, sorted(sizes)))} ranks, without those of ranks {missing[:16]}. "
            "Take another checkpoint."
        )
