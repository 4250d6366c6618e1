"""Loading a checkpoint folder, or what is in a single file of one.

Enters: a path. Leaves: one merged state. Guarantee: a folder with a manifest gives what was saved together, or an error
that names the file. A folder without one is read if others wrote it (Megatron-Bridge), as far as its files agree and
make a whole state.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridge_data.errors import StateError
from bridge_data.loader.checkpoint.manifest import MANIFEST, Manifest, digest
from bridge_data.loader.checkpoint.state_file import StateFile, decoded, rank_file, rank_files, read_bytes
from bridge_data.order.state import LoaderState, merge_states

_ITERATION = re.compile(r"iter_(\d{7,})")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """What was found at a path: the state; the step, and how many ranks saved it (None: not said); files and bytes."""

    path: Path
    state: LoaderState
    step: int | None
    world_size: int | None
    num_files: int
    num_bytes: int


def load_states(folder: str | Path, *, step: int | None = None) -> dict[str, Any]:
    """The state of the whole job, merged from the files in `folder`: `loader.restore_state_rank` takes it on every
    rank of a job of any size. Where very many ranks would read very many files, one may, and hand the state on by
    `loader.restore_state_global(state, src_rank=...)`.

    Args:
        step: the step that it should be of.

    Raises:
        StateError: naming the file, if the folder is not complete, or not of one step and run.
    """
    found = _read_folder(Path(folder))
    if step not in (None, found.step):
        of = "a step that it does not say" if found.step is None else f"step {found.step}"
        raise StateError(
            f"{folder}: got the data state of {of}, expected that of step {step}. "
            "Take model and data of the same step; or if this is what you want, load it without a step."
        )
    return found.state.to_dict()


def read_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint in a folder, or the state in one file, which may be that of one rank only.

    Raises:
        StateError: as `load_states`.
    """
    path = Path(path)
    if not path.is_file():
        return _read_folder(path)
    data = read_bytes(path)
    file = decoded(data, path)
    return Checkpoint(
        path=path, state=file.state, step=file.step, world_size=file.world_size, num_files=1, num_bytes=len(data)
    )


def _read_folder(folder: Path) -> Checkpoint:
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
        _check_foreign(folder, files)
        named = _ITERATION.fullmatch(folder.absolute().name)
        step = int(named[1]) if named else None
    else:
        _check_of_manifest(folder, files, manifest)
        step = manifest.step
    return Checkpoint(
        path=folder,
        state=_merged(folder, {name: file.state for name, file in files.items()}),
        step=step,
        world_size=manifest.world_size if manifest else None,
        num_files=len(files),
        num_bytes=sum(map(len, contents.values())),
    )


def _nothing_in(folder: Path) -> str:
    first = rank_file(Path(), 0).name
    below = sorted(path.parent for path in folder.glob(f"*/{first}"))
    hint = f"There is one in {below[-1]}: give that folder." if below else "Give the folder of one iteration."
    return f"{folder}: holds no data state: expected {first} and one of each further rank. {hint}"


def _check_foreign(folder: Path, files: Mapping[str, StateFile]) -> None:
    """See that files without a manifest are not ours, which have one unless the save was cut short."""
    for name, file in files.items():
        if file.step is not None:
            raise StateError(
                f"{folder}: {MANIFEST} is missing, which is written last: the save of step {file.step} by "
                f"{file.world_size} ranks did not end, or {name} was copied without it. "
                "Take another checkpoint, or copy the whole folder again."
            )


def _check_of_manifest(folder: Path, files: Mapping[str, StateFile], manifest: Manifest) -> None:
    for name, file in files.items():
        saved = {"step": file.step, "world_size": file.world_size, "fingerprint": digest(file.state.fingerprint)}
        for what, got in saved.items():
            if got != (expected := getattr(manifest, what)):
                raise StateError(
                    f"{folder}: {name} was saved with {what} {got}, {MANIFEST} has {expected}: "
                    "one of them is of another save. Copy the whole folder again, or take another checkpoint."
                )


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
