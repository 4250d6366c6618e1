"""Processes for preparing: a function of each of many arguments, in parallel, the results in order.

Enters: a function, arguments, a number of processes. Leaves: the results, of which only a few wait at a time. In a
process that runs threads, which cannot safely fork, threads do the work. The function is inherited, arguments and
results travel through pipes. `multiprocessing` takes ten times as long to begin, which is longer than many data sets
take to scan.
"""

import contextlib
import fcntl
import gc
import itertools
import os
import pickle
import select
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NoReturn, TypeVar

from bridge_data.errors import WorkerError

Argument = TypeVar("Argument")
Result = TypeVar("Result")

_PIPE_BYTES = 1 << 20
"""What a process can write of a result before somebody reads it."""


def in_parallel(
    function: Callable[[Argument], Result], arguments: Iterable[Argument], *, num_workers: int, what: str
) -> Generator[Result, None, None]:
    """`function` of each argument, in this order, by `num_workers` processes; by this one if there is one only.

    Raises:
        WorkerError: if a process died; `what` says what it did, such as `scanned shards`.
    """
    if num_workers <= 1:
        yield from map(function, arguments)
    elif threading.active_count() > 1:
        yield from _by_threads(function, arguments, num_workers)
    else:
        with _processes(function, num_workers) as processes:
            try:
                yield from _by_processes(processes, arguments)
            except _DiedError as error:
                raise WorkerError(
                    f"a process that {what} was killed, perhaps for want of memory; try fewer --num-workers"
                ) from error


def _by_threads(
    function: Callable[[Argument], Result], arguments: Iterable[Argument], num_threads: int
) -> Iterator[Result]:
    import concurrent.futures  # here: the command line has no threads

    with concurrent.futures.ThreadPoolExecutor(num_threads) as executor:
        remaining = iter(arguments)
        first = itertools.islice(remaining, 4 * num_threads)
        waiting = deque(executor.submit(function, argument) for argument in first)
        try:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(executor.submit(function, argument) for argument in itertools.islice(remaining, 1))
                yield result
        finally:
            executor.shutdown(cancel_futures=True)


def _by_processes(processes: list["_Process"], arguments: Iterable[Any]) -> Iterator[Any]:
    """A process has one argument at a time, so that neither side can wait to write while the other one does."""
    poll = select.poll()
    for process in processes:
        poll.register(process.incoming, select.POLLIN)
    numbered = enumerate(arguments)
    idle = list(processes)
    busy: dict[int, tuple[_Process, int]] = {}
    results: dict[int, Any] = {}
    wanted = 0
    while True:
        room = min(len(idle), 4 * len(processes) - len(busy) - len(results))
        for number, argument in itertools.islice(numbered, room):
            process = idle.pop()
            process.send(argument)
            busy[process.incoming.fileno()] = process, number
        if not busy and not results:
            return
        for descriptor, _ in poll.poll(0 if wanted in results else None):
            if descriptor not in busy:
                raise _DiedError
            process, number = busy.pop(descriptor)
            results[number] = process.receive()
            idle.append(process)
        if wanted in results:
            yield results.pop(wanted)
            wanted += 1


class _DiedError(Exception):
    """A process is no more."""


@contextlib.contextmanager
def _processes(function: Callable[[Any], Any], num_workers: int) -> Iterator[list["_Process"]]:
    processes: list[_Process] = []
    try:
        for _ in range(num_workers):
            processes.append(_Process(function))  # noqa: PERF401  those there are must end if one cannot be made
        yield processes
    finally:
        for process in reversed(processes):  # each has inherited the ends by which those before are told to stop
            process.end()


class _Process:
    """A forked process that calls `function`. `incoming` is where its results come."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        arguments, to_arguments = os.pipe()
        results, to_results = os.pipe()
        with contextlib.suppress(OSError):  # there is a limit for all pipes of a user
            fcntl.fcntl(to_results, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(to_arguments)
            os.close(results)
            _serve(function, arguments, to_results)
        os.close(arguments)
        os.close(to_results)
        self.incoming = open(results, "rb")  # noqa: SIM115  `end` closes it
        self._outgoing = open(to_arguments, "wb")  # noqa: SIM115

    def send(self, argument: Any) -> None:
        """Have it call the function."""
        try:
            self._outgoing.write(pickle.dumps(argument, pickle.HIGHEST_PROTOCOL))
            self._outgoing.flush()
        except BrokenPipeError as error:
            raise _DiedError from error

    def receive(self) -> Any:
        """Wait for the result, or raise what the function raised."""
        try:
            is_result, value = pickle.load(self.incoming)
        except (EOFError, pickle.UnpicklingError) as error:
            raise _DiedError from error
        if is_result:
            return value
        raise value

    def end(self) -> None:
        """Wait until it has ended, as it does when it is not needed any more."""
        self.incoming.close()
        with contextlib.suppress(BrokenPipeError):
            self._outgoing.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _serve(function: Callable[[Any], Any], arguments: int, results: int) -> NoReturn:
    """Answer as long as there are arguments."""
    try:
        gc.freeze()  # to look at what was inherited would copy it
        incoming, outgoing = open(arguments, "rb"), open(results, "wb")  # noqa: SIM115  they end with the process
        with contextlib.suppress(EOFError, BrokenPipeError):
            while True:
                outgoing.write(_answer(function, pickle.load(incoming)))
                outgoing.flush()
        sys.stdout.flush()
    finally:
        os._exit(0)


def _answer(function: Callable[[Any], Any], argument: Any) -> bytes:
    try:
        return pickle.dumps((True, function(argument)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        error.add_note(f"In a process of its own:\n{traceback.format_exc()}")
        try:
            return pickle.dumps((False, error), pickle.HIGHEST_PROTOCOL)
        except Exception:
            return pickle.dumps((False, WorkerError(f"{type(error).__name__}: {error}")), pickle.HIGHEST_PROTOCOL)
