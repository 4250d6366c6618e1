"""A run by its folder: the config, the saved states and the log that its trainer left there.

Enters: a folder. Leaves: what is in it, at most `MAX_DEPTH` folders down. Guarantee: of several configs or logs those
nearest to the top are taken; several configs at the same depth are an error that names them.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bridge_data.errors import BridgeDataError, ConfigError, StateError
from bridge_data.loader.checkpoint import Checkpoint, read_checkpoint
from bridge_data.shards.plain_data import parse_yaml_file
from bridge_data.tools.view.loss_log import EVENTS, LossLog, read_losses

MAX_DEPTH = 4
"""Folders between that of the run and what is found in it, as `lightning_logs/version_0/checkpoints`."""

MAX_FILES = 50_000
"""Files and folders that are looked at."""

MAX_CONFIG_BYTES = 1 << 20

_LOGS = (".jsonl", ".csv", EVENTS, ".log", ".out", ".txt")
"""Names that logs end with, or that are in them, the likeliest first."""

_STATE = "train_dataloader_"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunFolder:
    """What is in the folder of a run; None, or nothing, where there is none of it. `left_out` says of what looks like a
    saved state or a log why it is not taken."""

    config: Path | None
    states: tuple[Checkpoint, ...]
    log: LossLog | None
    left_out: tuple[str, ...]


def read_run_folder(folder: Path, *, has_config: bool = False) -> RunFolder:
    """The run in a folder; `has_config`, its config is known, and not looked for.

    Raises:
        ConfigError: if there is neither a config, nor a state, nor a log, or several configs.
    """
    configs: list[Path] = []
    states: list[Path] = []
    logs: dict[str, list[Path]] = {}
    for path in _files(folder):
        if path.suffix == ".ckpt" or path.name.startswith(_STATE):
            states.append(path if path.suffix == ".ckpt" else path.parent)
        elif path.suffix in (".yaml", ".yml"):
            configs += () if has_config else (path,)
        elif (kind := EVENTS if EVENTS in path.name else path.suffix) in _LOGS:
            logs.setdefault(kind, []).append(path)
    read, left_out = [], []
    for path in dict.fromkeys(states):
        try:
            read.append(read_checkpoint(path))
        except StateError as error:
            left_out.append(str(error))
    log, others = _log(logs)
    found = RunFolder(config=_config(folder, configs), states=tuple(read), log=log, left_out=(*left_out, *others))
    if found.config is None and found.log is None and not read:
        raise ConfigError(
            f"{folder}: is no data set (it has no .nv-meta: `bridge-data prepare` makes one), and no run: no config, "
            f"saved state or log with losses is in it{''.join(f'; {one}' for one in left_out[:3])}"
        )
    return found


def _files(folder: Path) -> Iterator[Path]:
    """The files of a run, without those of a checkpoint that is being written, nor hidden ones."""
    seen = 0
    for parent, folders, names in os.walk(folder):
        depth = len(Path(parent).relative_to(folder).parts)
        ended = depth >= MAX_DEPTH or any(name.startswith(_STATE) for name in names)
        kept = () if ended else sorted(name for name in folders if name[0] != "." and not name.endswith(".partial"))
        folders[:] = kept
        for name in sorted(names):
            seen += 1
            if seen > MAX_FILES:
                raise ConfigError(
                    f"{folder}: has over {MAX_FILES:,} files; give --config, --state and --log in its place"
                )
            path = Path(parent, name)
            if path.is_file():  # a pipe would be waited for
                yield path


def _nearest(folder: Path, files: list[Path], wanted: Callable[[Path], bool]) -> list[Path]:
    """The files that are wanted, of the least depth at which there is one."""
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
    """Whether a YAML is that of a recipe or of a LightningCLI."""
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


def _log(files: Mapping[str, list[Path]]) -> tuple[LossLog | None, list[str]]:
    """(the log nearest to the top, of several kinds of the likeliest one; why others of its kind are not taken)."""
    left_out: list[str] = []
    for kind in _LOGS:
        found = sorted(files.get(kind, ()), key=lambda one: (len(one.parts), one))
        logs = list(dict.fromkeys(one.parent if kind in (".jsonl", EVENTS) else one for one in found))
        for number, log in enumerate(logs):
            try:
                losses = read_losses(log)
            except ConfigError as error:  # of something else
                left_out += [str(error)] if kind == EVENTS else []
                continue
            others = [str(one) for one in logs[number + 1 :] if _has_losses(one)]
            return losses, [f"{one}: another log than {log}; --log takes it instead" for one in others]
    return None, left_out


def _has_losses(log: Path) -> bool:
    try:
        return bool(read_losses(log).losses)
    except ConfigError:
        return False
