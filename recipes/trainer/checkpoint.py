"""Checkpoint folders with Megatron's names, written atomically.

    checkpoint_dir/
      latest_checkpointed_iteration.txt       the commit: the newest complete iteration
      iter_0000010/
        *.distcp, metadata.json, ...          model and optimizer, by megatron.core.dist_checkpointing
        train_dataloader_dprank000.pt ...     the data state, by bridge_data.loader.checkpoint
        topology.json                         the iteration and the parallel sizes that wrote it

Reads the sharded model state of all ranks, and the data state of each DP rank. Writes a folder, and restores the same
states from it on any number of DP ranks. A checkpoint is complete or not committed: the folder is written under a
temporary name and renamed once all ranks are done; only then is the iteration committed. A job killed in between leaves
the previous checkpoint committed, and the next save removes the leftovers.
"""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from bridge_data.errors import StateError
from bridge_data.loader.checkpoint import load_states, save_rank_state
from bridge_data.loader.rank_states import by_first_rank
from bridge_data.storage.atomic import write_file

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection

LATEST_FILE = "latest_checkpointed_iteration.txt"
TOPOLOGY_FILE = "topology.json"


def iteration_folder(checkpoint_dir: Path, iteration: int) -> Path:
    """The folder of one iteration."""
    return checkpoint_dir / f"iter_{iteration:07d}"


def latest_iteration(checkpoint_dir: Path) -> int | None:
    """The newest committed iteration; None if there is none yet.

    Raises:
        StateError: if the commit file is unreadable, or names a checkpoint that does not exist.
    """
    commit = checkpoint_dir / LATEST_FILE
    if not commit.exists():
        return None
    text = commit.read_text().strip()
    if not text.isdigit():
        raise StateError(
            f"{commit}: got {text!r}, expected the number of an iteration. "
            f"Write the number of a complete iter_* folder of {checkpoint_dir} into it, or remove it to start again."
        )
    folder = iteration_folder(checkpoint_dir, int(text))
    if not (folder / TOPOLOGY_FILE).is_file():
        raise StateError(
            f"{commit} names iteration {text}, but {folder} is missing or incomplete. "
            f"Restore the folder, or write the number of another complete one into {LATEST_FILE}."
        )
    return int(text)


def save_checkpoint(
    checkpoint_dir: Path,
    iteration: int,
    sharded_state: dict[str, Any],
    data_state: dict[str, Any],
    groups: "ProcessGroupCollection",
) -> Path:
    """Write and commit one checkpoint; a collective call. `data_state` is the state of this DP rank's loader."""
    from megatron.core import dist_checkpointing

    target = iteration_folder(checkpoint_dir, iteration)
    partial = target.with_name(target.name + ".partial")
    is_first = dist.get_rank() == 0
    if is_first:
        for leftover in checkpoint_dir.glob("*.partial"):
            shutil.rmtree(leftover)
        partial.mkdir(parents=True)
    dist.barrier()
    dist_checkpointing.save(sharded_state, str(partial))
    if groups.tp.rank() == groups.cp.rank() == groups.pp.rank() == 0:
        save_rank_state(partial, data_state, step=iteration, group=groups.dp)
    dist.barrier()
    if is_first:
        topology = {
            "iteration": iteration,
            "data_parallel_size": groups.dp.size(),
            "tensor_parallel_size": groups.tp.size(),
            "pipeline_parallel_size": groups.pp.size(),
            "context_parallel_size": groups.cp.size(),
        }
        (partial / TOPOLOGY_FILE).write_text(json.dumps(topology, indent=1))
        if target.exists():  # complete, but killed before its commit
            shutil.rmtree(target)
        partial.rename(target)
        write_file(checkpoint_dir / LATEST_FILE, str(iteration).encode())
    dist.barrier()
    return target


def load_checkpoint(
    checkpoint_dir: Path, iteration: int, sharded_state: dict[str, Any], group: "dist.ProcessGroup | None" = None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(state of model and optimizer in the layout of `sharded_state`, data state); a collective call.

    The data state is the merged state of all ranks on rank 0 of the data-parallel `group`, None on the others: the
    loader's `restore_state` distributes it.

    Raises:
        StateError: on all ranks, if the folder is of another iteration, or its data state is incomplete.
    """
    from megatron.core import dist_checkpointing

    folder = iteration_folder(checkpoint_dir, iteration)
    topology = json.loads((folder / TOPOLOGY_FILE).read_text())
    if topology["iteration"] != iteration:
        raise StateError(f"{folder / TOPOLOGY_FILE}: got iteration {topology['iteration']}, expected {iteration}.")
    data_state = _data_state(folder, iteration, group)
    return dist_checkpointing.load(sharded_state, str(folder)), data_state


def _data_state(folder: Path, iteration: int, group: "dist.ProcessGroup | None") -> dict[str, Any] | None:
    """The merged data state on rank 0 of the group, which reads all files; None on the others."""
    state: dict[str, Any] | None = None

    def read() -> None:
        nonlocal state  # not returned: the other ranks do not need it
        state = load_states(folder, step=iteration)

    by_first_rank(read, group)
    return state
