"""Cache pools and lazies: content that is asked for early and needed late.

Enters: a file store and a key, or an object. Leaves: a `Lazy`, whose `get` gives the content when it is needed.
Guarantee: what `get` gives, or raises, is the same with any pool, whatever was fetched before or thrown away; so
batches do not depend on it. A lazy holds no content before `get`. Samples in packing buffers may hold lazies: states
hold none, and a sample that is pending in a restored state is cooked again, which makes its lazies anew.
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
    """The file `fname` of the store `ds`, to be had later by way of `pool`. Lazies of the same file are equal."""

    ds: FileStore[T] | None
    fname: str
    pool: "CachePool | None" = dataclasses.field(repr=False)

    @abc.abstractmethod
    def get(self, sample: Any = None) -> T:
        """The content. Where it was read is added to the sources of `sample`.

        Raises:
            SampleError: if there is no such file. DatasetError: if it cannot be read.
        """

    def __hash__(self) -> int:
        return hash((id(self.ds), self.fname))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lazy) and self.ds is other.ds and self.fname == other.fname


class CachePool(abc.ABC):
    """Where cookers leave what they want fetched in the background, or put away for a while."""

    @abc.abstractmethod
    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """The content of the file `fname` of `ds`, now. Where it was read is added to the sources of `sample`."""

    @abc.abstractmethod
    def get_lazy(self, ds: FileStore[T], fname: str) -> Lazy[T]:
        """The content of the file `fname` of `ds`, later."""

    @abc.abstractmethod
    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """The object `data`, later; `name` is for messages."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give up what the pool holds. The lazies of files that it has made can still be resolved."""


@dataclasses.dataclass(kw_only=True, eq=False)
class DirectLazy(Lazy[T]):
    """A file that is read at the first `get`."""

    _content: tuple[T, SourceInfo] | None = dataclasses.field(default=None, init=False, repr=False)

    def get(self, sample: Any = None) -> T:
        """The content, read now if it was not before."""
        return asked_for(self._read, sample)

    def _read(self) -> tuple[T, SourceInfo]:
        if self._content is None:
            assert self.ds is not None
            self._content = self.ds[self.fname]
        return self._content


class MockLazy(Lazy[T]):
    """What `get_fn(fname)` gives, whenever it is asked for."""

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
    """A pool that fetches nothing before it is needed, and keeps objects in memory."""

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
    """Up to `num_threads` threads, started when there is work. Work that is still queued can be cancelled."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Have `work` done; its result, to come."""
        future: Future[T] = Future()
        self._tasks.put((future, work))
        if len(self._threads) < self._num_threads:
            thread = threading.Thread(target=_work, args=(self._tasks,), name="bridge_data cache", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Cancel what is queued, and wait for the end of what has begun."""
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
        del task, future, work  # and with them what they hold, while this thread waits
