"""Preparing a data set: from a folder of tars to one that can be read by sample number.

Reads a folder, and a rule for the split. Writes `.nv-meta` as Energon 7.4 does, a `.tar.idx` next to each shard, and
our index. The files in `.nv-meta` are replaced together, after all shards have been accepted; all faults are reported
together. Shards that have not changed since the last preparation are not scanned again, and if few have, the database
is copied and only their rows are replaced. Shards keep their numbers; new ones follow. Memory is bounded by a few
shards.

For samples that have the same names in several shards, `prefix_keys` puts the members of each below a folder of its
name: `0001.jpg` of `shards/a.tar` becomes `shards/a.tar/0001.jpg`. Each shard is rewritten next to the old one and
replaces it at once; a shard whose members already have the prefix stays unchanged.

Source: the format of `split.yaml` of Megatron-Energon; the names are those of `energon prepare --fix-duplicates`.
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
import shlex
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Container, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bridge_data import storage
from bridge_data.data.index_file import BridgeIndex, Segment
from bridge_data.data.key_index import ReadOnlyDatabase, SharedKeys
from bridge_data.data.metadata import (
    BRIDGE_INDEX,
    INDEX_SQLITE,
    INDEX_UUID,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    PREPARING,
    SPLIT_YAML,
    UNFINISHED,
    is_prepared,
    is_unfinished,
    read_shard_counts,
    read_split,
    read_uuid,
    tar_index_path,
)
from bridge_data.data.tar_files import GZIP_SUFFIXES, is_gzip
from bridge_data.errors import BridgeDataError, ConfigError, DatasetError, bridge_command, counted
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan.folder_contents import files_below, in_words, kinds_of, why_no_lines
from bridge_data.prepare.commit import committing, is_temporary, preparing_alone
from bridge_data.prepare.executors import Executor, LocalProcesses, Progress, no_progress, usual_workers
from bridge_data.prepare.index_writing import BridgeIndexWriter
from bridge_data.prepare.scan_results import SCANNED, ScanResults, ScanTask, forget_results
from bridge_data.prepare.splits import collapse
from bridge_data.prepare.sqlite_index import SeenFile, SqliteIndexWriter
from bridge_data.prepare.tar_scan import ScanNotes, has_surrogates
from bridge_data.replacement import ENERGON_VERSION
from bridge_data.storage import Location
from bridge_data.storage.atomic import replacing, write_file, writing

Split = Callable[[Sequence[str]], dict[str, list[str]]]
"""Shard names, in order, to shard names by split part: `split_by_ratio` or `split_by_patterns` with their settings."""

MAX_PARTS = 50
"""Maximum names of parts in the report."""

MAX_FRESH = 0.25
"""Maximum share of new or changed shards, by size, for which rows are replaced instead of rewriting the database."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrepareConfig:
    """Settings of a preparation. Shards, and other data beside them, in whose path the regular expression `exclude` is
    found are left out.

    `rescan` scans all shards, also unchanged ones. With `fix_duplicates`, if several shards have a sample of the same
    name, all shards are rewritten with their members below folders of the shards' names. With `digest`, every part is
    read, and the CRC-32 of its content stored. With `unique_keys`, samples of the same name in several shards are an
    error. `limits` apply to existing metadata. With `merge`, no shard is scanned: it is an error if a task has not
    scanned one. `executor` scans; None: `num_workers` processes do. Files for an object store are made in the folder
    `scratch` (None: the system's).
    """

    exclude: str | None = None
    num_workers: int = dataclasses.field(default_factory=usual_workers)
    rescan: bool = False
    fix_duplicates: bool = False
    digest: bool = False
    limits: Limits = DEFAULT_LIMITS
    unique_keys: bool = False
    merge: bool = False
    executor: Executor | None = None
    scratch: Path | None = None

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise ConfigError(f"num_workers={self.num_workers}: expected at least 1")
        try:
            re.compile(self.exclude or "")
        except re.error as error:
            raise ConfigError(f"exclude {self.exclude!r} is not a regular expression: {error}") from None
        if self.merge and self.fix_duplicates:
            raise ConfigError("fix_duplicates writes the tars again, and they are scanned again: leave merge out")

    @property
    def scanner(self) -> Executor:
        """What scans shards."""
        return self.executor or LocalProcesses(self.num_workers)


class SharedKeysError(DatasetError):
    """Samples of several shards have the same key, and the settings forbid it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The result of a preparation: samples by shard, sizes, names of parts (at most 50), and notes for the user."""

    shard_counts: dict[str, int]
    num_bytes: int
    parts: tuple[str, ...]
    num_scanned: int
    notes: tuple[str, ...]

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return sum(self.shard_counts.values())


