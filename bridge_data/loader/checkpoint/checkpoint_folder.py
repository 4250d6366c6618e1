"""Checkpoint folders: saved by one process, or by all data-parallel ranks together; loaded by anyone.

Enters: states of the ranks and the step, or a path. Leaves: a file a rank and the manifest; or one merged state.
Guarantee: a save interrupted at any moment leaves either the previous checkpoint or the new one; one that
returns has saved the same step of the same run on every rank. A folder with a manifest loads as the state that was
saved, or is an error that names the file. A folder without one is read if others wrote it (Megatron-Bridge), and its
files agree and make a whole state.
"""

import contextlib
import dataclasses
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from bridge_data.errors import ConfigError, StateError
from bridge_data.loader.checkpoint.other_formats import LIGHTNING_SUFFIX, read_lightning
from bridge_data.loader.checkpoint.state_files import (
    DamagedManifestError,
    FileRecord,
    Manifest,
    check_foreign,
    decoded,
    digest,
    encoded,
    new_file,
    new_files,
    rank_file,
    rank_files,
    read_bytes,
    share_of,
)
from bridge_data.loader.rank_states import rank_in
from bridge_data.order.state import Generation, LoaderState, merge_states
from bridge_data.storage.atomic import sync_folder, write_file

T = TypeVar("T")

_NUM_TRIES = 3
"""How often a folder that seems incomplete is read: a save may be replacing its files at this moment."""

_ITERATION = re.compile(r"iter_(\d{7,})")


def save_states(
    folder: str | Path, states: dict[str, Any] | Sequence[dict[str, Any]], *, step: int, world_size: int
) -> None:
    """Save one whole state, or the states of all ranks in any order, as a checkpoint of `world_size` ranks.

    The file of rank 0 holds the whole state, the others the lanes of their rank. An earlier save in `folder` is
    replaced atomically: a save that is killed or fails leaves one or the other. (While files are renamed, only
    `load_states` knows which belong together; the next save completes it.)

    Raises:
        StateError: if the states do not make a whole one, or the folder cannot be written.
    """
    if world_size < 1:
        raise ConfigError(f"save_states(world_size={world_size}): expected at least 1")
    merged = LoaderState.from_dict(merge_states([states] if isinstance(states, dict) else states))
    target = Path(folder)
    try:
        _settle(target)
        written = [_write(target, merged, step, rank, world_size) for rank in range(world_size)]
        manifest = _commit(target, written)
        for rank in range(world_size):
            _publish(target, rank)
        _clear(target, manifest)
    except OSError as error:
        raise StateError(f"{target}: the data state was not saved: {error}") from error


def save_rank_state(
    folder: str | Path, state: dict[str, Any], *, step: int, group: "dist.ProcessGroup | None" = None
) -> None:
    """Save the state of this rank of the data-parallel `group`; all its ranks call it, and rank 0 commits.

    `state` is the rank's own or a whole one; on rank 0 a whole one is kept unchanged, so that its file restores any
    number of ranks. If tensor-, context- or pipeline-parallel processes share a
    data-parallel rank, those with rank 0 in all of these call it, as in Megatron. On return the checkpoint is complete.

    An earlier save in `folder` is replaced atomically, as by `save_states`.

    Raises:
        StateError: on every rank, if one of them cannot write or is at another step; what was saved before is still
            there.
    """
    target, (rank, world_size) = Path(folder), rank_in(group)

    def begin() -> None:
        if rank == 0:
            _settle(target)

    def write() -> _Written:
        return _write(target, LoaderState.from_dict(state), step, rank, world_size)

    def commit() -> Manifest | None:
        return _commit(target, written) if rank == 0 else None

    def publish() -> None:
        _publish(target, rank)

    def clear() -> None:
        if rank == 0 and manifest is not None:
            _clear(target, manifest)

    _on_all_ranks(begin, target, group)
    written = _on_all_ranks(write, target, group)
    manifest, *_ = _on_all_ranks(commit, target, group)
    _on_all_ranks(publish, target, group)
    _on_all_ranks(clear, target, group)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Written:
    """What a rank reports about the file it wrote."""

    name: str
    record: FileRecord
    step: int
    next_slot: int
    generations: list[Generation]
    fingerprint: str


