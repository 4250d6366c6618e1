"""The trainer's end of the server: brings it up in one of three ways, and asks it for workers.

Guarantee: the thread that the kernel takes for the server's parent lives as long as the server should; after `close`
the server and its workers are no more, and reaped.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import subprocess
import sys
import threading
from typing import Any, Protocol

from bridge_data.errors import WorkerError
from bridge_data.loader import process
from bridge_data.loader.config import StartMethod
from bridge_data.loader.messages import Channel, Environment, Exited, KillWorker, StartWorker, Stop

_STOP_TIMEOUT_S = 1.0
"""A server that serves needs milliseconds to stop; one that takes longer is still importing, and has no workers."""


class ServerLost(WorkerError):
    """The server died, and the workers with it."""


class _Child(Protocol):
    def end(self, timeout_s: float) -> None:
        """Reap the process, killing it if it has not ended by then."""


class Launcher:
    """Starts and kills workers through the server, and hears of their ends."""

    def __init__(self, method: StartMethod, environment: Environment) -> None:
        self._channel, theirs = Channel.pair()
        if method == "fork":
            self._child: _Child = _Forked(theirs)
        else:
            self._child = _Executed(method, theirs, environment)
        theirs.close()
        self._channel.send(environment)

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
        found = []
        try:
            while True:
                found.append(self._channel.receive(wait=False)[0])
        except BlockingIOError:
            return found
        except EOFError:
            raise ServerLost("the process that workers are started from died (see its messages above)") from None

    def close(self) -> None:
        """End the server and all workers, and wait until they are gone."""
        with contextlib.suppress(OSError):
            self._channel.send(Stop())
        self._channel.close()
        self._child.end(_STOP_TIMEOUT_S)

    def _send(self, message: Any, *descriptors: int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `exits` will tell
            self._channel.send(message, descriptors)


class _Executed:
    """A server executed from a thread of its own: PR_SET_PDEATHSIG means the death of the thread that forked."""

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
        from bridge_data.loader import server  # here: a module that is imported is not well executed with -m

        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])  # inherited until it ignores them
        path = os.pathsep.join(entry or os.getcwd() for entry in environment.sys_path)
        try:
            self._process = subprocess.Popen(
                server.command(method, channel.fileno()),
                pass_fds=[channel.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | server.SINGLE_THREADED | {"PYTHONPATH": path},
            )
        except OSError as error:
            self._error = error
        self._started.set()
        if self._process is not None:
            self._ended.wait()

    def end(self, timeout_s: float) -> None:
        assert self._process is not None
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._ended.set()
        self._thread.join()


class _Forked:
    """A server forked from this process, which has imported all that workers need."""

    def __init__(self, channel: Channel) -> None:
        _refuse_unsafe_fork()
        from bridge_data.loader import server, worker  # noqa: F401  before the fork, so that no worker imports

        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                gc.freeze()  # what the trainer left for collection would close descriptors that are others by now
                process.die_with_parent(parent)
                process.reset_signals()
                process.close_descriptors({channel.fileno()})
                channel.receive()
                server.serve(channel, parent, server.fork_worker)
            finally:
                os._exit(1)

    def end(self, timeout_s: float) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            pidfd = os.pidfd_open(self._pid)
            if not select.select([pidfd], [], [], timeout_s)[0]:
                os.kill(self._pid, signal.SIGKILL)
            os.close(pidfd)
            os.waitpid(self._pid, 0)


def _refuse_unsafe_fork() -> None:
    import torch
    import torch.distributed as dist

    reasons = []
    if (threads := process.num_threads()) > 1:
        reasons.append(
            f"this process has {threads} threads (those of numerical libraries count; they start none with "
            "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 in the environment)"
        )
    if torch.cuda.is_initialized():
        reasons.append("CUDA is initialised")
    if dist.is_available() and dist.is_initialized():
        reasons.append("a torch.distributed process group is open")
    if reasons:
        raise WorkerError(
            f'start_method="fork" is not safe here: {"; ".join(reasons)}. Use the default, start_method="server".'
        )
