"""The trainer's end of the server: asks it for workers, and has the loaders of a process share it.

Guarantee: after `close` the workers of a loader are no more, and reaped; the server ends with its last loader. Loaders
share a server as long as workers would inherit the same from another one; what modules a worker lacks it imports
itself. A server that is lost is lost for all its loaders, each of which gets another in its own time.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from typing import Any

from bridge_data.errors import WorkerError
from bridge_data.loader.loader_config import StartMethod
from bridge_data.loader.workers.messages import AddLoader, Channel, Environment, Exited, KillWorker, StartWorker, Stop
from bridge_data.loader.workers.server_process import Child, Executed, Forked

_STOP_TIMEOUT_S = 1.0
"""A server that serves needs milliseconds to stop workers; one that takes longer imports for another loader."""


class ServerLost(WorkerError):
    """The server died, and the workers with it."""


class Launcher:
    """Starts and kills the workers of one loader through a server, and hears of their ends."""

    def __init__(self, method: StartMethod, environment: Environment, modules: list[str]) -> None:
        self.server = _server_for(method, environment)
        self._channel, theirs = Channel.pair()
        self._joined = False
        self.server.admit(theirs, modules)
        theirs.close()

    def fileno(self) -> int:
        return self._channel.fileno()

    def start_worker(self, uid: int, channel: Channel, watch: int) -> None:
        """Start a worker with the far end of its channel and its watch page."""
        self._send(StartWorker(uid), channel.fileno(), watch)

    def kill_worker(self, uid: int) -> None:
        """Kill a worker, if it is still there."""
        self._send(KillWorker(uid))

    def exits(self) -> list[Exited]:
        """Workers that have ended since the last call. Raises `ServerLost` if the server has."""
        try:
            return list(self._heard())
        except EOFError:
            raise ServerLost("the process that workers are started from died (see its messages above)") from None

    def _heard(self) -> Iterator[Exited]:
        with contextlib.suppress(BlockingIOError):
            while True:
                message = self._channel.receive(wait=False).message
                if isinstance(message, Exited):
                    yield message
                else:
                    self._joined = True

    def close(self) -> None:
        """End all workers and wait until they are gone; and the server, if no other loader uses it."""
        self._send(Stop())
        with contextlib.suppress(EOFError):
            for _ in self._heard():
                pass
            deadline = time.monotonic() + _STOP_TIMEOUT_S
            while self._joined and (left := deadline - time.monotonic()) > 0:  # else it has not started any worker
                select.select([self._channel], [], [], left)
                for _ in self._heard():
                    pass
        self._channel.close()
        self.server.let_go(at_once=not self._joined)

    def _send(self, message: Any, *descriptors: int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `exits` will tell
            self._channel.send(message, descriptors)


class _SharedServer:
    """A server and how many loaders use it."""

    def __init__(self, method: StartMethod, environment: Environment) -> None:
        self._control, theirs = Channel.pair()
        self.child: Child = Forked(theirs) if method == "fork" else Executed(method, theirs, environment)
        theirs.close()
        self._control.send(environment)
        self.num_users = 0

    def lives(self) -> bool:
        """Whether the process is there."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        return not poll.poll(0)  # it never sends anything here

    def admit(self, loader: Channel, modules: list[str]) -> None:
        """Have it serve one more loader."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the loader will hear that it is lost
            self._control.send(AddLoader(modules), [loader.fileno()])

    def let_go(self, *, at_once: bool) -> None:
        """Count one user less; with the last one the server ends. `at_once`: kill it, it is not serving yet."""
        with _lock:
            self.num_users -= 1
            if self.num_users:
                return
            for key in [key for key, server in _servers.items() if server is self]:
                del _servers[key]
        with contextlib.suppress(OSError):
            self._control.send(Stop())
        self._control.close()
        self.child.end(0.0 if at_once else _STOP_TIMEOUT_S)


_servers: dict[tuple[Any, ...], _SharedServer] = {}
"""The servers of this process that another loader may use, by what their workers inherit from them."""

_lock = threading.RLock()  # a loader may be collected, and let go of its server, while this thread holds it


def _server_for(method: StartMethod, environment: Environment) -> _SharedServer:
    """A server with one more user: a new one only where none would start workers in just the same way."""
    if method == "fork":  # from this process as it is now
        forked = _SharedServer(method, environment)
        forked.num_users += 1
        return forked
    inherited = (
        os.getcwd(),
        frozenset(os.environ.items()),
        frozenset(os.sched_getaffinity(0)),
    )
    key = (os.getpid(), method, tuple(environment.sys_path), tuple(environment.argv), *inherited)
    with _lock:
        while True:
            server = _servers.get(key)
            if server is None or not server.lives():
                server = _servers[key] = _SharedServer(method, environment)
            server.num_users += 1
            if _servers.get(key) is server:  # else the loader that used it was collected just now
                return server
