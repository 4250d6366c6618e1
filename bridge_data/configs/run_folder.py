"""The folder of a run: the YAML with its settings, and its other files.

Reads a path. Returns the YAML that says which data the run reads, of several the newest, and the files below the
folder. Raises `ConfigError` where it is not clear which is meant, or there are too many files.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from bridge_data.data.plain_data import parse_yaml_file
from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.plan.formats import find_format
from bridge_data.storage import is_remote

CONFIG_FILE = "config.yaml"
"""The settings in the folder of a run, named as LightningCLI does."""

_YAML = (".yaml", ".yml")
_MAX_DEPTH = 4
_MAX_FILES = 50_000


def is_run_folder(path: Path) -> bool:
    """Whether `path` is a folder that holds no data, or tars that nobody prepared beside the config of a run."""
    if not path.is_dir():
        return False
    data = find_format(str(path))
    return data is None or (data.name == "tars" and bool(config_files(path)))


def config_files(folder: Path) -> list[Path]:
    """The YAML in the folder of a run that says which data it reads: of those, the one nearest to the top, of which
    `config.yaml` comes first; of several of these (a resumed LightningCLI writes one more) all, from the newest on.

    Raises:
        ConfigError: if several are equally near, and none is a `config.yaml`.
    """
    found = [file for file in files_of_run(folder) if file.suffix in _YAML and _names_data(file)]
    least = min((len(file.parts) for file in found), default=0)
    nearest_ones = [file for file in found if len(file.parts) == least]
    written = [file for file in nearest_ones if file.name == CONFIG_FILE]
    if written:
        return sorted(written, key=lambda file: file.stat().st_mtime_ns, reverse=True)
    if len(nearest_ones) > 1:
        names = ", ".join(str(file.relative_to(folder)) for file in nearest_ones)
        raise ConfigError(f"{folder}: has several configs, {names}: give one of them; checkpoints go in by --state")
    return nearest_ones


def files_of_run(folder: Path) -> Iterator[Path]:
    """The files below the folder of a run, at most four folders down, sorted; those of unfinished checkpoints and of
    hidden folders are left out.

    Raises:
        ConfigError: if there are too many.
    """
    num_seen = 0
    for parent, folders, names in os.walk(folder):
        depth = len(Path(parent).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if name[0] != "." and not name.endswith(".partial"))
        if depth >= _MAX_DEPTH:
            folders.clear()
        num_seen += len(names)
        if num_seen > _MAX_FILES:
            raise ConfigError(f"{folder}: has over {_MAX_FILES:,} files: give the config of the run instead")
        for name in sorted(names):
            if (path := Path(parent, name)).is_file():  # opening a pipe would block
                yield path


def _names_data(file: Path) -> bool:
    try:
        content = content_of(file)
    except BridgeDataError:
        return False
    data = content.get("data") if isinstance(content, dict) else None
    given = data.get("init_args", data) if isinstance(data, dict) else None
    return isinstance(given, dict) and "path" in given


def content_of(file: Path) -> Any:
    try:
        return parse_yaml_file(file.read_bytes(), str(file))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error


class RunFile(NamedTuple):
    """The YAML with the settings of a run, and its content; in the folder of a run, the newest of `num_found`."""

    path: Path
    content: dict[str, Any]
    num_found: int = 1

    @classmethod
    def find(cls, name: str) -> Self | None:
        """That of the run `name`; None if this is data.

        Raises:
            ConfigError: if there is neither.
        """
        path, num_found = Path(name), 1
        if is_run_folder(path):
            found = config_files(path)
            if not found:
                raise ConfigError(
                    f"{name}: neither data nor the folder of a run: no YAML in it has data.path (LightningCLI writes "
                    "config.yaml); give the config or the data, and this folder, if it has checkpoints, as --state"
                )
            path, num_found = found[0], len(found)
        is_yaml = path.suffix in _YAML and not is_remote(name)
        if is_yaml and not path.exists():
            raise ConfigError(f"{name}: no such file")
        content = content_of(path) if is_yaml and path.is_file() else None
        return cls(path, content, num_found) if isinstance(content, dict) and "data" in content else None
