"""The cache pool: files are fetched to a local disk in the background, and read from there when they are needed.

Reads files of file stores. Returns their content. A cache that is full, slow, emptied or broken costs only time, since
a missing file is read from its store. The files in stores must not change during a run. `FileStoreCachePool`, which
cookers use, names the entry of a file and its format, and makes the lazies; entries are in a `CacheFolder`.
"""

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import queue
import secrets
import tempfile
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

import cloudpickle

from bridge_data.errors import BridgeDataError, ConfigError, DatasetError
from bridge_data.options import check_at_least, check_choice
from bridge_data.plugins.caches.cache_folder import CacheFolder, Content
from bridge_data.samples import SourceInfo
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

Method = Literal["raw", "pickle"]

_SETTINGS = ("parent_cache_dir", "num_workers", "max_cache_size_gbytes", "max_cache_count", "method")
_FORMAT = 1


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

    def _opened(self) -> CacheFolder:
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


def _end(folder: CacheFolder, threads: "BackgroundThreads") -> None:
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

    def __init__(self, name: str, pool: FileStoreCachePool, folder: CacheFolder, entry: str) -> None:
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
    folder: CacheFolder, name: str, method: Method, ds: FileStore[Any], fname: str, wanted: threading.Event
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
