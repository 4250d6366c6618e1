"""Writing `.nv-meta/index.sqlite`: samples and parts by key, and media metadata.

Enters: segments; what was found in media. Leaves: Energon 7.4's tables `samples` and `sample_parts` with their indexes,
`media_metadata` and `media_filters`, and beside them `bridge_media_seen`, which Energon ignores: which shards and files
were read, with size and time. Guarantee: media metadata appear as a whole, with what the database held before,
or not at all.

Keys are unique over the data set; the index on them is built once all rows are in, which is what keeps a billion of
them affordable. The other indexes have the order of the rows and grow at their end, while shards are still being
scanned.
"""

import contextlib
import functools
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bridge_data.shards.media_metadata import MediaMetadata, encode_metadata
from bridge_data.shards.segment import Segment
from bridge_data.storage.atomic import replacing, writing

if TYPE_CHECKING:
    from bridge_data.prepare.media import MediaRule


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

_CACHE_KIB = 256 * 1024

_ROWS = 50
"""Rows that are inserted by one statement: twice as fast as one by one."""

_BATCH = 40 * _ROWS
"""Rows in memory at a time."""

_MEDIA_TABLES = """
CREATE TABLE IF NOT EXISTS media_metadata (
    entry_key TEXT PRIMARY KEY,
    metadata_type TEXT NOT NULL,
    metadata_json TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS media_filters (
    filter_id INTEGER PRIMARY KEY AUTOINCREMENT,
    strategy TEXT NOT NULL,
    patterns TEXT,
    created_at_utc TEXT DEFAULT CURRENT_TIMESTAMP,
    UNIQUE(strategy, patterns)
);
CREATE TABLE IF NOT EXISTS bridge_media_seen (
    name TEXT PRIMARY KEY,
    num_bytes INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    rule TEXT NOT NULL
) WITHOUT ROWID;
CREATE TEMP TABLE present (name TEXT PRIMARY KEY) WITHOUT ROWID;
"""

_KEYS_OF_SHARD = """
SELECT s.sample_key || '.' || p.part_name FROM samples s
JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index
WHERE s.tar_file_id = ?
"""


@functools.cache
def _insertion(table: str, num_rows: int) -> str:
    return f"INSERT INTO {table} VALUES {', '.join(['(?, ?, ?, ?, ?)'] * num_rows)}"


class DuplicateKey(NamedTuple):
    """A key that two shards, by their numbers, have."""

    key: str
    shards: tuple[int, int]


