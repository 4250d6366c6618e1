"""Preparing a data set: from a folder of tars to one that can be read by sample number.

Enters: a folder, a rule for the split. Leaves: `.nv-meta` as Energon 7.4 writes it, a `.tar.idx` next to each shard,
and our index. The files in `.nv-meta` are replaced together, after all shards have been accepted.

Source: the format of `split.yaml` of Megatron-Energon.
"""

import dataclasses
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bridge_data import storage
from bridge_data.errors import BridgeDataError, ConfigError, DatasetError, bridge_command
from bridge_data.limits import Limits
from bridge_data.prepare.commit import is_temporary, preparing_alone
from bridge_data.prepare.executors import Progress, no_progress
from bridge_data.prepare.scan_results import SCANNED, ScanTask
from bridge_data.prepare.shard_files import is_interrupted, prefix_keys
from bridge_data.prepare.splits import collapse
from bridge_data.prepare.tar_indexes import (
    MetaFiles,
    Preparation,
    PrepareConfig,
    SharedKeysError,
    open_results,
    write_indexes,
)
from bridge_data.shards.metadata import (
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    SPLIT_YAML,
    UNFINISHED,
    is_unfinished,
    read_shard_counts,
    read_split,
    tar_index_path,
)
from bridge_data.shards.tar_files import GZIP_SUFFIXES
from bridge_data.shards.tar_scan import ScanNotes, has_surrogates
from bridge_data.storage import Location
from bridge_data.storage.atomic import write_file, writing

ENERGON_VERSION = "7.4.1"
"""The version of Energon whose formats are written."""

Split = Callable[[Sequence[str]], dict[str, list[str]]]
"""Shard names, in order, to shard names by split part: `split_by_ratio` or `split_by_patterns` with their settings."""


def find_shards(root: Location, exclude: str | None = None) -> list[str]:
    """The tars below `root`, compressed ones (.tgz, .tar.gz) too, as paths relative to it, folder by folder and sorted,
    without those that match `exclude`.

    Raises:
        ConfigError: if there are none, or two of them would share a `.tar.idx`. DatasetError: if a folder cannot be
        listed.
    """
    _check_folder(root)
    names = sorted(_tars(root), key=lambda name: name.split("/"))
    kept = [name for name in names if exclude is None or not re.search(exclude, name)]
    undecodable = [name for name in kept if has_surrogates(name)]
    if undecodable:
        raise ConfigError(f"{root}: the name {undecodable[0]!r} is not UTF-8: rename the file, or leave it out")
    if not kept:
        raise ConfigError(
            f"{root}: --exclude {exclude!r} leaves out all {len(names)} tars"
            if names
            else f"{root}: there are no .tar files; make some with `{bridge_command('convert', 'SRC', root)}`"
        )
    by_index: dict[Location, str] = {}
    for name in kept:
        other = by_index.setdefault(tar_index_path(name), name)
        if other != name:
            raise ConfigError(
                f"{root}: {other} and {name} would share {tar_index_path(name)}; remove one of them, or leave it out "
                "with --exclude"
            )
    return kept


def check_is_whole(root: Location) -> None:
    """Ensure that no writer is running or was interrupted: its whole shards would be taken for all of the data set.

    Raises:
        ConfigError: saying how to continue.
    """
    if is_unfinished(root):
        raise ConfigError(f"{root}: {UNFINISHED}")


def _check_folder(root: Location) -> None:
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder" if not root.exists() else f"{root}: expected a folder of tars")


def _tars(root: Location) -> Iterator[str]:
    """The tars below `root`, as paths relative to it."""
    if isinstance(root, storage.RemotePath):
        yield from (name for name in storage.list_sizes(str(root)) if name.endswith((".tar", *GZIP_SUFFIXES)))
        return
    start = len(os.path.join(root, ""))
    for folder, folders, files in storage.walk(root):
        folders[:] = [name for name in folders if not is_temporary(name)]  # from a running or killed process
        for file in files:
            path = os.path.join(folder, file)
            if file.endswith((".tar", *GZIP_SUFFIXES)) and os.path.isfile(path):
                yield path[start:]


