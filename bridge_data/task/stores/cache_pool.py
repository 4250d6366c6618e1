"""The cache pool: files are fetched to a local disk in the background, and read from there when they are needed.

Reads files of file stores. Returns their content. A cache that is full, slow, emptied or broken costs only time, since
a missing file is read from its store. The files in stores must not change during a run.

    FileStoreCachePool ─ the pool that cookers use: it names the entry of a file and its format, and makes the lazies
    CacheFolder        ─ the folder of entries; all processes of a user on this machine that name it share it

In a `CacheFolder` an entry is complete or absent. If several processes want one entry, one of them fetches it and the
others wait. All entries together take at most `max_bytes`. Files of a killed process are never read, and are removed.
The first process that uses the folder empties it; the last one removes it, unless the folder is lasting.

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
import functools
import hashlib
import itertools
import logging
import os
import pickle
import queue
import secrets
import shutil
import stat
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Literal, TypeAlias, TypeVar

import cloudpickle

from bridge_data.errors import BridgeDataError, ConfigError, DatasetError
from bridge_data.options import check_at_least, check_choice
from bridge_data.samples import SourceInfo
from bridge_data.storage.atomic import EXCLUSIVE, SHARED, lock, locked
from bridge_data.storage.locations import OF_THE_MACHINE, output_on_disk
from bridge_data.task.stores.file_store import (
    CachePool,
    DecodeFileStore,
    DirectLazy,
    FileStore,
    Lazy,
    MockLazy,
    NoCachePool,
    asked_for,
)

T = TypeVar("T")

logger = logging.getLogger("bridge_data")

# The pool

Method = Literal["raw", "pickle"]

_SETTINGS = ("parent_cache_dir", "num_workers", "max_cache_size_gbytes", "max_cache_count", "method")
_FORMAT = 1

Content = tuple[bytes, bytes]
"""The content of an entry: a short head and a body."""

Buffer: TypeAlias = bytes | bytearray | memoryview | pickle.PickleBuffer


class FileStoreCachePool(CachePool):
    """A pool with a folder below `parent_cache_dir` (None: the temporary folder), which should be on a local disk.

    `num_workers` threads in each process fetch the files of lazies. The folder holds at most `max_cache_size_gbytes`
    (GiB) and `max_cache_count` files of all processes together; each process applies its own limits. `method` "raw"
    stores the bytes of files, and decodes them at `get`; "pickle" decodes them in the background, with decoders that
    must draw no random numbers, and stores the objects.

    Worker processes get the pool's settings. The last process that uses the folder removes it; after a kill, the next
    pool with this folder does.

    Raises:
        ConfigError: if a setting is out of range, or the folder cannot be used.
    """

    def __init__(
        self,
        *,
        parent_cache_dir: str | os.PathLike[str] | None = None,
        num_workers: int = 8,
        max_cache_size_gbytes: float = 64,
        max_cache_count: int = 10_000_000,
        method: Method = "raw",
    ) -> None:
        if not max_cache_size_gbytes > 0:  # NaN too
            raise ConfigError(
                f"FileStoreCachePool(max_cache_size_gbytes={max_cache_size_gbytes}): expected more than 0"
            )
        folder = tempfile.gettempdir() if parent_cache_dir is None else parent_cache_dir
        self.parent_cache_dir = output_on_disk(
            "FileStoreCachePool: parent_cache_dir", folder, OF_THE_MACHINE
        ).absolute()
        self.cache_dir = self.parent_cache_dir / f"bridge_data_cache_{os.getuid()}"
        self.num_workers = num_workers
        self.max_cache_size_gbytes = max_cache_size_gbytes
        self.max_cache_count = max_cache_count
        self.method: Method = method
        if num_workers is None or max_cache_count is None:
            raise ConfigError(f"FileStoreCachePool({num_workers=}, {max_cache_count=}): expected numbers of at least 1")
        check_at_least(self, 1, "num_workers", "max_cache_count")
        check_choice(self, "method", Method)
        self._token = secrets.token_hex(8)
        self._closed = False
        self._identities: weakref.WeakKeyDictionary[FileStore[Any], str] = weakref.WeakKeyDictionary()
        self._begin()

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """The content of the file, from the folder if it is there; it is not added to the folder."""
        store, key = ds.resolve(fname)
        return asked_for(lambda: self._cached(store, key) or store[key], sample)

    def get_lazy(self, ds: FileStore[T], fname: str) -> "FileCacheLazy[T]":
        store, key = ds.resolve(fname)
        return FileCacheLazy(ds=store, fname=key, pool=self)

    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """The object, stored in the folder until its first `get`; in memory if the folder is full."""
        folder = self._opened()
        try:
            entry = folder.put((b"", cloudpickle.dumps(data)))
        except OSError as error:
            folder.warn(error)
            entry = None
        return MockLazy(name, lambda _: data) if entry is None else CacheFileLazy(name, self, folder, entry)

    def close(self) -> None:
        """Stop fetching, and leave the folder; the last pool to leave removes it."""
        self._closed = True
        _end(self._folder, self._threads)

    def prefetch(self, ds: FileStore[T], fname: str, wanted: threading.Event) -> "Future[Content | None]":
        """Fetch the file into the folder, in the background. The result is the content if the folder is full and
        `wanted` is set, else None."""
        folder, name = self._opened(), self._name(ds, fname)
        return self._threads.submit(functools.partial(_fetch, folder, name, self.method, ds, fname, wanted))

    def fetched(
        self, ds: FileStore[T], fname: str, future: "Future[Content | None]", wanted: threading.Event
    ) -> tuple[T, SourceInfo]:
        """The file of a `prefetch`: waits if that is running; reads the file now if it was not fetched."""
        wanted.set()
        content = None if future.cancel() or future.cancelled() else future.result()
        if content is not None:
            return self._unpacked(content, ds, fname)
        return self._cached(ds, fname) or ds[fname]

    def _cached(self, ds: FileStore[T], fname: str) -> tuple[T, SourceInfo] | None:
        """A file from the folder, None if it is not there."""
        if self._closed:
            return None
        folder = self._opened()
        try:
            content = folder.read(self._name(ds, fname))
        except OSError as error:
            folder.warn(error)
            return None
        return None if content is None else self._unpacked(content, ds, fname)

    def _unpacked(self, content: Content, ds: FileStore[T], fname: str) -> tuple[T, SourceInfo]:
        head, body = content
        source, is_pickled = pickle.loads(head)
        kept: Any = pickle.loads(body) if is_pickled else body
        value: T = ds.decode_raw(fname, kept) if self.method == "raw" else kept
        return value, source

    def _name(self, ds: FileStore[Any], fname: str) -> str:
        """The name of the entry; files with different content have different names."""
        text = f"{_FORMAT}\0{self._identity(ds)}\0{fname}"
        return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).hexdigest()

    def _identity(self, ds: FileStore[Any]) -> str:
        if self.method == "raw":
            while isinstance(ds, DecodeFileStore):
                ds = ds.inner
            return f"{type(ds).__module__}.{type(ds).__qualname__}\0{ds.get_path()}\0{ds.forgotten_version}"
        if ds not in self._identities:  # objects depend on the decoder too, and on this job's code
            digest = hashlib.blake2b(cloudpickle.dumps(ds), digest_size=16).hexdigest()
            self._identities[ds] = f"{self._token}\0{digest}"
        return self._identities[ds]

    def _begin(self) -> None:
        self._folder = CacheFolder(
            str(self.cache_dir),
            max_bytes=int(self.max_cache_size_gbytes * (1 << 30)),
            max_count=self.max_cache_count,
        )
        self._threads = BackgroundThreads(self.num_workers)
        self._folder.enter()
        weakref.finalize(self, _end, self._folder, self._threads)

    def _opened(self) -> "CacheFolder":
        """The folder as this process uses it."""
        if self._closed:
            raise ConfigError("the cache pool is closed; make another one")
        if not self._folder.is_own:  # this process was forked from the one that made the pool
            self._begin()
        return self._folder

    def __reduce__(self) -> Any:
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return _same_pool, (self._token, settings)

    def __str__(self) -> str:
        return f"FileStoreCachePool({self.cache_dir}, {self.max_cache_size_gbytes:g} GiB, method={self.method!r})"


def _end(folder: "CacheFolder", threads: "BackgroundThreads") -> None:
    """Stop using a folder. Call it again to retry its removal."""
    if folder.is_own:
        threads.close()
        folder.leave()


def _same_pool(token: str, settings: dict[str, Any]) -> FileStoreCachePool:
    pool = FileStoreCachePool(**settings)
    pool._token = token
    return pool


class FileCacheLazy(DirectLazy[T]):
    """A file that is fetched in the background. Pickled to another process, it is read at the first `get`."""

    def __init__(self, *, ds: FileStore[T], fname: str, pool: FileStoreCachePool) -> None:
        super().__init__(ds=ds, fname=fname, pool=pool)
        self._wanted = threading.Event()
        self._future = pool.prefetch(ds, fname, self._wanted)

    def _read(self) -> tuple[T, SourceInfo]:
        if self._content is None:
            assert self.ds is not None and isinstance(self.pool, FileStoreCachePool)
            self._content = self.pool.fetched(self.ds, self.fname, self._future, self._wanted)
            del self._future
        return self._content

    def __del__(self) -> None:
        if hasattr(self, "_future"):
            self._future.cancel()

    def __reduce__(self) -> Any:
        return functools.partial(DirectLazy, ds=self.ds, fname=self.fname, pool=NoCachePool()), ()


class CacheFileLazy(Lazy[T]):
    """An object in the folder of a pool. It cannot be pickled."""

    def __init__(self, name: str, pool: FileStoreCachePool, folder: "CacheFolder", entry: str) -> None:
        super().__init__(ds=None, fname=name, pool=pool)
        self._folder, self._entry = folder, entry
        self._loaded: list[T] = []
        self._discard = weakref.finalize(self, folder.discard, entry)
        self._discard.atexit = False

    def get(self, sample: Any = None) -> T:
        """The object; nothing is added to the sources of `sample`.

        Raises:
            DatasetError: if the folder was emptied.
        """
        if not self._loaded:
            assert isinstance(self.pool, FileStoreCachePool)
            content = self._folder.read(self._entry)
            if content is None:
                raise DatasetError(
                    f"{self.pool.cache_dir}: {self.fname!r} was stored here and is gone; was the folder emptied, or "
                    "the pool closed? Resolve lazies of `to_cache` earlier"
                )
            self._loaded.append(pickle.loads(content[1]))
            self._discard()
        return self._loaded[0]

    def __hash__(self) -> int:
        return hash(self._entry)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheFileLazy) and self._entry == other._entry

    def __reduce__(self) -> Any:
        raise ConfigError(
            f"a lazy of to_cache ({self.fname!r}) cannot leave the process that made it; call its get() in a hook of "
            "the task encoder, so that the batch has the object itself"
        )


def _fetch(
    folder: "CacheFolder", name: str, method: Method, ds: FileStore[Any], fname: str, wanted: threading.Event
) -> Content | None:
    try:
        unstored = folder.fill(name, lambda: _content(method, ds, fname))
    except BridgeDataError:  # of the store: a `get` reads the file again, and raises it
        return None
    except Exception as error:
        folder.warn(error)
        return None
    return unstored if wanted.is_set() else None


def _content(method: Method, ds: FileStore[Any], fname: str) -> Content:
    value, source = ds.get_raw(fname) if method == "raw" else ds[fname]
    is_pickled = method == "pickle" or not isinstance(value, bytes)
    return pickle.dumps((source, is_pickled)), cloudpickle.dumps(value) if is_pickled else value


# Fetching in the background

_Task = tuple["Future[Any]", Callable[[], Any]]


class BackgroundThreads:
    """Up to `num_threads` daemon threads, started when there is work. Queued work can be cancelled."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Queue `work`; returns the future of its result."""
        future: Future[T] = Future()
        self._tasks.put((future, work))
        if len(self._threads) < self._num_threads:
            thread = threading.Thread(target=_work, args=(self._tasks,), name="bridge_data cache", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Cancel queued work, and wait for running work."""
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task[0].cancel()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()


def _work(tasks: "queue.SimpleQueue[_Task | None]") -> None:
    while (task := tasks.get()) is not None:
        future, work = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
        del task, future, work  # free what they hold while this thread waits


# The folder

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
