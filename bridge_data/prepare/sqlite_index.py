"""Writing `.nv-meta/index.sqlite`: samples and parts by key.

Reads segments. Writes Energon 7.4's tables `samples` and `sample_parts` with their indexes. A new index keeps the
metadata of media that are where they were (`media_metadata`, `media_filters`, and `bridge_media_seen`, which Energon
ignores). If few shards differ, it is a copy of the old one with their rows replaced.

The index on keys is built after all rows are inserted, which keeps a billion of them affordable. It is UNIQUE, as in
Energon, if all keys are. The other indexes have the order of the rows and grow at their end.
"""

import contextlib
import fcntl
import functools
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bridge_data.data.index_file import Segment
from bridge_data.data.key_index import as_text

_FICLONE = 0x40049409

_TABLES = (
    """CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL,
    sample_key TEXT NOT NULL,
    sample_index INTEGER NOT NULL,
    byte_offset INTEGER,
    byte_size INTEGER
)""",
    """CREATE TABLE sample_parts (
    tar_file_id INTEGER,
    sample_index INTEGER,
    part_name TEXT,
    content_byte_offset INTEGER,
    content_byte_size INTEGER
)""",
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    "CREATE INDEX idx_sample_parts_full ON sample_parts"
    "(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)",
)

_KEY_INDEX = "CREATE UNIQUE INDEX idx_samples_sample_key ON samples(sample_key)"

FORGET_MEDIA = """
DELETE FROM media_metadata WHERE entry_key IN (
    SELECT s.sample_key || '.' || p.part_name FROM samples s
    JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index
    WHERE s.tar_file_id = ?
)
"""
"""Removes the metadata of the media in a shard, by its number."""

_PARTS_OF_SHARD = """
main.samples s
CROSS JOIN main.sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index
"""

_SAME_PART = """
old.samples t
CROSS JOIN old.sample_parts q ON q.tar_file_id = t.tar_file_id AND q.sample_index = t.sample_index
    AND q.part_name = p.part_name
    AND q.content_byte_offset = p.content_byte_offset AND q.content_byte_size = p.content_byte_size
"""

_KEEP_MEDIA = f"""
INSERT INTO media_metadata SELECT m.entry_key, m.metadata_type, m.metadata_json
FROM {_PARTS_OF_SHARD}
CROSS JOIN old.media_metadata m ON m.entry_key = s.sample_key || '.' || p.part_name
WHERE s.tar_file_id = ? AND EXISTS (SELECT 1 FROM {_SAME_PART} WHERE t.sample_key = s.sample_key)
"""

_KEEP_SEEN = f"""
INSERT INTO bridge_media_seen SELECT * FROM old.bridge_media_seen
WHERE name = CAST(? AS TEXT) AND num_bytes = ? AND mtime_ns = ? AND NOT EXISTS (
    SELECT 1 FROM {_PARTS_OF_SHARD}
    WHERE s.tar_file_id = ? AND NOT EXISTS (SELECT 1 FROM {_SAME_PART} WHERE t.sample_key = s.sample_key)
)
"""

_BUILD_CACHE_KIB = 4 * 1024
"""Memory for pages of a new database, whose rows are appended, and for sorting its keys."""

_UPDATE_CACHE_KIB = 32 * 1024
"""The same for a copy: keys of new rows may go anywhere in the index, so pages are read again."""

_ROWS = 64
"""Maximum rows per INSERT: twice as fast as one by one."""


class SeenFile(NamedTuple):
    """A shard, or a file of a plain folder, as of its last read."""

    name: str
    num_bytes: int
    mtime_ns: int


