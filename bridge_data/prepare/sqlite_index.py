"""Writing `.nv-meta/index.sqlite`: samples and parts by key.

Enters: segments. Leaves: Energon 7.4's tables `samples` and `sample_parts` with their indexes, and the previous tables
of media metadata; see `media_table`. If few shards differ, it is a copy of the old database with their rows replaced.

The index on keys is built after all rows are inserted, which keeps a billion of them affordable. It is UNIQUE, as in
Energon, if all keys are. The other indexes have the order of the rows and grow at their end.
"""

import contextlib
import functools
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bridge_data.shards.index_file import Segment
from bridge_data.shards.read_only_database import as_text
from bridge_data.storage.atomic import clone_file

_TABLES = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL,
    sample_key TEXT NOT NULL,
    sample_index INTEGER NOT NULL,
    byte_offset INTEGER,
    byte_size INTEGER
);
CREATE TABLE sample_parts (
    tar_file_id INTEGER,
    sample_index INTEGER,
    part_name TEXT,
    content_byte_offset INTEGER,
    content_byte_size INTEGER
);
"""

_ROW_INDEXES = (
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    "CREATE INDEX idx_sample_parts_full ON sample_parts"
    "(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)",
)

_KEY_INDEX = "CREATE UNIQUE INDEX idx_samples_sample_key ON samples(sample_key)"

_MEDIA_KEPT = """
INSERT INTO media_metadata SELECT m.entry_key, m.metadata_type, m.metadata_json
FROM main.samples s
CROSS JOIN main.sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index
CROSS JOIN old.media_metadata m ON m.entry_key = s.sample_key || '.' || p.part_name
CROSS JOIN old.samples t ON t.sample_key = s.sample_key
CROSS JOIN old.sample_parts q ON q.tar_file_id = t.tar_file_id AND q.sample_index = t.sample_index
    AND q.part_name = p.part_name
    AND q.content_byte_offset = p.content_byte_offset AND q.content_byte_size = p.content_byte_size
