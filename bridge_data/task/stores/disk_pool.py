"""The cache pool on a local disk: files are fetched there in the background, and read from there when they are needed.

Enters: files of file stores. Leaves: their content. Guarantee: a cache that is full, slow, emptied or broken costs time
and nothing else: what it does not have is read from its store. All processes of a user on a machine that name the same
folder share it, ranks and workers alike, and its bounds (see `disk`). The files of stores must not change meanwhile.
"""

import functools
import hashlib
import logging
import os
import pickle
import secrets
import tempfile
import threading
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import cloudpickle

from bridge_data.errors import BridgeDataError, ConfigError, DatasetError
from bridge_data.samples import SourceInfo
from bridge_data.task.stores.cache_pool import BackgroundThreads, CachePool, DirectLazy, Lazy, MockLazy, NoCachePool
from bridge_data.task.stores.disk import CacheFolder, Content
from bridge_data.task.stores.file_store import DecodeFileStore, FileStore, asked_for

T = TypeVar("T")

Method = Literal["raw", "pickle"]

_SETTINGS = ("parent_cache_dir", "num_workers", "max_cache_size_gbytes", "max_cache_count", "method")
_FORMAT = 1

logger = logging.getLogger("bridge_data")


class FileStoreCachePool(CachePool):
    """A pool with a folder below `parent_cache_dir` (None: that of temporary files), which should be on a local disk.

    `num_workers` threads in each process fetch what lazies will need. The folder holds at most `max_cache_size_gbytes`
    (GiB) and `max_cache_count` files, those of all processes that share it together; where these differ, each sees to
    its own bounds. `method` "raw" keeps files as they are, and decodes them at `get`; "pickle" decodes them in the
    background, with decoders that must draw no random numbers, and keeps the objects.

    It travels to worker processes as its settings. When the last process that uses the folder ends, the folder is
    removed; after a kill, by the next pool with this folder.

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
        if method not in get_args(Method):
            raise ConfigError(f"FileStoreCachePool: method={method!r}: expected 'raw' or 'pickle'")
        for name, value in (("num_workers", num_workers), ("max_cache_count", max_cache_count)):
            if value < 1:
                raise ConfigError(f"FileStoreCachePool: {name}={value}: expected 1 or more")
        if not max_cache_size_gbytes > 0:
            raise ConfigError(
                f"FileStoreCachePool: max_cache_size_gbytes={max_cache_size_gbytes}: expected more than 0"
            )
        self.parent_cache_dir = Path(parent_cache_dir or tempfile.gettempdir()).absolute()
        self.cache_dir = self.parent_cache_dir / f"bridge_data_cache_{os.getuid()}"
        self.num_workers = num_workers
        self.max_cache_size_gbytes = max_cache_size_gbytes
        self.max_cache_count = max_cache_count
        self.method: Method = method
        self._token = secrets.token_hex(8)
        self._closed = False
        self._identities: weakref.WeakKeyDictionary[FileStore[Any], str] = weakref.WeakKeyDictionary()
        self._use = self._begin()

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """The content of the file, from the folder if it is there, but not put there."""
        store, key = ds.resolve(fname)
        return asked_for(lambda: self._cached(store, key) or store[key], sample)

    def get_lazy(self, ds: FileStore[T], fname: str) -> "FileCacheLazy[T]":
        """The content of the file, which is fetched in the background from now on.

        Raises:
            ConfigError: if the pool is closed.
        """
        store, key = ds.resolve(fname)
        return FileCacheLazy(ds=store, fname=key, pool=self)

    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """The object, put into the folder until it is got for the first time; kept in memory if there is no room.

        Raises:
            ConfigError: if the pool is closed.
        """
        use = self._opened()
        try:
            entry = use.folder.put((b"", cloudpickle.dumps(data)))
        except OSError as error:
            use.warn(error)
            entry = None
        return MockLazy(name, lambda _: data) if entry is None else CacheFileLazy(name, self, use.folder, entry)

    def close(self) -> None:
        """Stop fetching, and let go of the folder; it is removed when the last one does."""
        self._closed = True
        self._use.end()

    def prefetch(self, ds: FileStore[T], fname: str, wanted: threading.Event) -> "Future[Content | None]":
        """Have the file fetched into the folder. The result is what was fetched, if there was no room for it, and
        somebody waits for it by then, which `wanted` says."""
        use, name = self._opened(), self._name(ds, fname)
        return use.prefetcher.submit(functools.partial(_fetch, use, name, self.method, ds, fname, wanted))

    def fetched(
        self, ds: FileStore[T], fname: str, future: "Future[Content | None]", wanted: threading.Event
    ) -> tuple[T, SourceInfo]:
        """What came of `prefetch`, which is waited for if it has begun; read now if nothing did."""
        wanted.set()
        content = None if future.cancel() or future.cancelled() else future.result()
        if content is not None:
            return self._unpacked(content, ds, fname)
        return self._cached(ds, fname) or ds[fname]

    def _cached(self, ds: FileStore[T], fname: str) -> tuple[T, SourceInfo] | None:
        """What the folder has of a file."""
        if self._closed:
            return None
        use = self._opened()
        try:
            content = use.folder.read(self._name(ds, fname))
        except OSError as error:
            use.warn(error)
            return None
        return None if content is None else self._unpacked(content, ds, fname)

    def _unpacked(self, content: Content, ds: FileStore[T], fname: str) -> tuple[T, SourceInfo]:
        head, body = content
        source, is_pickled = pickle.loads(head)
        kept: Any = pickle.loads(body) if is_pickled else body
        value: T = ds.decode_raw(fname, kept) if self.method == "raw" else kept
        return value, source

    def _name(self, ds: FileStore[Any], fname: str) -> str:
        """The name in the folder: another one where the content is, or may be."""
        text = f"{_FORMAT}\0{self._identity(ds)}\0{fname}"
        return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).hexdigest()

    def _identity(self, ds: FileStore[Any]) -> str:
        if self.method == "raw":
            while isinstance(ds, DecodeFileStore):
                ds = ds.inner
            return f"{type(ds).__module__}.{type(ds).__qualname__}\0{ds.get_path()}"
        if ds not in self._identities:  # objects depend on the decoder too, and on the code that this job runs
            digest = hashlib.blake2b(cloudpickle.dumps(ds), digest_size=16).hexdigest()
            self._identities[ds] = f"{self._token}\0{digest}"
        return self._identities[ds]

    def _begin(self) -> "_Use":
        folder = CacheFolder(
            str(self.cache_dir),
            max_bytes=int(self.max_cache_size_gbytes * (1 << 30)),
            max_count=self.max_cache_count,
        )
        use = _Use(folder, BackgroundThreads(self.num_workers))
        folder.enter()
        weakref.finalize(self, use.end)
        return use

    def _opened(self) -> "_Use":
        """The folder as this process uses it."""
        if self._closed:
            raise ConfigError("the cache pool is closed; make another one")
        if self._use.process != os.getpid():  # in a process that was forked from the one that made it
            self._use = self._begin()
        return self._use

    def __reduce__(self) -> Any:
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return _same_pool, (self._token, settings)

    def __str__(self) -> str:
        return f"FileStoreCachePool({self.cache_dir}, {self.max_cache_size_gbytes:g} GiB, method={self.method!r})"


def _same_pool(token: str, settings: dict[str, Any]) -> FileStoreCachePool:
    """The pool in another process."""
    pool = FileStoreCachePool(**settings)
    pool._token = token
    return pool


class FileCacheLazy(DirectLazy[T]):
    """A file that is fetched in the background. In another process it is one that is read at the first `get`."""

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
    """An object in the folder of a pool. It cannot leave its process."""

    def __init__(self, name: str, pool: FileStoreCachePool, folder: CacheFolder, entry: str) -> None:
        super().__init__(ds=None, fname=name, pool=pool)
        self._folder, self._entry = folder, entry
        self._held: list[T] = []
        self._discard = weakref.finalize(self, _discard, os.getpid(), folder, entry)
        self._discard.atexit = False

    def get(self, sample: Any = None) -> T:
        """The object; nothing is added to the sources of `sample`.

        Raises:
            DatasetError: if somebody has emptied the folder.
        """
        if not self._held:
            assert isinstance(self.pool, FileStoreCachePool)
            content = self._folder.read(self._entry)
            if content is None:
                raise DatasetError(
                    f"{self.pool.cache_dir}: {self.fname!r} was put here and is gone; was the folder emptied, or the "
                    "pool closed? Resolve lazies of `to_cache` before"
                )
            self._held.append(pickle.loads(content[1]))
            self._discard()
        return self._held[0]

    def __hash__(self) -> int:
        return hash(self._entry)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheFileLazy) and self._entry == other._entry

    def __reduce__(self) -> Any:
        raise ConfigError(
            f"a lazy of to_cache ({self.fname!r}) cannot leave the process that made it; call its get() in a hook of "
            "the task encoder, so that the batch has the object itself"
        )


def _discard(process: int, folder: CacheFolder, entry: str) -> None:
    if os.getpid() == process:  # not in one that was forked from it
        folder.discard(entry)


class _Use:
    """A folder as one process uses it."""

    def __init__(self, folder: CacheFolder, prefetcher: BackgroundThreads) -> None:
        self.folder, self.prefetcher, self.process = folder, prefetcher, os.getpid()
        self._warned = False

    def warn(self, error: Exception) -> None:
        """Say, once, that the cache does not work."""
        if not self._warned:
            self._warned = True
            logger.warning("cache folder %s: %s: %s; going on without", self.folder.path, type(error).__name__, error)

    def end(self) -> None:
        """Stop using it; once more, see whether the folder is to be removed now."""
        if os.getpid() == self.process:
            self.prefetcher.close()
            self.folder.leave()


def _fetch(
    use: _Use, name: str, method: Method, ds: FileStore[Any], fname: str, wanted: threading.Event
) -> Content | None:
    try:
        unplaced = use.folder.fill(name, lambda: _content(method, ds, fname))
    except BridgeDataError:  # of the store: whoever needs the file will read it, and meet it
        return None
    except Exception as error:
        use.warn(error)
        return None
    return unplaced if wanted.is_set() else None


def _content(method: Method, ds: FileStore[Any], fname: str) -> Content:
    value, source = ds.get_raw(fname) if method == "raw" else ds[fname]
    is_pickled = method == "pickle" or not isinstance(value, bytes)
    return pickle.dumps((source, is_pickled)), cloudpickle.dumps(value) if is_pickled else value
