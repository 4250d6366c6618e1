"""A time limit for untrusted Python code, such as the loops of a chat template.

Enters: a function and seconds. Leaves: its result. Guarantee: a loop of Python code that does not end is stopped by a
`TimeoutError`, in any thread; a single long call of C code is stopped when it returns. A call costs two microseconds.

One thread per process watches the clock and raises an exception in the thread that is late.
"""

import ctypes
import dataclasses
import math
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class _OutOfTimeError(BaseException):
    """Raised in a thread that is late; no handler of ordinary errors stops it."""


@dataclasses.dataclass(eq=False, slots=True)
class _Call:
    """A call in progress: its thread, its deadline, and whether it was interrupted."""

    thread: int
    deadline: float
    is_told: bool = False


class _Watch:
    """The calls in progress, and the thread that watches them, which starts with the first."""

    def __init__(self) -> None:
        # Entered itself, as entering a condition runs Python code: an exception raised there, when the lock is taken,
        # would leave it locked permanently.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._calls: set[_Call] = set()
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None

    def begin(self, call: _Call) -> None:
        with self._lock:
            self._calls.add(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="time limit", daemon=True)
                self._thread.start()
            elif call.deadline < self._wakes_at:
                self._changed.notify()

    def end(self, call: _Call) -> None:
        """From here on the thread of `call` gets no exception."""
        with self._lock:
            self._calls.discard(call)
            if call.is_told:
                _raise_in(call.thread, None)

    def _run(self) -> None:
        with self._lock:
            while True:
                now = time.monotonic()
                for call in self._calls:
                    if not call.is_told and call.deadline <= now:
                        call.is_told = True
                        _raise_in(call.thread, _OutOfTimeError)
                deadlines = [call.deadline for call in self._calls if not call.is_told]
                self._wakes_at = min(deadlines, default=math.inf)
                self._changed.wait(self._wakes_at - now if deadlines else None)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise `error` in a thread at its next step; None: take one back that has not been raised yet."""
    value = ctypes.py_object() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), value)


_watch = _Watch()


def _after_fork() -> None:
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_after_fork)


def within_time(act: Callable[[], T], limit_s: float) -> T:
    """The result of `act()`.

    Raises:
        TimeoutError: if it takes longer than `limit_s` seconds.
    """
    call = _Call(threading.get_ident(), time.monotonic() + limit_s)
    watch = _watch
    try:
        watch.begin(call)
        try:
            return act()
        finally:
            watch.end(call)
    except _OutOfTimeError:
        watch.end(call)
        raise TimeoutError(f"not done after {limit_s:g} s") from None
