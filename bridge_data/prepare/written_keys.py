"""The keys of the samples that a writer has stored, with the shard of each, in bounded memory.

Enters: keys with their shards, one by one. Leaves: whether a key is among them, and its shard. Recent keys are in a
dict; all others in an SQLite file, which is removed at the end. A filter in memory answers for most new keys without
reading the file: for nine of ten, up to ten million keys.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bridge_data.shards.read_only_database import as_text
from bridge_data.storage.atomic import temporary_name, writing

MAX_RECENT = 65_536
"""Maximum keys in memory. They are sorted before they are stored, so several go to one page of the file."""

_FILTER_BYTES = 8 << 20

_CACHE_KIB = 8 * 1024

_ROWS = 200
"""Keys per INSERT."""

_TABLES = """
CREATE TABLE keys (key TEXT PRIMARY KEY, shard INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE items (key TEXT PRIMARY KEY, item INTEGER NOT NULL, num_samples INTEGER NOT NULL) WITHOUT ROWID;
"""


class ItemOrigin(NamedTuple):
    """What a sample was made from: the number of an item, and how many samples were made from it."""

    number: int
    num_samples: int


class ItemSet:
    """Numbers of items, a bit for each."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._count = 0

    def add(self, number: int) -> None:
        """Add a number that is not in the set."""
        at = number >> 3
        if at >= len(self._bits):
            self._bits.extend(bytes(at + 1 + at // 2 - len(self._bits)))
        self._bits[at] |= 1 << (number & 7)
        self._count += 1

    def __contains__(self, number: int) -> bool:
        at = number >> 3
        return at < len(self._bits) and bool(self._bits[at] & 1 << (number & 7))

    def __len__(self) -> int:
        return self._count


class WrittenKeys:
    """Keys, and the number of the shard of each; with many, in a file in `folder`, whose disk may be full.

    Raises:
        DatasetError: from any method, if the file cannot be written or read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / temporary_name("keys.sqlite")
        self._db: sqlite3.Connection | None = None
        self._filter = bytearray(_FILTER_BYTES)
        self._recent: dict[str, int] = {}

    def close(self) -> None:
        """Forget all keys, and remove the file."""
        self._recent = {}
        if self._db is not None:
            self._db.close()
            self._db = None
            self._path.unlink(missing_ok=True)

    def add(self, key: str, shard: int) -> None:
        """Add a key that is not there yet."""
        number = hash(key)
        self._filter[number % _FILTER_BYTES] |= 1 << (number >> 60 & 7)
        self._recent[key] = shard
        if len(self._recent) >= MAX_RECENT:
            self._store()

    def __contains__(self, key: str) -> bool:
        number = hash(key)
        if not self._filter[number % _FILTER_BYTES] & 1 << (number >> 60 & 7):
            return False
        return self.shard(key) is not None

    def shard(self, key: str) -> int | None:
        """The number of the shard of this key; None if it is not there."""
        shard = self._recent.get(key)
        if shard is not None or self._db is None:
            return shard
        row = self._found("SELECT shard FROM keys WHERE key = CAST(? AS TEXT)", key)
        return None if row is None else row[0]

    def note_items(self, items: Iterable[tuple[str, ItemOrigin]]) -> None:
        """Note the items of samples that an earlier writer stored."""
        rows = ((as_text(key), *item) for key, item in items)
        with self._transaction() as db:
            db.executemany("INSERT INTO items VALUES (CAST(? AS TEXT), ?, ?)", rows)

    def item(self, key: str) -> ItemOrigin | None:
        """The item noted for the sample with this key."""
        row = self._found("SELECT item, num_samples FROM items WHERE key = CAST(? AS TEXT)", key)
        return None if row is None else ItemOrigin(*row)

    def finished_items(self) -> ItemSet:
        """The items whose samples were all noted."""
        found = ItemSet()
        if self._db is None:
            return found
        with self._transaction() as db:
            for (item,) in db.execute(
                "SELECT item FROM items GROUP BY item, num_samples HAVING COUNT(*) = num_samples"
            ):
                found.add(item)
        return found

    def _found(self, query: str, key: str) -> Any:
        """The row of this key."""
        if self._db is None:
            return None
        with writing(self._folder):
            return self._db.execute(query, (as_text(key),)).fetchone()

    def _store(self) -> None:
        """Move the recent keys to the file."""
        by_shard: dict[int, list[str]] = {}
        for key, shard in self._recent.items():
            by_shard.setdefault(shard, []).append(key)
        with self._transaction() as db:
            for shard, keys in by_shard.items():
                keys.sort()
                for start in range(0, len(keys), _ROWS):
                    some = keys[start : start + _ROWS]
                    try:
                        db.execute(_insertion("?", shard, len(some)), some)
                    except UnicodeEncodeError:  # names with surrogates
                        db.execute(_insertion("CAST(? AS TEXT)", shard, len(some)), [*map(as_text, some)])
        self._recent = {}

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction on the file, which is created if missing; one for many statements is faster."""
        with writing(self._folder):
            if self._db is None:
                self._db = _created(self._path)
            self._db.execute("BEGIN")
            yield self._db
            self._db.execute("COMMIT")


def _insertion(key: str, shard: int, num_rows: int) -> str:
    return f"INSERT INTO keys VALUES {', '.join([f'({key}, {shard})'] * num_rows)}"


def _created(path: Path) -> sqlite3.Connection:
    """A new file without crash safety and locks: no one else uses it."""
    uri = f"{path.absolute().as_uri()}?nolock=1"
    db = sqlite3.connect(uri, isolation_level=None, uri=True, check_same_thread=False)
    db.execute("PRAGMA journal_mode = OFF")
    db.execute("PRAGMA synchronous = OFF")
    db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    db.executescript(_TABLES)
    return db
