"""The folder on a local disk that all caches of a user on a machine share.

Enters: names and contents. Leaves: contents, or None for a missing (or removed) entry. Guarantees: an entry is complete
or absent; if several processes want an entry, one fetches it while the others wait; all entries together take at most
`max_bytes`; files of a killed process are never read as content, and are removed. The first process in an unused folder
empties it; the last one to leave removes it.

    users           each process holds a shared lock on it; a process with the exclusive lock is alone
    usage           bytes and number of entries (or more); locked to add or remove entries
    owner-*         locked by a process that keeps private entries
    entries/*       an entry
    entries/*.part  an entry that is being fetched, locked by the process that fetches it
    entries/own-*   a private entry
"""

import contextlib
import dataclasses
import errno
import itertools
import logging
import os
import secrets
import shutil
import stat
import struct
import time
from collections.abc import Callable, Iterator

from bridge_data.errors import ConfigError
from bridge_data.storage.atomic import EXCLUSIVE, SHARED, lock, locked

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

Content = tuple[bytes, bytes]
"""The content of an entry: a short head and a body."""

logger = logging.getLogger("bridge_data")


@dataclasses.dataclass(slots=True)
class _Usage:
    num_bytes: int
    count: int


class CacheFolder:
    """The folder `path`, as this process uses it: enter it first.

    `max_bytes` and `max_count` limit the entries of all processes together.
    """

    def __init__(self, path: str, *, max_bytes: int, max_count: int) -> None:
        self.path, self._max_bytes, self._max_count = path, max_bytes, max_count
        self._entries = os.path.join(path, "entries")
        self._users = self._owner = -1
        self._token = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._full_until = 0.0
        self._warned = False

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
        return ConfigError(f"cache folder {self.path}: cannot be used: {error.strerror}; set another parent_cache_dir")

    def _make(self) -> None:
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        found = os.lstat(self.path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ConfigError(
                f"cache folder {self.path}: is not a folder that only this user can use; remove it, or set another "
                "parent_cache_dir"
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
        shutil.rmtree(self._entries, ignore_errors=True)
        for name in os.listdir(self.path):
            if name != "users":
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.path, name))

    def leave(self) -> None:
        """Stop using the folder, and remove it if no other process uses it. Call it again to retry the removal."""
        if self._users >= 0:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.path, f"owner-{self._token}"))
            os.close(self._owner)
            os.close(self._users)
            self._users = self._owner = -1
        users = os.path.join(self.path, "users")
        with contextlib.suppress(OSError):
            alone = lock(users, EXCLUSIVE, wait=False)
            if alone is not None:
                self._empty()
                os.unlink(users)
                os.close(alone)
                os.rmdir(self.path)

    def read(self, name: str) -> Content | None:
        """The content of the entry `name`, or None; the entry may be removed from now on."""
        path = self._path(name)
        try:
            with open(path, "rb") as file:
                (head_bytes,) = _HEAD.unpack(file.read(_HEAD.size))
                content = file.read(head_bytes), file.read()
            now = time.time()
            os.utime(path, (now, now - _USED_SHIFT_S))
        except FileNotFoundError:
            return None
        return content

    def fill(self, name: str, fetch: Callable[[], Content]) -> Content | None:
        """Fetch the entry `name` unless it exists. Returns the content if it does not fit into the folder."""
        if self._renew(name):
            return None
        part = self._path(name) + _PART
        with locked(part) as descriptor:
            is_part = True
            try:
                if self._renew(name):  # the previous holder of the lock has fetched it
                    return None
                content = fetch()
                if not self._store(descriptor, content):
                    return content
                with self._usage():  # so that a process that counts the files sees it once
                    os.rename(part, self._path(name))
                is_part = False
                return None
            finally:
                if is_part:
                    os.unlink(part)

    def put(self, content: Content) -> str | None:
        """Write a private entry. Returns its name, or None if it does not fit."""
        name = f"{_OWN}{self._token}-{next(self._numbers)}"
        path = self._path(name)
        is_stored = False
        with locked(path) as descriptor:
            try:
                is_stored = self._store(descriptor, content)
            finally:
                if not is_stored:
                    os.unlink(path)
        return name if is_stored else None

    def discard(self, name: str) -> None:
        """Remove a private entry, if it still exists."""
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

    def _store(self, descriptor: int, content: Content) -> bool:
        """Write `content` to an open new file, if it fits."""
        head, body = content
        num_bytes = _HEAD.size + len(head) + len(body)
        if not self._reserve(descriptor, num_bytes):
            return False
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(_HEAD.pack(len(head)) + head)
                file.write(body)
        except OSError as error:
            with self._usage() as usage:
                os.ftruncate(descriptor, 0)
                usage.num_bytes -= num_bytes
                usage.count -= 1
            if error.errno not in _DISK_FULL:
                raise
            self._is_full("its disk is full")
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
                    self._is_full("all of its entries are still needed, or its disk is nearly full")
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

    def _is_full(self, why: str) -> None:
        """Pause the search for free space for a moment."""
        self._full_until = time.monotonic() + _RETRY_S
        if not self._warned:
            self._warned = True
            logger.warning(
                "cache folder %s: it is full (%s), so files are read when they are needed; a larger "
                "max_cache_size_gbytes or a smaller buffer would help",
                self.path,
                why,
            )

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
