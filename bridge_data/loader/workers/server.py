"""The process that starts workers: `python -m bridge_data.loader.workers.server MODE CHANNEL PARENT [WATCH]`.

Receives `AddLoader` for each loader of the trainer; from these `StartWorker`, `KillWorker` and `Stop`. Starts worker
processes, and sends `Exited` to their loader when they end. It has one thread, forks with nothing open that a worker
could inherit by accident, reaps every worker, ends the workers of a loader that disconnects, and ends with all workers
when the trainer ends in any way.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from bridge_data.child_process import die_with_parent, reset_signals
from bridge_data.loader.workers import worker
from bridge_data.loader.workers.messages import (
    AddLoader,
    Channel,
    Exited,
    Import,
    Joined,
    KillWorker,
    StartWorker,
    Stop,
)
from bridge_data.loader.workers.watch_page import ImportPage

logger = logging.getLogger("bridge_data")

Start = Callable[[int, int], int]
"""Starts a worker with the descriptors of its channel and watch page; returns the process id."""
Prepare = Callable[[list[str]], None]
"""Imports modules that workers will need."""


def command(mode: str, channel: int, watch: int | None = None) -> list[str]:
    """The command line of a child of this process that runs this module."""
    arguments = [mode, str(channel), str(os.getpid())] + ([] if watch is None else [str(watch)])
    return [sys.executable, "-P", "-m", "bridge_data.loader.workers.server", *arguments]


def main(mode: str, channel_descriptor: int, parent: int, watch_descriptor: int = -1) -> None:
    """Run as a server ("server", "spawn") or as one executed worker ("worker")."""
    die_with_parent(parent)
    reset_signals()
    if mode == "worker":
        worker.main(parent, channel_descriptor, watch_descriptor)
    channel = Channel.from_descriptor(channel_descriptor)
    environment, _, (descriptor,) = channel.receive()
    page = ImportPage(descriptor)
    os.close(descriptor)
    if mode == "spawn":  # it keeps its PYTHONPATH for its workers
        _serve(channel, parent, _execute_worker, prepare=lambda modules: None)
    worker.adopt(environment)
    _serve(channel, parent, _fork_worker, prepare=lambda modules: _import_for_workers(modules, page))


def _serve(control: Channel, parent: int, start: Start, prepare: Prepare) -> NoReturn:
    """Start and reap workers until the trainer says stop or ends; then kill the rest, and end the process."""
    server = _Server(start, prepare)
    try:
        server.run(control, os.pidfd_open(parent))
    except (EOFError, ProcessLookupError):
        logger.debug("the trainer is gone", exc_info=True)
    except BaseException:
        traceback.print_exc()
    server.end(list(server.workers))
    os._exit(0)


class _ChildWorker(NamedTuple):
    uid: int
    pid: int
    loader: Channel


class _Server:
    """The connected loaders and their workers that are not reaped yet."""

    def __init__(self, start: Start, prepare: Prepare) -> None:
        self._start, self._prepare = start, prepare
        self._loaders: dict[int, Channel] = {}
        self.workers: dict[int, _ChildWorker] = {}
        """By process descriptor."""

    def run(self, control: Channel, trainer: int) -> None:
        """Serve until the control channel says stop or the trainer ends."""
        while True:
            poll = select.poll()
            for descriptor in (control.fileno(), trainer, *self._loaders, *self.workers):
                poll.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll()}
            for pidfd in ready & self.workers.keys():
                self._reap(pidfd)
            for descriptor in ready & self._loaders.keys():
                self._handle_message(self._loaders[descriptor])
            if trainer in ready:
                return
            if control.fileno() in ready:
                message, _, descriptors = control.receive()
                if isinstance(message, Import):
                    self._prepare(message.modules)
                    continue
                if not isinstance(message, AddLoader):
                    return
                loader = Channel.from_descriptor(descriptors[0])
                self._loaders[loader.fileno()] = loader
                loader.send(Joined())

    def _handle_message(self, loader: Channel) -> None:
        try:
            message, _, descriptors = loader.receive()
        except EOFError:
            message, descriptors = Stop(), []
        if isinstance(message, StartWorker):
            pid = self._start(*descriptors)
            self.workers[os.pidfd_open(pid)] = _ChildWorker(message.uid, pid, loader)
            for descriptor in descriptors:
                os.close(descriptor)
        elif isinstance(message, KillWorker):
            for worker in self._of(loader).values():
                if worker.uid == message.uid:
                    os.kill(worker.pid, signal.SIGKILL)
        else:
            self.end(list(self._of(loader)))
            del self._loaders[loader.fileno()]
            loader.close()

    def _of(self, loader: Channel) -> dict[int, _ChildWorker]:
        return {pidfd: worker for pidfd, worker in self.workers.items() if worker.loader is loader}

    def _reap(self, pidfd: int) -> None:
        worker = self.workers.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(worker.pid, 0)
        worker.loader.send(Exited(worker.uid, os.waitstatus_to_exitcode(status)))

    def end(self, pidfds: list[int]) -> None:
        """Kill these workers, and wait for them."""
        for pidfd in pidfds:
            os.kill(self.workers[pidfd].pid, signal.SIGKILL)
        for pidfd in pidfds:
            self._reap(pidfd)


def _fork_worker(channel: int, watch: int) -> int:
    parent = os.getpid()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads at each fork, pyarrow's included; `_import_for_workers` has said whose they are.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        worker.main(parent, channel, watch)
    return pid


def _execute_worker(channel: int, watch: int) -> int:
    child = subprocess.Popen(command("worker", channel, watch), pass_fds=(channel, watch), stdin=subprocess.DEVNULL)
    child.returncode = 0  # reaped by its process id like a forked one
    return child.pid


def _import_for_workers(modules: list[str], page: ImportPage) -> None:
    for name in worker.imported(modules, page.write):
        if _keeps_threads():
            logger.warning(
                "importing %s started a thread in the fork server, which may block workers forked from it. "
                'If they hang, use start_method="spawn".',
                name,
            )
            break
    gc.collect()
    gc.freeze()
    page.write("")


def _keeps_threads() -> bool:
    """Whether this process has other threads, and still has a moment later: by then one of jemalloc has its name."""
    for _ in range(50):
        if not _other_threads():
            return False
        time.sleep(0.02)
    return True


def _other_threads() -> list[str]:
    """The names of the threads of this process beside the first, those of native libraries included; without those of
    jemalloc, which pyarrow brings: it takes care of forks by itself."""
    names = []
    for task in {*os.listdir("/proc/self/task")} - {str(os.getpid())}:
        with contextlib.suppress(OSError):  # it has ended
            names.append(Path(f"/proc/self/task/{task}/comm").read_text().strip())
    return [name for name in names if name != "jemalloc_bg_thd"]


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
