"""A folder of entries on a local disk, which all processes of a user on this machine that name it share.

An entry is complete or absent. If several processes want one entry, one of them fetches it and the others wait. All
entries together take at most `max_bytes`. Files of a killed process are never read, and are removed. The first process
that uses the folder empties it; the last one removes it, unless the folder is lasting.

    users           each process holds a shared lock on it; a process with the exclusive lock is the only one
    usage           upper bounds of the bytes and the number of entries; locked while entries are added or removed
    owner-*         locked by a process that keeps private entries
    entries/*       an entry
    entries/*.part  an entry that is being fetched, locked by the process that fetches it
    entries/own-*   a private entry
"""

import contextlib
import dataclasses
import errno
import fcntl
import itertools
import logging
import os
import pickle
import secrets
import shutil
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from bridge_data.errors import ConfigError
from bridge_data.storage.atomic import EXCLUSIVE, SHARED, lock, locked

logger = logging.getLogger("bridge_data")

Content = tuple[bytes, bytes]
"""The content of an entry: a short head and a body."""

Buffer: TypeAlias = bytes | bytearray | memoryview | pickle.PickleBuffer

KEEP_FREE_BYTES = 1 << 30
"""The cache leaves this much of its disk free."""

PROTECTED_S = 600.0
"""Grace period: an entry that was fetched but not yet used is not removed before it."""

_LEFT_AFTER_CLEANING = 0.9
_USED_SHIFT_S = 10 * 365 * 86_400
_RETRY_S = 1.0
_MAX_ATTEMPTS = 1000
_USAGE = struct.Struct("=qq")
_HEAD = struct.Struct("=I")
_PART, _OWN = ".part", "own-"
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclasses.dataclass(slots=True)
class _Usage:
    num_bytes: int
    count: int


