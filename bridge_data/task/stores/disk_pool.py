"""The cache pool on a local disk: files are fetched into it in the background, and read from it when they are needed.

Enters: files of file stores. Leaves: their content. Guarantee: a cache that is full, slow, emptied or broken costs only
time: missing files are read from their store. All processes of a user on a machine that name the same folder share it
and its limits (see `disk`), ranks and workers alike. The files of stores must not change meanwhile.
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
from bridge_data.task.stores.disk import CacheFolder, Content
from bridge_data.task.stores.file_store import (
    BackgroundThreads,
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

Method = Literal["raw", "pickle"]

_SETTINGS = ("parent_cache_dir", "num_workers", "max_cache_size_gbytes", "max_cache_count", "method")
_FORMAT = 1

logger = logging.getLogger("bridge_data")


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
        if method not in get_args(Method):
            raise ConfigError(f"FileStoreCachePool: method={method!r}: expected 'raw' or 'pickle'")
        if not isinstance(parent_cache_dir, str | os.PathLike | None):
            raise ConfigError(
                f"FileStoreCachePool: parent_cache_dir={parent_cache_dir!r}: expected the path of a folder, or None"
            )
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
        """The content of the file, from the folder if it is there; it is not added to the folder."""
        store, key = ds.resolve(fname)
        return asked_for(lambda: self._cached(store, key) or store[key], sample)

    def get_lazy(self, ds: FileStore[T], fname: str) -> "FileCacheLazy[T]":
        store, key = ds.resolve(fname)
        return FileCacheLazy(ds=store, fname=key, pool=self)

    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """The object, stored in the folder until its first `get`; in memory if the folder is full."""
        use = self._opened()
        try:
            entry = use.folder.put((b"", cloudpickle.dumps(data)))
        except OSError as error:
            use.warn(error)
            entry = None
        return MockLazy(name, lambda _: data) if entry is None else CacheFileLazy(name, self, use.folder, entry)

    def close(self) -> None:
        """Stop fetching, and leave the folder; the last pool to leave removes it."""
        self._closed = True
        self._use.end()

    def prefetch(self, ds: FileStore[T], fname: str, wanted: threading.Event) -> "Future[Content | None]":
        """Fetch the file into the folder, in the background. The result is the content if the folder is full and
        `wanted` is set, else None."""
        use, name = self._opened(), self._name(ds, fname)
        return use.prefetcher.submit(functools.partial(_fetch, use, name, self.method, ds, fname, wanted))

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
        if self._use.process != os.getpid():  # this process was forked from the one that made the pool
            self._use = self._begin()
        return self._use

    def __reduce__(self) -> Any:
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return _same_pool, (self._token, settings)

    def __str__(self) -> str:
        return f"FileStoreCachePool({self.cache_dir}, {self.max_cache_size_gbytes:g} GiB, method={self.method!r})"


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
        self._held: list[T] = []
        self._discard = weakref.finalize(self, _discard, os.getpid(), folder, entry)
        self._discard.atexit = False

    def get(self, sample: Any = None) -> T:
        """The object; nothing is added to the sources of `sample`.

        Raises:
            DatasetError: if the folder was emptied.
        """
        if not self._held:
            assert isinstance(self.pool, FileStoreCachePool)
            content = self._folder.read(self._entry)
            if content is None:
                raise DatasetError(
                    f"{self.pool.cache_dir}: {self.fname!r} was stored here and is gone; was the folder emptied, or "
                    "the pool closed? Resolve lazies of `to_cache` earlier"
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
    if os.getpid() == process:  # not in a forked process
        folder.discard(entry)


class _Use:
    """A folder as one process uses it."""

    def __init__(self, folder: CacheFolder, prefetcher: BackgroundThreads) -> None:
        self.folder, self.prefetcher, self.process = folder, prefetcher, os.getpid()
        self._warned = False

    def warn(self, error: Exception) -> None:
        """Log, once, that the cache does not work."""
        if not self._warned:
            self._warned = True
            logger.warning("cache folder %s: %s: %s; not caching", self.folder.path, type(error).__name__, error)

    def end(self) -> None:
        """Stop using it. Call it again to retry the removal of the folder."""
        if os.getpid() == self.process:
            self.prefetcher.close()
            self.folder.leave()


def _fetch(
    use: _Use, name: str, method: Method, ds: FileStore[Any], fname: str, wanted: threading.Event
) -> Content | None:
    try:
        unstored = use.folder.fill(name, lambda: _content(method, ds, fname))
    except BridgeDataError:  # of the store: a `get` reads the file again, and raises it
        return None
    except Exception as error:
        use.warn(error)
        return None
    return unstored if wanted.is_set() else None


def _content(method: Method, ds: FileStore[Any], fname: str) -> Content:
    value, source = ds.get_raw(fname) if method == "raw" else ds[fname]
    is_pickled = method == "pickle" or not isinstance(value, bytes)
    return pickle.dumps((source, is_pickled)), cloudpickle.dumps(value) if is_pickled else value
