"""The three indexes of a data set, made in one pass over its shards: `.tar.idx`, `index.sqlite`, `index.bridge`.

Enters: shard names, and our index of the last preparation, if there is one. Leaves: the files, and what was found.
Shards that have not changed since (size and time of change) are not scanned again. Memory is bounded by
a few shards. A damaged shard does not stop the scan: all faults are reported at once.
"""

import contextlib
import dataclasses
import operator
import os
import re
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.prepare.commit import committing
from bridge_data.prepare.processes import Progress, no_progress
from bridge_data.prepare.scan import ScanNotes, ShardScan, has_seek_index, has_tar_index, scan_shards, write_tar_index
from bridge_data.prepare.sqlite_index import SeenFile, SqliteIndexWriter
from bridge_data.shards.index_file import MAGIC, BridgeIndex, ShardEntry, begin_index, finish_index
from bridge_data.shards.key_index import SharedKeys
from bridge_data.shards.metadata import BRIDGE_INDEX, INDEX_SQLITE, INDEX_UUID, META_FOLDER, PREPARING, read_uuid
from bridge_data.shards.read_only_database import ReadOnlyDatabase
from bridge_data.shards.segment import DamagedIndexError, Segment, directory_size
from bridge_data.storage.atomic import writing

MAX_PARTS = 50
"""Maximum names of parts in the report."""

_SHOWN = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrepareConfig:
    """Settings of a preparation. `exclude` is a regular expression that leaves out shards in whose path it is found.

    `rescan` scans all shards, also those that have not changed. With `fix_duplicates`, if several shards have a sample
    of the same name, all shards are written again, with their members below folders of the shards' names. With
    `digest`, every part is read, and the CRC-32 of its content stored. With `unique_keys`, several shards with a sample
    of the same name are an error. `limits` are those of the metadata that are there.
    """

    exclude: str | None = None
    num_workers: int = dataclasses.field(default_factory=lambda: min(16, len(os.sched_getaffinity(0))))
    rescan: bool = False
    fix_duplicates: bool = False
    digest: bool = False
    limits: Limits = DEFAULT_LIMITS
    unique_keys: bool = False

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise ConfigError(f"num_workers={self.num_workers}: expected at least 1")
        try:
            re.compile(self.exclude or "")
        except re.error as error:
            raise ConfigError(f"exclude {self.exclude!r} is not a regular expression: {error}") from None


MetaFiles = Callable[[dict[str, int]], Mapping[str, str]]
"""Other files of `.nv-meta`: texts by name, made of the samples by shard."""


def no_files(shard_counts: dict[str, int]) -> dict[str, str]:
    """No other files."""
    return {}


class SharedKeysError(DatasetError):
    """Samples of several shards have the same key, and the settings say that they must not."""


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
    root: Path,
    names: list[str],
    config: PrepareConfig,
    on_progress: Progress = no_progress,
    expected: dict[str, int] | None = None,
    files: MetaFiles = no_files,
) -> Preparation:
    """Index the shards `names` of the data set at `root`; `expected` are their numbers of samples (None: any). The
    indexes, and `files`, replace those of before together.

    Raises:
        DatasetError: naming each shard that is damaged. SharedKeysError: if keys are to be unique and are not.
    """
    meta = root / META_FOLDER
    storage.close_files()  # a shard that was replaced since this process read it must be opened anew
    old = None if config.rescan else BridgeIndex.open(meta / BRIDGE_INDEX)
    if old is not None and old.has_digests:  # else those of a data set are gone when a shard is added to it
        config = dataclasses.replace(config, digest=True)
    known = set() if old is None else _unchanged(root, names, old, digest=config.digest)
    found = _Found(root, names, expected)
    with writing(root), committing(meta) as temporary:
        database, note = meta / INDEX_SQLITE, None
        if len(known) == len(names) and old is not None and _is_whole(meta, names, old):
            for name in names:
                found.add(_known_scan(old, name))
            found.raise_errors()
        else:
            database = temporary(INDEX_SQLITE)
            note = _write(root, found, temporary, _scans(root, names, config, old, known, on_progress))
        shared = SharedKeys.find(ReadOnlyDatabase(database, "give --rescan"))
        if shared is not None and (config.fix_duplicates or config.unique_keys):
            raise SharedKeysError(f"{root}: {shared.told(names)}")
        preparation = found.preparation(len(names) - len(known), shared, note)
        for name, text in files(preparation.shard_counts).items():
            temporary(name).write_bytes(text.encode())
    return preparation


def _write(
    root: Path, found: "_Found", temporary: Callable[[str], Path], scans: Iterator[ShardScan | DatasetError]
) -> str | None:
    """Write the indexes to their temporary paths. A note, if media metadata could not be kept."""
    database = SqliteIndexWriter(temporary(INDEX_SQLITE), old=root / META_FOLDER / INDEX_SQLITE)
    with contextlib.closing(database) as sqlite_index, open(temporary(BRIDGE_INDEX), "wb") as file:
        bridge_index = BridgeIndexWriter(file)
        shards: list[SeenFile] = []
        for number, scan in enumerate(scans):
            sound = found.add(scan)
            if sound is not None:
                sqlite_index.add(number, Segment.of(sound.segment))
                bridge_index.add(sound.name, sound.num_bytes, sound.mtime_ns, sound.segment)
                shards.append(SeenFile(sound.name, sound.num_bytes, sound.mtime_ns))
        found.raise_errors()
        note = sqlite_index.finish(shards)
        identity = str(uuid.uuid4())
        bridge_index.finish(identity)
    temporary(INDEX_UUID).write_text(identity)
    return note


