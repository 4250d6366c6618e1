"""A run as it is looked at: its data, and its output, which is followed while the run goes on.

Reads a `TrainingRun` and the folder of a run, or saved states. `SavedRunReader` reads unchanged files once, and an
unfinished or damaged file hides no other. Raises a StateError if no state that was named can be read.
"""

import dataclasses
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import BridgeDataError, StateError, counted
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.checkpoint import Checkpoint
from bridge_data.runs.saved_files import (
    RECORDS,
    RunRecords,
    SavedFiles,
    found_state,
    saved_files,
    state_paths,
    without_abandoned,
)
from bridge_data.runs.training_run import TrainingRun
from bridge_data.task import TaskEncoder


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SavedRun:
    """The output of a run: its different saved states, sorted by position, and its records (None: there are none).
    `left_out` has the reasons why similar files are not used. `number` counts the reads that found something new."""

    states: Sequence[Checkpoint] = ()
    records: RunRecords | None = None
    left_out: tuple[str, ...] = ()
    number: int = 0

    def __post_init__(self) -> None:
        different: list[Checkpoint] = []
        for one in sorted(self.states, key=lambda one: one.state.micro_batch_index):
            if not any(one.state == other.state for other in different):
                different.append(one)
        object.__setattr__(self, "states", tuple(different))

    @property
    def num_lanes(self) -> int | None:
        """The lanes of the job in the newest state; None without one."""
        return self.states[-1].state.num_lanes if self.states else None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ShownRun:
    """A run as it is looked at: `dataset` is what one rank without workers reads, in the order of the whole job;
    `summary` is a sentence about it."""

    path: str
    dataset: LaneDataset
    schedule: BatchSchedule
    summary: str

    @classmethod
    def of(cls, run: TrainingRun, task_encoder: TaskEncoder[Any, Any, Any, Any], saved: SavedRun) -> Self:
        """`run` with this task encoder, and the lanes of what it has `saved`."""
        lanes = saved.num_lanes if run.num_lanes is None else run.num_lanes
        if lanes is not None and lanes % run.num_ranks == 0:
            run = dataclasses.replace(run, data=run.data.with_options(num_lanes=lanes))
        dataset = run.one_rank(run.dataset(task_encoder))
        encoder = type(task_encoder).__name__
        summary = f"As the {encoder} makes them, for {counted(dataset.worker_config.num_lanes, 'lane')} of the job."
        return cls(path=str(run.data.path), dataset=dataset, schedule=run.schedule, summary=summary)


_Stamp: TypeAlias = tuple[tuple[str | int, ...], ...]


class SavedRunReader:
    """Reads the output of the run in `folder`; `states`, a saved state or a folder with several, replaces those that
    are found there. Any thread may use it.

    Raises:
        StateError: if none of `states` can be read.
    """

    def __init__(self, folder: Path | None = None, *, states: Path | None = None) -> None:
        self._folder, self._states = folder, states
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[_Stamp, Checkpoint | str]] = {}
        self._records: RunRecords | None = None
        self.saved = self._look(SavedRun())
        """The result of the last read."""
        if states is not None and not self.saved.states:
            raise StateError("; ".join(self.saved.left_out[:3]))

    def read(self) -> SavedRun:
        """The current output; the same object as before if nothing changed."""
        with self._lock:
            self.saved = self._look(self.saved)
            return self.saved

    def _look(self, before: SavedRun) -> SavedRun:
        left_out: list[str] = []
        found = SavedFiles() if self._folder is None else saved_files(self._folder)
        states = self._read_states(without_abandoned(found.states, left_out), left_out)
        has_grown = self._read_records(found.records, left_out)
        now = SavedRun(states=states, records=self._records, left_out=tuple(left_out), number=before.number)
        return dataclasses.replace(now, number=now.number + 1) if has_grown or now != before else before

    def _read_states(self, paths: Iterable[Path], left_out: list[str]) -> list[Checkpoint]:
        try:
            paths = paths if self._states is None else [Path(path) for path in state_paths(self._states)]
        except StateError as error:
            paths = ()
            left_out.append(str(error))
        kept: dict[Path, tuple[_Stamp, Checkpoint | str]] = {}
        for path in paths:
            stamp = _stamp(path)  # taken before reading, so that later changes are read again
            last = self._kept.get(path)
            kept[path] = last if last is not None and last[0] == stamp else (stamp, found_state(path))
        self._kept = kept
        left_out += [one for _, one in kept.values() if isinstance(one, str)]
        return [one for _, one in kept.values() if not isinstance(one, str)]

    def _read_records(self, folder: Path | None, left_out: list[str]) -> bool:
        """Read what is new in the records; return whether there was anything."""
        try:
            if folder is None:
                self._records = None
            elif self._records is None or self._records.folder != folder:
                self._records = RECORDS.get("the records of the run")(folder)
            else:
                return self._records.update()
        except (BridgeDataError, OSError) as error:
            self._records = None
            left_out.append(str(error))
        return False


def _stamp(path: Path) -> _Stamp:
    """A value that changes when the files of a saved state change."""
    try:
        files = sorted(path.glob("train_dataloader_*")) if path.is_dir() else [path]
        stats = [(file.name, file.stat()) for file in files]
    except OSError:  # it is being replaced
        return ()
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
