"""Writing `.nv-meta/index.sqlite`: samples and parts by key, and media metadata.

Enters: segments; what was found in media. Leaves: Energon 7.4's tables `samples` and `sample_parts` with their indexes,
`media_metadata` and `media_filters`, and beside them `bridge_media_seen`, which Energon ignores: which shards and files
were read, with size and time. Guarantee: media metadata appear as a whole, with what the database held before,
or not at all.

The index on keys is built once all rows are in, which is what keeps a billion of them affordable. It is unique, as
Energon's, if they are. The other indexes have the order of the rows and grow at their end, while shards are still being
scanned.
"""

import contextlib
import functools
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bridge_data.errors import DatasetError, bridge_command
from bridge_data.prepare.commit import preparing_alone
from bridge_data.shards.key_index import SharedKeys
from bridge_data.shards.media_metadata import MediaMetadata, encode_metadata
from bridge_data.shards.metadata import read_shard_counts
from bridge_data.shards.read_only_database import ReadOnlyDatabase, as_text
from bridge_data.shards.segment import Segment
from bridge_data.storage.atomic import replacing, writing

if TYPE_CHECKING:
    from bridge_data.prepare.media_rule import MediaRule


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
def _insertion(table: str, num_rows: int, *, undecodable: bool = False) -> str:
    row = "(?, CAST(? AS TEXT), CAST(? AS TEXT), ?, ?)" if undecodable else "(?, ?, ?, ?, ?)"
    return f"INSERT INTO {table} VALUES {', '.join([row] * num_rows)}"


class SqliteIndexWriter:
    """Writes a new database at `path`. A crash leaves it useless: give it a temporary path.

    Media metadata in the database `old` are kept, if it has any: those of parts with the same offset and size as
    before, in samples of the same key. `old` may be damaged, as it is being replaced.
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
        self._old = old
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
                try:
                    self._db.execute(_insertion(table, len(these) // 5), these)
                except UnicodeEncodeError:  # names with surrogates
                    bound = [as_text(value) if isinstance(value, str) else value for value in these]
                    self._db.execute(_insertion(table, len(these) // 5, undecodable=True), bound)

    def finish(self, shards: "Sequence[SeenFile]" = ()) -> str | None:
        """Build the index on keys, take over media metadata and close. `shards` are those that were added, by number:
        if one is not as it was when it was last looked at, it will be looked at again. A note, if metadata could not be
        kept: they go by key, so keys must be unique."""
        try:
            self._db.execute("COMMIT")
            self._db.execute("PRAGMA journal_mode = MEMORY")  # without a journal, a failed statement leaves traces
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
        """Take over the media metadata of the database `old`; a note, if they could not be kept."""
        try:
            self._db.execute("ATTACH ? AS old", (f"{old.absolute().as_uri()}?mode=ro&immutable=1",))
            tables = dict(self._db.execute("SELECT name, sql FROM old.sqlite_master WHERE type = 'table'"))
            if not {"samples", "sample_parts", "media_metadata"} <= tables.keys():  # none, or of an older layout
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
                if isinstance(error, sqlite3.OperationalError):  # of the new database, such as a full disk
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
    """See that the keys in the database at `path` are unique, as the metadata of media go by them."""
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
    """The tables in the database at `path`, which is replaced by the result when the block ends well.

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