def find_shards(root: Location, exclude: str | None = None) -> list[str]:
    """The tars below `root`, compressed ones (.tgz, .tar.gz) too, as paths relative to it, folder by folder and sorted,
    without those that match `exclude`.

    Raises:
        ConfigError: if there are none, or two of them would share a `.tar.idx`; if the folder was never prepared, and
            holds data of other kinds that do not match `exclude`.
        DatasetError: if a folder cannot be listed.
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
            else why_no_lines(str(root))
            or f"{root}: there are no .tar files; make some with `{bridge_command('convert', 'SRC', root)}`"
        )
    if not is_prepared(root):
        _check_tars_alone(root, exclude)
    by_index: dict[Location, str] = {}
    for name in kept:
        other = by_index.setdefault(tar_index_path(name), name)
        if other != name:
            raise ConfigError(
                f"{root}: {other} and {name} would share {tar_index_path(name)}; remove one of them, or leave it out "
                "with --exclude"
            )
    return kept


def _check_tars_alone(root: Location, exclude: str | None) -> None:
    """Ensure that the tars are the only data in a folder, but for those that `exclude` names."""
    names = files_below(str(root))
    found = kinds_of(name for name in names if exclude is None or not re.search(exclude, name))
    others = {kind: files for kind, files in found.items() if kind != "webdataset"}
    if others and len(found) > len(others):
        endings = sorted({os.path.splitext(name)[1] for files in others.values() for name in files})
        more = "|".join([*([] if exclude is None else [exclude]), *(f"{re.escape(ending)}$" for ending in endings)])
        raise ConfigError(
            f"{root}: holds data of {len(found)} kinds, {in_words(found)}. If the tars are the data set, give "
            f"--exclude {shlex.quote(more)}; if not, do without prepare: other data are read in place, or converted"
        )


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
        ConfigError: for wrong settings.
        DatasetError: naming each shard that is damaged.
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
        files = {name: _yaml(definition) for name, definition in (definitions or {}).items()}
        content = {"split_parts": {part: collapse(shards) for part, shards in parts.items()}, "exclude": []}
        files[split_config] = _json(content) if split_config.endswith(".json") else _yaml(content)
        preparation = _prepare(root, names, config, on_progress, files)
    return dataclasses.replace(preparation, notes=(*preparation.notes, *notes))


def scan_share(
    root: Location, task: ScanTask, config: PrepareConfig | None = None, *, on_progress: Progress = no_progress
) -> tuple[int, int, list[str]]:
    """Scan the share of `task` of the tars below `root`, unless it is done, and keep the results for `prepare`. Other
    processes may scan other shares at the same time. Returns (shards of the share, those scanned now, notes).

    Raises:
        ConfigError: if there are no tars.
        DatasetError: naming each shard that is damaged, or if the data set is being prepared.
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
    return len(results.names), num_scanned, notes.messages()


def _check_unique(root: Location, names: list[str], parts: Mapping[str, list[str]]) -> None:
    for what, shards in [("the list of tars", names), *((f"split part {part!r}", parts[part]) for part in parts)]:
        if len(set(shards)) < len(shards):
            name, times = Counter(shards).most_common(1)[0]
            raise ConfigError(f"{root}: {what} names {name!r} {times} times: name it once")


