"""The trainer's end of the server: it starts the server's process, asks it for workers, and shares it between loaders.

After `close`, the workers of a loader have ended and are reaped; the server ends with its last loader. Loaders share a
server if workers would inherit the same from a new one, also of modules, whose files may be edited while the trainer
runs, as in a notebook; a worker imports missing modules itself. If a server dies, it
is lost for all its loaders; each gets a new one when it needs it. The thread that the kernel treats as the server's
parent lives as long as the server should.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from bridge_data.child_process import OF_THE_TRAINER, SINGLE_THREADED
from bridge_data.errors import WorkerError
from bridge_data.loader.workers.messages import (
    AddLoader,
    Channel,
    Environment,
    Exited,
    Import,
    KillWorker,
    StartWorker,
    Stop,
)
from bridge_data.loader.workers.watch_page import ImportPage
from bridge_data.run_options import StartMethod

_STOP_TIMEOUT_S = 1.0
"""A server that is ready stops workers in milliseconds; one that takes longer is importing for another loader."""


class _ServerProcess:
    """A server, executed from a thread of its own: PR_SET_PDEATHSIG means the death of the thread that forked."""

    def __init__(self, method: StartMethod, channel: Channel, environment: Environment) -> None:
        self._started, self._ended = threading.Event(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._error: OSError | None = None
        self._thread = threading.Thread(
            target=self._live, args=(method, channel, environment), name="bridge_data loader", daemon=True
        )
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise WorkerError(f"cannot execute {sys.executable!r} to start workers: {self._error}") from self._error

    def _live(self, method: StartMethod, channel: Channel, environment: Environment) -> None:
        from bridge_data.loader.workers import server  # here: an imported module should not be executed with -m

        signal.pthread_sigmask(signal.SIG_BLOCK, OF_THE_TRAINER)  # inherited until it ignores them
        path = os.pathsep.join(entry or os.getcwd() for entry in environment.sys_path)
        try:
            self._process = subprocess.Popen(
                server.command(method, channel.fileno()),
                pass_fds=[channel.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | SINGLE_THREADED | {"PYTHONPATH": path},
            )
        except OSError as error:
            self._error = error
            self._started.set()
            return
        self.pid = self._process.pid
        self._started.set()
        self._ended.wait()

    def end(self, timeout_s: float) -> None:
        """Reap it; kill it if it has not ended by then."""
        assert self._process is not None
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._ended.set()
        self._thread.join()


class ServerLost(Exception):
    """The server died, and the workers with it."""


class Launcher:
    """Starts and kills the workers of one loader through a server, and receives their exits."""

    def __init__(self, method: StartMethod, environment: Environment, modules: list[str]) -> None:
        self.joined = False
        """Whether the server serves this loader."""
        with contextlib.ExitStack() as undo:
            self._channel, theirs = Channel.pair()
            undo.callback(self._channel.close)
            with contextlib.closing(theirs):
                self.server = _server_for(method, environment)
                undo.callback(self.server.release, at_once=False)
                self.server.admit(theirs, modules)
            undo.pop_all()

    def fileno(self) -> int:
        return self._channel.fileno()

    def start_worker(self, uid: int, channel: Channel, watch: int) -> None:
        """Start a worker with its end of the channel and its watch page."""
        self._channel.send(StartWorker(uid), [channel.fileno(), watch])

    def kill_worker(self, uid: int) -> None:
        """Kill a worker, if it still runs."""
        self._channel.send(KillWorker(uid))

    def exits(self) -> list[Exited]:
        """Workers that have ended since the last call. Raises `ServerLost` if the server has."""
        try:
            return list(self._messages())
        except EOFError:
            where = f" while it imported {self.server.importing}" if self.server.importing else ""
            raise ServerLost(
                f"the process that workers are started from died{where} (see its messages above)"
            ) from None

    def _messages(self) -> Iterator[Exited]:
        with contextlib.suppress(BlockingIOError):
            while True:
                message = self._channel.receive(wait=False).message
                if isinstance(message, Exited):
                    yield message
                else:
                    self.joined = True

    def close(self) -> None:
        """End all workers and wait for them; end the server if no other loader uses it."""
        self._channel.send(Stop())
        with contextlib.suppress(EOFError):
            for _ in self._messages():
                pass
            deadline = time.monotonic() + _STOP_TIMEOUT_S
            while self.joined and (left := deadline - time.monotonic()) > 0:  # else it has not started any worker
                select.select([self._channel], [], [], left)
                for _ in self._messages():
                    pass
        self._channel.close()
        self.server.release(at_once=not self.joined)


class _SharedServer:
    """A server and how many loaders use it; `sources` are those of its trainer when it begins."""

    def __init__(self, method: StartMethod, environment: Environment, sources: Mapping[str, int]) -> None:
        with contextlib.ExitStack() as undo:
            self._control, theirs = Channel.pair()
            undo.callback(self._control.close)
            with contextlib.closing(theirs):
                self.process = _ServerProcess(method, theirs, environment)
            self._page, descriptor = ImportPage.make()
            try:
                self._control.send(environment, [descriptor])
            finally:
                os.close(descriptor)
            undo.pop_all()
        self.num_users = 0
        self._sources = dict(sources)

    def has_imported(self, sources: Mapping[str, int]) -> bool:
        """Whether its modules are of files as they are in `sources`, as those of a new server would be."""
        self._sources = {**sources, **self._sources}
        return all(self._sources[file] == written for file, written in sources.items())

    def lives(self) -> bool:
        """Whether the process runs."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        return not poll.poll(0)  # it never sends anything here

    def admit(self, loader: Channel, modules: list[str]) -> None:
        """Connect one more loader to the server."""
        self.prepare(modules)
        self._control.send(AddLoader(), [loader.fileno()])

    def prepare(self, modules: list[str]) -> None:
        """Have it import these for its workers."""
        self._control.send(Import(modules))

    @property
    def importing(self) -> str:
        """The module that it imports for one of its loaders, while the others wait; "" if it imports none."""
        return self._page.read()

    def release(self, *, at_once: bool) -> None:
        """Release the server; it ends with its last user. `at_once`: kill it, as it is not ready yet."""
        with _lock:
            self.num_users -= 1
            if self.num_users:
                return
            for key in [key for key, server in _servers.items() if server is self]:
                del _servers[key]
        self._control.send(Stop())
        self._control.close()
        self.process.end(0.0 if at_once else _STOP_TIMEOUT_S)


