"""Checkpoints of the data: one state per run, in a folder with Megatron's names for its files, or in a checkpoint of
Lightning or `megatron.core.dist_checkpointing`.

Enters: the states of the data-parallel ranks at one step. Leaves: such a checkpoint, and from it one merged state.
Guarantee: a load returns what all ranks saved at that step, and any number of ranks can be restored from it.

To change: how files are written, and in which order, `checkpoint_folder._write`; their bytes, `encoded` and `decoded`;
what is said of a folder that is not whole, `_nothing_in` and what else `read_checkpoint` calls.
"""

from bridge_data.loader.checkpoint.checkpoint_folder import (
    Checkpoint,
    load_states,
    rank_file,
    read_checkpoint,
    save_rank_state,
    save_states,
)
from bridge_data.loader.checkpoint.other_formats import load_sharded_state, sharded_state

__all__ = [
    "Checkpoint",
    "load_sharded_state",
    "load_states",
    "rank_file",
    "read_checkpoint",
    "save_rank_state",
    "save_states",
    "sharded_state",
]
