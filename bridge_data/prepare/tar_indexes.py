"""The three indexes of a data set, made in one pass over its shards: `.tar.idx`, `index.sqlite`, `index.bridge`.

Enters: shard names, and our index of the last preparation, if there is one. Leaves: the files, and what was found.
Shards that have not changed since (size and time of change) are not scanned again, and if few have, the database is
copied and only their rows are replaced. Shards keep their numbers; new ones follow. Memory is bounded by a few shards.
A damaged shard does not stop the scan: all faults are reported together.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.prepare.commit import committing, committing_to_store
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
    results.scan(config.scanner, on_progress)
    found = _Found(results, expected)
    found.raise_errors()
    fresh = results.fresh()
    with _committing(meta, config) as temporary:
        database, note = storage.local_copy(meta / INDEX_SQLITE), None
        is_whole = database is not None and old is not None and _is_whole(meta, old)
        if old is None or not is_whole or fresh or list(old.entries) != results.names:
            before, database = database, temporary(INDEX_SQLITE)
            note = _write_database(database, before, results, old if is_whole else None)
            _write_index(results, temporary)
        assert database is not None
        shared = SharedKeys.find(ReadOnlyDatabase(database, "give --rescan"))
        if shared is not None and (config.fix_duplicates or config.unique_keys):
            raise SharedKeysError(f"{root}: {shared.told(results.names)}")
        preparation = found.preparation(len(fresh), shared, note)
        for name, text in files(preparation.shard_counts).items():
            temporary(name).write_bytes(text.encode())
    with writing(root):
        forget_results(root)
    return preparation


@contextlib.contextmanager
def _committing(meta: Location, config: PrepareConfig) -> Iterator[Callable[[str], Path]]:
    """A function that gives the paths at which to write the files of the folder `meta`, as `committing` does."""
    if isinstance(meta, Path):
        with writing(meta.parent), committing(meta) as temporary:
            yield temporary
    else:
        with committing_to_store(meta, config.scratch) as temporary:
            yield temporary


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


def _write_database(path: Path, before: Path | None, results: ScanResults, old: BridgeIndex | None) -> str | None:
    """Write the database. If few rows differ, copy `before`, which belongs to `old`. Return a note if media metadata
    could not be kept."""
    shards = [SeenFile(name, results.entry(name).num_bytes, results.entry(name).mtime_ns) for name in results.names]
    counts = [results.entry(name).count for name in results.names]

    def segment(number: int) -> Segment:
        return Segment.of(results.segment_bytes(shards[number].name))

    fresh = results.fresh()
    if old is not None and before is not None and results.names[: len(old.entries)] == list(old.entries):
        few = sum(counts[number] for number in fresh) <= MAX_FRESH * sum(counts)
        rows = ((number, segment(number)) for number in fresh)
        replaced = {number: shards[number].name for number in fresh if number < len(old.entries)}
        if few and update_copy(path, before, replaced, rows, sum(counts)):
            return None
        path.unlink(missing_ok=True)
    with contextlib.closing(SqliteIndexWriter(path, old=before)) as database:
        for number in range(len(shards)):
            database.add(number, segment(number))
        return database.finish(shards)


def _write_index(results: ScanResults, temporary: Callable[[str], Path]) -> None:
    with open(temporary(BRIDGE_INDEX), "wb") as file:
        index = BridgeIndexWriter(file)
        for name in results.names:
            entry = results.entry(name)
            index.add(name, entry.num_bytes, entry.mtime_ns, results.segment_bytes(name))
        identity = index.content_uuid()
        index.finish(identity)
    temporary(INDEX_UUID).write_text(identity)


def _is_whole(meta: Location, old: BridgeIndex) -> bool:
    """Whether the files in `meta` are from the preparation that wrote `old`."""
    return read_uuid(meta) == old.uuid and not (meta / PREPARING).exists()


class _Found:
    """Sums up what is known about all shards; `expected` are their numbers of samples."""

    def __init__(self, results: ScanResults, expected: dict[str, int] | None) -> None:
        self._results = results
        self._counts: dict[str, int] = {}
        self._num_bytes = 0
        self._parts: dict[str, None] = {}
        self._notes = ScanNotes()
        missing = set(results.missing)
        for name in results.names:
            if name not in missing:
                self._add(name, expected)

    def _add(self, name: str, expected: dict[str, int] | None) -> None:
        entry = self._results.entry(name)
        if expected is not None and expected[name] != entry.count:
            self._results.errors.append(
                f"{name}: has {entry.count} samples, but .nv-meta says {expected[name]}: prepare the data set again, "
                "with its split"
            )
            return
        self._counts[name] = entry.count
        self._num_bytes += entry.num_bytes
        if len(self._parts) < MAX_PARTS:
            self._parts.update(dict.fromkeys(self._results.segment(name).names))
        self._notes.merge(self._results.notes(name))

    def raise_errors(self) -> None:
        """Raise an error that names the faults of all shards, if there are any, or says that none holds a sample."""
        self._results.raise_errors()
        if not any(self._counts.values()):
            raise DatasetError(f"{self._results.root}: there are no samples; {'; '.join(self._notes.told())}")

    def preparation(self, num_scanned: int, shared: SharedKeys | None, note: str | None) -> Preparation:
        """The sum; `shared` are keys of several shards, `note` is one more remark."""
        notes = self._notes.told()
        if shared is not None:
            notes.append(
                f"{shared.told(self._results.names)}: such samples are told apart as SHARD/KEY. Joins by key and media "
                "metadata need unique keys: --fix-duplicates writes the tars again, with the shard's name in front of "
                "each key"
            )
        if note is not None:
            notes.append(note)
        return Preparation(
            shard_counts=self._counts,
            num_bytes=self._num_bytes,
            parts=tuple(self._parts)[:MAX_PARTS],
            num_scanned=num_scanned,
            notes=tuple(notes),
        )
