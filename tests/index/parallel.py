"""What must hold of `in_parallel` in a process that may be forked: `python -m tests.index.parallel NAME` checks it.

pytest itself has threads.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bridge_data.errors import DatasetError, WorkerError
from bridge_data.index.processes import in_parallel


def in_two(function: Callable[[Any], Any], arguments: Any) -> list[Any]:
    return list(in_parallel(function, arguments, num_workers=2, what="counted"))


def order() -> None:
    for num_workers in (1, 3):
        found = in_parallel(abs, range(-40, 0), num_workers=num_workers, what="counted")
        assert list(found) == list(range(40, 0, -1))


def sizes() -> None:
    """Arguments and results are larger than a pipe."""
    num_bytes = [5 << 20, 1, 3 << 20, 0, 7 << 20, 2 << 20]
    assert in_two(bytes.upper, (b"a" * size for size in num_bytes)) == [b"A" * size for size in num_bytes]


def lazy() -> None:
    """Only a few arguments are taken before results are."""
    taken = 0

    def arguments() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    with contextlib.closing(in_parallel(abs, arguments(), num_workers=2, what="counted")) as results:
        for wanted in range(1, 100):
            assert next(results) == wanted
            assert taken <= wanted + 8


class NotPickledError(Exception):
    """One that cannot travel."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.lock = threading.Lock()


def failing(number: int) -> int:
    if number == 2:
        raise DatasetError("number 2")
    if number == 3:
        raise NotPickledError(1, 2)
    return number


def errors() -> None:
    """What the function raises is raised here, and what the arguments raise."""
    with pytest.raises(DatasetError) as raised:
        in_two(failing, [0, 1, 2, 4, 5])
    assert str(raised.value) == "number 2"
    assert "in failing" in raised.value.__notes__[0]
    with pytest.raises(WorkerError, match="NotPickledError: 1 and 2"):
        in_two(failing, [3])
    with pytest.raises(Exception, match="pickle"):
        in_two(lambda _: threading.Lock(), [1])
    with pytest.raises(ZeroDivisionError):
        in_two(abs, (1 // number for number in (1, 1, 0)))


def death() -> None:
    for number in (0, 5):

        def die(argument: int, number: int = number) -> bytes:
            if argument == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return bytes(argument)

        with pytest.raises(WorkerError, match="a process that counted was killed"):
            in_two(die, range(6))


def output() -> None:
    """What processes print is not lost, nor printed twice."""
    print("here", end=" ")
    in_two(lambda text: print(text, end=" "), ["a", "b", "c"])


def killed() -> None:
    """A process that kills itself while others work for it."""
    for number, pid in enumerate(in_parallel(lambda _: os.getpid(), range(20), num_workers=3, what="counted")):
        print(pid, flush=True)
        if number == 10:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    with pytest.raises(ChildProcessError):  # there is none that has not been waited for
        os.waitpid(-1, os.WNOHANG)
