"""Saving a checkpoint folder: by one process, or by all data-parallel ranks together.

Enters: states of the ranks, the step. Leaves: a file a rank and, last, the manifest. Guarantee: a save that is cut
short at any moment leaves no manifest; one that returns has saved the same step of the same run on every rank.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from bridge_data.errors import ConfigError, StateError
from bridge_data.loader.checkpoint.manifest import MANIFEST, FileRecord, Manifest, digest
from bridge_data.loader.checkpoint.shares import place_in, share_of
from bridge_data.loader.checkpoint.state_file import encoded, rank_file, rank_files, sync_names, write_whole
from bridge_data.order.state import Generation, LoaderState, merge_states

T = TypeVar("T")


def save_states(
    folder: str | Path, states: dict[str, Any] | Sequence[dict[str, Any]], *, step: int, world_size: int
) -> None:
    """Save one whole state, or the states of all ranks in any order, as a checkpoint of `world_size` ranks.

    The file of rank 0 is whole, the others hold the lanes of their rank. What `folder` had of an earlier save is
    replaced.

    Raises:
        StateError: if the states do not make a whole one, or the folder cannot be written.
    """
    if world_size < 1:
        raise ConfigError(f"save_states(world_size={world_size}): expected at least 1")
    merged = LoaderState.from_dict(merge_states([states] if isinstance(states, dict) else states))
    target = Path(folder)
    with _writing(target):
        _clear(target)
        written = [_write(target, merged, step, rank, world_size) for rank in range(world_size)]
        _commit(target, written)


def save_rank_state(
    folder: str | Path, state: dict[str, Any], *, step: int, group: "dist.ProcessGroup | None" = None
) -> None:
    """Save the state of this rank of the data-parallel `group`; all its ranks call it, and rank 0 commits.

    `state` is the rank's own or a whole one; of rank 0 a whole one is kept as it is, so that its file restores any
    number of ranks. Where tensor-, context- or pipeline-parallel processes share a
    data-parallel rank, those with rank 0 in all of these call it, as in Megatron. On return the checkpoint is complete.

    Raises:
        StateError: on every rank, if one of them cannot write or is at another step; the checkpoint then counts as not
            saved.
    """
    target, (rank, world_size) = Path(folder), place_in(group)

    def begin() -> None:
        if rank == 0:
            _clear(target)

    def write() -> _Written:
        return _write(target, LoaderState.from_dict(state), step, rank, world_size)

    def commit() -> None:
        if rank == 0:
            _commit(target, written)

    _on_all_ranks(begin, target, group)
    written = _on_all_ranks(write, target, group)
    _on_all_ranks(commit, target, group)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Written:
    """What a rank tells of the file that it has written."""

    name: str
    record: FileRecord
    step: int
    next_slot: int
    generations: list[Generation]
    fingerprint: str


def _clear(target: Path) -> None:
    """Make the folder, and take out of it what an earlier save left, its manifest first."""
    target.mkdir(parents=True, exist_ok=True)
    (target / MANIFEST).unlink(missing_ok=True)
    sync_names(target)
    for path in [*rank_files(target).values(), *target.glob(".train_dataloader_*.tmp")]:
        path.unlink()


def _write(target: Path, state: LoaderState, step: int, rank: int, world_size: int) -> _Written:
    share, path = share_of(state, rank, world_size), rank_file(target, rank)
    if rank == 0 and state.is_whole:
        share = state
    data = encoded(share, step=step, rank=rank, world_size=world_size)
    target.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)
    return _Written(
        name=path.name,
        record=FileRecord.of(data),
        step=step,
        next_slot=share.next_slot,
        generations=share.generations,
        fingerprint=digest(share.fingerprint),
    )


def _commit(target: Path, written: Sequence[_Written]) -> None:
    """Write the manifest, if all ranks are at the same place."""
    first = written[0]
    for rank, file in enumerate(written):
        for name in ("step", "next_slot", "generations", "fingerprint"):
            if (got := getattr(file, name)) != (expected := getattr(first, name)):
                raise StateError(
                    f"data-parallel rank {rank} has {name} {got}, rank 0 has {expected}: they are of different steps "
                    "or runs. Save after the same number of batches on every rank."
                )
    Manifest(
        step=first.step,
        world_size=len(written),
        fingerprint=first.fingerprint,
        files={file.name: file.record for file in written},
    ).write(target)


def _on_all_ranks(act: Callable[[], T], target: Path, group: Any) -> list[T]:
    """What `act` returned on each rank; where it failed on one, all ranks raise."""
    own: tuple[Any, str | None]
    try:
        own = act(), None
    except (OSError, StateError) as error:
        own = None, str(error)
    outcomes: list[Any] = [own]
    if (world_size := place_in(group)[1]) > 1:
        outcomes = [None] * world_size
        dist.all_gather_object(outcomes, own, group=group)
    failures = [f"rank {rank}: {failure}" for rank, (_, failure) in enumerate(outcomes) if failure is not None]
    if failures:
        more = [f"and {len(failures) - 4} more ranks"] if len(failures) > 4 else []
        raise StateError(f"{target}: the data state was not saved:\n  " + "\n  ".join(failures[:4] + more))
    return [result for result, _ in outcomes]


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(f"{target}: the data state was not saved: {error}") from error
