"""Other processes, at a place in their programs that the test knows."""

import contextlib
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any, Self


class Child:
    """A process, forked from this one, that runs `function(ready)`. Where that calls `ready(value)`, it waits."""

    def __init__(self, function: Callable[[Callable[[str], None]], object]) -> None:
        from_child, to_parent = os.pipe()
        from_parent, to_child = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(from_child), os.close(to_child)

                def ready(value: str) -> None:
                    os.write(to_parent, value.encode() + b"\n")
                    os.read(from_parent, 1)

                function(ready)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(to_parent), os.close(from_parent)
        self._read, self._write = os.fdopen(from_child), to_child
        self.value = self._read.readline().strip()
        """What it said last, empty if it has ended."""

    def go_on(self) -> None:
        """Let it run from where it waits to the next `ready`, or to its end."""
        os.write(self._write, b".")
        self.value = self._read.readline().strip()

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()
        self._read.close()
        os.close(self._write)