class SqliteIndexWriter:
    """Writes a new database at `path`. A crash leaves it useless: give it a temporary path.

    Media metadata in the database `old` are kept, if it has any: those of parts with the same offset and size as
    before, in samples of the same key.
    """

    def __init__(self, path: Path, old: Path | None = None) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, uri=True)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("PRAGMA secure_delete = OFF")
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._db.executescript(_TABLES)
        for statement in _ROW_INDEXES:
            self._db.execute(statement)
        if old is not None and old.is_file():
            self._db.execute("ATTACH ? AS old", (f"{old.absolute().as_uri()}?mode=ro&immutable=1",))
        self._db.execute("BEGIN")

    def add(self, shard: int, segment: Segment) -> None:
        """Insert the samples of shard number `shard`."""
        offsets = segment.offsets().tolist()
        sizes = [end - start for start, end in pairwise(offsets)]
        self._insert("samples", shard, zip(segment.keys(), range(len(segment)), offsets, sizes, strict=False))
        self._insert("sample_parts", shard, segment.rows())

    def _insert(self, table: str, shard: int, rows: Iterator[tuple[Any, ...]]) -> None:
        """Insert rows of the shard's number and four values."""
        while some := list(chain.from_iterable(islice(rows, _BATCH))):
            values: list[Any] = [shard] * (len(some) // 4 * 5)
            for column in range(4):
                values[column + 1 :: 5] = some[column::4]
            for start in range(0, len(values), 5 * _ROWS):
                these = values[start : start + 5 * _ROWS]
                self._db.execute(_insertion(table, len(these) // 5), these)

    def finish(self) -> DuplicateKey | None:
        """Build the index on keys and close; a key that is not unique, if there is one."""
        try:
            self._db.execute(_KEY_INDEX)
            self._keep_media()
            self._db.execute("COMMIT")
        except sqlite3.IntegrityError:
            key, first, last = self._db.execute(
                "SELECT sample_key, MIN(tar_file_id), MAX(tar_file_id) FROM samples "
                "GROUP BY sample_key HAVING COUNT(*) > 1 LIMIT 1"
            ).fetchone()
            return DuplicateKey(key, (first, last))
        finally:
            self._db.close()
        return None

    def _keep_media(self) -> None:
        """Take over the media metadata of the old database, where it has them and is of today's layout."""
        if all(name != "old" for _, name, _ in self._db.execute("PRAGMA database_list")):
            return
        try:
            tables = dict(self._db.execute("SELECT name, sql FROM old.sqlite_master WHERE type = 'table'"))
        except sqlite3.DatabaseError:  # damaged: it is being replaced
            return
        if not {"samples", "sample_parts", "media_metadata"} <= tables.keys():
            return
        kept = [name for name in ("media_filters", "bridge_media_seen") if name in tables]
        for name in ("media_metadata", *kept):
            self._db.execute(tables[name])
        self._db.execute(_MEDIA_KEPT)
        for name in kept:
            self._db.execute(f"INSERT INTO {name} SELECT * FROM old.{name}")

    def close(self) -> None:
        """Close without finishing."""
        self._db.close()


class SeenFile(NamedTuple):
    """A shard, or a file of a plain folder, as it was when it was read."""

    name: str
    num_bytes: int
    mtime_ns: int


class MediaTable:
    """The tables, open for writing; see `writing_media`."""

    def __init__(self, db: sqlite3.Connection, rule: "MediaRule") -> None:
        self._db, self._rule = db, str(rule)
        db.executescript(_MEDIA_TABLES)
        db.execute("BEGIN")
        db.execute(
            "INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)",
            (rule.strategy, ",".join(rule.patterns)),
        )

    def is_known(self, file: SeenFile) -> bool:
        """Whether `file` was read by this rule and has not changed since. It is noted as present."""
        self._db.execute("INSERT INTO present VALUES (?)", (file.name,))
        row = self._db.execute(
            "SELECT num_bytes, mtime_ns, rule FROM bridge_media_seen WHERE name = ?", (file.name,)
        ).fetchone()
        return bool(row == (file.num_bytes, file.mtime_ns, self._rule))

    def forget_shard(self, number: int) -> None:
        """Remove what was found in the shard with this number in the index."""
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'").fetchone():
            self._db.execute(f"DELETE FROM media_metadata WHERE entry_key IN ({_KEYS_OF_SHARD})", (number,))

    def forget_files(self, names: Iterable[str]) -> None:
        """Remove what was found in these files."""
        self._db.executemany("DELETE FROM media_metadata WHERE entry_key = ?", ((name,) for name in names))

    def add(self, found: Iterable[tuple[str, MediaMetadata]]) -> None:
        """Write what was found, by key."""
        self._db.executemany(
            "INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)",
            ((key, metadata.metadata_type, encode_metadata(metadata)) for key, metadata in found),
        )

    def note_seen(self, files: Iterable[SeenFile]) -> None:
        """Note that these were read."""
        self._db.executemany(
            "INSERT OR REPLACE INTO bridge_media_seen VALUES (?, ?, ?, ?)", ((*file, self._rule) for file in files)
        )

    def forget_absent(self) -> None:
        """Remove what was found by this rule in the files of a plain folder that are no longer there."""
        absent = "SELECT name FROM bridge_media_seen WHERE rule = ? AND name NOT IN (SELECT name FROM present)"
        self._db.execute(f"DELETE FROM media_metadata WHERE entry_key IN ({absent})", (self._rule,))
        self._db.execute(f"DELETE FROM bridge_media_seen WHERE name IN ({absent})", (self._rule,))

    def count(self) -> int:
        """Files whose metadata are stored."""
        number: int = self._db.execute("SELECT COUNT(*) FROM media_metadata").fetchone()[0]
        return number


@contextlib.contextmanager
def writing_media(path: Path, rule: "MediaRule") -> Iterator[MediaTable]:
    """The tables in the database at `path`, which is replaced by the result when the block ends well."""
    with writing(path.parent):
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as temporary:
            if path.is_file():
                shutil.copyfile(path, temporary)
            with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as db:
                db.execute("PRAGMA journal_mode = OFF")
                db.execute("PRAGMA synchronous = OFF")
                yield MediaTable(db, rule)
                db.execute("COMMIT")
