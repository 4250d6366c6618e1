"""Workers on a Ray cluster: actors run the lanes of a rank; nodes may join, leave and die, and no batch is lost or
repeated.

`RayPool` is a `LanePool` of actors. An actor gets the dataset from Ray's object store (one copy a node), a state for
each of its lanes, and then one request per batch, a few ahead. The trainer keeps the state after the last batch that it
took of each lane. When an actor is lost, or a new one is ready, the lanes are resharded and continue from these
states; so where a lane runs changes the rate alone. Several jobs and ranks share a cluster: actors have no names,
belong to the process that started them, and end with it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import functools
import importlib
import itertools
import logging
import math
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from bridge_data.child_process import keep_freed_memory, use_one_thread
from bridge_data.errors import ConfigError, WorkerError
from bridge_data.extensions import needed_package
from bridge_data.lanes.lane import Produced
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.lane_pool import Ended, Interrupted, LaneResult, LaneRunner, LaneSchedule
from bridge_data.loader.workers.batches import BatchPickler, pickle_dataset
from bridge_data.loader.workers.link import error_of
from bridge_data.loader.workers.messages import (
    BatchMessage,
    EndMessage,
    Environment,
    FailureMessage,
    LaneMessage,
    applied,
    change_of,
)
from bridge_data.loader.workers.shared_buffers import BufferQuota
from bridge_data.loader.workers.watch_page import WatchPage
from bridge_data.loader.workers.worker import adopt
from bridge_data.loader.workers.worker_pool import Restarts, Watchdog
from bridge_data.options import check_integer, check_number, check_plain_fields
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.plugins.ray.ray_batches import BatchReader, BatchSender, Reply, SharedMemoryHandle
from bridge_data.run_options import LoaderConfig
from bridge_data.samples.pickling import from_pieces

logger = logging.getLogger("bridge_data")

_TICK_S, _CONNECT_S, _LOOK_S, _LAST_LOOK_S = 1.0, 10.0, 0.2, 5.0
_FIRST_S, _JOIN_S = 1.0, 5.0
"""How long actors that are ready wait for others that start, while none has lanes, and while some have: each assignment
drops what was made ahead."""

_REPLY_BYTES = 32 << 20
_WATCH, _NO_BEGIN = "watch", 0
_NO_DESCRIPTOR = errno.EMFILE, errno.ENFILE
_ENVIRONMENT = dict.fromkeys(("RAY_max_direct_call_object_size", "RAY_task_rpc_inlined_bytes_limit"), str(_REPLY_BYTES))
"""Settings of Ray, for the processes of actors: how large the value of a call may be that its reply holds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayWorkers:
    """Workers of a loader that are actors of a Ray cluster, which nodes may join and leave in mid-run: see docs/ray.md.

    >>> RayWorkers(num_actors=4, resources={"decoding": 1}).address
    'auto'

    Raises:
        ConfigError: if a number is out of range.
    """

    address: str = "auto"
    """The cluster: "auto" for that of this machine or of `$RAY_ADDRESS`; HOST:PORT, if this machine is a node of it. A
    cluster that the process has joined by `ray.init` is taken as it is."""
    num_actors: int | None = None
    """Actors of this rank; None for as many as `num_workers`."""
    num_cpus: float = 1
    """CPUs that Ray reserves for each."""
    resources: Mapping[str, float] | None = None
    """Other resources of Ray that each needs, such as {"decoding": 1} to stay on nodes which have that."""
    required: bool = False
    """Whether a cluster that cannot be reached is an error. If not, workers start on this machine, with a warning."""

    def __post_init__(self) -> None:
        check_integer("RayWorkers: num_actors", self.num_actors, 1, or_none=True)
        check_number("RayWorkers: num_cpus", self.num_cpus, "a positive number of CPUs")
        check_plain_fields(self, "RayWorkers: ")
        for name, amount in (self.resources or {}).items():
            check_number(f"RayWorkers: resources[{name!r}]", amount, "a positive number")

    def open_pool(self, dataset: LaneDataset, config: LoaderConfig) -> RayPool | None:
        """The workers of a loader; None if they run on this machine: nobody asks for actors, or, with a warning, there
        is no cluster and none is required.

        Raises:
            WorkerError: if there is no cluster, and one is required or no worker may start here instead; or if the
                dataset cannot be pickled.
        """
        num_workers = dataset.worker_config.num_workers
        if not (num_workers or self.num_actors):
            return None
        try:
            ray = _connected(self.address)
        except ConfigError as error:
            if self.required:
                raise WorkerError(f"{error} (required=True)") from error
            if not num_workers:
                raise WorkerError(f"{error}. With num_workers=0 no worker starts on this machine instead") from error
            logger.warning(
                "%s. Workers start on this machine instead; with RayWorkers(required=True) this is an error", error
            )
            return None
        return RayPool(ray, dataset, self, config)


