"""Ranged reads of local files.

Enters: a path, where to start, how many bytes. Leaves: exactly these bytes. Guarantees: never half a read; a file
that is missing or too short is a `DatasetError` that names it; transient faults of a network file system are
retried. Open descriptors are kept for the next read, at most `MAX_OPEN` of them; a forked child starts with none, so
that it may close what it inherited. All functions may be called from any thread.
"""

import collections
import errno
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from bridge_data.errors import DatasetError

MAX_OPEN = 256
"""Descriptors that a process keeps open for reading."""

RETRY_WAITS_S = (0.1, 0.5, 2.0)
"""Waits before the second, third and fourth attempt at a read that failed for a transient reason."""

T = TypeVar("T")

_TRANSIENT = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.ENOBUFS})
_TOO_MANY_OPEN = frozenset({errno.EMFILE, errno.ENFILE})


class _OpenFile:
    """A descriptor that is closed when the table and all threads that read it have dropped it."""

    __slots__ = ("fd",)

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class DescriptorTable:
    """The open files of this process, in order of last use."""

    def __init__(self, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self._files: collections.OrderedDict[str, _OpenFile] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str) -> _OpenFile:
        """The open file at `path`; keep a reference while its descriptor is used."""
        with self._lock:
            file = self._files.get(path)
            if file is not None:
                self._files.move_to_end(path)
                return file
        file = _OpenFile(path)
        with self._lock:
            file = self._files.setdefault(path, file)
            while len(self._files) > self._max_open:
                self._files.popitem(last=False)
        return file

    def drop(self, path: str) -> None:
        """Forget `path`, so that the next read opens it again."""
        with self._lock:
            self._files.pop(path, None)

    def clear(self) -> None:
        """Forget all files."""
        with self._lock:
            self._files.clear()

    def after_fork(self) -> None:
        """In a forked child: close what was inherited, with a lock that no thread of the parent can hold."""
        self._lock = threading.Lock()
        self._files.clear()


_table = DescriptorTable()
os.register_at_fork(after_in_child=_table.after_fork)


def read(location: str, start: int, num_bytes: int) -> bytes:
    """`num_bytes` bytes of the file at `location`, from byte `start`.

    Raises:
        DatasetError: if the file is missing, unreadable or ends earlier.
    """
    try:
        file = _table.get(location)
        data = os.pread(file.fd, num_bytes, start)
    except OSError:
        data = b""
    if len(data) != num_bytes:
        data = _attempt(location, lambda: _read_range(location, start, num_bytes))
    if len(data) != num_bytes:
        _table.drop(location)
        raise DatasetError(
            f"{location}: wanted bytes {start} to {start + num_bytes}, but the file has {size_bytes(location)}. "
            "It is truncated, or was replaced after it was prepared: restore it, or run `bridge-data prepare` again."
        )
    return data


def read_all(location: str) -> bytes:
    """The whole file at `location`; it is not kept open.

    Raises:
        DatasetError: if it is missing or unreadable.
    """

    def whole() -> bytes:
        with open(location, "rb") as file:
            return file.read()

    return _attempt(location, whole)


def size_bytes(location: str) -> int:
    """The size of the file at `location`.

    Raises:
        DatasetError: if it is missing or unreadable.
    """
    return _attempt(location, lambda: os.stat(location).st_size)


def close_files() -> None:
    """Close the files that are kept open for the next read."""
    _table.clear()


def _read_range(location: str, start: int, num_bytes: int) -> bytes:
    """As much of the range as there is: a system call reads less than 2 GiB, and may read less than asked for."""
    file = _table.get(location)
    pieces, have = [], 0
    while have < num_bytes and (piece := os.pread(file.fd, num_bytes - have, start + have)):
        pieces.append(piece)
        have += len(piece)
    return b"".join(pieces)


def _attempt(location: str, action: Callable[[], T]) -> T:
    """The result of `action`, tried again for as long as it fails for a transient reason."""
    waits = iter(RETRY_WAITS_S)
    while True:
        try:
            return action()
        except OSError as error:
            if error.errno in _TOO_MANY_OPEN:
                _table.clear()
            else:
                _table.drop(location)
            wait_s = next(waits, None) if error.errno in _TRANSIENT | _TOO_MANY_OPEN else None
            if wait_s is None:
                raise _failure(location, error) from error
            time.sleep(wait_s)


def _failure(location: str, error: OSError) -> DatasetError:
    if isinstance(error, FileNotFoundError):
        return DatasetError(f"{location}: no such file. Restore it, or run `bridge-data prepare` again without it.")
    return DatasetError(f"{location}: cannot be read: {error.strerror or error}")
