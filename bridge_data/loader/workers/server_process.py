"""Brings up the process of a server in one of three ways, and sees to its end.

Guarantee: the thread that the kernel takes for the server's parent lives as long as the server should; after `end` it
is no more, and reaped.
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
from typing import Protocol

from bridge_data.errors import WorkerError
from bridge_data.later import torch
from bridge_data.loader.loader_config import StartMethod
from bridge_data.loader.workers import process
from bridge_data.loader.workers.messages import Channel, Environment


class Child(Protocol):
    """The process of a server."""

    pid: int

    def end(self, timeout_s: float) -> None:
        """Reap it, killing it if it has not ended by then."""


class Executed:
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
        from bridge_data.loader.workers import server  # here: a module that is imported is not well executed with -m

        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])  # inherited until it ignores them
        path = os.pathsep.join(entry or os.getcwd() for entry in environment.sys_path)
        try:
            self._process = subprocess.Popen(
                server.command(method, channel.fileno()),
                pass_fds=[channel.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | process.SINGLE_THREADED | {"PYTHONPATH": path},
            )
        except OSError as error:
            self._error = error
            self._started.set()
            return
        self.pid = self._process.pid
        self._started.set()
        self._ended.wait()

    def end(self, timeout_s: float) -> None:
        """Wait for the end of the process; kill it after `timeout_s`."""
        assert self._process is not None
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._ended.set()
        self._thread.join()


class Forked:
    """A server forked from this process, which has imported most of what workers need."""

    def __init__(self, channel: Channel) -> None:
        _refuse_unsafe_fork()
        from bridge_data.loader.workers import server, worker  # noqa: F401  before the fork, so that no worker imports

        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                gc.freeze()  # what the trainer left for collection would close descriptors that are others by now
                process.die_with_parent(parent)
                process.reset_signals()
                process.close_descriptors({channel.fileno()})
                channel.receive()
                server.serve(channel, parent, server.fork_worker, prepare=server.import_for_workers)
            finally:
                os._exit(1)

    def end(self, timeout_s: float) -> None:
        """Wait for the end of the process; kill it after `timeout_s`."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            pidfd = os.pidfd_open(self.pid)
            if not select.select([pidfd], [], [], timeout_s)[0]:
                os.kill(self.pid, signal.SIGKILL)
            os.close(pidfd)
            os.waitpid(self.pid, 0)


def _refuse_unsafe_fork() -> None:
    reasons = []
    if (threads := process.num_threads()) > 1:
        reasons.append(
            f"this process has {threads} threads (those of numerical libraries count; they start none with "
            "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 in the environment)"
        )
    if "torch" in sys.modules:
        if torch.cuda.is_initialized():
            reasons.append("CUDA is initialised")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            reasons.append("a torch.distributed process group is open")
    if reasons:
        raise WorkerError(
            f'start_method="fork" is not safe here: {"; ".join(reasons)}. Use the default, start_method="server".'
        )
