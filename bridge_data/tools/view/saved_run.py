"""The current output of a run: its saved states, its losses and its ledger.

Enters: the folder of a run, or the paths of its states and its log. Leaves: a `SavedRun`. Guarantee: unchanged files
are not read again, and of grown logs and ledgers only the new part; a file that is unfinished, damaged or missing hides
no other file, and is read as soon as it is complete.
"""

import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from bridge_data.errors import BridgeDataError, ConfigError, StateError
from bridge_data.loader.checkpoint import Checkpoint, read_checkpoint
from bridge_data.loader.ledger_files import RunLedger
from bridge_data.tools.run_folder import EVENTS, RunFiles, find_run, micro_batches_per_step, state_paths
from bridge_data.tools.view.loss_log import LossLog, LossReader


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SavedRun:
    """The output of a run: its different saved states, sorted by position; its losses and its ledger (None: not
    there). `left_out` has the reasons why similar files are not used. `number` counts the reads that found something
    new."""

    states: Sequence[Checkpoint] = ()
    log: LossLog | None = None
    ledger: RunLedger | None = None
    left_out: tuple[str, ...] = ()
    number: int = 0

    def __post_init__(self) -> None:
        different: list[Checkpoint] = []
        for one in sorted(self.states, key=lambda one: one.state.next_slot):
            if not any(one.state == other.state for other in different):
                different.append(one)
        object.__setattr__(self, "states", tuple(different))

    @property
    def num_lanes(self) -> int | None:
        """The lanes of the job in the newest state; None without one."""
        return self.states[-1].state.num_lanes if self.states else None

    @property
    def num_per_step(self) -> int | None:
        """The micro-batches of the job in each step, by the states; None if they lack the number, or it changes."""
        return micro_batches_per_step(self.states)


_Stamp: TypeAlias = tuple[tuple[str | int, ...], ...]


class SavedRunReader:
    """Reads the output of the run in `folder`; `states`, a saved state or a folder with several, and `log` replace what
    is found there. Any thread may use it.

    Raises:
        ConfigError: if there are no files of a run, or several configs (`has_config`: the config is known, do not
            search for it). StateError: if none of `states` can be read.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        has_config: bool = False,
        states: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self._folder, self._states, self._log = folder, states, log
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[_Stamp, Checkpoint | str]] = {}
        self._logs: dict[Path, LossReader] = {}
        self._ledger: RunLedger | None = None
        found = RunFiles() if folder is None else find_run(folder, has_config=has_config)
        self.config = found.config
        """The config that was found."""
        self.saved = saved = self._look(found, SavedRun())
        """The result of the last read."""
        reasons = "; ".join(saved.left_out[:3])
        if states is not None and not saved.states:
            raise StateError(reasons)
        if log is not None and saved.log is None:
            raise ConfigError(reasons)
        if folder is not None and not (self.config or saved.states or saved.log or saved.ledger):
            raise ConfigError(
                f"{folder}: is no data set (it has no .nv-meta, and no tars to read without), and no run: no config, "
                f"saved state, ledger or log with losses is in it{'; ' if reasons else ''}{reasons}"
            )

    def read(self) -> SavedRun:
        """The current output; the same object as before if nothing changed."""
        with self._lock:
            found = RunFiles() if self._folder is None else find_run(self._folder, has_config=True)
            self.saved = self._look(found, self.saved)
            return self.saved

    def _look(self, found: RunFiles, before: SavedRun) -> SavedRun:
        left_out: list[str] = []
        states = self._read_states(found.states, left_out)
        log = self._read_log(found.logs, left_out)
        has_grown = self._read_ledger(found.ledger, left_out)
        now = SavedRun(states=states, log=log, ledger=self._ledger, left_out=tuple(left_out), number=before.number)
        return dataclasses.replace(now, number=now.number + 1) if has_grown or now != before else before

    def _read_states(self, paths: Iterable[Path], left_out: list[str]) -> list[Checkpoint]:
        try:
            paths = paths if self._states is None else state_paths(self._states)
        except StateError as error:
            paths = ()
            left_out.append(str(error))
        kept: dict[Path, tuple[_Stamp, Checkpoint | str]] = {}
        for path in paths:
            stamp = _stamp(path)  # taken before reading, so that later changes are read again
            last = self._kept.get(path)
            kept[path] = last if last is not None and last[0] == stamp else (stamp, _checkpoint(path))
        self._kept = kept
        left_out += [one for _, one in kept.values() if isinstance(one, str)]
        return [one for _, one in kept.values() if not isinstance(one, str)]

    def _read_log(self, logs: Mapping[str, Sequence[Path]], left_out: list[str]) -> LossLog | None:
        """The losses of the first log with losses, of the likeliest kind."""
        self._logs = {path: reader for path, reader in self._logs.items() if path.exists()}
        given = None if self._log is None else {"": [self._log]}
        for kind, paths in (given or logs).items():
            found: dict[Path, LossLog] = {}
            for path in paths:
                try:
                    found[path] = self._reader(path).read()
                except ConfigError as error:  # a log of something else, unless the user named it
                    left_out += [str(error)] if kind in ("", EVENTS) and not found else []
            if found:
                (taken, losses), *others = found.items()
                left_out += [f"{one}: another log than {taken}; --log takes it instead" for one, _ in others]
                return losses
        return None

    def _reader(self, log: Path) -> LossReader:
        return self._logs.setdefault(log, LossReader(log))

    def _read_ledger(self, folder: Path | None, left_out: list[str]) -> bool:
        """Read what is new in the ledger; return whether there was anything."""
        try:
            if folder is None:
                self._ledger = None
            elif self._ledger is None or self._ledger.folder != folder:
                self._ledger = RunLedger(folder)
            else:
                return self._ledger.update()
        except (BridgeDataError, OSError) as error:
            self._ledger = None
            left_out.append(str(error))
        return False


def _checkpoint(path: Path) -> Checkpoint | str:
    """A saved state, or why it cannot be read."""
    try:
        return read_checkpoint(path)
    except StateError as error:
        return str(error)


def _stamp(path: Path) -> _Stamp:
    """A value that changes when the files of a saved state change."""
    try:
        files = sorted(path.glob("train_dataloader_*")) if path.is_dir() else [path]
        stats = [(file.name, file.stat()) for file in files]
    except OSError:  # it is being replaced
        return ()
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