def _wait_for(descriptor: int) -> None:
    """Wait until nobody has a lock on the file, and close it."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, SHARED)
    os.close(descriptor)


def _parts(content: Content) -> Sequence[Buffer]:
    head, body = content
    return _HEAD.pack(len(head)) + head, body


class CacheFolder:
    """The folder `path`, as this process uses it: enter it first.

    `max_bytes` and `max_count` limit the entries of all processes together. If it is `lasting`, its entries stay when
    no process uses it.
    """

    def __init__(self, path: str, *, max_bytes: int, max_count: int, lasting: bool = False) -> None:
        self.path, self._max_bytes, self._max_count = path, max_bytes, max_count
        self._lasting = lasting
        self._entries = os.path.join(path, "entries")
        self._users = self._owner = -1
        self._token = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._full_until = 0.0
        self._warned: set[str] = set()
        self._process = os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether it was made by this process, not by the one that this process was forked from."""
        return os.getpid() == self._process

    def enter(self) -> None:
        """Start using the folder, after emptying it if no other process uses it."""
        for attempt in itertools.count(1):
            try:
                self._make()
                self._join()
                return
            except (FileNotFoundError, FileExistsError) as error:  # the last user has just removed the folder
                if attempt == _MAX_ATTEMPTS:
                    raise self._unusable(error) from error
            except OSError as error:
                raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(f"cache folder {self.path}: cannot be used: {error.strerror}; set another folder")

    def _make(self) -> None:
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        found = os.lstat(self.path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ConfigError(
                f"cache folder {self.path}: is not a folder that only this user can use; remove it, or set another "
                "folder"
            )

    def _join(self) -> None:
        path = os.path.join(self.path, "users")
        alone = lock(path, EXCLUSIVE, wait=False)
        if alone is not None:
            self._empty()
            os.close(alone)
        users = lock(path, SHARED)
        assert users is not None
        try:
            os.makedirs(self._entries, exist_ok=True)
            owner = lock(os.path.join(self.path, f"owner-{self._token}"), EXCLUSIVE)
        except BaseException:
            os.close(users)
            raise
        assert owner is not None
        self._users, self._owner = users, owner

    def _empty(self) -> None:
        if not self._lasting:
            shutil.rmtree(self._entries, ignore_errors=True)
        for name in os.listdir(self.path):
            if name != "users" and not (self._lasting and name == "usage"):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.path, name))

    def leave(self) -> None:
        """Stop using the folder; if no other process uses it, remove it, unless it is lasting. Call it again to retry
        the removal."""
        if self._users >= 0:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.path, f"owner-{self._token}"))
            os.close(self._owner)
            os.close(self._users)
            self._users = self._owner = -1
        if self._lasting:
            return
        users = os.path.join(self.path, "users")
        with contextlib.suppress(OSError):
            alone = lock(users, EXCLUSIVE, wait=False)
            if alone is not None:
                self._empty()
                os.unlink(users)
                os.close(alone)
                os.rmdir(self.path)

    def has(self, name: str) -> bool:
        """Whether there is an entry `name`."""
        return os.path.exists(self._path(name))

    def open(self, name: str) -> int | None:
        """A descriptor of the file of the entry `name`, or None; the entry may be removed from now on."""
        path = self._path(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with contextlib.suppress(FileNotFoundError):
            now = time.time()
            os.utime(path, (now, now - _USED_SHIFT_S))
        return descriptor

    def read(self, name: str) -> Content | None:
        """The content of the entry `name`, or None."""
        descriptor = self.open(name)
        if descriptor is None:
            return None
        with open(descriptor, "rb") as file:
            (head_bytes,) = _HEAD.unpack(file.read(_HEAD.size))
            return file.read(head_bytes), file.read()

    def claim(self, name: str, *, wait: bool = True) -> int | None:
        """The lock on the missing entry `name`, for `store_and_release`; None if it is there. Without `wait`, also None
        if another has the lock. The kernel releases it when its process dies."""
        part = self._path(name) + _PART
        claim = lock(part, EXCLUSIVE, wait=wait)
        if claim is None or not self._renew(name):
            return claim
        os.unlink(part)  # the previous holder of the lock has fetched the entry
        os.close(claim)
        return None

    def wait_for(self, name: str, timeout_s: float) -> None:
        """Wait until the entry `name` is not claimed, at most so long."""
        try:
            part = os.open(self._path(name) + _PART, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        waiter = threading.Thread(target=_wait_for, args=(part,), name="bridge_data wait", daemon=True)
        waiter.start()
        waiter.join(timeout_s)

    def store_and_release(self, name: str, claim: int, parts: Sequence[Buffer] | None) -> bool:
        """Store the claimed entry, unless `parts` is None, and release the claim. Returns whether it is stored."""
        part = self._path(name) + _PART
        is_part = True
        try:
            if parts is None or not self._store(claim, parts):
                return False
            with self._usage():  # so that a process that counts the files sees it once
                os.rename(part, self._path(name))
            is_part = False
            return True
        finally:
            if is_part:
                os.unlink(part)
            os.close(claim)

    def fill(self, name: str, fetch: Callable[[], Content]) -> Content | None:
        """Fetch the entry `name` unless it exists. Returns the content if it does not fit into the folder."""
        if self._renew(name) or (claim := self.claim(name)) is None:
            return None
        content = None
        try:
            content = fetch()
        finally:
            is_stored = self.store_and_release(name, claim, None if content is None else _parts(content))
        return None if is_stored else content

    def put(self, content: Content) -> str | None:
        """Write a private entry. Returns its name, or None if it does not fit."""
        name = f"{_OWN}{self._token}-{next(self._numbers)}"
        path = self._path(name)
        is_stored = False
        with locked(path) as descriptor:
            try:
                is_stored = self._store(descriptor, _parts(content))
            finally:
                if not is_stored:
                    os.unlink(path)
        return name if is_stored else None

    def discard(self, name: str) -> None:
        """Remove a private entry of this process, if it still exists."""
        if not self.is_own:
            return
        path = self._path(name)
        with contextlib.suppress(OSError), self._usage() as usage:
            num_bytes = os.stat(path).st_size
            os.unlink(path)
            usage.num_bytes -= num_bytes
            usage.count -= 1

    def _path(self, name: str) -> str:
        return os.path.join(self._entries, name)

    def _renew(self, name: str) -> bool:
        """Whether the entry exists; if so, it counts as just fetched."""
        try:
            os.utime(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def _store(self, descriptor: int, parts: Sequence[Buffer]) -> bool:
        """Write `parts` to an open new file, if they fit."""
        num_bytes = sum(memoryview(part).nbytes for part in parts)
        if not self._reserve(descriptor, num_bytes):
            return False
        try:
            with open(descriptor, "wb", buffering=0, closefd=False) as file:
                for part in parts:
                    left = memoryview(part).cast("B")
                    while left:
                        left = left[file.write(left) :]
        except OSError as error:
            with self._usage() as usage:
                os.ftruncate(descriptor, 0)
                usage.num_bytes -= num_bytes
                usage.count -= 1
            if error.errno not in _DISK_FULL:
                raise
            self._pause_as_full("its disk is full")
            return False
        return True

    def _reserve(self, descriptor: int, num_bytes: int) -> bool:
        """Reserve space for a file of this size; False if there is none."""
        if num_bytes > self._max_bytes or time.monotonic() < self._full_until:
            return False
        with self._usage() as usage:
            if not self._fits(usage, num_bytes):
                self._clean(usage, num_bytes)
                if not self._fits(usage, num_bytes):
                    self._pause_as_full("all of its entries are still needed, or its disk is nearly full")
                    return False
            os.ftruncate(descriptor, num_bytes)  # so that a process that counts the files counts it
            usage.num_bytes += num_bytes
            usage.count += 1
        return True

    def _fits(self, usage: _Usage, num_bytes: int) -> bool:
        disk = os.statvfs(self.path)
        return (
            usage.num_bytes + num_bytes <= self._max_bytes
            and usage.count < self._max_count
            and disk.f_bavail * disk.f_frsize - num_bytes >= KEEP_FREE_BYTES
        )

    def _pause_as_full(self, why: str) -> None:
        """Pause the search for free space for a moment, and warn once."""
        self._full_until = time.monotonic() + _RETRY_S
        self._warn_once(
            f"it is full ({why}), so what is not in it is read or made when it is needed; a higher limit, or a smaller "
            "buffer, would help",
            "full",
        )

    def warn(self, error: Exception) -> None:
        """Log, once, that the cache does not work."""
        self._warn_once(f"{type(error).__name__}: {error}; not caching", "broken")

    def _warn_once(self, what: str, kind: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("cache folder %s: %s", self.path, what)

    def _clean(self, usage: _Usage, num_bytes: int) -> None:
        """Remove files of dead processes, then entries, least recently used first and unused ones last, until there is
        enough free space; count the remaining entries."""
        usage.num_bytes = usage.count = 0
        files = []
        for entry in os.scandir(self._entries):
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                if self._remove_if_left_behind(entry.name):
                    continue
                usage.num_bytes += found.st_size
                usage.count += 1
                if not entry.name.startswith(_OWN) and not entry.name.endswith(_PART):
                    files.append((found.st_mtime, found.st_size, entry.path))
        wanted_bytes = min(self._max_bytes * _LEFT_AFTER_CLEANING, self._max_bytes - num_bytes)
        wanted_count = min(self._max_count * _LEFT_AFTER_CLEANING, self._max_count - 1)
        now = time.time()
        for used_at, size, path in sorted(files):
            fits = usage.num_bytes <= wanted_bytes and usage.count <= wanted_count
            if used_at > now - PROTECTED_S or (fits and self._fits(usage, num_bytes)):
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            usage.num_bytes -= size
            usage.count -= 1

    def _remove_if_left_behind(self, name: str) -> bool:
        """Remove a partial or private file if its process is dead; returns whether it was removed."""
        path = self._path(name)
        if name.endswith(_PART):
            owner = path
        elif name.startswith(_OWN):
            owner = os.path.join(self.path, f"owner-{name.split('-')[1]}")
        else:
            return False
        descriptor = lock(owner, EXCLUSIVE, wait=False)
        if descriptor is None:
            return False
        for left in {path, owner}:
            os.unlink(left)
        os.close(descriptor)
        return True

    @contextlib.contextmanager
    def _usage(self) -> Iterator[_Usage]:
        with locked(os.path.join(self.path, "usage")) as descriptor:
            data = os.pread(descriptor, _USAGE.size, 0)
            usage = _Usage(*_USAGE.unpack(data)) if len(data) == _USAGE.size else _Usage(0, 0)
            try:
                yield usage
            finally:
                os.pwrite(descriptor, _USAGE.pack(usage.num_bytes, usage.count), 0)