class SqliteIndexWriter:
    """Writes a database at `path`. A crash leaves the file useless, so pass a temporary path.

    It begins empty or, with `replaced`, as a copy of the database `old` without the rows of these shards (names by
    number). Metadata of media in `old`, if any, are kept for parts with the same offset and size as before, in samples
    of the same key.

    Raises:
        sqlite3.DatabaseError: from any method, if `old` cannot be copied, as it is damaged, or not as it is written
            here, or keys of the copy would not be unique. sqlite3.OperationalError: if `path` cannot be written.
    """

    def __init__(self, path: Path, old: Path | None = None, replaced: Mapping[int, str] | None = None) -> None:
        self._old, self._is_copy = old, replaced is not None
        self._added: list[tuple[int, SeenFile]] = []
        if old is not None and replaced is not None:
            clone_file(old, path)
        else:
            path.touch()  # its error says why a file cannot be written, SQLite's does not
        self._db = db = sqlite3.connect(path, isolation_level=None, uri=True)
        for setting in ("journal_mode = OFF", "synchronous = OFF", "secure_delete = OFF", "locking_mode = EXCLUSIVE"):
            db.execute(f"PRAGMA {setting}")
        db.execute(f"PRAGMA cache_size = -{_UPDATE_CACHE_KIB if self._is_copy else _BUILD_CACHE_KIB}")
        if replaced is None:
            for statement in _TABLES:
                db.execute(statement)
            db.execute("BEGIN")
            return
        created = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        if not {*_TABLES, _KEY_INDEX} <= set(created.values()):
            raise sqlite3.DatabaseError("it was written by another program, or keys are not unique")
        db.execute("BEGIN")
        for number, name in replaced.items():
            if "media_metadata" in created:
                db.execute(FORGET_MEDIA, (number,))
            if "bridge_media_seen" in created:
                db.execute("DELETE FROM bridge_media_seen WHERE name = CAST(? AS TEXT)", (as_text(name),))
            for table in ("samples", "sample_parts"):
                db.execute(f"DELETE FROM {table} WHERE tar_file_id = ?", (number,))

    def add(self, number: int, file: SeenFile, segment: Segment) -> None:
        """Insert the samples of the shard `file`, which has this number."""
        self._added.append((number, file))
        first = 0
        for page in segment.pages():
            num_samples = len(page)
            offsets = page.offsets.tolist()
            sizes = [end - start for start, end in pairwise(offsets)]
            numbers = range(first, first + num_samples)
            self._insert("samples", number, (page.keys(0, num_samples - 1), numbers, offsets[:-1], sizes))
            owners, names, starts, lengths = page.part_columns()
            self._insert("sample_parts", number, ([first + owner for owner in owners], names, starts, lengths))
            first += num_samples

    def _insert(self, table: str, shard: int, columns: Sequence[Sequence[Any]]) -> None:
        """Insert rows of the shard number and four values, given as columns."""
        values: list[Any] = [shard] * (5 * len(columns[0]))
        for number, column in enumerate(columns, start=1):
            values[number::5] = column
        for start in range(0, len(values), 5 * _ROWS):
            these = values[start : start + 5 * _ROWS]
            try:
                self._db.execute(_insertion(table, len(these) // 5), these)
            except UnicodeEncodeError:  # names with surrogates
                bound = [as_text(value) if isinstance(value, str) else value for value in these]
                self._db.execute(_insertion(table, len(these) // 5, "CAST(? AS TEXT)"), bound)

    def finish(self, num_samples: int) -> str | None:
        """Build the index on keys, copy media metadata and close; the database must hold `num_samples`. Media of shards
        that have changed will be read again. Returns a note if metadata could not be kept: they are stored by key, so
        keys must be unique."""
        db, are_unique = self._db, True
        with contextlib.closing(db):
            db.execute("COMMIT")
            if self._is_copy:
                if db.execute("SELECT COUNT(*) FROM samples").fetchone() != (num_samples,):
                    raise sqlite3.DatabaseError("it had other samples")
            else:
                db.execute("PRAGMA journal_mode = MEMORY")  # without a journal, a failed statement is not undone
                try:
                    db.execute(_KEY_INDEX)
                except sqlite3.IntegrityError:
                    db.execute(_KEY_INDEX.replace("UNIQUE ", ""))
                    are_unique = False
            return None if self._old is None else self._keep_media(self._old, are_unique)

    def _keep_media(self, old: Path, are_unique: bool) -> str | None:
        """Copy the media metadata of the database `old`. Returns a note if they could not be kept."""
        db = self._db
        try:
            db.execute("ATTACH ? AS old", (f"{old.absolute().as_uri()}?mode=ro&immutable=1",))
            tables = dict(db.execute("SELECT name, sql FROM old.sqlite_master WHERE type = 'table'"))
            if not {"samples", "sample_parts", "media_metadata"} <= tables.keys():  # no metadata, or an older layout
                return None
            if not are_unique:
                ((number,),) = db.execute("SELECT COUNT(*) FROM old.media_metadata")
                return f"the metadata of {number:,} media files, which go by key, were not kept" if number else None
            db.execute("BEGIN")
            if not self._is_copy:
                for name in ("media_metadata", "media_filters", "bridge_media_seen"):
                    db.execute(tables.get(name, ""))
                if "media_filters" in tables:
                    db.execute("INSERT INTO media_filters SELECT * FROM old.media_filters")
            db.executemany(_KEEP_MEDIA, [(number,) for number, _ in self._added])
            if "bridge_media_seen" in tables:
                seen = ((as_text(name), size, changed, number) for number, (name, size, changed) in self._added)
                db.executemany(_KEEP_SEEN, seen)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._is_copy:
                raise
            if db.in_transaction:
                db.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):  # in the new database, such as a full disk
                    raise
            return f"{old.name} was damaged ({error}): the metadata of media in it were not kept; prepare them again"
        return None

    def close(self) -> None:
        """Close without finishing."""
        self._db.close()


@functools.cache
def _insertion(table: str, num_rows: int, text: str = "?") -> str:
    return f"INSERT INTO {table} VALUES {', '.join([f'(?, {text}, {text}, ?, ?)'] * num_rows)}"


def clone_file(source: Path, path: Path) -> None:
    """Copy a file, by sharing its blocks if the file system can, which takes no time."""
    with open(source, "rb") as original, open(path, "wb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), _FICLONE, original.fileno())
        except OSError:
            shutil.copyfile(source, path)
