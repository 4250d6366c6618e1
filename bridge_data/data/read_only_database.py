"""A read-only SQLite file, read by any thread and after forks; names that are not UTF-8 have surrogates.

Reads the path of the file, and queries. Returns rows. Raises `DatasetError`, which says how to fix it, for any error of
SQLite.
"""

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

from bridge_data.errors import DatasetError


def as_text(name: str) -> str | bytes:
    """`name` as a value for `CAST(? AS TEXT)`: with surrogates, the bytes that it stands for."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogateescape")
    return name


def text_of(data: bytes) -> str:
    """A name that is stored as `data`, with surrogates if that is not UTF-8."""
    return data.decode("utf-8", "surrogateescape")


class ReadOnlyDatabase:
    """The SQLite file at `file`, which no one writes to. `fix` ends the message if it cannot be read."""

    def __init__(self, file: Path, fix: str) -> None:
        self.file, self.fix = file, fix
        self.after_fork()
        forgetting_after_fork(self)

    def after_fork(self) -> None:
        """In a forked child: reconnect, with a lock that no thread of the parent can hold."""
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def rows(self, query: str, *values: object) -> list[Any]:
        """All rows that answer `query`."""
        with self._lock, self._reporting():
            if self._connection is None:
                self._connection = self._connect()
            return self._connection.execute(query, _bound(values)).fetchall()

    def stream(self, query: str, *values: object) -> Generator[Any, None, None]:
        """The same rows, one by one, over a separate connection."""
        with self._reporting(), contextlib.closing(self._connect()) as connection:
            yield from connection.execute(query, _bound(values))

    def has_table(self, name: str) -> bool:
        """Whether there is a table called `name`."""
        return bool(self.rows("SELECT 1 FROM sqlite_master WHERE name = ?", name))

    def _connect(self) -> sqlite3.Connection:
        """A connection that cannot write, takes no locks and may be used by any thread."""
        uri = f"{self.file.absolute().as_uri()}?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        connection.text_factory = text_of
        return connection

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter if a message names damaged text
            raise DatasetError(f"{self.file}: cannot be read: {error}; {self.fix}") from error

    def __reduce__(self) -> tuple[type["ReadOnlyDatabase"], tuple[Path, str]]:
        return ReadOnlyDatabase, (self.file, self.fix)


def _bound(values: tuple[object, ...]) -> list[object]:
    return [as_text(value) if isinstance(value, str) else value for value in values]


class _Forked(Protocol):
    def after_fork(self) -> None:
        """Reopen what a child must not share with its parent."""


_in_use: "weakref.WeakSet[_Forked]" = weakref.WeakSet()


def forgetting_after_fork(one: _Forked) -> None:
    """Call `one.after_fork()` in each forked child."""
    _in_use.add(one)


def _after_fork() -> None:
    for each in list(_in_use):
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)
