"""Threads that work through a queue in the background, and keep no process from ending."""

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

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
