"""The three indexes of a data set, made in one pass over its shards: `.tar.idx`, `index.sqlite`, `index.bridge`.

Enters: shard names, and our index of the last preparation, if there is one. Leaves: the files, and what was found.
Shards that have not changed since (size and time of change) are not scanned again, and if few have, the database is
copied and only their rows are replaced. Shards keep their numbers; new ones follow. Memory is bounded by a few shards.
A damaged shard does not stop the scan: all faults are reported together.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.prepare.commit import committing
from bridge_data.prepare.executors import Executor, LocalProcesses, Progress, no_progress, usual_workers
from bridge_data.prepare.scan_results import ScanResults, ScanTask, forget_results
from bridge_data.prepare.sqlite_index import SeenFile, SqliteIndexWriter, update_copy
from bridge_data.shards.index_file import BridgeIndex, BridgeIndexWriter
from bridge_data.shards.key_index import SharedKeys
from bridge_data.shards.metadata import BRIDGE_INDEX, INDEX_SQLITE, INDEX_UUID, META_FOLDER, PREPARING, read_uuid
from bridge_data.shards.read_only_database import ReadOnlyDatabase
from bridge_data.shards.segment import Segment
from bridge_data.shards.tar_scan import ScanNotes
from bridge_data.storage import Location
from bridge_data.storage.atomic import writing

MAX_PARTS = 50
"""Maximum names of parts in the report."""

MAX_FRESH = 0.25
"""Maximum share of new or changed samples for which rows are replaced instead of rewriting the database."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrepareConfig:
    """Settings of a preparation. Shards in whose path the regular expression `exclude` is found are left out.

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


MetaFiles = Callable[[dict[str, int]], Mapping[str, str]]
"""Other files of `.nv-meta`: texts by name, made from the number of samples by shard."""


def no_files(shard_counts: dict[str, int]) -> dict[str, str]:
    """No other files."""
    return {}


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


def write_indexes(
    root: Location,
    names: list[str],
    config: PrepareConfig,
    on_progress: Progress = no_progress,
    expected: dict[str, int] | None = None,
    files: MetaFiles = no_files,
) -> Preparation:
    """Index the shards `names` of the data set at `root`; `expected` are their numbers of samples (None: any). The
    indexes and `files` replace the previous ones together.

    Raises:
        DatasetError: naming each shard that is damaged or, with `merge`, not scanned. SharedKeysError: if keys must be
        unique and are not.
    """
    meta = root / META_FOLDER
    old, results = open_results(root, names, config, keeps_order=expected is not None)
    if config.merge:
        results.check_complete()
    with committing(meta, config.scratch) as temporary:
        before = storage.local_copy(meta / INDEX_SQLITE)
        database, note = None, None
        if before is not None and old is not None and _continues(meta, old, results):
            results.scan(config.scanner, on_progress)
            results.check_usable(expected)
            database = _updated(before, temporary, results, len(old.entries))
        if database is None:
            database = temporary(INDEX_SQLITE)
            note = _scan_into_database(database, before, results, config, on_progress, expected)
        if database != before:
            _write_index(results, temporary)
        shared = SharedKeys.find(ReadOnlyDatabase(database, "give --rescan"))
        if shared is not None and (config.fix_duplicates or config.unique_keys):
            raise SharedKeysError(f"{root}: {shared.told(results.names)}")
        preparation = _summed_up(results, shared, note)
        for name, text in files(preparation.shard_counts).items():
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


def _updated(before: Path, temporary: Callable[[str], Path], results: ScanResults, num_old: int) -> Path | None:
    """The database `before`, whose shards are the first `num_old`, or a copy in which the rows of changed shards are
    replaced. None if there are too many of them, or it cannot be copied."""
    fresh = results.fresh()
    if not fresh:
        return before
    names = results.names
    num_samples = sum(results.entry(name).count for name in names)
    if sum(results.entry(names[number]).count for number in fresh) > MAX_FRESH * num_samples:
        return None
    path = temporary(INDEX_SQLITE)
    replaced = {number: names[number] for number in fresh if number < num_old}
    rows = ((number, Segment.of(results.segment_bytes(names[number]))) for number in fresh)
    if update_copy(path, before, replaced, rows, num_samples):
        return path
    path.unlink(missing_ok=True)
    return None


def _scan_into_database(
    path: Path,
    before: Path | None,
    results: ScanResults,
    config: PrepareConfig,
    on_progress: Progress,
    expected: Mapping[str, int] | None,
) -> str | None:
    """Scan what is missing, and write all rows to a new database meanwhile; `before` is the one it replaces. Return a
    note if media metadata could not be kept."""
    with (
        contextlib.closing(SqliteIndexWriter(path, old=before)) as database,
        contextlib.closing(results.scan_in_order(config.scanner, on_progress)) as names,
    ):
        for number, name in enumerate(names):
            database.add(number, Segment.of(results.segment_bytes(name)))
        results.check_usable(expected)
        entries = map(results.entry, results.names)
        return database.finish([SeenFile(entry.name, entry.num_bytes, entry.mtime_ns) for entry in entries])


def _write_index(results: ScanResults, temporary: Callable[[str], Path]) -> None:
    with open(temporary(BRIDGE_INDEX), "wb") as file:
        index = BridgeIndexWriter(file)
        for name in results.names:
            entry = results.entry(name)
            index.add(name, entry.num_bytes, entry.mtime_ns, results.segment_bytes(name))
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
    notes = found.told()
    if not any(entry.count for entry in entries):
        raise DatasetError(f"{results.root}: there are no samples; {'; '.join(notes)}")
    if shared is not None:
        notes.append(
            f"{shared.told(results.names)}: such samples are told apart as SHARD/KEY. Joins by key and media metadata "
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
