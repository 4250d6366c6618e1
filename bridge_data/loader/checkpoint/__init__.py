"""Checkpoints of the data: one state per run, in a folder with Megatron's names for its files, or in a checkpoint of
Lightning. (`datamodule.sharded_state` puts it into those of `megatron.core.dist_checkpointing`.)

Reads the states of the data-parallel ranks at one step. Writes such a checkpoint, and returns from it one merged state,
which is what all ranks saved at that step. Any number of ranks can be restored from it. Raises a `StateError` that
names the file if one is missing, damaged or of another step.
"""

from bridge_data.loader.checkpoint.checkpoint_folder import (
    Checkpoint,
    load_states,
    rank_file,
    read_checkpoint,
    save_rank_state,
    save_states,
)

__all__ = [
    "Checkpoint",
    "load_states",
    "rank_file",
    "read_checkpoint",
    "save_rank_state",
    "save_states",
]
