"""Checkpoints of the data: one state per run, kept in files that are complete or refused.

    iter_0000010/
      train_dataloader_dprank000.pt       the state of the whole job, under Megatron's name
      train_dataloader_dprank001.pt ...   the lanes of a rank each
      train_dataloader_manifest.json      step, world size, fingerprint, size and checksum of each file: the commit

Enters: the states of the data-parallel ranks at one step. Leaves: such a folder, or objects for
`megatron.core.dist_checkpointing`; and from either, one merged state. Guarantee: a load returns what all ranks saved
at that step, and any number of ranks can be restored from it.
"""

from bridge_data.loader.checkpoint.checkpoint_folder import (
    Checkpoint,
    load_states,
    read_checkpoint,
    save_rank_state,
    save_states,
)
from bridge_data.loader.checkpoint.other_formats import load_sharded_state, sharded_state
from bridge_data.loader.checkpoint.state_files import rank_file

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