def prepare(
    root: Location,
    split: Split,
    config: PrepareConfig | None = None,
    *,
    names: Sequence[str] | None = None,
    split_config: str = SPLIT_YAML,
    definitions: Mapping[str, dict[str, Any]] | None = None,
    on_progress: Progress = no_progress,
) -> Preparation:
    """Prepare the tars below `root`, or only those in `names`; write their split to `split_config`, YAML or JSON, and
    `definitions` of samples to files like dataset.yaml, by name. `on_progress` is called with shards done and shards in
    all.

    Raises:
        ConfigError: for wrong settings. DatasetError: naming each shard that is damaged.
    """
    config = config or PrepareConfig()
    check_split_config(split_config)
    if config.fix_duplicates and not isinstance(root, Path):
        raise ConfigError(f"{root}: fix_duplicates writes the tars again, which is done on a disk: copy them to one")
    _check_folder(root)
    with preparing_alone(root) as remove_temporary:  # from here on, so that no other process changes the list of shards
        names = find_shards(root, config.exclude) if names is None else list(names)
        parts = split(names)
        _check_unique(root, names, parts)
        remove_temporary(_folders(root, names))
        notes = [*_split_notes(parts, names), *_exclusion_notes(root / META_FOLDER, split_config, config.limits)]
        files = _meta_files(root, parts, split_config, definitions or {})
        preparation = _prepare(root, names, config, on_progress, files)
    return dataclasses.replace(preparation, notes=(*preparation.notes, *notes))


def scan_share(
    root: Location, task: ScanTask, config: PrepareConfig | None = None, *, on_progress: Progress = no_progress
) -> tuple[int, int, list[str]]:
    """Scan the share of `task` of the tars below `root`, unless it is done, and keep the results for `prepare`. Other
    processes may scan other shares at the same time. Returns (shards of the share, those scanned now, notes).

    Raises:
        ConfigError: if there are no tars. DatasetError: naming each shard that is damaged, or if the data set is being
        prepared.
    """
    config = config or PrepareConfig()
    with preparing_alone(root, shared=True):
        _, results = open_results(root, task.share(find_shards(root, config.exclude)), config, task=task)
        num_scanned = results.scan(config.scanner, on_progress)
        results.check_usable()
        results.note_done(task)
        notes = ScanNotes()
        for name in results.names:
            notes.merge(results.notes(name))
    return len(results.names), num_scanned, notes.told()


def _check_unique(root: Location, names: list[str], parts: Mapping[str, list[str]]) -> None:
    for what, shards in [("the list of tars", names), *((f"split part {part!r}", parts[part]) for part in parts)]:
        if len(set(shards)) < len(shards):
            name, times = Counter(shards).most_common(1)[0]
            raise ConfigError(f"{root}: {what} names {name!r} {times} times: name it once")


def _meta_files(
    root: Location, parts: Mapping[str, list[str]], split_config: str, definitions: Mapping[str, dict[str, Any]]
) -> MetaFiles:
    """Split, definitions and counts, as the files of `.nv-meta`."""

    def files(shard_counts: dict[str, int]) -> dict[str, str]:
        info = {"energon_version": ENERGON_VERSION, "shard_counts": shard_counts}
        found = {name: _yaml(definition) for name, definition in definitions.items()}
        write = _json if split_config.endswith(".json") else _yaml
        written = {part: collapse(shards) for part, shards in parts.items()}
        found[split_config] = write({"split_parts": written, "exclude": []})
        if (root / META_FOLDER / INFO_YAML).is_file():
            found[INFO_YAML] = _yaml(info)
        return found | {INFO_JSON: _json(info)}

    return files


