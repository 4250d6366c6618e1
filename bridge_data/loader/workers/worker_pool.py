"""The worker processes of one loader: which lane runs on which worker, and replacements for those that die or hang.

`WorkerPool` is a `LanePool` of local processes. A worker that dies or hangs is replaced, and all of them if the server
that starts them dies: each continues after the last result that the trainer received. Raises `WorkerError` if that
happens too often within a number of batches; it says when each was replaced, where it was, and why. Every wait has a
timeout.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from bridge_data.errors import WorkerError
from bridge_data.lanes.lane import Produced
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.lane_pool import Interrupted, LaneResult
from bridge_data.loader.workers.batches import pickle_dataset
from bridge_data.loader.workers.launch import Launcher, ServerLost
from bridge_data.loader.workers.link import WorkerLink
from bridge_data.loader.workers.messages import Channel, Environment, Exited, Load, file_of
from bridge_data.loader.workers.services import open_services
from bridge_data.loader.workers.shared_buffers import BufferQuota
from bridge_data.loader.workers.watch_page import WatchPage, spin_briefly
from bridge_data.order.state import LoaderState
from bridge_data.run_options import LoaderConfig

logger = logging.getLogger("bridge_data")

_SLOW_START_S = 5.0
_EXIT_TIMEOUT_S = 5.0
_TICK_S = 1.0


class _Restart(NamedTuple):
    """A replaced process: when, after how many batches, and why."""

    at_s: float
    num_batches: int
    cause: str

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at_s))
        return f"{when}, after {self.num_batches} batches: {self.cause}"


class Restarts:
    """Limits how often the processes of a loader are replaced within a number of batches that they produce.

    The pool counts `num_batches`.
    """

    def __init__(self, config: LoaderConfig) -> None:
        self._allowed, self._window_batches = config.max_worker_restarts, config.restart_window_batches
        self._recent: collections.deque[_Restart] = collections.deque()
        self.num_in_all = 0
        """How often a process was replaced."""
        self.num_batches = 0

    def spend(self, cause: str) -> WorkerError | None:
        """Log the cause of one more restart; the error to stop with, if it is one too many."""
        while self._recent and self._recent[0].num_batches <= self.num_batches - self._window_batches:
            self._recent.popleft()
        now = _Restart(time.time(), self.num_batches, cause)
        if len(self._recent) == self._allowed:
            return self._no_restart_left(now)
        self._recent.append(now)
        self.num_in_all += 1
        logger.warning(
            "%s, after %d batches; restarting it at its position (restart %d of %d within %d batches, %d in all)",
            cause,
            self.num_batches,
            len(self._recent),
            self._allowed,
            self._window_batches,
            self.num_in_all,
        )
        return None

    def _no_restart_left(self, last: _Restart) -> WorkerError:
        history = "".join(f"\n  {restart}" for restart in (*self._recent, last))
        before = self.num_in_all - len(self._recent)
        return WorkerError(
            f"{last.cause}. No restart is left (max_worker_restarts={self._allowed} within restart_window_batches="
            f"{self._window_batches}):{history}\n"
            + (f"Before these, {before} restarts were followed by enough batches. " if before else "")
            + "num_workers=0 runs the same samples in this process, where a debugger sees them."
        )


class WorkerPool:
    """A `LanePool` of worker processes; lanes go to them in turn."""

    def __init__(self, dataset: LaneDataset, num_workers: int, config: LoaderConfig) -> None:
        self._config, self._restarts, self._name = config, Restarts(config), dataset.describe
        data, modules = pickle_dataset(dataset)
        self._load = Load(Environment.of_this_process(), modules)
        quota = BufferQuota(config.max_shared_bytes)
        self._links = [WorkerLink(index, config.prefetch_factor, quota) for index in range(num_workers)]
        self._link_of: dict[int, WorkerLink] = {}
        self._num_started, self._interrupted = 0, False
        self._processes = contextlib.ExitStack()
        """Ends the workers, and the server if no other loader uses it."""
        with contextlib.ExitStack() as opened:
            self._dataset = file_of(data)
            opened.callback(os.close, self._dataset)
            self._services = open_services(config, num_workers)
            if self._services is not None:
                opened.callback(self._services.close)
                modules.append(type(self._services).__module__)
            self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            opened.callback(os.close, self._waker)
            self._start_all()
            opened.callback(self._end_all)
            self._opened = opened.pop_all()

    def _start_all(self) -> None:
        """Start a server, unless another loader has one, and all workers, which continue after the last results that
        were received. If that fails, or is interrupted, `begin` tries again."""
        self._end_all()
        with contextlib.ExitStack() as opened:
            self._launcher = Launcher(self._config.start_method, self._load.environment, self._load.modules)
            opened.callback(self._launcher.close)
            for link in self._links:
                self._start(link)
                opened.callback(link.close)
            self._processes = opened.pop_all()
        self._is_running = True

    def _end_all(self) -> None:
        self._is_running = False
        self._processes.close()

    def _start(self, link: WorkerLink) -> None:
        ours, theirs = Channel.pair()
        with contextlib.ExitStack() as undo, contextlib.closing(theirs):
            undo.callback(ours.close)
            page, descriptor = WatchPage.make()
            try:
                self._num_started += 1
                self._launcher.start_worker(self._num_started, theirs, descriptor)
            finally:
                os.close(descriptor)
            link.attach(self._num_started, ours, page, self._load, self._dataset, self._services)
            undo.pop_all()

    def ready(self) -> bool:
        """Whether all workers have loaded the dataset; does not wait."""
        self._raise_if_broken()
        if not self._is_running:
            self._start_all()
        self._poll(0)
        self._raise_if_broken()
        return all(link.ready for link in self._links)

    def _raise_if_broken(self) -> None:
        for link in self._links:
            if link.broken:
                raise link.broken

    def wait_ready(self, timeout_s: float) -> bool:
        """As `LanePool` says; logs what a slow start waits for."""
        deadline = time.monotonic() + timeout_s
        watchdogs = [self._watchdog_of(link) for link in self._links]
        while not self.ready():
            link = next(link for link in self._links if not link.ready)
            if watchdogs[link.index].has_expired():
                self._give_up(link, watchdogs[link.index])
            elif (left := deadline - time.monotonic()) <= 0:
                return False
            else:
                self._poll(min(left, _TICK_S))
        return True

    @property
    def num_restarts(self) -> int:
        return self._restarts.num_in_all

    def processes(self) -> list[int]:
        return [process for link in self._links if (process := link.page.process)]

    def begin(self, lanes: Sequence[int], state: LoaderState) -> None:
        """As `LanePool` says. Lane number i of the rank goes to worker `i mod num_workers`."""
        self._raise_if_broken()
        if not self._is_running:
            self._start_all()
        self._link_of = {
            lane: self._links[number % len(self._links)] for number, lane in enumerate(sorted(state.lanes))
        }
        self._interrupted = False
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._waker)
        for link in self._links:
            link.begin([lane for lane in lanes if self._link_of[lane] is link], state)

    def take(self, lane: int) -> LaneResult:
        link = self._link_of[lane]
        link.note_request()
        if not (link.has_result() or (self._receive(link) and link.has_result())):
            self._wait_for(link)
        result = link.take(lane)
        self._restarts.num_batches += isinstance(result, Produced)
        return result

    def interrupt(self) -> None:
        self._interrupted = True
        os.eventfd_write(self._waker, 1)

    def _wait_for(self, link: WorkerLink) -> None:
        watchdog = self._watchdog_of(link)
        while not link.has_result():
            if self._interrupted:
                raise Interrupted
            if link.broken:
                raise link.broken
            link.wake()
            if not watchdog.has_expired():
                self._sleep(link, _TICK_S if watchdog.left_s is None else min(watchdog.left_s, _TICK_S))
                self._poll(0)
            else:
                self._give_up(link, watchdog)

    def _watchdog_of(self, link: WorkerLink) -> Watchdog:
        return Watchdog(self._config, link, lambda: self._describe(link))

    def _give_up(self, link: WorkerLink, watchdog: Watchdog) -> None:
        """Replace a worker that makes no progress; one that has not started is an error."""
        if self._config.fail_on_timeout or not link.ready:
            link.broken = WorkerError(watchdog.timeout_message())
            self._launcher.kill_worker(link.uid)
        else:
            self._replace(link, watchdog.timeout_message())

    def _sleep(self, link: WorkerLink, timeout_s: float) -> None:
        """Wait for a message of this worker, or for the exit of any. Messages of other workers are received later:
        receiving them all at once is faster than waking up for each."""
        poller = self._poller_of([link])
        poller.register(self._waker, select.POLLIN)
        if not spin_briefly(lambda: bool(poller.poll(0))):
            poller.poll(timeout_s * 1000)

    def _poll(self, timeout_s: float) -> None:
        """Receive messages, waiting up to `timeout_s` for one; replace workers that have ended."""
        ready = {descriptor for descriptor, _ in self._poller_of(self._links).poll(timeout_s * 1000)}
        for link in self._links:
            if link.fileno() in ready:
                self._receive(link)
        if self._launcher.fileno() in ready:
            try:
                for exited in self._launcher.exits():
                    self._note_exit(exited)
            except ServerLost as error:
                self._replace_all(str(error))
        for link in self._links:
            self._replace_if_stuck(link)

    def _poller_of(self, links: Iterable[WorkerLink]) -> select.poll:
        """What waits for messages of these workers, and for exits of any."""
        poller = select.poll()
        poller.register(self._launcher, select.POLLIN)
        for link in links:
            if not link.hung_up:
                poller.register(link, select.POLLIN)
        return poller

    def _receive(self, link: WorkerLink) -> bool:
        """Receive one message of a worker; False if none has arrived."""
        was_connected, received = not link.hung_up, link.receive_one()
        if was_connected and link.hung_up:
            self._launcher.kill_worker(link.uid)  # without a channel it is useless
        return received

    def _replace_if_stuck(self, link: WorkerLink) -> None:
        """Replace a worker whose exit is not reported."""
        if not link.broken and time.monotonic() > link.hung_up_at + _EXIT_TIMEOUT_S:
            self._replace(link, f"worker {link.index} broke off {self._describe(link)}")

    def _describe(self, link: WorkerLink) -> str:
        """What a worker does, in words."""
        if link.ready or self._launcher.joined:
            return link.describe(self._name)
        importing = self._launcher.server.importing
        what = f"imports {importing}" if importing else "is not ready"
        return f"not started yet, as the process that starts workers {what}"

    def _note_exit(self, exited: Exited) -> None:
        for link in self._links:
            if link.uid == exited.uid:
                link.receive()
                if not link.broken:
                    self._replace(link, f"worker {link.index} {_in_words(exited.code)} {self._describe(link)}")

    def _replace(self, link: WorkerLink, cause: str) -> None:
        link.broken = self._restarts.spend(cause)
        self._launcher.kill_worker(link.uid)
        link.close()
        if not link.broken:
            self._start(link)

    def _replace_all(self, cause: str) -> None:
        """Replace the server that was lost, and the workers with it."""
        fatal = self._restarts.spend(cause)
        for link in self._links:
            link.broken = fatal
        if fatal is None:
            self._start_all()
        else:
            self._end_all()

    def close(self) -> None:
        self._opened.close()
        # And with them shared memory that nobody needs:
        self._links, self._link_of, self._services = [], {}, None


class Watchable(Protocol):
    """A worker for which the trainer may wait."""

    index: int
    uid: int
    ready: bool
    num_received: int
    page: WatchPage


class Watchdog:
    """Measures how long a worker that the trainer waits for has made no progress, or has not started; `describe` says
    what it does, which is logged if its start takes long."""

    def __init__(self, config: LoaderConfig, link: Watchable, describe: Callable[[], str]) -> None:
        self._config, self._link, self._describe = config, link, describe
        self._seen: tuple[int, str | None, int, int] | None = None
        self._since, self._warned_of = 0.0, ""
        self._limit_s: float | None = None
        self.left_s: float | None = None

    def has_expired(self) -> bool:
        """Check the worker again; `left_s` is the time until the timeout."""
        link, config, now = self._link, self._config, time.monotonic()
        starts = None if link.ready else self._describe()
        seen = (link.uid, starts, link.page.progress, link.num_received)
        if seen != self._seen:
            self._seen, self._since = seen, now
        if starts is None:
            self._limit_s = config.stall_timeout_s(first_batch=not link.num_received, on_sample=link.page.on_sample())
        else:
            self._limit_s = config.worker_start_timeout_s
            if now > self._since + _SLOW_START_S and starts != self._warned_of:
                self._warned_of = starts
                logger.warning("waiting for worker %d, which is %s", link.index, starts)
        self.left_s = None if self._limit_s is None else self._since + self._limit_s - now
        return self.left_s is not None and self.left_s <= 0

    def timeout_message(self) -> str:
        """The error message after the timeout."""
        link = self._link
        if not link.ready:
            return (
                f"worker {link.index} has not started after {self._limit_s:g} s: it is {self._describe()}. A module "
                "that waits for something when it is imported (a network, a lock, input) waits in workers, too; if the "
                "machine is only busy, raise worker_start_timeout_s, an option of the data as num_workers is"
            )
        return (
            f"worker {link.index} made no progress for {self._limit_s:g} s {self._describe()} "
            "(watchdog_timeout_seconds, sample_timeout_s)"
        )


def _in_words(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (often the kernel's out-of-memory killer)" if code == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"