def _connected(address: str) -> Any:
    """The module `ray`, with this process connected to a cluster.

    Raises:
        ConfigError: if Ray is not installed, or the cluster cannot be reached.
    """
    ray = needed_package("ray", 'workers="ray"')
    if ray.is_initialized():
        return ray
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if is_main else None
    try:
        _try_port(address)
        ray.init(address=address, logging_level=logging.WARNING)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster at {address!r} ({error}): `ray start` joins this machine to one; "
            "the option `workers` of the loader names its address"
        ) from error
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)  # Ray has put its own in place of the trainer's
    return ray


def _try_port(address: str) -> None:
    """Raise an OSError if nobody answers where the cluster should be, which Ray finds out in minutes."""
    with contextlib.suppress(ImportError, AttributeError):  # it is not of Ray's public names
        find = importlib.import_module("ray._private.services").canonicalize_bootstrap_address
        if found := find(address):
            host, _, port = found.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()


class _Setup(NamedTuple):
    """What an actor takes over from the trainer."""

    environment: Environment
    folder: str


class LaneActor:
    """Runs lanes on a node of the cluster, as a worker process does on the machine of the trainer."""

    def __init__(self, setup: _Setup, dataset: bytes) -> None:
        self._page, descriptor = WatchPage.make()
        os.close(descriptor)
        self._begin_number = self._number = 0
        self._schedule: LaneSchedule | None = None
        self._failure: str | None = None
        use_one_thread()
        keep_freed_memory()
        try:
            if os.path.isdir(setup.folder):
                os.chdir(setup.folder)
            own = [path for path in sys.path if path not in setup.environment.sys_path]
            adopt(setup.environment._replace(sys_path=(*setup.environment.sys_path, *own)))
            self._dataset: LaneDataset = pickle.loads(dataset)
        except BaseException as error:
            _, self._failure = BatchPickler().pickle_error(error, "while the dataset was loaded in a worker")
        self._pickler, self._sender = BatchPickler(), BatchSender()

    def ready(self) -> tuple[str, str | None, SharedMemoryHandle]:
        """The address of the node, why the dataset cannot be loaded, and where its batches will be."""
        return importlib.import_module("ray.util").get_node_ip_address(), self._failure, self._sender.export_handle()

    def begin(self, begin_number: int, lanes: list[int], state: LoaderState, num_ahead: int, by_reply: bool) -> None:
        """Drop all lanes, then produce these in the order of their turns, from this state."""
        self._begin_number, self._number = begin_number, 0
        self._sender.buffers.num_spare, self._sender.by_reply = num_ahead, by_reply
        self._sent: dict[int, LaneState] = {}
        self._schedule = LaneSchedule(state, lanes)
        self._runner = LaneRunner(self._dataset, state, self._sender.arena, self._page.watch)

    def take(self, begin_number: int, freed: list[int]) -> Reply | None:
        """The next result of the lane whose turn it is; None if the lanes have ended or failed, or were dropped. These
        buffers may be written again."""
        self._sender.buffers.free(freed)
        if begin_number != self._begin_number or not self._schedule:
            return None
        lane = self._schedule.lane
        head = begin_number, self._number, lane
        self._number += 1
        self._page.enter(lane)
        try:
            result = self._runner.take(lane)
            state, skipped = result.state, result.skipped
            change, self._sent[lane] = change_of(self._sent.get(lane, {}), state), state
            if isinstance(result, Ended):
                self._schedule.end_lane()
                return Reply(EndMessage(*head, change, skipped))
            notes, counts = result.notes, result.counts
            parts = self._pickler.pieces_of(result.batch)
            del result  # a reference to the batch would keep it from being sent without a copy
            body, *rest = self._sender.place(parts)
            self._schedule.advance()
            return Reply(BatchMessage(*head, change, skipped, notes, body, counts), *rest)
        except BaseException as error:
            self._schedule = None
            return Reply(FailureMessage(*head, *self._pickler.pickle_error(error, f"in a worker, lane {lane}")))
        finally:
            self._page.leave()

    def watch(self) -> bytes:
        """What it works on, as a `WatchPage` says it."""
        return self._page.contents()


