"""Workers of a rank help each other: what a worker is about to load, an idle one may load for it.

Reads the references that the lanes of a worker load next, and what its trainer has taken. Returns outcomes of work
(`SampleOutcome`): work depends on the reference alone, so the stream is the same, whoever does it. Order, packs
and batches stay with the lane.

Each worker posts in the `JobTable` what it loads next, once its samples take long enough; an idle worker takes the jobs
of one that the trainer waits for, and sends outcomes to that worker's inbox. A worker that needs a sample on which
another works does its next ones meanwhile, or helps in turn; if that other dies, it makes the sample itself.

What fails at a helper, or cannot be sent, is made again by the worker that needs it, which reports it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import select
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bridge_data.lanes.maker import Made, Maker
from bridge_data.lanes.maker_wrappers import AheadMaker, LaneView, SampleOutcome, UpcomingSamples
from bridge_data.loader.lane_pool import LaneResult
from bridge_data.loader.workers.batches import BatchPickler
from bridge_data.loader.workers.messages import MAX_DESCRIPTORS, Channel
from bridge_data.loader.workers.services import ServedWorker
from bridge_data.loader.workers.shared_buffers import MAX_HELD_BUFFERS, MAX_INLINE_BYTES, layout, padded
from bridge_data.order import SampleRef
from bridge_data.plugins.helping.job_table import NUM_JOBS, Job, JobTable
from bridge_data.samples.pickling import from_pieces, writable_content

if TYPE_CHECKING:
    from bridge_data.run_options import LoaderConfig

_MAX_WAITING_BYTES = 64 << 20
"""Outcomes made ahead that a worker keeps, by their mean size."""
_MAX_INLINE_BYTES = 1 << 10
"""Larger outcomes come in a file: an inbox takes many messages, if they are small."""
_HEAVY_NS, _LIGHT_NS = 2_000_000, 1_000_000
"""Mean work on a sample from which on jobs are posted, and below which they are not any more."""
_MAX_FAILED = 8
"""Jobs that fail elsewhere in a row, after which a worker asks for no more help until it begins anew."""
_LOOK_MS = 50
"""After which an idle worker looks again whether it can help."""
_WAIT_S = 0.02
"""For the outcome of a helper; then its lock is tried again."""


_MAX_PEERS = MAX_DESCRIPTORS - 3
"""More workers than these do not help each other."""
_MAX_AHEAD, _AHEAD_SHARE = 14, 4
"""Batches that a worker prepares beyond `prefetch_factor`: at most so many, as each may take a descriptor of the
trainer; and one of so many bytes of `max_shared_bytes`, of all workers."""
_MAX_INLINE_AHEAD_BYTES = 1 << 16


def open_help(config: LoaderConfig, num_workers: int) -> Help | None:
    """What has the workers of a loader help each other; None if they are one, or too many."""
    return Help(config, num_workers) if 1 < num_workers <= _MAX_PEERS else None


class Help:
    """The trainer's end, a `WorkerServices`: the memory that the workers share, and how far the trainer is."""

    def __init__(self, config: LoaderConfig, num_workers: int) -> None:
        self._num_workers = num_workers
        num_ahead = min(_MAX_AHEAD, MAX_HELD_BUFFERS // (2 * num_workers))
        self._max_ahead = num_ahead, config.max_shared_bytes // (_AHEAD_SHARE * num_workers)
        self._inboxes: list[tuple[Channel, Channel]] = []
        with contextlib.ExitStack() as opened:
            descriptor = JobTable.make(num_workers)
            opened.callback(os.close, descriptor)
            self._jobs, self._bell = JobTable(descriptor, num_workers), os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            opened.callback(os.close, self._bell)
            for _ in range(num_workers):
                self._inboxes.append(Channel.pair())
                for channel in self._inboxes[-1]:
                    opened.callback(channel.close)
            self._opened = opened.pop_all()
        self._descriptors = [descriptor, self._bell]

    def of_worker(self, index: int) -> OpenHelping:
        return OpenHelping(index, self._num_workers, self._max_ahead)

    def descriptors(self, index: int) -> list[int]:
        """Of the job table, the bell, the worker's inbox, and for each worker the other end of its inbox."""
        inbox = self._inboxes[index][0].fileno()
        return [*self._descriptors, inbox, *(theirs.fileno() for _, theirs in self._inboxes)]

    def note_taken(self, index: int, num_batches: int) -> None:
        self._jobs.note_taken(index, num_batches)

    def close(self) -> None:
        self._opened.close()


class OpenHelping(NamedTuple):
    """Opens the service of a worker."""

    worker_index: int
    num_workers: int
    max_ahead: tuple[int, int]
    """Number and bytes of the batches that it may prepare ahead besides those that the trainer asks for, while that
    waits for a peer."""

    def __call__(self, worker: ServedWorker) -> Helping:
        return Helping(self, worker)


class Helping:
    """What a worker gives to its peers and gets from them, a `WorkerService`: outcomes for its lanes while it posts
    jobs."""

    def __init__(self, peers: OpenHelping, worker: ServedWorker) -> None:
        self._index, self._num_workers, self._max_ahead = peers
        self._worker, self._page, self._pickler = worker, worker.page, BatchPickler()
        self._number = os.getpid() << 32  # those of a process that died here before are others
        self._mean_ns, self._mean_bytes, self._num_failed = 0.0, float(1 << 20), 0
        self._waited_ns = waited_for_core_ns()
        self._num_beyond = 0
        self._jobs: JobTable
        self.is_connected = self.posts = False
        """Whether it has reached its peers; whether its lanes ask for outcomes."""
        self._views: dict[int, tuple[LaneView, UpcomingSamples]] = {}
        """Of the lanes that are open, and what they load next."""
        self._elsewhere_ns = 0

    def connect(self, descriptors: Sequence[int]) -> None:
        """Reach the peers."""
        jobs, self._bell, inbox, *inboxes = descriptors
        self._jobs = JobTable(jobs, self._num_workers)
        self._inbox = Channel.from_descriptor(inbox)
        self._inboxes = [Channel.from_descriptor(descriptor) for descriptor in inboxes]
        self.is_connected = True
        self._forget()

    def begin(self) -> None:
        """The lanes begin anew."""
        self._num_failed, self._num_beyond, self._views = 0, 0, {}
        if self.is_connected:
            self._forget()

    def wrap(self, inner: Maker, lane: LaneView) -> HelpedMaker:
        """A maker that asks peers before `inner`: a `MakerWrapper`."""
        assert lane.new_upcoming is not None
        self._views[lane.number] = lane, lane.new_upcoming()
        return HelpedMaker(self, inner, lane)

    def _forget(self) -> None:
        """Withdraw all jobs."""
        self._free = self._jobs.withdraw(self._index)
        self._jobs.note_work(self._index, 0, posts=False)
        self._first_number = self._number + 1
        self._lanes: dict[int, int] = {}
        self._posted: dict[SampleRef, tuple[int, int]] = {}
        """Number and entry of the jobs that no lane has asked for."""
        self._num_low = 0
        """So few posted jobs that more are posted."""
        self._arrived: dict[int, SampleOutcome | None] = {}
        """By the number of the job; None if it failed elsewhere."""
        self._elsewhere_ns = 0

    # ----- as one that may need help ----------------------------------------------------------------------------------

    def take(self, lane: int) -> LaneResult:
        """The next result of `lane`, with the help of peers if samples take long."""
        worker = self._worker
        if self.posts:
            assert worker.schedule is not None
            self._jobs.note_work(self._index, worker.schedule.index, posts=True)
            self._jobs.note_produced(self._index, worker.num_batches, is_idle=False)
            following = worker.schedule.following(worker.num_allowed - worker.num_batches + 1)
            self._lanes = collections.Counter(worker.runner.lane(one).number for one in following)
            self._post()
        result = worker.runner.take(lane)
        self._note_loading(lane)
        return result

    def _note_loading(self, lane: int) -> None:
        """Note how long a lane took to load its last samples, which says whether to post jobs."""
        if lane not in self._views:
            return
        view, _ = self._views[lane]
        num_samples, loading_ns = view.times.take_loading()
        if not num_samples or view.hooks.observer is not None:
            return
        loading_ns += self._elsewhere_ns
        if loading_ns >= _LIGHT_NS * num_samples:  # else it costs more than it could tell
            before_ns, self._waited_ns = self._waited_ns, waited_for_core_ns()
            loading_ns = max(0, loading_ns - (self._waited_ns - before_ns))  # nobody helps where no core is free
        mean_ns = loading_ns / num_samples
        self._mean_ns = mean_ns if not self._mean_ns else self._mean_ns + 0.25 * (mean_ns - self._mean_ns)
        self._elsewhere_ns = 0
        if not self.is_connected:
            return
        posts = self._num_failed < _MAX_FAILED and self._mean_ns >= (_LIGHT_NS if self.posts else _HEAVY_NS)
        if posts != self.posts:
            self.posts = posts
            self._forget()

    def _post(self) -> None:
        """Post more jobs, as many as memory allows, once half of them are done."""
        num_before = len(self._posted)
        most = min(NUM_JOBS, int(_MAX_WAITING_BYTES / self._mean_bytes))
        for lane, num_batches in self._lanes.items():
            view, upcoming = self._views[lane]
            for ref in upcoming.take(num_batches, min(most - len(self._posted), len(self._free))):
                if ref in self._posted or not view.may_come_from_others(ref):  # another part of the same sample
                    continue
                self._number += 1
                entry = self._free.pop()
                self._jobs.post(self._index, entry, self._number, lane, ref)
                self._posted[ref] = self._number, entry
        self._num_low = len(self._posted) // 2
        if len(self._posted) > num_before and self._jobs.wants_help(self._index):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self._bell, 1)

    def find(self, ref: SampleRef) -> SampleOutcome | None:
        """The outcome of a sample of one of its lanes, if a peer has made it, or makes it now."""
        if len(self._posted) <= self._num_low:
            self._post()
        number, entry = self._posted.pop(ref, (0, 0))
        if not number:
            return None
        was_begun = self._jobs.take_back(self._index, entry)
        if was_begun is None:
            was_begun = self._wait_for(ref, entry)
        self._free.append(entry)
        if not was_begun:
            return None
        self._collect()
        if number not in self._arrived:  # who made it has died, or could not send it
            return None
        outcome = self._arrived.pop(number)
        self._num_failed = self._num_failed + 1 if outcome is None else 0
        if outcome is not None:
            self._elsewhere_ns += outcome.took_ns
        return outcome

    def _wait_for(self, ref: SampleRef, entry: int) -> bool:
        """Do other work while a peer makes a sample that is needed; returns as `JobTable.take_back`."""
        began_ns, is_named = time.perf_counter_ns(), True
        while (was_begun := self._jobs.take_back(self._index, entry)) is None:
            if self._work_ahead() or self.help():
                is_named = False
                continue
            if not is_named:  # once: the trainer looks how long nothing changes on the page
                self._page.watch(ref)
                is_named = True
            select.select([self._inbox], [], [], _WAIT_S)
            self._collect()
        if not is_named:
            self._page.watch(ref)
        self._elsewhere_ns -= time.perf_counter_ns() - began_ns
        return was_begun

    def _work_ahead(self) -> bool:
        """Do the next of its own jobs; False if there is none."""
        if (job := self._jobs.claim(self._index)) is None:
            return False
        self._arrived[job.number] = self._tried(job)
        self._jobs.finish(job)
        return True

    def _collect(self) -> None:
        """Receive what peers have sent."""
        with contextlib.suppress(OSError):  # nothing is left; or no descriptor is free for it, so it is made here
            while True:
                (number, ranges), content, descriptors = self._inbox.receive(wait=False)
                for descriptor in descriptors:
                    try:
                        content = memoryview(writable_content(descriptor))
                    finally:
                        os.close(descriptor)
                if number < self._first_number:
                    continue
                self._arrived[number] = None
                if ranges:
                    self._mean_bytes += 0.1 * (len(content) - self._mean_bytes)
                    content = content if descriptors else memoryview(bytearray(content))  # tensors are written to
                    with contextlib.suppress(Exception):
                        self._arrived[number] = from_pieces([content[start:end] for start, end in ranges])

    # ----- as one that helps ------------------------------------------------------------------------------------------

    def help(self) -> bool:
        """Do a job of a peer for which the trainer waits; False if there is none."""
        for worker in self._jobs.behind(self._index):
            if (job := self._jobs.claim(worker)) is not None:
                self._send(job, self._tried(job))
                self._jobs.finish(job)
                return True
        return False

    @property
    def num_beyond(self) -> int:
        """Batches beyond those that the trainer asks for: one more each time that it had nothing else to do."""
        return min(self._num_beyond, self._most_beyond)

    @property
    def _most_beyond(self) -> int:
        batch_bytes, (most, most_bytes) = self._worker.batch_bytes, self._max_ahead
        if not batch_bytes:
            return 0
        if batch_bytes <= MAX_INLINE_BYTES:  # these fill the channel, whose messages should not wait
            most_bytes = min(most_bytes, _MAX_INLINE_AHEAD_BYTES)
        return min(most, most_bytes // batch_bytes)

    def wait(self) -> bool:
        """Help until there is a message for this worker. True if one more batch may be made ahead, and there is nothing
        else to do while the trainer waits for a peer."""
        if not self.is_connected or not self._jobs.has_posts():
            return False  # a worker that starts posting now is helped from the next wait on
        worker = self._worker
        may_grow = bool(worker.schedule) and self._num_beyond < self._most_beyond
        poller = select.poll()
        poller.register(worker.channel, select.POLLIN)
        # Before it looks for jobs: later ones ring the bell.
        self._jobs.note_produced(self._index, worker.num_batches, is_idle=True)
        try:
            while not poller.poll(0):
                if not self.help():
                    if may_grow and self.posts and self._jobs.behind(self._index):
                        self._num_beyond += 1
                        return True
                    poller.register(self._bell, select.POLLIN)
                    poller.poll(_LOOK_MS if self.posts else None)
                    poller.unregister(self._bell)
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._bell)
            return False
        finally:
            self._jobs.note_produced(self._index, worker.num_batches, is_idle=False)

    @functools.cached_property
    def _ahead(self) -> AheadMaker:
        return self._worker.dataset.ahead_maker()

    def _tried(self, job: Job) -> SampleOutcome | None:
        """The outcome of a job; None if a hook fails on the sample."""
        page, before = self._page, self._page.lane
        page.enter(job.lane)
        page.watch(job.ref)
        try:
            return self._ahead.made(job.ref)
        finally:
            page.enter(before)

    def _send(self, job: Job, outcome: SampleOutcome | None) -> None:
        """Send an outcome to a peer. If that fails, the peer makes it again."""
        with contextlib.suppress(Exception):
            views = [] if outcome is None else [part.raw() for part in self._pickler.pieces_of(outcome)]
            ranges, size = layout(map(len, views))
            if size <= _MAX_INLINE_BYTES:
                self._inboxes[job.worker].send((job.number, ranges), (), [*padded(views, ranges)], wait=False)
                return
            file = os.memfd_create("bridge_data", os.MFD_CLOEXEC)
            try:
                for (start, _), view in zip(ranges, views, strict=True):
                    os.pwrite(file, view, start)
                os.ftruncate(file, size)
                self._inboxes[job.worker].send((job.number, ranges), [file], wait=False)
            finally:
                os.close(file)


class Helpers(Protocol):
    """Those who may have made a sample."""

    posts: bool
    """Whether they are asked."""

    def find(self, ref: SampleRef) -> SampleOutcome | None:
        """The outcome of a sample, if one of them has made it."""


class HelpedMaker:
    """Asks `helping` for each sample before `inner` makes it."""

    def __init__(self, helping: Helpers, inner: Maker, lane: LaneView) -> None:
        self._helping, self._inner, self._lane = helping, inner, lane

    def make(self, refs: Sequence[SampleRef]) -> Iterable[Made]:
        """See `Maker`."""
        if not self._helping.posts or not any(map(self._lane.may_come_from_others, refs)):
            return self._inner.make(refs)
        return map(self._one, refs)

    def _one(self, ref: SampleRef) -> Made:
        if self._lane.may_come_from_others(ref):
            if self._lane.watch is not None:
                self._lane.watch(ref)
            if (found := self._helping.find(ref)) is not None:
                return self._lane.adopted(ref, found)
        (one,) = self._inner.make((ref,))
        return one


def waited_for_core_ns() -> int:
    """How long this thread could have computed and no core was free, in all; 0 if the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