def _settle(target: Path) -> None:
    """Create the folder, or complete an interrupted save there: rename the files in its manifest, and
    delete files that are in none. Nothing is deleted while the manifest or a file cannot be read."""
    target.mkdir(parents=True, exist_ok=True)
    try:
        manifest = Manifest.read(target)
    except DamagedManifestError:  # the new one replaces it
        manifest = None
    for path, new in new_files(target).items():
        if manifest is not None and manifest.is_of(path, read_bytes(new)):
            os.replace(new, path)
        else:
            new.unlink()
    for path in target.glob(".*train_dataloader_*.tmp"):
        path.unlink()
    sync_folder(target)


def _write(target: Path, state: LoaderState, step: int, rank: int, world_size: int) -> _Written:
    share, path = share_of(state, rank, world_size), rank_file(target, rank)
    step = operator.index(step)  # of numpy or torch, too
    if rank == 0 and state.is_whole:
        share = state
    data = encoded(share, step=step, rank=rank, world_size=world_size)
    target.mkdir(parents=True, exist_ok=True)
    write_file(new_file(path), data)
    return _Written(
        name=path.name,
        record=FileRecord.of(data),
        step=step,
        next_slot=share.next_slot,
        generations=share.generations,
        fingerprint=digest(share.fingerprint),
    )


def _commit(target: Path, written: Sequence[_Written]) -> Manifest:
    """Write the manifest, if all ranks are at the same step of the same run: this makes the new files the
    checkpoint."""
    first = written[0]
    for rank, file in enumerate(written):
        for name in ("step", "next_slot", "generations", "fingerprint"):
            if (got := getattr(file, name)) != (expected := getattr(first, name)):
                raise StateError(
                    f"data-parallel rank {rank} has {name} {got}, rank 0 has {expected}: they are of different steps "
                    "or runs. Save after the same number of batches on every rank."
                )
    files = {file.name: file.record for file in written}
    manifest = Manifest(
        step=first.step,
        world_size=len(written),
        fingerprint=first.fingerprint,
        files=files,
        replaced=[name for name in rank_files(target) if name not in files],
    )
    manifest.write(target)
    return manifest


def _publish(target: Path, rank: int) -> None:
    """Rename the file of a rank to the name that Megatron knows."""
    path = rank_file(target, rank)
    os.replace(new_file(path), path)


def _clear(target: Path, manifest: Manifest) -> None:
    """Delete the files of an earlier save that have not been replaced by new ones."""
    for name in manifest.replaced:
        (target / name).unlink(missing_ok=True)
    sync_folder(target)


def _on_all_ranks(act: Callable[[], T], target: Path, group: Any) -> list[T]:
    """The results of `act` on all ranks; if it failed on one, all ranks raise."""
    own: tuple[Any, str | None]
    try:
        own = act(), None
    except Exception as error:  # of any kind: the other ranks wait for this one
        own = None, str(error) if isinstance(error, (OSError, StateError)) else f"{type(error).__name__}: {error}"
    outcomes: list[Any] = [own]
    if (world_size := rank_in(group)[1]) > 1:
        outcomes = [None] * world_size
        dist.all_gather_object(outcomes, own, group=group)
    failures = [f"rank {rank}: {failure}" for rank, (_, failure) in enumerate(outcomes) if failure is not None]
    if failures:
        more = [f"and {len(failures) - 4} more ranks"] if len(failures) > 4 else []
        raise StateError(f"{target}: the data state was not saved:\n  " + "\n  ".join(failures[:4] + more))
    return [result for result, _ in outcomes]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """What a path holds: the state; step and world size, None if the files do not say; number of files and bytes."""

    path: Path
    state: LoaderState
    step: int | None
    world_size: int | None
    num_files: int
    num_bytes: int


