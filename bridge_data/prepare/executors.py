"""Running tasks in this process, in forked processes of this machine, or by the executor of a plug-in.

Reads a function and arguments. Returns the results in order; only a few are buffered. Processes end with the one that
started them. A process that runs threads, or has used an object store or Lance, cannot fork safely: it uses threads.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bridge_data.child_process import die_with_parent, use_one_thread
from bridge_data.errors import ConfigError, WorkerError
from bridge_data.extensions import Seam
from bridge_data.storage import may_fork

if TYPE_CHECKING:
    from concurrent.futures import Executor as Pool

Argument = TypeVar("Argument")
Result = TypeVar("Result")

Progress = Callable[[int, int | None], None]
"""Called with what is done and the total (None: not known), such as shards, files or steps."""


def no_progress(done: int, total: int | None) -> None:
    """Report nothing."""


def usual_workers() -> int:
    """A process for each core of this machine, at most 16."""
    return min(16, len(os.sched_getaffinity(0)))


class Executor(Protocol):
    """Runs tasks, several at a time. Results come in the order of the arguments, so they also show progress; closing
    the generator cancels tasks that have not started."""

    @property
    def num_workers(self) -> int:
        """Maximum tasks that run at a time."""

    def map(
        self, function: Callable[[Argument], Result], arguments: Iterable[Argument], *, what: str
    ) -> Generator[Result, None, None]:
        """`function` of each argument, in order. Arguments are taken when there is a worker for them.

        Raises:
            WorkerError: if a worker died; `what` says what it did, such as `scanned shards`. What the function raises.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class LocalProcesses:
    """Forked processes of this machine; this process itself, if `num_workers` is 1. Any function will do."""

    num_workers: int

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise ConfigError(f"num_workers={self.num_workers}: expected at least 1")

    def map(
        self, function: Callable[[Argument], Result], arguments: Iterable[Argument], *, what: str
    ) -> Generator[Result, None, None]:
        """See `Executor`."""
        if self.num_workers == 1:
            yield from map(function, arguments)
            return
        from concurrent.futures import BrokenExecutor, Future  # imported here: slow, and one process does not need it

        call = next(_calls)
        _functions[call] = function
        try:
            with pool(self.num_workers) as executor:
                yield from in_order(
                    lambda argument: executor.submit(_do, call, argument),
                    Future.result,
                    Future.cancel,
                    arguments,
                    4 * self.num_workers,
                )
        except BrokenExecutor as error:
            raise WorkerError(
                f"a process that {what} was killed, perhaps because memory ran out; try fewer --num-workers"
            ) from error
        finally:
            del _functions[call]


def in_order(
    submit: Callable[[Argument], Any],
    result_of: Callable[[Any], Any],
    cancel: Callable[[Any], object],
    arguments: Iterable[Argument],
    num_waiting: int,
) -> Generator[Any, None, None]:
    """The results of submitted tasks, in order; up to `num_waiting` are submitted at a time, and cancelled at the
    end."""
    remaining, waiting = iter(arguments), deque[Any]()
    try:
        waiting.extend(map(submit, itertools.islice(remaining, num_waiting)))
        while waiting:
            result = result_of(waiting[0])
            waiting.popleft()
            waiting.extend(map(submit, itertools.islice(remaining, 1)))
            yield result
    finally:
        for one in waiting:
            cancel(one)


_functions: dict[int, Callable[[Any], Any]] = {}
"""The functions of the running calls. Forked processes find them here, so they need not be pickled."""

_calls = itertools.count()


def _do(call: int, argument: Any) -> Any:
    return _functions[call](argument)


def _begin_child(parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all processes, and this one would print a traceback
    use_one_thread()  # those of torch do not exist after a fork, and it would wait for them


def pool(num_workers: int) -> Pool:
    """Forked processes, which end with this one, or threads where it is not safe to fork."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

    has_threads = (
        threading.active_count() > 1 or not may_fork() or "lance" in sys.modules
    )  # it waits for its own forever
    if has_threads or "fork" not in multiprocessing.get_all_start_methods():
        return ThreadPoolExecutor(num_workers)
    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(num_workers, context, initializer=_begin_child, initargs=(os.getpid(),))


LOCAL = "local"

EXECUTORS = Seam[Callable[[str | None, int | None], Executor]]("executors")
"""By the name in `--executor`: makes one, for the address of a cluster (None: that of the environment), and a number of
tasks that run at a time (None: as many as it can)."""

_OF_AN_ADDRESS = "ray"


def executor_named(name: str, num_workers: int | None) -> Executor:
    """The executor of a command: `local`, that of a plug-in, such as `ray`, or the address of a Ray cluster.
    `num_workers` None: a worker for each core, at most 16 on this machine.

    Raises:
        ConfigError: if it is none of these, or cannot be used.
    """
    if name == LOCAL:
        return LocalProcesses(usual_workers() if num_workers is None else num_workers)
    is_address = ":" in name
    if not is_address and name not in (*EXECUTORS.names, *EXECUTORS.names_of_others):
        known = ", ".join((LOCAL, *EXECUTORS.names, *EXECUTORS.names_of_others))
        raise ConfigError(f"executor={name!r}: expected one of {known}, or the address of a Ray cluster, HOST:PORT")
    made = EXECUTORS.get(_OF_AN_ADDRESS if is_address else name, needed_by=f"executor={name!r}")
    return made(name if is_address else None, num_workers)