def _prepare(
    root: Location, names: list[str], config: PrepareConfig, on_progress: Progress, files: MetaFiles
) -> Preparation:
    if not isinstance(root, Path):
        return write_indexes(root, names, config, on_progress, files=files)
    if is_interrupted(root):
        if not config.fix_duplicates:
            raise DatasetError(
                f"{root}: --fix-duplicates was interrupted, so only some shards have keys with a prefix; prepare "
                "it with --fix-duplicates again"
            )
        prefix_keys(root, names)
    try:
        return write_indexes(root, names, config, on_progress, files=files)
    except SharedKeysError:
        if not config.fix_duplicates:
            raise
        prefix_keys(root, names)
        return write_indexes(root, names, config, on_progress, files=files)


def _folders(root: Location, names: Iterable[str]) -> set[Location]:
    """The folders in which files are written."""
    return {root, root / META_FOLDER, root / SCANNED, *(root / folder for folder in set(map(os.path.dirname, names)))}


def check_split_config(name: str) -> None:
    """Check the name of a file for the split.

    Raises:
        ConfigError: if it is a path, or names neither YAML nor JSON.
    """
    if Path(name).name != name or not name.endswith((".yaml", ".json")):
        raise ConfigError(f"split_config={name!r}: expected the name of a file that ends with .yaml or .json")


def refresh_index(
    root: Location,
    config: PrepareConfig | None = None,
    *,
    on_progress: Progress = no_progress,
) -> Preparation:
    """Rewrite the indexes of a prepared data set; its split and sample type stay.

    Raises:
        ConfigError: if it is not prepared. DatasetError: naming each shard that is damaged, or whose number of samples
        has changed.
    """
    meta = root / META_FOLDER
    config = config or PrepareConfig()
    read_shard_counts(meta, config.limits)  # it must be prepared
    if config.fix_duplicates:
        raise ConfigError("fix_duplicates: to renew the index alone writes no shards; prepare the data set again")

    def files(shard_counts: dict[str, int]) -> dict[str, str]:
        info = {"energon_version": ENERGON_VERSION, "shard_counts": shard_counts}
        return {} if (meta / INFO_JSON).is_file() else {INFO_JSON: _json(info)}

    with preparing_alone(root) as remove_temporary:
        counts = read_shard_counts(meta, config.limits)  # another process may just have changed them
        remove_temporary(_folders(root, counts))
        if isinstance(root, Path) and is_interrupted(root):
            raise DatasetError(f"{root}: --fix-duplicates was interrupted; prepare it with --fix-duplicates again")
        return write_indexes(root, list(counts), config, on_progress, expected=counts, files=files)


def write_dataset_yaml(root: Path, definition: dict[str, Any], name: str) -> Path:
    """Write `definition`, the class and fields of samples, to the file `name` in `.nv-meta`; return its path."""
    path = root / META_FOLDER / name
    with writing(path.parent):
        write_file(path, _yaml(definition))
    return path


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False)


def _yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _split_notes(parts: dict[str, list[str]], names: Sequence[str]) -> list[str]:
    """Notes on what may be surprising in the split."""
    notes = []
    chosen = [name for shards in parts.values() for name in shards]
    unused = len(names) - len(set(chosen))
    if unused:
        notes.append(f"{unused} of {len(names)} shards are in no split part")
    if len(chosen) > len(set(chosen)):
        notes.append(f"{len(chosen) - len(set(chosen))} shards are in more than one split part")
    return notes


def _exclusion_notes(meta: Location, split_config: str, limits: Limits) -> list[str]:
    """A note, if the replaced split excludes something."""
    try:
        excluded = read_split(meta, split_config, limits).excluded()
    except BridgeDataError:  # there is none, or it cannot be read
        return []
    if not excluded:
        return []
    return [
        f"the previous {split_config} excluded {len(excluded):,} shards or samples, such as {excluded[0]!r}; the new "
        "one excludes none: add to its `exclude` what should stay excluded"
    ]
