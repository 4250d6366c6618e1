"""Cache pools and lazies: content that is requested early and used late.

Enters: a file store and a key, or an object. Leaves: a `Lazy`, whose `get` returns the content when it is needed.
Guarantee: `get` returns or raises the same with any pool, cached or not, so batches do not depend on the pool. A lazy
holds no content before `get`. Samples in packing buffers may hold lazies; states hold none: pending samples of a
restored state are cooked again, which creates their lazies again.
"""

import abc
import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from bridge_data.samples import SourceInfo
from bridge_data.task.stores.file_store import FileStore, asked_for

T = TypeVar("T")


@dataclasses.dataclass(kw_only=True, eq=False)
class Lazy(abc.ABC, Generic[T]):
    """The file `fname` of the store `ds`, to be read later by way of `pool`. Lazies of the same file are equal."""

    ds: FileStore[T] | None
    fname: str
    pool: "CachePool | None" = dataclasses.field(repr=False)

    @abc.abstractmethod
    def get(self, sample: Any = None) -> T:
        """The content. Its source is added to those of `sample`.

        Raises:
            SampleError: if there is no such file. DatasetError: if it cannot be read.
        """

    def __hash__(self) -> int:
        return hash((id(self.ds), self.fname))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lazy) and self.ds is other.ds and self.fname == other.fname


class CachePool(abc.ABC):
    """Fetches files for cookers in the background, and stores their objects for a while."""

    @abc.abstractmethod
    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """The content of the file `fname` of `ds`, now. Its source is added to those of `sample`."""

    @abc.abstractmethod
    def get_lazy(self, ds: FileStore[T], fname: str) -> Lazy[T]:
        """The content of the file `fname` of `ds`, later."""

    @abc.abstractmethod
    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """The object `data`, later; `name` is for messages."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release the pool's content. Its lazies of files can still be resolved."""


@dataclasses.dataclass(kw_only=True, eq=False)
class DirectLazy(Lazy[T]):
    """A file that is read at the first `get`."""

    _content: tuple[T, SourceInfo] | None = dataclasses.field(default=None, init=False, repr=False)

    def get(self, sample: Any = None) -> T:
        """The content, read now unless it was before."""
        return asked_for(self._read, sample)

    def _read(self) -> tuple[T, SourceInfo]:
        if self._content is None:
            assert self.ds is not None
            self._content = self.ds[self.fname]
        return self._content


class MockLazy(Lazy[T]):
    """The result of `get_fn(fname)` at each `get`."""

    def __init__(self, fname: str, get_fn: Callable[[str], T]) -> None:
        super().__init__(ds=None, fname=fname, pool=None)
        self.get_fn = get_fn

    def get(self, sample: Any = None) -> T:
        """The result of the function; nothing is added to the sources of `sample`."""
        return self.get_fn(self.fname)

    def __hash__(self) -> int:
        return hash((self.fname, self.get_fn))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MockLazy) and self.fname == other.fname and self.get_fn == other.get_fn


class NoCachePool(CachePool):
    """A pool that fetches nothing in advance, and keeps objects in memory."""

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """The content of the file, read now."""
        return ds.get(fname, sample)

    def get_lazy(self, ds: FileStore[T], fname: str) -> DirectLazy[T]:
        """The content of the file, read at the first `get`."""
        store, key = ds.resolve(fname)
        return DirectLazy(ds=store, fname=key, pool=self)

    def to_cache(self, data: T, name: str) -> MockLazy[T]:
        """The object itself."""
        return MockLazy(name, lambda _: data)

    def close(self) -> None:
        """Nothing is held."""


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
