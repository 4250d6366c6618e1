"""Parallel processes for preparing: a function of many arguments, with the results in order.

Enters: a function, arguments, a number of processes. Leaves: the results, of which only a few are buffered. A process
that runs threads cannot fork safely: there threads do the work.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from bridge_data.errors import WorkerError

if TYPE_CHECKING:
    from concurrent.futures import Executor

Argument = TypeVar("Argument")
Result = TypeVar("Result")


_PR_SET_PDEATHSIG = 1

Progress = Callable[[int, int | None], None]
"""Called with what is done and the total (None: not known), such as shards, files or steps."""


def no_progress(done: int, total: int | None) -> None:
    """Report nothing."""


def in_parallel(
    function: Callable[[Argument], Result], arguments: Iterable[Argument], *, num_workers: int, what: str
) -> Generator[Result, None, None]:
    """`function` of each argument, in order, by `num_workers` processes; by this process if `num_workers` is 1.

    Processes are forked, so any function will do: it need not be pickled.

    Raises:
        WorkerError: if a process died; `what` says what it did, such as `scanned shards`.
    """
    if num_workers <= 1:
        yield from map(function, arguments)
        return
    from concurrent.futures import BrokenExecutor  # imported here: slow, and one process does not need it

    call = next(_calls)
    _functions[call] = function
    with pool(num_workers) as executor:
        remaining = iter(arguments)
        first = itertools.islice(remaining, 4 * num_workers)
        waiting = deque(executor.submit(_called, call, argument) for argument in first)
        try:
            while waiting:
                result: Result = waiting.popleft().result()
                waiting.extend(executor.submit(_called, call, argument) for argument in itertools.islice(remaining, 1))
                yield result
        except BrokenExecutor as error:
            raise WorkerError(
                f"a process that {what} was killed, perhaps because memory ran out; try fewer --num-workers"
            ) from error
        finally:
            executor.shutdown(cancel_futures=True)
            del _functions[call]


_functions: dict[int, Callable[[Any], Any]] = {}
"""The functions of the calls that run now, which forked processes find here."""

_calls = itertools.count()


def _called(call: int, argument: Any) -> Any:
    return _functions[call](argument)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that created it ends; at once if `parent` is gone already."""
    import ctypes  # imported here: only children need it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def pool(num_workers: int) -> Executor:
    """Forked processes, which end with this one, or threads where it is not safe to fork."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

    if threading.active_count() > 1 or "fork" not in multiprocessing.get_all_start_methods():
        return ThreadPoolExecutor(num_workers)
    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(num_workers, context, initializer=die_with_parent, initargs=(os.getpid(),))