"""

_SEEN_KEPT = """
INSERT INTO bridge_media_seen SELECT * FROM old.bridge_media_seen
WHERE name = CAST(? AS TEXT) AND num_bytes = ? AND mtime_ns = ? AND NOT EXISTS (
    SELECT 1 FROM main.samples s
    CROSS JOIN main.sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index
    WHERE s.tar_file_id = ? AND NOT EXISTS (
        SELECT 1 FROM old.samples t
        CROSS JOIN old.sample_parts q ON q.tar_file_id = t.tar_file_id AND q.sample_index = t.sample_index
            AND q.part_name = p.part_name
            AND q.content_byte_offset = p.content_byte_offset AND q.content_byte_size = p.content_byte_size
        WHERE t.sample_key = s.sample_key
    )
)
"""

_BUILD_CACHE_KIB = 4 * 1024
"""Memory for pages of a new database, whose rows are appended, and for sorting its keys."""

_UPDATE_CACHE_KIB = 32 * 1024
"""The same for a copy: keys of new rows may go anywhere in the index, so pages are read again."""

_ROWS = 64
"""Maximum rows per INSERT: twice as fast as one by one."""


@functools.cache
def _insertion(table: str, num_rows: int, *, undecodable: bool = False) -> str:
    row = "(?, CAST(? AS TEXT), CAST(? AS TEXT), ?, ?)" if undecodable else "(?, ?, ?, ?, ?)"
    return f"INSERT INTO {table} VALUES {', '.join([row] * num_rows)}"


def _insert_shard(db: sqlite3.Connection, shard: int, segment: Segment) -> None:
    first = 0
    for page in segment.pages():
        num_samples = len(page)
        offsets = page.offsets.tolist()
        sizes = [end - start for start, end in pairwise(offsets)]
        numbers = range(first, first + num_samples)
        _insert(db, "samples", shard, (page.keys(0, num_samples - 1), numbers, offsets[:-1], sizes))
        owners, names, starts, lengths = page.part_columns()
        _insert(db, "sample_parts", shard, ([first + owner for owner in owners], names, starts, lengths))
        first += num_samples


def _insert(db: sqlite3.Connection, table: str, shard: int, columns: Sequence[Sequence[Any]]) -> None:
    """Insert rows of the shard number and four values, given as columns."""
    values: list[Any] = [shard] * (5 * len(columns[0]))
    for number, column in enumerate(columns, start=1):
        values[number::5] = column
    for start in range(0, len(values), 5 * _ROWS):
        these = values[start : start + 5 * _ROWS]
        try:
            db.execute(_insertion(table, len(these) // 5), these)
        except UnicodeEncodeError:  # names with surrogates
            bound = [as_text(value) if isinstance(value, str) else value for value in these]
            db.execute(_insertion(table, len(these) // 5, undecodable=True), bound)


def _connect(path: Path, cache_kib: int) -> sqlite3.Connection:
    """Connect without crash safety: a crash leaves the file useless."""
    db = sqlite3.connect(path, isolation_level=None, uri=True)
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA secure_delete = OFF")
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute(f"PRAGMA cache_size = -{cache_kib}")
    return db


class SqliteIndexWriter:
    """Writes a new database at `path`. A crash leaves the file useless, so pass a temporary path.

    Media metadata in the database `old`, if any, are kept for parts with the same offset and size as before, in samples
    of the same key. `old` may be damaged, as it is being replaced.
    """

    def __init__(self, path: Path, old: Path | None = None) -> None:
        path.touch()  # its error says why a file cannot be written, SQLite's does not
        self._db = _connect(path, _BUILD_CACHE_KIB)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.executescript(_TABLES)
        for statement in _ROW_INDEXES:
            self._db.execute(statement)
        self._old = old
        self._db.execute("BEGIN")

    def add(self, shard: int, segment: Segment) -> None:
        """Insert the samples of shard number `shard`."""
        _insert_shard(self._db, shard, segment)

    def finish(self, shards: "Sequence[SeenFile]" = ()) -> str | None:
        """Build the index on keys, copy media metadata and close. `shards` are the added ones, by number: media of
        shards that have changed will be read again. Return a note if metadata could not be kept: they are stored by
        key, so keys must be unique."""
        try:
            self._db.execute("COMMIT")
            self._db.execute("PRAGMA journal_mode = MEMORY")  # without a journal, a failed statement is not undone
            try:
                self._db.execute(_KEY_INDEX)
                are_unique = True
            except sqlite3.IntegrityError:
                self._db.execute(_KEY_INDEX.replace("UNIQUE ", ""))
                are_unique = False
            return None if self._old is None or not self._old.is_file() else self._keep(self._old, shards, are_unique)
        finally:
            self._db.close()

    def _keep(self, old: Path, shards: "Sequence[SeenFile]", are_unique: bool) -> str | None:
        """Copy the media metadata of the database `old`. Return a note if they could not be kept."""
        try:
            self._db.execute("ATTACH ? AS old", (f"{old.absolute().as_uri()}?mode=ro&immutable=1",))
            tables = dict(self._db.execute("SELECT name, sql FROM old.sqlite_master WHERE type = 'table'"))
            if not {"samples", "sample_parts", "media_metadata"} <= tables.keys():  # no metadata, or an older layout
                return None
            if not are_unique:
                ((number,),) = self._db.execute("SELECT COUNT(*) FROM old.media_metadata")
                return f"the metadata of {number:,} media files, which go by key, were not kept" if number else None
            self._db.execute("BEGIN")
            self._copy_media(tables, shards)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):  # in the new database, such as a full disk
                    raise
            return f"{old.name} was damaged ({error}): the metadata of media in it were not kept; prepare them again"
        return None

    def _copy_media(self, tables: dict[str, str], shards: "Sequence[SeenFile]") -> None:
        kept = [name for name in ("media_metadata", "media_filters", "bridge_media_seen") if name in tables]
        for name in kept:
            self._db.execute(tables[name])
        self._db.execute(_MEDIA_KEPT)
        if "media_filters" in kept:
            self._db.execute("INSERT INTO media_filters SELECT * FROM old.media_filters")
        if "bridge_media_seen" in kept:
            rows = ((as_text(name), size, changed, number) for number, (name, size, changed) in enumerate(shards))
            self._db.executemany(_SEEN_KEPT, rows)

    def close(self) -> None:
        """Close without finishing."""
        self._db.close()


class SeenFile(NamedTuple):
    """A shard, or a file of a plain folder, as of its last read."""

    name: str
    num_bytes: int
    mtime_ns: int


_KEYS_OF_SHARD = """
SELECT s.sample_key || '.' || p.part_name, p.content_byte_offset, p.content_byte_size FROM samples s
JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index
WHERE s.tar_file_id = ?
"""


def update_copy(
    path: Path, old: Path, replaced: Mapping[int, str], rows: Iterable[tuple[int, Segment]], num_samples: int
) -> bool:
    """Write a copy of the database `old` to `path`, with the rows of the shards `replaced` (names by number) replaced
    by `rows`, so that it holds `num_samples`. Metadata of unchanged media are kept.

    Return False, with a useless file at `path`, if this is not possible: keys would not be unique, `old` is damaged, or
    no `SqliteIndexWriter` wrote it.
    """
    clone_file(old, path)
    with contextlib.closing(_connect(path, _UPDATE_CACHE_KIB)) as db:
        try:
            db.execute("PRAGMA journal_mode = OFF")
            created = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
            if not {_KEY_INDEX, *_ROW_INDEXES, *map(str.strip, _TABLES.split(";"))} - {""} <= set(created.values()):
                return False
            db.execute("BEGIN")
            _replace_rows(db, replaced, rows, created)
            db.execute("COMMIT")
            return bool(db.execute("SELECT COUNT(*) FROM samples").fetchone() == (num_samples,))
        except sqlite3.OperationalError:  # in the copy, such as a full disk
            raise
        except sqlite3.DatabaseError:
            return False


def _replace_rows(
    db: sqlite3.Connection,
    replaced: Mapping[int, str],
    rows: Iterable[tuple[int, Segment]],
    created: Mapping[str, str],
) -> None:
    keeps_media = "media_metadata" in created
    db.execute("CREATE TEMP TABLE before (entry_key TEXT, byte_offset INTEGER, byte_size INTEGER)")
    for number in replaced:
        if keeps_media:
            db.execute(f"INSERT INTO before {_KEYS_OF_SHARD}", (number,))
        db.execute("DELETE FROM samples WHERE tar_file_id = ?", (number,))
        db.execute("DELETE FROM sample_parts WHERE tar_file_id = ?", (number,))
    for number, segment in rows:
        _insert_shard(db, number, segment)
    if not keeps_media:
        return
    db.execute("CREATE TEMP TABLE after AS SELECT * FROM before WHERE 0")
    for number in replaced:
        db.execute(f"INSERT INTO after {_KEYS_OF_SHARD}", (number,))
    gone = "SELECT entry_key FROM (SELECT * FROM before EXCEPT SELECT * FROM after)"
    db.execute(f"DELETE FROM media_metadata WHERE entry_key IN ({gone})")
    if "bridge_media_seen" in created:
        names = ((as_text(name),) for name in replaced.values())
        db.executemany("DELETE FROM bridge_media_seen WHERE name = CAST(? AS TEXT)", names)