def _prepare(
    root: Location, names: list[str], config: PrepareConfig, on_progress: Progress, files: Mapping[str, str]
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
        ConfigError: if it is not prepared.
        DatasetError: naming each shard that is damaged, or whose number of samples has changed.
    """
    meta = root / META_FOLDER
    config = config or PrepareConfig()
    read_shard_counts(meta, config.limits)  # it must be prepared
    if config.fix_duplicates:
        raise ConfigError("fix_duplicates: to renew the index alone writes no shards; prepare the data set again")

    with preparing_alone(root) as remove_temporary:
        counts = read_shard_counts(meta, config.limits)  # another process may just have changed them
        remove_temporary(_folders(root, counts))
        if isinstance(root, Path) and is_interrupted(root):
            raise DatasetError(f"{root}: --fix-duplicates was interrupted; prepare it with --fix-duplicates again")
        done = write_indexes(root, list(counts), config, on_progress, expected=counts)
    if others := tars_beside(root, counts):
        text = (
            f"not in the data set, so that no run reads them: {counted(len(others), 'tar')} of the folder, such as "
            f"{others[0]}. To take in tars that were added, prepare with --force-overwrite and the split"
        )
        done = dataclasses.replace(done, notes=(*done.notes, text))
    return done


def tars_beside(root: Location, prepared: Collection[str]) -> list[str]:
    """The tars below the folder `root` that are not among the `prepared` ones: added later, or left out."""
    if not isinstance(root, Path):
        return []  # listing a store takes long
    with contextlib.suppress(DatasetError):  # of a folder that cannot be listed
        return sorted({*_tars(root)} - {*prepared}, key=lambda name: name.split("/"))
    return []


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


def write_indexes(
    root: Location,
    names: list[str],
    config: PrepareConfig,
    on_progress: Progress = no_progress,
    expected: dict[str, int] | None = None,
    files: Mapping[str, str] | None = None,
) -> Preparation:
    """Index the shards `names` of the data set at `root`; `expected` are their numbers of samples, which stay as they
    are (None: any). The indexes, the counts and `files` (texts by name) replace the previous ones together.

    Raises:
        DatasetError: naming each shard that is damaged or, with `merge`, not scanned.
        SharedKeysError: if keys must be unique and are not.
    """
    meta = root / META_FOLDER
    old, results = open_results(root, names, config, keeps_order=expected is not None)
    if config.merge:
        results.check_complete()
    with committing(meta, config.scratch) as temporary:
        before = storage.local_copy(meta / INDEX_SQLITE)
        continued = old if before is not None and old is not None and _continues(meta, old, results) else None
        database, note = before, None
        if continued is None or results.fresh():
            database = temporary(INDEX_SQLITE)
            scan = functools.partial(results.scan_in_order, config.scanner, on_progress)
            note = _write_database(database, before, continued, results, scan, expected)
            _write_index(results, temporary)
        else:
            results.check_usable(expected)
        assert database is not None
        shared = SharedKeys.find(ReadOnlyDatabase(database, "give --rescan"))
        if shared is not None and (config.fix_duplicates or config.unique_keys):
            raise SharedKeysError(f"{root}: {shared.in_words(results.names)}")
        preparation = _summed_up(results, shared, note)
        info = {"energon_version": ENERGON_VERSION, "shard_counts": preparation.shard_counts}
        texts = {**(files or {}), INFO_YAML: _yaml(info), INFO_JSON: _json(info)}
        if expected is not None or not (meta / INFO_YAML).is_file():
            del texts[INFO_YAML]
        if expected is not None and (meta / INFO_JSON).is_file():
            del texts[INFO_JSON]
        for name, text in texts.items():
            temporary(name).write_bytes(text.encode())
    with writing(root):
        forget_results(root)
    return preparation


def open_results(
    root: Location,
    names: Sequence[str],
    config: PrepareConfig,
    *,
    keeps_order: bool = False,
    task: ScanTask | None = None,
) -> tuple[BridgeIndex | None, ScanResults]:
    """(our index of the last preparation, what is known about the shards `names`). Shards take the order of that index,
    so that its numbers stay, unless `keeps_order` is set. `task`: the one whose share they are."""
    storage.close_files()  # a shard that was replaced since this process read it must be reopened
    old = None if config.rescan else BridgeIndex.open(root / META_FOLDER / BRIDGE_INDEX)
    digest = config.digest or (old is not None and old.has_digests)  # else adding a shard would drop them
    rescan = config.rescan and not config.merge
    names = names if keeps_order else _numbered(names, old)
    return old, ScanResults(root, names, old, digest=digest, rescan=rescan, task=task)


def _numbered(names: Sequence[str], old: BridgeIndex | None) -> list[str]:
    """`names`, with those in `old` first and in its order, if none of them is gone."""
    wanted = set(names)
    if old is None or not wanted.issuperset(old.entries):
        return list(names)
    return [*old.entries, *(name for name in names if name not in old.entries)]


def _continues(meta: Location, old: BridgeIndex, results: ScanResults) -> bool:
    """Whether the files in `meta` are whole, from the preparation that wrote `old`, and shards keep their numbers."""
    is_whole = read_uuid(meta) == old.uuid and not (meta / PREPARING).exists()
    return is_whole and results.names[: len(old.entries)] == list(old.entries)


def _write_database(
    path: Path,
    before: Path | None,
    old: BridgeIndex | None,
    results: ScanResults,
    scan: Callable[[], Generator[str, None, None]],
    expected: Mapping[str, int] | None,
) -> str | None:
    """Scan what is missing, and write the database that replaces `before` meanwhile. If `old` is given, which `before`
    belongs to, and few shards have changed, it is a copy in which their rows are replaced. Returns a note if media
    metadata could not be kept."""
    fresh = set(results.fresh())
    num_bytes = [results.size_bytes(name) for name in results.names]
    if old is not None and sum(num_bytes[number] for number in fresh) <= MAX_FRESH * sum(num_bytes):
        replaced = {number: name for number, name in enumerate(old.entries) if number in fresh}
        try:
            return _write_rows(SqliteIndexWriter(path, before, replaced), fresh, results, scan, expected)
        except sqlite3.OperationalError:  # in the copy, such as a full disk
            raise
        except sqlite3.DatabaseError:  # it cannot be copied
            path.unlink()
    return _write_rows(SqliteIndexWriter(path, before), range(len(results.names)), results, scan, expected)


def _write_rows(
    database: SqliteIndexWriter,
    wanted: Container[int],
    results: ScanResults,
    scan: Callable[[], Generator[str, None, None]],
    expected: Mapping[str, int] | None,
) -> str | None:
    """Write the rows of the shards of these numbers, as they are scanned, and finish the database."""
    with contextlib.closing(database), contextlib.closing(scan()) as names:
        for number, name in enumerate(names):
            if number in wanted:
                entry = results.entry(name)
                file = SeenFile(name, entry.num_bytes, entry.mtime_ns)
                database.add(number, file, Segment.of(results.segment_bytes(name)))
        results.check_usable(expected)
        return database.finish(sum(results.entry(name).count for name in results.names))


def _write_index(results: ScanResults, temporary: Callable[[str], Path]) -> None:
    with open(temporary(BRIDGE_INDEX), "wb") as file:
        index = BridgeIndexWriter(file)
        for name in results.names:
            entry = results.entry(name)
            index.add(name, entry.num_bytes, entry.mtime_ns, results.segment_bytes(name), entry.head_checksum)
        identity = index.content_uuid()
        index.finish(identity)
    temporary(INDEX_UUID).write_text(identity)


def _summed_up(results: ScanResults, shared: SharedKeys | None, note: str | None) -> Preparation:
    """What was found in all shards; `shared` are keys of several shards, `note` is one more remark.

    Raises:
        DatasetError: if no shard holds a sample.
    """
    entries = [results.entry(name) for name in results.names]
    found = ScanNotes()
    parts: dict[str, None] = {}
    for name in results.names:
        found.merge(results.notes(name))
        if len(parts) < MAX_PARTS:
            parts.update(dict.fromkeys(results.segment(name).names))
    notes = found.messages()
    if not any(entry.count for entry in entries):
        raise DatasetError(f"{results.root}: there are no samples; {'; '.join(notes)}")
    if shared is not None:
        notes.append(
            f"{shared.in_words(results.names)}: their keys are written as SHARD/KEY. Joins by key and media metadata "
            "need unique keys: --fix-duplicates writes the tars again, with the shard's name in front of each key"
        )
    if note is not None:
        notes.append(note)
    return Preparation(
        shard_counts={entry.name: entry.count for entry in entries},
        num_bytes=sum(entry.num_bytes for entry in entries),
        parts=tuple(parts)[:MAX_PARTS],
        num_scanned=len(results.fresh()),
        notes=tuple(notes),
    )


_MARK = "--fix-duplicates"
"""Content of the mark of an unfinished preparation from the first shard on."""

_LONG_NAMES = ("path", "linkpath")
"""Extended headers of long names, which are recreated."""


def is_interrupted(root: Path) -> bool:
    """Whether `prefix_keys` was called and the indexes not renewed since: perhaps only some shards are rewritten."""
    try:
        return (root / META_FOLDER / PREPARING).read_text() == _MARK
    except OSError:
        return False


def prefix_keys(root: Path, names: Sequence[str]) -> int:
    """Put the members of each shard below a folder of its name; return the number of rewritten shards. If it is
    interrupted, call it again: finished shards are skipped. The data set is marked as unfinished: renew its indexes.

    Raises:
        DatasetError: if a shard cannot be written.
    """
    meta = root / META_FOLDER
    with writing(root):
        meta.mkdir(exist_ok=True)
        write_file(meta / PREPARING, _MARK)
        return sum(_prefix(root / name, f"{name}/") for name in names)


def _prefix(path: Path, folder: str) -> bool:
    import tarfile  # here: few data sets need it

    with tarfile.open(path) as source:
        if all(member.name.startswith(folder) for member in source):
            return False
    with (
        replacing(path) as temporary,
        tarfile.open(path) as source,
        tarfile.open(temporary, "w:gz" if is_gzip(path) else "w") as target,
    ):
        for member in source:
            content = source.extractfile(member) if member.isfile() else None
            if not member.name.startswith(folder):
                member.name = folder + member.name
            if member.islnk() and not member.linkname.startswith(folder):
                member.linkname = folder + member.linkname
            member.pax_headers = {key: text for key, text in member.pax_headers.items() if key not in _LONG_NAMES}
            target.addfile(member, content)
        shutil.copymode(path, temporary)
    tar_index_path(path).unlink(missing_ok=True)
    return True