def load_states(folder: str | Path, *, step: int | None = None) -> dict[str, Any]:
    """The state of the whole job, merged from the files in `folder`: `loader.restore_state_rank` takes it on every
    rank of a job of any size. If many ranks would read many files, let one read them and share the state by
    `loader.restore_state_global(state, src_rank=...)`.

    Args:
        step: the expected step.

    Raises:
        StateError: naming the file, if the folder is not complete, or not of one step and run.
    """
    found = _read_folder(Path(folder))
    if step not in (None, found.step):
        of = "a step that it does not say" if found.step is None else f"step {found.step}"
        raise StateError(
            f"{folder}: got the data state of {of}, expected that of step {step}. "
            "Load model and data of the same step; if this is what you want, load it without a step."
        )
    return found.state.to_dict()


def read_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint in a folder, or the state in one file (`.ckpt` of Lightning too), maybe of one rank only.

    Raises:
        StateError: as `load_states`.
    """
    path = Path(path)
    if not path.is_file():
        return _read_folder(path)
    if path.suffix == LIGHTNING_SUFFIX:
        state, step = read_lightning(path)
        size = path.stat().st_size
        return Checkpoint(path=path, state=state, step=step, world_size=None, num_files=1, num_bytes=size)
    data = read_bytes(path)
    file = decoded(data, path)
    return Checkpoint(
        path=path, state=file.state, step=file.step, world_size=file.world_size, num_files=1, num_bytes=len(data)
    )


def _read_folder(folder: Path) -> Checkpoint:
    for _ in range(_NUM_TRIES - 1):
        with contextlib.suppress(StateError, OSError):
            return _read_folder_now(folder)
    try:
        return _read_folder_now(folder)
    except OSError as error:
        raise StateError(f"{folder}: cannot be read: {error.strerror or error}") from error


def _read_folder_now(folder: Path) -> Checkpoint:
    if not folder.is_dir():
        raise StateError(f"{folder}: {'expected a folder' if folder.exists() else 'no such file or folder'}")
    manifest = Manifest.read(folder)
    if manifest is None:
        contents = {name: read_bytes(path) for name, path in rank_files(folder).items()}
    else:
        contents = manifest.read_files(folder)
    if not contents:
        raise StateError(_nothing_in(folder))
    files = {name: decoded(data, folder / name) for name, data in contents.items()}
    if manifest is None:
        check_foreign(folder, files)
        named = _ITERATION.fullmatch(folder.absolute().name)
        step = int(named[1]) if named else None
    else:
        manifest.check(folder, files)
        step = manifest.step
    return Checkpoint(
        path=folder,
        state=_merged(folder, {name: file.state for name, file in files.items()}),
        step=step,
        world_size=manifest.world_size if manifest else len(files),  # Megatron writes one for each rank
        num_files=len(files),
        num_bytes=sum(map(len, contents.values())),
    )


def _nothing_in(folder: Path) -> str:
    if new_files(folder):
        return f"{folder}: holds no data state: a save was cut short before it was complete. Take another checkpoint."
    first = rank_file(Path(), 0).name
    below = sorted(path.parent for path in folder.glob(f"*/{first}"))
    hint = f"There is one in {below[-1]}: give that folder." if below else "Give the folder of one iteration."
    if any(folder.glob("*.distcp")):
        hint = "A state in a checkpoint of megatron.core.dist_checkpointing is read by load_sharded_state, in a job."
    return f"{folder}: holds no data state: expected {first} and one of each further rank. {hint}"


def _merged(folder: Path, states: Mapping[str, LoaderState]) -> LoaderState:
    first_name, first = next(iter(states.items()))
    for name, state in states.items():
        if (state.next_slot, state.generations) != (first.next_slot, first.generations):
            raise StateError(
                f"{folder}: {name} and {first_name} are of different steps: got micro-batch {state.next_slot} of "
                f"{state.num_lanes} lanes and micro-batch {first.next_slot} of {first.num_lanes}. "
                "Remove the files that an earlier run left, or take another checkpoint."
            )
    try:
        return LoaderState.from_dict(merge_states([state.to_dict() for state in states.values()]))
    except StateError as error:
        raise StateError(f"{folder}: {', '.join([*states][:8])} do not make one whole state: {error}") from error