class RayLink:
    """Actor number `index` as the trainer sees it: its lanes, and the requests that it has not answered yet."""

    def __init__(self, index: int, quota: BufferQuota, changed: threading.Event) -> None:
        self.index, self._quota, self._changed = index, quota, changed
        self.uid = self.begin_number = 0
        self.lanes: list[int] = []
        self.requests: collections.deque[Future[Reply | None]] = collections.deque()

    def attach(self, uid: int, actor: Any) -> None:
        """Let this be the actor."""
        self.uid, self.actor, self.reader = uid, actor, BatchReader(self._quota)
        self.starts = self._future(actor.ready.remote())
        self.ready, self.node, self.lanes, self.num_received = False, "", [], 0
        self.page, descriptor = WatchPage.make()
        os.close(descriptor)
        self.requests.clear()

    def _future(self, reference: Any) -> Future[Any]:
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda _: self._changed.set())
        return future

    def begin(self, lanes: list[int], state: LoaderState, num_ahead: int) -> None:
        """Drop what was requested; produce these lanes from `state`."""
        self.lanes, self.begin_number, self.num_received = lanes, self.begin_number + 1, 0
        for request in self.requests:
            request.add_done_callback(self.reader.discard)
        self.requests.clear()
        own = dataclasses.replace(state, lanes={lane: state.lanes[lane] for lane in lanes})
        self.actor.begin.remote(self.begin_number, lanes, own, num_ahead, self.reader.by_reply)

    def request(self, begin_number: int) -> None:
        """Ask for the next result, or, if it is not the current begin number, whether the actor lives."""
        self.requests.append(self._future(self.actor.take.remote(begin_number, self.reader.buffers.take_released())))

    def has_result(self) -> bool:
        return bool(self.requests) and self.requests[0].done()

    def take(self) -> tuple[LaneMessage, list[Any]] | None:
        """The oldest result, and the parts of its batch; None if these cannot be reached any more, so that Ray is asked
        why. Raises why the actor is lost."""
        reply = self.requests.popleft().result()
        if reply is None:
            raise WorkerError(f"{self} runs, but its memory cannot be read")
        try:
            return reply.message, self.reader.parts(reply)
        except OSError as error:
            if error.errno in _NO_DESCRIPTOR:
                raise
            self.requests.clear()
            self.request(_NO_BEGIN)
            return None

    def look(self, timeout_s: float) -> None:
        """Ask what the actor works on, and note it if it answers in time."""
        with contextlib.suppress(Exception):  # a late answer, or an actor that is lost, which its requests tell
            self.page.update(self.actor.watch.options(concurrency_group=_WATCH).remote().future().result(timeout_s))

    def __str__(self) -> str:
        return f"worker {self.index}" + (f" on {self.node}" if self.node else "")


