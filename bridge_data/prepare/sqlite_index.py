"""`index.sqlite`: samples and parts by key, for Energon's joins and auxiliary data.

Enters: segments. Leaves: Energon 7.4's tables: `samples` and `sample_parts`, with its indexes. Keys are unique over
the data set; the index on them is built once all rows are in, which is what keeps a billion of them affordable. The
other indexes have the order of the rows and grow at their end, while shards are still being scanned.
"""

import functools
import sqlite3
from collections.abc import Iterator
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bridge_data.shards.bridge_index import Segment

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
"""Rows that are in memory at a time."""


@functools.cache
def _insertion(table: str, num_rows: int) -> str:
    return f"INSERT INTO {table} VALUES {', '.join(['(?, ?, ?, ?, ?)'] * num_rows)}"


class DuplicateKey(NamedTuple):
    """A key that two shards, by their numbers, have."""

    key: str
    shards: tuple[int, int]


class SqliteIndexWriter:
    """Writes a new database at `path`. A crash leaves it useless: give it a temporary path.

    Media metadata in the database `old` are kept, if it has any: those of parts that lie where they lay, as large as
    they were, in samples of the same key.
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
        offsets = segment.offsets.tolist()
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
