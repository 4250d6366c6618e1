"""The process that workers come from: `python -m bridge_data.loader.server MODE CHANNEL PARENT [WATCH]`.

Enters: `StartWorker`, `KillWorker` and `Stop`. Leaves: worker processes, and `Exited` when one is no more. Guarantee:
it has one thread, forks with nothing open that a worker could inherit by accident, reaps every worker, and ends, with
all of them, when the trainer ends in any way at all.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from bridge_data.loader import process
from bridge_data.loader.messages import Channel, Exited, KillWorker, StartWorker

logger = logging.getLogger("bridge_data")

SINGLE_THREADED = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Set for server and workers: libraries that start threads when imported must not, or they could not be forked."""

Start = Callable[[int, int], int]
"""Starts a worker with the descriptors of its channel and watch page; returns the process id."""


def command(mode: str, channel: int, watch: int | None = None) -> list[str]:
    """The command line of a child of this process that runs this module."""
    arguments = [mode, str(channel), str(os.getpid())] + ([] if watch is None else [str(watch)])
    return [sys.executable, "-P", "-m", "bridge_data.loader.server", *arguments]


def main(mode: str, channel_descriptor: int, parent: int, watch_descriptor: int = -1) -> None:
    """Be a server ("server", "spawn") or one executed worker ("worker")."""
    process.die_with_parent(parent)
    process.reset_signals()
    if mode == "worker":
        from bridge_data.loader import worker

        worker.main(parent, channel_descriptor, watch_descriptor)
    channel = Channel.from_descriptor(channel_descriptor)
    environment, _ = channel.receive()
    if mode == "spawn":  # it keeps the PYTHONPATH that it got, for its workers
        serve(channel, parent, _execute_worker)
    process.adopt(environment)
    _import_for_workers(environment.modules)
    serve(channel, parent, fork_worker)


def serve(channel: Channel, parent: int, start: Start) -> NoReturn:
    """Start and reap workers until the trainer says so or is no more; then kill those left, and end the process."""
    workers = _Workers(channel, start)
    try:
        _serve(channel, os.pidfd_open(parent), workers)
    except (EOFError, BrokenPipeError, ConnectionResetError, ProcessLookupError):
        logger.debug("the trainer is gone", exc_info=True)
    except BaseException:
        traceback.print_exc()
    workers.kill_all()
    os._exit(0)


def _serve(channel: Channel, trainer: int, workers: _Workers) -> None:
    while True:
        poll = select.poll()
        for descriptor in (channel.fileno(), trainer, *workers.pidfds):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        for pidfd in ready & workers.pidfds.keys():
            workers.reap(pidfd)
        if trainer in ready:
            return
        if channel.fileno() in ready:
            message, descriptors = channel.receive()
            if isinstance(message, StartWorker):
                workers.start(message.uid, descriptors)
            elif isinstance(message, KillWorker):
                workers.kill(message.uid)
            else:
                return


class _Workers:
    """The workers that have not been reaped."""

    def __init__(self, channel: Channel, start: Start) -> None:
        self._channel, self._start = channel, start
        self.pidfds: dict[int, tuple[int, int]] = {}
        """Process descriptor -> (uid, process id)."""

    def start(self, uid: int, descriptors: list[int]) -> None:
        pid = self._start(*descriptors)
        self.pidfds[os.pidfd_open(pid)] = uid, pid
        for descriptor in descriptors:
            os.close(descriptor)

    def reap(self, pidfd: int) -> None:
        uid, pid = self.pidfds.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._channel.send(Exited(uid, os.waitstatus_to_exitcode(status)))

    def kill(self, uid: int) -> None:
        for other, pid in self.pidfds.values():
            if other == uid:
                os.kill(pid, signal.SIGKILL)

    def kill_all(self) -> None:
        for _, pid in self.pidfds.values():
            os.kill(pid, signal.SIGKILL)
        for _, pid in self.pidfds.values():
            os.waitpid(pid, 0)


def fork_worker(channel: int, watch: int) -> int:
    """Fork a worker from this process."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        from bridge_data.loader import worker

        worker.main(parent, channel, watch)
    return pid


def _execute_worker(channel: int, watch: int) -> int:
    child = subprocess.Popen(command("worker", channel, watch), pass_fds=(channel, watch), stdin=subprocess.DEVNULL)
    child.returncode = 0  # reaped by its process id like a forked one
    return child.pid


def _import_for_workers(modules: list[str]) -> None:
    """Import what workers will need. One that cannot be imported fails again, and audibly, in the worker."""
    from bridge_data.loader import worker  # noqa: F401  brings torch and numpy

    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
        if process.num_threads() > 1:
            logger.warning(
                "importing %s started a thread in the fork server, which may block workers forked from it. "
                'If they hang, use start_method="spawn".',
                name,
            )
            break
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
