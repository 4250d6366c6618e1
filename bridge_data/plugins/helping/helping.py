"""Workers of a rank help each other: what a worker is about to load, an idle one may load for it.

Reads the references that the lanes of a worker load next, and what its trainer has taken. Returns outcomes of work
(`lanes.maker.Outcome`): work depends on the reference alone, so the stream is the same, whoever does it. Order, packs
and batches stay with the lane.

Each worker posts on the `Board` what it loads next, once its samples take long enough; an idle worker takes the jobs of
one that the trainer waits for, and sends outcomes to that worker's inbox. A worker that needs a sample on which another
works does its next ones meanwhile, or helps in turn; if that other dies, it makes the sample itself.

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

from bridge_data.child_process import waited_for_core_ns
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import LaneView, Made, Maker, Outcome, Trial
from bridge_data.lanes.upcoming import Upcoming
from bridge_data.loader.workers.batches import Encoder
from bridge_data.loader.workers.link import WatchPage
from bridge_data.loader.workers.messages import Channel
from bridge_data.loader.workers.slots import layout, padded
from bridge_data.order import SampleRef
from bridge_data.plugins.helping.board import NUM_JOBS, Board, Introduction, Job
from bridge_data.samples.pickling import decode, writable_content

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


class Helping:
    """What a worker gives to its peers and gets from them: outcomes for its lanes while it posts jobs.

    `shared` are the descriptors that come with `Introduction`.
    """

    def __init__(self, peers: Introduction, shared: Sequence[int], dataset: LaneDataset, page: WatchPage) -> None:
        board, self._bell, inbox, *inboxes = shared
        self._board, self._index, self._page = Board(board, peers.num_workers), peers.worker, page
        self._inbox = Channel.from_descriptor(inbox)
        self._inboxes = [Channel.from_descriptor(descriptor) for descriptor in inboxes]
        self._dataset, self._encoder = dataset, Encoder()
        self._number = os.getpid() << 32  # those of a process that died here before are others
        self._mean_ns, self._mean_bytes, self._num_failed = 0.0, float(1 << 20), 0
        self._waited_ns = waited_for_core_ns()
        self.max_ahead = peers.max_ahead
        self.posts = False
        """Whether its lanes ask for outcomes."""
        self._views: dict[int, tuple[LaneView, Upcoming]] = {}
        """Of the lanes that are open, and what they load next."""
        self._forget()

    def begin(self) -> None:
        """The lanes begin anew."""
        self._num_failed, self._views = 0, {}
        self._forget()

    def wrap(self, inner: Maker, lane: LaneView) -> HelpedMaker:
        """A maker that asks peers before `inner`: a `MakerWrapper`."""
        assert lane.new_upcoming is not None
        self._views[lane.number] = lane, lane.new_upcoming()
        return HelpedMaker(self, inner, lane)

    def _forget(self) -> None:
        """Withdraw all jobs."""
        self._free = self._board.withdraw(self._index)
        self._board.note_work(self._index, 0, posts=False)
        self._first_number = self._number + 1
        self._lanes: dict[int, int] = {}
        self._posted: dict[SampleRef, tuple[int, int]] = {}
        """Number and place of the jobs that no lane has asked for."""
        self._num_low = 0
        """So few posted jobs that more are posted."""
        self._arrived: dict[int, Outcome | None] = {}
        """By the number of the job; None if it failed elsewhere."""
        self._elsewhere_ns = 0

    # ----- as one that may need help ----------------------------------------------------------------------------------

    def note_loading(self, lane: int) -> None:
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
        posts = self._num_failed < _MAX_FAILED and self._mean_ns >= (_LIGHT_NS if self.posts else _HEAVY_NS)
        if posts != self.posts:
            self.posts = posts
            self._forget()

    def prepare(self, lanes: Sequence[int], num_produced: int, slot: int) -> None:
        """Before the batch of `slot`, after `num_produced` others: post what these lanes load for the next batches. A
        lane is named once for each of its batches."""
        self._board.note_work(self._index, slot, posts=True)
        self._board.note_produced(self._index, num_produced, is_idle=False)
        self._lanes = collections.Counter(lanes)
        self._post()

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
                place = self._free.pop()
                self._board.post(self._index, place, self._number, lane, ref)
                self._posted[ref] = self._number, place
        self._num_low = len(self._posted) // 2
        if len(self._posted) > num_before and self._board.wants_help(self._index):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self._bell, 1)

    def find(self, ref: SampleRef) -> Outcome | None:
        """The outcome of a sample of one of its lanes, if a peer has made it, or makes it now."""
        if len(self._posted) <= self._num_low:
            self._post()
        number, place = self._posted.pop(ref, (0, 0))
        if not number:
            return None
        was_begun = self._board.take_back(self._index, place)
        if was_begun is None:
            was_begun = self._wait_for(ref, place)
        self._free.append(place)
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

    def _wait_for(self, ref: SampleRef, place: int) -> bool:
        """Do other work while a peer makes a sample that is needed; returns as `Board.take_back`."""
        began_ns, is_named = time.perf_counter_ns(), True
        while (was_begun := self._board.take_back(self._index, place)) is None:
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
        if (job := self._board.claim(self._index)) is None:
            return False
        self._arrived[job.number] = self._tried(job)
        self._board.finish(job)
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
                        self._arrived[number] = decode([content[start:end] for start, end in ranges])

    # ----- as one that helps ------------------------------------------------------------------------------------------

    def help(self) -> bool:
        """Do a job of a peer for which the trainer waits; False if there is none."""
        for worker in self._board.behind(self._index):
            if (job := self._board.claim(worker)) is not None:
                self._send(job, self._tried(job))
                self._board.finish(job)
                return True
        return False

    def wait(self, channel: Channel, num_produced: int, *, may_grow: bool) -> bool:
        """After `num_produced` batches, help until there is a message on `channel`. True if it `may_grow`, and has
        nothing else to do while the trainer waits for a peer."""
        if not self._board.has_posts():
            return False  # who begins to post waits for the next time
        poller = select.poll()
        poller.register(channel, select.POLLIN)
        # Before it looks for jobs: later ones ring the bell.
        self._board.note_produced(self._index, num_produced, is_idle=True)
        try:
            while not poller.poll(0):
                if not self.help():
                    if may_grow and self.posts and self._board.behind(self._index):
                        return True
                    poller.register(self._bell, select.POLLIN)
                    poller.poll(_LOOK_MS if self.posts else None)
                    poller.unregister(self._bell)
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._bell)
            return False
        finally:
            self._board.note_produced(self._index, num_produced, is_idle=False)

    @functools.cached_property
    def _trial(self) -> Trial:
        return self._dataset.trial()

    def _tried(self, job: Job) -> Outcome | None:
        """The outcome of a job; None if a hook fails on the sample."""
        page, before = self._page, self._page.lane
        page.enter(job.lane)
        page.watch(job.ref)
        try:
            return self._trial.tried(job.ref)
        finally:
            page.enter(before)

    def _send(self, job: Job, outcome: Outcome | None) -> None:
        """Send an outcome to a peer. If that fails, the peer makes it again."""
        with contextlib.suppress(Exception):
            views = [] if outcome is None else [part.raw() for part in self._encoder.encode(outcome)]
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


class HelpedMaker:
    """Asks the peers of `helping` for each sample before `inner` makes it, while that posts what its lanes load."""

    def __init__(self, helping: Helping, inner: Maker, lane: LaneView) -> None:
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
                return self._lane.maker.adopted(ref, found)
        (one,) = self._inner.make((ref,))
        return one
