"""What a run has saved so far: its states, and the records of its micro-batches.

Reads the folder of a run, or the paths of states. Returns `Checkpoint`s; what is no whole state is left out where it
was found, and an error where it was named. `RunRecords` is the seam of the plug-in that records micro-batches: the
samples of a step are looked up there first.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from bridge_data.configs import files_of_run
from bridge_data.errors import StateError
from bridge_data.extensions import Feature
from bridge_data.loader.checkpoint import Checkpoint, read_checkpoint
from bridge_data.loader.checkpoint.checkpoint_folder import ITERATION, LATEST
from bridge_data.order.cursor import SampleKey
from bridge_data.storage import AnyLocation, Location, location


class RunRecords(Protocol):
    """A run's record of its micro-batches, such as a ledger, in `folder`."""

    folder: Location

    def micro_batch(self, number: int) -> Sequence[SampleKey]:
        """The samples of a micro-batch of the job, in order; `ConfigError` if it is not recorded."""

    def __iter__(self) -> Iterator[tuple[int, Sequence[SampleKey]]]:
        """(number, samples) of each micro-batch."""

    @property
    def last(self) -> tuple[int, int] | None:
        """(repetition, number) of the last micro-batch; None if there is none yet."""

    def update(self) -> bool:
        """Read what was written since; return whether anything was."""


class RecordFiles(Protocol):
    """Opens records."""

    FILES: str
    """How the names of their files begin."""

    def __call__(self, folder: Location) -> RunRecords:
        """The records in a folder.

        Raises:
            ConfigError: if there are none.
            DatasetError: if they are damaged.
        """


RECORDS = Feature[RecordFiles]("run_records")


_STATE = "train_dataloader_"
_CHECKPOINT = ".ckpt"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SavedFiles:
    """What may be saved states of a run, and the folder of its records (None: there is none)."""

    states: tuple[Path, ...] = ()
    records: Path | None = None


def saved_files(folder: Path) -> SavedFiles:
    """Those in the folder of a run.

    Raises:
        ConfigError: if there are too many files.
    """
    states: dict[Path, None] = {}
    recorded: list[Path] = []
    opener = RECORDS.find()
    for file in files_of_run(folder):
        if file.suffix == _CHECKPOINT:
            states[file] = None
        elif file.name.startswith(_STATE):
            states[file.parent] = None
        elif opener is not None and file.name.startswith(opener.FILES):
            recorded.append(file.parent)
    records = min(recorded, key=lambda path: (len(path.parts), path), default=None)
    return SavedFiles(states=tuple(states), records=records)


def read_states(paths: Sequence[str | os.PathLike[str]]) -> list[Checkpoint]:
    """The states at `paths`, which `read_checkpoint` can read, or in the folders there.

    Raises:
        StateError: if there is none, or one is damaged.
    """
    return [read_checkpoint(found) for path in paths for found in state_paths(location(path))]


def without_abandoned(paths: Iterable[Path], left_out: list[str]) -> list[Path]:
    """The states at `paths` without those that the run left for an earlier checkpoint: they are newer than the one that
    Megatron's file beside them calls the newest. Why each is left out is appended to `left_out`."""
    kept = []
    for path in paths:
        named, latest = ITERATION.fullmatch(path.name), path.parent / LATEST
        newest = latest.read_bytes().strip() if named is not None and latest.is_file() else b""
        if named is not None and newest.isdigit() and int(named[1]) > int(newest):
            left_out.append(
                f"{path}: is newer than the checkpoint that {latest} names, {newest.decode()}: the run went back"
            )
        else:
            kept.append(path)
    return kept


def found_states(paths: Iterable[Path], left_out: list[str]) -> list[Checkpoint]:
    """The states among files that were found, not named; why another one is none is appended to `left_out`."""
    read = [*map(found_state, paths)]
    left_out += [one for one in read if isinstance(one, str)]
    return [one for one in read if not isinstance(one, str)]


def ranks_of(saved: Iterable[Checkpoint]) -> dict[int, int]:
    """The data-parallel ranks of the starts that saved states, by how many micro-batches were handed out before."""
    return {one.state.num_handed_out: one.world_size for one in saved if one.world_size is not None}


def is_state(path: Path) -> bool:
    """Whether `path` is a saved state: a file, or a folder of a checkpoint."""
    return path.suffix in (".pt", _CHECKPOINT) or any(path.glob(f"{_STATE}*"))


def state_paths(path: AnyLocation) -> Sequence[AnyLocation]:
    """`path` itself, or the states in it, if it is a folder with several, on a disk.

    Raises:
        StateError: if it is a folder without one.
    """
    if not isinstance(path, Path) or not path.is_dir() or is_state(path):
        return [path]
    found = saved_files(path).states
    if not found:
        raise StateError(f"{path}: holds no data state, and no folders that do")
    return found


def micro_batches_per_step(states: Sequence[Checkpoint]) -> int | None:
    """The micro-batches of the job in each step, by the steps and positions of its states; None if they lack the
    number, or it changes."""
    found = {divmod(one.state.num_handed_out, one.step) for one in states if one.step and not one.state.is_finite}
    (number, rest), *others = found or {(0, 0)}
    return number if number and not rest and not others else None


def newest_of(states: Sequence[Checkpoint]) -> Checkpoint:
    """The newest of at least one state: the furthest on, and of those the one that was resharded last."""
    return max(states, key=lambda one: (one.state.micro_batch_index, len(one.state.generations)))


def found_state(path: Path) -> Checkpoint | str:
    """A saved state, or why it cannot be read."""
    try:
        return read_checkpoint(path)
    except StateError as error:
        return str(error)
