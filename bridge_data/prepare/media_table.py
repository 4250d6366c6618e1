"""The tables of media metadata in `.nv-meta/index.sqlite`, while `prepare-media` writes them.

Enters: what was found in media. Leaves: `media_metadata` and `media_filters`, as in Energon 7.4, and
`bridge_media_seen`, which Energon ignores: which shards and files were read, with size and time. Guarantee: metadata
appear all together, with what the database held before, or not at all.
"""

import contextlib
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bridge_data.errors import DatasetError, bridge_command
from bridge_data.prepare.commit import preparing_alone
from bridge_data.prepare.sqlite_index import SeenFile
from bridge_data.shards.key_index import SharedKeys
from bridge_data.shards.media_metadata import MediaMetadata, encode_metadata
from bridge_data.shards.metadata import read_shard_counts
from bridge_data.shards.read_only_database import ReadOnlyDatabase, as_text
from bridge_data.storage.atomic import replacing, writing

if TYPE_CHECKING:
    from bridge_data.prepare.media_rule import MediaRule

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
        """Whether `file` was read by this rule and has not changed since. Notes it as present."""
        self._db.execute("INSERT INTO present VALUES (CAST(? AS TEXT))", (as_text(file.name),))
        row = self._db.execute(
            "SELECT num_bytes, mtime_ns, rule FROM bridge_media_seen WHERE name = CAST(? AS TEXT)",
            (as_text(file.name),),
        ).fetchone()
        return bool(row == (file.num_bytes, file.mtime_ns, self._rule))

    def forget_shard(self, number: int) -> None:
        """Remove what was found in the shard with this number in the index."""
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'").fetchone():
            self._db.execute(f"DELETE FROM media_metadata WHERE entry_key IN ({_KEYS_OF_SHARD})", (number,))

    def forget_files(self, names: Iterable[str]) -> None:
        """Remove what was found in these files."""
        self._db.executemany(
            "DELETE FROM media_metadata WHERE entry_key = CAST(? AS TEXT)", ((as_text(name),) for name in names)
        )

    def add(self, found: Iterable[tuple[str, MediaMetadata]]) -> None:
        """Write what was found, by key."""
        self._db.executemany(
            "INSERT OR REPLACE INTO media_metadata VALUES (CAST(? AS TEXT), ?, ?)",
            ((as_text(key), metadata.metadata_type, encode_metadata(metadata)) for key, metadata in found),
        )

    def note_seen(self, files: Iterable[SeenFile]) -> None:
        """Note that these were read."""
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


def _check_unique(path: Path) -> None:
    """Ensure that the keys in the database at `path` are unique: media metadata are stored by key."""
    root = path.parent.parent
    shared = SharedKeys.find(ReadOnlyDatabase(path, "prepare the data set again"))
    if shared is not None:
        way_out = bridge_command("prepare", root, "--force-overwrite", "--fix-duplicates")
        raise DatasetError(
            f"{root}: {shared.told(list(read_shard_counts(path.parent)))}, but media metadata go by key. Run "
            f"`{way_out}` first, which puts the shard's name in front of each key."
        )


@contextlib.contextmanager
def writing_media(path: Path, rule: "MediaRule") -> Iterator[MediaTable]:
    """The tables in the database at `path`, which is replaced by the result if the block succeeds.

    Raises:
        DatasetError: if samples of several shards have the same key, or the database cannot be read or written.
    """
    with writing(path.parent), preparing_alone(path.parent.parent) as remove_temporary:
        path.parent.mkdir(exist_ok=True)
        remove_temporary([path.parent])
        if path.is_file():
            _check_unique(path)
        with replacing(path) as temporary:
            if path.is_file():
                shutil.copyfile(path, temporary)
            with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as db:
                db.execute("PRAGMA journal_mode = OFF")
                db.execute("PRAGMA synchronous = OFF")
                yield MediaTable(db, rule)
                db.execute("COMMIT")