class EarlyServer:
    """Keeps a server for the loaders to come, whose workers then start sooner, until `release`. Copies keep none, nor
    does one without a method.

    Raises:
        WorkerError: if the server cannot be executed.
    """

    def __init__(self, method: StartMethod | None = None) -> None:
        self._server = None if method is None else _server_for(method, Environment.of_this_process())
        self.release = weakref.finalize(self, _release_in, os.getpid(), self._server)

    def prepare(self, modules: list[str]) -> None:
        """Have it import these already, while the trainer does something else; nothing after `release`."""
        if self._server is not None and modules and self.release.alive:
            self._server.prepare(modules)

    def __reduce__(self) -> tuple[Any, ...]:
        return EarlyServer, ()


def _release_in(process: int, server: _SharedServer | None) -> None:
    if server is not None and os.getpid() == process:  # not in a child that the trainer forked
        server.release(at_once=True)


_INSTALLED = tuple({os.path.join(folder, "") for folder in sysconfig.get_paths().values()})


def _own_sources() -> dict[str, int]:
    """When the files of imported modules were written, by path; without those of installed packages, which stay."""
    modules = [vars(module) for module in [*sys.modules.values()] if isinstance(module, ModuleType)]
    written = {}
    for file in {module.get("__file__") for module in modules}:
        if isinstance(file, str) and not file.startswith(_INSTALLED):
            with contextlib.suppress(OSError, ValueError):
                written[file] = os.stat(file).st_mtime_ns
    return written


_servers: dict[tuple[Any, ...], _SharedServer] = {}
"""The servers that loaders of this process share, by what their workers inherit."""

_lock = threading.RLock()  # a loader may be collected, and release its server, while this thread holds it


def _server_for(method: StartMethod, environment: Environment) -> _SharedServer:
    """A server that starts workers in this way, shared if there is one; it counts one more user."""
    inherited = os.getcwd(), frozenset(os.environ.items()), frozenset(os.sched_getaffinity(0))
    key = os.getpid(), method, environment, *inherited
    sources = _own_sources()
    with _lock:
        while True:
            server = _servers.get(key)
            if server is None or not server.lives() or not server.has_imported(sources):
                server = _servers[key] = _SharedServer(method, environment, sources)
            server.num_users += 1
            if _servers.get(key) is server:  # else the loader that used it was collected just now
                return server
