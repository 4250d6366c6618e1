"""The tables of media in `.nv-meta/index.sqlite`: metadata by key, and which shards and files were read for them.

Reads what was found in media. Writes Energon 7.4's tables `media_metadata` and `media_filters`, and
`bridge_media_seen`, which Energon ignores: which shards and files were read, by which rule, with size and time. They
appear all together, with what the database held before, or not at all.
"""

import contextlib
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from bridge_data.data.key_index import ReadOnlyDatabase, SharedKeys, as_text
from bridge_data.data.metadata import read_shard_counts
from bridge_data.decode.media_metadata import MediaMetadata, encode_metadata
from bridge_data.errors import DatasetError, bridge_command
from bridge_data.plugins.media.media_rule import MediaRule
from bridge_data.prepare.commit import preparing_alone
from bridge_data.prepare.sqlite_index import FORGET_MEDIA, SeenFile
from bridge_data.storage.atomic import replacing, writing

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


class MediaTable:
    """The tables of media, open for writing; see `writing_media`."""

    def __init__(self, db: sqlite3.Connection, rule: MediaRule) -> None:
        self._db, self._rule = db, str(rule)
        self.num_known = 0
        db.executescript(_MEDIA_TABLES)
        db.execute("BEGIN")
        db.execute(
            "INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)",
            (rule.strategy, ",".join(rule.patterns)),
        )

    def is_known(self, file: SeenFile) -> bool:
        """Whether `file` was read by this rule and has not changed since. Notes it as present, and counts it."""
        name = as_text(file.name)
        self._db.execute("INSERT INTO present VALUES (CAST(? AS TEXT))", (name,))
        seen = "SELECT num_bytes, mtime_ns, rule FROM bridge_media_seen WHERE name = CAST(? AS TEXT)"
        is_known: bool = self._db.execute(seen, (name,)).fetchone() == (file.num_bytes, file.mtime_ns, self._rule)
        self.num_known += is_known
        return is_known

    def forget_shard(self, number: int) -> None:
        """Remove what was found in the shard with this number in the index."""
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'").fetchone():
            self._db.execute(FORGET_MEDIA, (number,))

    def forget_file(self, name: str) -> None:
        """Remove what was found in this file."""
        self._db.execute("DELETE FROM media_metadata WHERE entry_key = CAST(? AS TEXT)", (as_text(name),))

    def add(self, files: Iterable[SeenFile], found: Iterable[tuple[str, MediaMetadata]]) -> None:
        """Note that these files were read, and write what was found, by key."""
        self._db.executemany(
            "INSERT OR REPLACE INTO media_metadata VALUES (CAST(? AS TEXT), ?, ?)",
            ((as_text(key), metadata.metadata_type, encode_metadata(metadata)) for key, metadata in found),
        )
        self._db.executemany(
            "INSERT OR REPLACE INTO bridge_media_seen VALUES (CAST(? AS TEXT), ?, ?, ?)",
            ((as_text(file.name), file.num_bytes, file.mtime_ns, self._rule) for file in files),
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
    """The tables of media in the database at `path`, which is replaced by the result if the block succeeds.

    Raises:
        DatasetError: if samples of several shards have the same key, or the database cannot be read or written.
    """
    root = path.parent.parent
    with writing(path.parent), preparing_alone(root) as remove_temporary:
        path.parent.mkdir(exist_ok=True)
        remove_temporary([path.parent])
        shared = SharedKeys.find(ReadOnlyDatabase(path, "prepare the data set again")) if path.is_file() else None
        if shared is not None:
            fix_command = bridge_command("prepare", root, "--force-overwrite", "--fix-duplicates")
            raise DatasetError(
                f"{root}: {shared.in_words(list(read_shard_counts(path.parent)))}, but media metadata go by key. Run "
                f"`{fix_command}` first, which puts the shard's name in front of each key."
            )
        with replacing(path) as temporary:
            if path.is_file():
                shutil.copyfile(path, temporary)
            with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as db:
                db.execute("PRAGMA journal_mode = OFF")
                db.execute("PRAGMA synchronous = OFF")
                yield MediaTable(db, rule)
                db.execute("COMMIT")
