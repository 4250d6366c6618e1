"""The files of a run in its folder: config, saved states, logs and ledger.

Enters: a folder. Leaves: its files, at most `MAX_DEPTH` folders down, those nearest to the top first. Guarantee:
several configs at the same depth are an error that names them. Whatever reads a run, reads what is found here:
`at`, `when`, `order`, `audit` and `view`.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bridge_data.errors import BridgeDataError, ConfigError, StateError
from bridge_data.loader.checkpoint import Checkpoint, read_checkpoint
from bridge_data.plan.formats import find_format
from bridge_data.shards.plain_data import parse_yaml_file

EVENTS = "tfevents"
"""Part of the names of TensorBoard's files."""

MAX_DEPTH = 4
"""Folder levels below the run's folder that are searched, such as `lightning_logs/version_0/checkpoints`."""

MAX_FILES = 50_000
"""Maximum files and folders to check."""

MAX_CONFIG_BYTES = 1 << 20

_LOGS = (".jsonl", ".csv", EVENTS, ".log", ".out", ".txt")
"""Suffixes or parts of the names of logs, the likeliest first."""

_STATE = "train_dataloader_"


_LEDGER = "ledger_dprank"
_CHECKPOINT = ".ckpt"
_CONFIGS = (".yaml", ".yml")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunFiles:
    """The files in the folder of a run: its config, candidates for saved states and logs (by kind, the likeliest
    first), and the folder of its ledger; None or empty for anything missing."""

    config: Path | None = None
    states: tuple[Path, ...] = ()
    logs: Mapping[str, Sequence[Path]] = dataclasses.field(default_factory=dict)
    ledger: Path | None = None


def is_run(path: Path) -> bool:
    """Whether `path` is a folder without data. One with tars that nobody has prepared is also that of a run if there
    are saved states or a ledger."""
    if not path.is_dir():
        return False
    data = find_format(str(path))
    if data is None or data.name != "tars":
        return data is None
    found = find_run(path, has_config=True)
    return bool(found.states or found.ledger)


def read_states(paths: Sequence[str | Path]) -> list[Checkpoint]:
    """The states at `paths`, which `read_checkpoint` can read, or in the folders there.

    Raises:
        StateError: if there is none, or one is damaged.
    """
    return [read_checkpoint(found) for path in paths for found in state_paths(Path(path))]


def found_states(paths: Sequence[Path], left_out: list[str]) -> list[Checkpoint]:
    """The states among files that were found, not named; why another one is none is appended to `left_out`."""
    states = []
    for path in paths:
        try:
            states.append(read_checkpoint(path))
        except StateError as error:
            left_out.append(str(error))
    return states


def state_paths(path: Path) -> Sequence[Path]:
    """`path` itself, or the states in it, if it is a folder with several.

    Raises:
        StateError: if it is a folder without one.
    """
    if not path.is_dir() or any(path.glob(f"{_STATE}*")):
        return [path]
    found = find_run(path, has_config=True).states
    if not found:
        raise StateError(f"{path}: holds no data state, and no folders that do")
    return found


def micro_batches_per_step(states: Sequence[Checkpoint]) -> int | None:
    """The micro-batches of the job in each step, by the steps and positions of its states; None if they lack the
    number, or it changes."""
    found = {divmod(one.state.next_slot, one.step) for one in states if one.step and not one.state.is_finite}
    (number, rest), *others = found or {(0, 0)}
    return number if number and not rest and not others else None


def find_run(folder: Path, *, has_config: bool = False) -> RunFiles:
    """The files of the run in a folder; `has_config`: the config is known, do not search for it.

    Raises:
        ConfigError: if there are several configs, or too many files.
    """
    configs: list[Path] = []
    states: list[Path] = []
    ledgers: list[Path] = []
    logs: dict[str, list[Path]] = {kind: [] for kind in _LOGS}
    for kind, path in _files(folder):
        if kind in (_CHECKPOINT, _STATE):
            states.append(path if kind == _CHECKPOINT else path.parent)
        elif kind == _LEDGER:
            ledgers.append(path.parent)
        elif kind in _CONFIGS:
            configs += () if has_config else (path,)
        else:
            logs[kind].append(path.parent if kind in (".jsonl", EVENTS) else path)
    return RunFiles(
        config=_config(folder, configs),
        states=tuple(dict.fromkeys(states)),
        logs={kind: sorted(set(found), key=_by_depth) for kind, found in logs.items()},
        ledger=min(ledgers, key=_by_depth, default=None),
    )


def _by_depth(path: Path) -> tuple[int, Path]:
    return len(path.parts), path


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(kind, path) of the files of a run, except unfinished checkpoints and hidden folders."""
    seen = 0
    for parent, folders, names in os.walk(folder):
        depth = len(Path(parent).relative_to(folder).parts)
        ended = depth >= MAX_DEPTH or any(name.startswith(_STATE) for name in names)
        kept = () if ended else sorted(name for name in folders if name[0] != "." and not name.endswith(".partial"))
        folders[:] = kept
        for name in sorted(names):
            seen += 1
            if seen > MAX_FILES:
                raise ConfigError(f"{folder}: has over {MAX_FILES:,} files; give --config, --state and --log instead")
            kind = _kind(name)
            if kind is not None and (path := Path(parent, name)).is_file():  # opening a pipe would block
                yield kind, path


def _kind(name: str) -> str | None:
    """The likely kind of a file, by the beginning or end of its name; None: not of a run."""
    if name.endswith(_CHECKPOINT):
        return _CHECKPOINT
    if name.startswith((_STATE, _LEDGER)):
        return _STATE if name.startswith(_STATE) else _LEDGER
    kind = EVENTS if EVENTS in name else os.path.splitext(name)[1]
    return kind if kind in (*_CONFIGS, *_LOGS) else None


def _nearest(folder: Path, files: list[Path], wanted: Callable[[Path], bool]) -> list[Path]:
    """The wanted files at the least depth that has any."""
    by_depth: dict[int, list[Path]] = {}
    for file in files:
        by_depth.setdefault(len(file.relative_to(folder).parts), []).append(file)
    for depth in sorted(by_depth):
        found = [file for file in by_depth[depth] if wanted(file)]
        if found:
            return found
    return []


def _config(folder: Path, files: list[Path]) -> Path | None:
    found = _nearest(folder, files, _is_config)
    if len(found) > 1:
        raise ConfigError(
            f"{folder}: has several configs, {', '.join(str(file.relative_to(folder)) for file in found)}: give one of "
            "them as --config, or the folder of one run"
        )
    return found[0] if found else None


def _is_config(file: Path) -> bool:
    """Whether a YAML is of a recipe or of a LightningCLI."""
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            return False
        content = parse_yaml_file(file.read_bytes(), str(file))
    except (OSError, BridgeDataError):
        return False
    return isinstance(content, dict) and ("recipe" in content or _has_path(content.get("data")))


def _has_path(data: Any) -> bool:
    """Whether these are arguments of a DataModule."""
    given = data.get("init_args", data) if isinstance(data, dict) else None
    return isinstance(given, dict) and "path" in given