class BridgeIndexWriter:
    """Writes an index to an open file, segment by segment; nothing of it is valid before `finish`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._entries: list[ShardEntry] = []
        self._has_digests = True
        begin_index(file)

    def add(self, name: str, num_bytes: int, mtime_ns: int, segment: bytes) -> None:
        """Append the segment of shard `name`."""
        start, read = self._file.tell(), Segment.of(segment)
        self._file.write(segment)
        self._has_digests = self._has_digests and read.has_digests
        directory = segment[: directory_size(segment)]
        entry = ShardEntry(
            name, num_bytes, mtime_ns, len(read), start, len(segment), len(directory), zlib.crc32(directory)
        )
        self._entries.append(entry)

    def finish(self, uuid: str) -> None:
        """Write the table and then the header, which makes the file valid."""
        row_of = operator.attrgetter(*(field.name for field in dataclasses.fields(ShardEntry)))
        table = {"uuid": uuid, "digests": self._has_digests, "shards": [row_of(entry) for entry in self._entries]}
        finish_index(self._file, MAGIC, table)


def _unchanged(root: Path, names: list[str], old: BridgeIndex, *, digest: bool) -> set[str]:
    """The shards that have not changed since `old`, if their segments are intact, and with `digest` have digests. A
    missing `.tar.idx` is written again."""
    known = set()
    for name in names:
        entry, path = old.entries.get(name), root / name
        if entry is None:
            continue
        try:
            status = path.stat()
        except FileNotFoundError:
            raise DatasetError(
                f"{path}: was prepared, and is gone. Restore it, or prepare the data set without it, with "
                "--force-overwrite and the split and field map of before."
            ) from None
        except OSError:  # the scan will say so
            continue
        if (status.st_size, status.st_mtime_ns) != (entry.num_bytes, entry.mtime_ns) or not has_seek_index(path):
            continue
        try:
            segment = Segment.of(old.segment_bytes(name))
        except DamagedIndexError:
            continue
        if digest and not segment.has_digests:
            continue
        if not has_tar_index(path, segment):
            if not len(segment):  # where it ends is not in the segment
                continue
            with writing(path.parent):
                write_tar_index(path, segment.offsets())
        known.add(name)
    return known


def _known_scan(old: BridgeIndex, name: str) -> ShardScan:
    """The scan of a shard that has not changed since `old`."""
    entry = old.entries[name]
    return ShardScan(name=name, num_bytes=entry.num_bytes, mtime_ns=entry.mtime_ns, segment=old.segment_bytes(name))


def _is_whole(meta: Path, names: list[str], old: BridgeIndex) -> bool:
    """Whether the files in `meta` are those of the preparation that wrote `old`, of just these shards."""
    return (
        list(old.entries) == names
        and (meta / INDEX_SQLITE).is_file()
        and read_uuid(meta) == old.uuid
        and not (meta / PREPARING).exists()
    )


def _scans(
    root: Path,
    names: list[str],
    config: PrepareConfig,
    old: BridgeIndex | None,
    known: set[str],
    on_progress: Progress,
) -> Iterator[ShardScan | DatasetError]:
    """The scan of each shard, in order: known from `old`, or made now."""
    done = len(known)

    def on_done() -> None:
        nonlocal done
        done += 1
        on_progress(done, len(names))

    fresh = scan_shards(
        root,
        [name for name in names if name not in known],
        num_workers=config.num_workers,
        digest=config.digest,
        on_done=on_done,
    )
    with contextlib.closing(fresh):
        for name in names:
            yield next(fresh) if old is None or name not in known else _known_scan(old, name)


class _Found:
    """Sums up the scans of the shards `names` of `root`."""

    def __init__(self, root: Path, names: list[str], expected: dict[str, int] | None) -> None:
        self._root, self.names = root, names
        self._expected = expected
        self._counts: dict[str, int] = {}
        self._num_bytes = 0
        self._parts: dict[str, None] = {}
        self._errors: list[str] = []
        self._notes = ScanNotes()

    def add(self, scan: ShardScan | DatasetError) -> ShardScan | None:
        """`scan`, if the shard is accepted."""
        if isinstance(scan, DatasetError):
            self._errors.append(str(scan))
            return None
        segment = Segment.of(scan.segment)
        if self._expected is not None and self._expected[scan.name] != len(segment):
            self._errors.append(
                f"{scan.name}: has {len(segment)} samples, but .nv-meta says {self._expected[scan.name]}: prepare the "
                "data set again, with its split"
            )
            return None
        self._counts[scan.name] = len(segment)
        self._num_bytes += scan.num_bytes
        if len(self._parts) < MAX_PARTS:
            self._parts.update(dict.fromkeys(segment.names))
        self._notes.merge(scan.notes)
        return scan

    def raise_errors(self) -> None:
        """Raise an error that names the faults of all shards, if there are any, or says that none holds a sample."""
        if not self._errors and not any(self._counts.values()):
            raise DatasetError(f"{self._root}: there are no samples; {'; '.join(self._notes.told())}")
        if len(self._errors) == 1:
            raise DatasetError(self._errors[0])
        if self._errors:
            more = len(self._errors) - _SHOWN
            raise DatasetError(
                f"{len(self._errors)} of {len(self.names)} shards cannot be used:\n  "
                + "\n  ".join(self._errors[:_SHOWN])
                + (f"\n  and {more} more" if more > 0 else "")
            )

    def preparation(self, num_scanned: int, shared: SharedKeys | None, note: str | None) -> Preparation:
        """The sum; `shared` are keys of several shards, `note` is one more remark."""
        notes = self._notes.told()
        if shared is not None:
            notes.append(
                f"{shared.told(self.names)}: such samples are told apart as SHARD/KEY. Joins by key and media metadata "
                "need unique keys: --fix-duplicates writes the tars again, with the shard's name in front of each key"
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
