"""Writing media metadata into `.nv-meta/index.sqlite`.

Enters: what was found in shards and files. Leaves: Energon's tables `media_metadata` and `media_filters`, and beside
them `bridge_media_seen`, which Energon ignores: which shards and files were looked at, and as they were then.
Guarantee: the database appears whole, with what it held before, or not at all.
"""

import contextlib
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bridge_data.prepare.media_rules import MediaRule
from bridge_data.shards.media_metadata import MediaMetadata, encode_metadata
from bridge_data.storage.atomic import replacing, writing

_TABLES = """
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


class SeenFile(NamedTuple):
    """A shard, or a file of a plain folder, as it was when it was looked at."""

    name: str
    num_bytes: int
    mtime_ns: int


class MediaTable:
    """The tables, open for writing; see `writing_media`."""

    def __init__(self, db: sqlite3.Connection, rule: MediaRule) -> None:
        self._db, self._rule = db, str(rule)
        db.executescript(_TABLES)
        db.execute("BEGIN")
        db.execute(
            "INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)",
            (rule.strategy, ",".join(rule.patterns)),
        )

    def is_known(self, file: SeenFile) -> bool:
        """Whether `file` was looked at by this rule, as it is now. It is noted as present."""
        self._db.execute("INSERT INTO present VALUES (?)", (file.name,))
        row = self._db.execute(
            "SELECT num_bytes, mtime_ns, rule FROM bridge_media_seen WHERE name = ?", (file.name,)
        ).fetchone()
        return row == (file.num_bytes, file.mtime_ns, self._rule)

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
        """Remember that these were looked at."""
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
def writing_media(path: Path, rule: MediaRule) -> Iterator[MediaTable]:
    """The tables in the database at `path`, which is replaced by the result when the block ends well.

    Raises:
        DatasetError: if it cannot be written.
    """
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
