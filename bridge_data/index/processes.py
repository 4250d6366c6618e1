"""Processes for preparing: a function of each of many arguments, in parallel, the results in order.

Enters: a function, arguments, a number of processes. Leaves: the results, of which only a few wait at a time. In a
process that runs threads, which cannot safely fork, threads do the work.
"""

import concurrent.futures
import itertools
import multiprocessing
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from bridge_data.errors import WorkerError

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def in_parallel(
    function: Callable[[Argument], Result], arguments: Iterable[Argument], *, num_workers: int, what: str
) -> Generator[Result, None, None]:
    """`function` of each argument, in this order, by `num_workers` processes; by this one if there is one only.

    Raises:
        WorkerError: if a process died; `what` says what it did, such as `scanned shards`.
    """
    if num_workers <= 1:
        yield from map(function, arguments)
        return
    with pool(num_workers) as executor:
        remaining = iter(arguments)
        first = itertools.islice(remaining, 4 * num_workers)
        waiting = deque(executor.submit(function, argument) for argument in first)
        try:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(executor.submit(function, argument) for argument in itertools.islice(remaining, 1))
                yield result
        except concurrent.futures.BrokenExecutor as error:
            raise WorkerError(
                f"a process that {what} was killed, perhaps for want of memory; try fewer --num-workers"
            ) from error
        finally:
            executor.shutdown(cancel_futures=True)


def pool(num_workers: int) -> concurrent.futures.Executor:
    """Forked processes, or threads where it is not safe to fork."""
    if threading.active_count() > 1 or "fork" not in multiprocessing.get_all_start_methods():
        return concurrent.futures.ThreadPoolExecutor(num_workers)
    return concurrent.futures.ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context("fork"))