class RayPool:
    """A `LanePool` of actors on Ray; connects anew, to the same cluster, if this process is disconnected."""

    def __init__(self, ray: Any, dataset: LaneDataset, workers: RayWorkers, config: LoaderConfig) -> None:
        self._ray, self._workers, self._config = ray, workers, config
        self._restarts, self._name = Restarts(config), dataset.describe
        self._encoded, _ = pickle_dataset(dataset)
        others = "".join(f", {amount:g} {name}" for name, amount in (workers.resources or {}).items())
        self._needs = f"{workers.num_cpus:g} free CPUs{others}"
        ranks = dataset.worker_config
        num_actors = min(workers.num_actors or ranks.num_workers, len(ranks.lanes))
        self._changed, self._interrupted = threading.Event(), False
        self._uids = itertools.count(1)
        self._largest_bytes = 0
        self._lanes: list[int] = []
        self._state: LoaderState | None = None
        self._link_of: dict[int, RayLink] = {}
        quota = BufferQuota(config.max_shared_bytes)
        self._links = [RayLink(index, quota, self._changed) for index in range(num_actors)]
        self._start_all()

    def _start_all(self) -> None:
        """Give the cluster what actors need, and start all actors; lanes continue from the last batches taken."""
        ray, workers = self._ray, self._workers
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)  # where actors find this package itself
        self._setup = ray.put(_Setup(Environment.of_this_process(), os.getcwd()))
        self._dataset = ray.put(self._encoded)
        self._class = ray.remote(
            num_cpus=workers.num_cpus,
            resources=dict(workers.resources or {}),
            max_restarts=0,
            scheduling_strategy="SPREAD",
            concurrency_groups={_WATCH: 1},
            runtime_env={"env_vars": _ENVIRONMENT | {"PYTHONPATH": paths + os.pathsep + "${PYTHONPATH}"}},
        )(LaneActor)
        self._is_assigned = False
        """Whether actors have lanes since `begin`."""
        self._assignment_at = math.inf
        """When actors that are ready and have no lanes get some."""
        for link in self._links:
            self._start(link)

    def _start(self, link: RayLink) -> None:
        """Start an actor; Ray places it once a node has what it needs."""
        link.attach(next(self._uids), self._class.remote(self._setup, self._dataset))

    def ready(self) -> bool:
        """Whether actors have loaded the dataset: all, or some that have waited for the others."""
        self._note_starts()
        is_waiting = time.monotonic() < self._assignment_at < math.inf
        return not is_waiting and any(link.ready for link in self._links)

    def wait_ready(self, timeout_s: float) -> bool:
        """As `LanePool` says, for all actors, or some that have waited for the others."""
        deadline, first = time.monotonic() + timeout_s, self._links[0]
        watchdog = Watchdog(self._config, first, functools.partial(self._describe, first))
        while not self.ready():
            now = time.monotonic()
            if watchdog.has_expired():
                raise WorkerError(watchdog.timeout_message())
            if now >= deadline:
                return False
            self._changed.wait(max(0.0, min(deadline - now, self._assignment_at - now, _TICK_S)))
            self._changed.clear()
        return True

    @property
    def num_restarts(self) -> int:
        return self._restarts.num_in_all

    def processes(self) -> list[int]:
        """None: the actors are on other machines."""
        return []

    def begin(self, lanes: Sequence[int], state: LoaderState) -> None:
        self._interrupted = self._is_assigned = False
        self._lanes, self._state = list(lanes), dataclasses.replace(state, lanes=dict(state.lanes))
        self._assign()

    def _assign(self) -> None:
        """Assign the lanes to the actors that are ready, which continue from the last batches taken; to none while the
        first ones wait for others.

        In turn: neighbours in the order of batches are made by different actors.
        """
        assert self._state is not None
        is_early = not self._is_assigned and time.monotonic() < self._assignment_at < math.inf
        ready = [] if is_early else [link for link in self._links if link.ready]
        if ready:
            self._is_assigned, self._assignment_at = True, math.inf
        links = ready or self._links
        self._link_of = {lane: links[number % len(links)] for number, lane in enumerate(sorted(self._state.lanes))}
        for link in ready:
            lanes = [lane for lane in self._lanes if self._link_of[lane] is link]
            link.begin(lanes, self._state, self._config.prefetch_factor)
            self._request(link)

    def _request(self, link: RayLink) -> None:
        """Have the actor make batches ahead: `prefetch_factor`, or as many as all may have within the bound of bytes;
        one as long as the size of batches is not known."""
        num_busy = sum(link.ready for link in self._links)
        most = self._config.max_shared_bytes // (self._largest_bytes * num_busy) if self._largest_bytes else 1
        while link.lanes and len(link.requests) < max(1, min(self._config.prefetch_factor, most)):
            link.request(link.begin_number)

    def take(self, lane: int) -> LaneResult:
        link = self._link_of[lane]
        num_ready = sum(request.done() for request in link.requests)
        message, parts = self._received(lane)
        link = self._link_of[lane]
        assert message.number == link.num_received and message.lane == lane
        link.num_received += 1
        if isinstance(message, FailureMessage):
            link.lanes = []
            raise error_of(message)
        assert self._state is not None
        state = self._state.lanes[lane] = applied(self._state.lanes[lane], message.change)
        if isinstance(message, EndMessage):
            self._lanes.remove(lane)
            link.lanes.remove(lane)
            self._request(link)
            return Ended(lane, state, message.skipped)
        self._restarts.num_batches += 1
        self._largest_bytes = max(self._largest_bytes, sum(map(len, parts)))
        self._request(link)
        ready = num_ready, self._config.prefetch_factor
        return Produced(lane, from_pieces(parts), state, message.skipped, message.counts, message.notes, *ready)

    def _received(self, lane: int) -> tuple[LaneMessage, list[Any]]:
        """Wait for the next result of `lane`; replace actors that are lost meanwhile, and hand lanes to new ones."""
        watchdog: Watchdog | None = None
        watched = 0
        while True:
            self._changed.clear()
            self._note_starts()
            if time.monotonic() >= self._assignment_at or (self._is_assigned and not self._link_of[lane].ready):
                self._assign()
            link = self._link_of[lane]
            if link.has_result():
                try:
                    if result := link.take():
                        return result
                except Exception as error:
                    if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR:
                        raise WorkerError(
                            "no descriptor is left for a batch's shared memory; raise the limit (ulimit -n)"
                        ) from error
                    self._replace(link, error)
                continue
            if self._interrupted:
                raise Interrupted
            if watchdog is None or watched != link.uid:
                watchdog, watched = Watchdog(self._config, link, functools.partial(self._describe, link)), link.uid
            if watchdog.has_expired():
                link.look(_LAST_LOOK_S)
                if watchdog.has_expired():
                    self._give_up(link, watchdog.timeout_message())
                continue
            left_s = _TICK_S if watchdog.left_s is None else min(watchdog.left_s, _TICK_S)
            if not self._changed.wait(left_s):
                link.look(_LOOK_S)

    def _give_up(self, link: RayLink, message: str) -> None:
        """Replace an actor that makes no progress."""
        if self._config.fail_on_timeout or not link.ready:
            raise WorkerError(message)
        self._replace(link, WorkerError(message))

    def _describe(self, link: RayLink) -> str:
        """What an actor does, in words."""
        if link.ready:
            return link.page.describe(self._name)
        return f"waiting for a node with {self._needs}, or loading the data set there"

    def _note_starts(self) -> None:
        """Note the actors that are ready now, and replace those that could not start."""
        if not self._ray.is_initialized():
            self._reconnect()
        for link in self._links:
            if link.ready or not link.starts.done():
                continue
            if (error := link.starts.exception()) is not None:
                self._replace(link, error)
                continue
            link.node, failure, handle = link.starts.result()
            link.reader.open(handle)
            if failure is not None:
                cause = WorkerError(f"{link}: {failure}")
                if not any(other.ready for other in self._links):
                    raise cause
                self._replace(link, cause)
                continue
            wait_s = _JOIN_S if any(other.lanes for other in self._links) else _FIRST_S
            link.ready = True
            now = time.monotonic()
            self._assignment_at = (
                now if all(other.ready for other in self._links) else min(self._assignment_at, now + wait_s)
            )

    def _reconnect(self) -> None:
        """Connect this process to the cluster again, and start all actors there."""
        if fatal := self._restarts.spend("this process is connected to Ray no more"):
            raise fatal
        try:
            _connected(self._workers.address)
        except ConfigError as error:
            raise WorkerError(f"{error}; the workers of this loader run there") from error
        self._start_all()

    def _replace(self, link: RayLink, error: BaseException) -> None:
        """Start another actor in place of one that is lost. That a node has left counts as no failure of the data."""
        self._end(link)
        exceptions = self._ray.exceptions
        cause = str(error) if isinstance(error, WorkerError) else f"{link} is lost: {_in_short(error)}"
        left = isinstance(error, (exceptions.ActorUnavailableError, exceptions.ObjectLostError))
        if left or "node has died" in cause:
            self._restarts.num_in_all += 1
            logger.warning("%s; its lanes go on elsewhere, and another worker starts when a node has room", cause)
        elif fatal := self._restarts.spend(cause):
            raise fatal
        self._start(link)

    def interrupt(self) -> None:
        self._interrupted = True
        self._changed.set()

    def _end(self, link: RayLink) -> None:
        self._ray.kill(link.actor, no_restart=True)

    def close(self) -> None:
        if self._ray.is_initialized():
            for link in self._links:
                self._end(link)
        self._links, self._link_of = [], {}


def _in_short(error: BaseException) -> str:
    """What Ray says of the death of an actor, without its ids and general hints."""
    lines = [line for line in str(error).splitlines() if not line.startswith("\t")]
    return " ".join(lines[-2:]).partition(" Some common causes")[0][:500]
