"""One worker as the trainer sees it, across restarts of its process.

Reads the messages of the worker's process. Returns its items, in the order in which they were produced. Batches
received before the process died are kept, and the next process continues after the last batch received.

Worker and trainer share a page of memory. The worker writes there what it is working on, and the trainer can read that
even after the worker was killed. The trainer writes how many batches the worker may produce, so that taking a batch
needs no message. A worker that waits notes it there, and the trainer wakes it with a message. These two writes can
race, so the trainer checks again before it waits for the worker.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import mmap
import os
import pickle
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from bridge_data.errors import WorkerError
from bridge_data.lanes.produced import Produced, as_counts
from bridge_data.loader.lane_runner import Ended
from bridge_data.loader.workers.messages import (
    BatchMessage,
    Begin,
    Channel,
    ConnectService,
    EndMessage,
    FailureMessage,
    Freed,
    Importing,
    LaneMessage,
    Load,
    Packet,
    Ready,
    changed,
)
from bridge_data.loader.workers.services import WorkerServices
from bridge_data.loader.workers.shared_buffers import BufferQuota, MappedBuffers
from bridge_data.order import SampleRef
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.samples.pickling import decode

_LAYOUT = struct.Struct("qqqqqq")  # progress, lane, source, epoch, index, part
_NONE = -1
_NO_SAMPLE = (_NONE,) * 4
_SOON_S = 1e-4


class _Word:
    """A number on a page, as an attribute of it."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, page: WatchPage, owner: object) -> int:
        return page.words[self._place]

    def __set__(self, page: WatchPage, number: int) -> None:
        page.words[self._place] = number


class WatchPage:
    """A page shared by a worker, who says what it works on, and the trainer, who says how far ahead it may be."""

    progress = _Word(0)
    """Changes with each step of the worker."""
    allowed = _Word(8)  # from here on each is in a cache line of its own
    """How many batches the worker may produce, counted from `Begin`, by the trainer."""
    waits = _Word(16)
    """Whether the worker waits for a message."""
    produced = _Word(24)
    """How many batches the worker has sent since `Begin`."""
    process = _Word(32)
    """The process of the worker; 0 until it has started."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        self.words = memoryview(self._memory).cast("q")
        self._progress, self.lane = self.progress, _NONE

    @staticmethod
    def make() -> tuple[WatchPage, int]:
        """A page and its descriptor, to be sent to the worker and closed."""
        descriptor = os.memfd_create("bridge_data", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        page = WatchPage(descriptor)
        page.leave()
        return page, descriptor

    def enter(self, lane: int) -> None:
        """Work on a batch of `lane` starts."""
        self._write(lane, _NO_SAMPLE)

    def watch(self, ref: SampleRef) -> None:
        """Work on a sample starts."""
        self._write(self.lane, ref)

    def leave(self) -> None:
        """The batch is done."""
        self._write(_NONE, _NO_SAMPLE)

    def _write(self, lane: int, sample: tuple[int, ...]) -> None:
        self._progress, self.lane = self._progress + 1, lane
        _LAYOUT.pack_into(self._memory, 0, self._progress, lane, *sample)

    def contents(self) -> bytes:
        """What the worker says it works on, for a page on another machine."""
        return bytes(self._memory[: _LAYOUT.size])

    def update(self, contents: bytes) -> None:
        """Take over the `contents` of a page on another machine."""
        self._memory[: _LAYOUT.size] = contents

    def on_sample(self) -> bool:
        _, lane, source, *_ = _LAYOUT.unpack_from(self._memory)
        return bool(lane != _NONE and source != _NONE)

    def describe(self, name: Callable[[SampleRef], str] = str) -> str:
        """The lane and sample the worker is on, in words; `name` says what a sample is called."""
        _, lane, source, epoch, index, part = _LAYOUT.unpack_from(self._memory)
        if lane == _NONE:
            return "between two batches"
        if source == _NONE:
            return f"in lane {lane}, on no sample yet"
        return f"in lane {lane}, on sample {name(SampleRef(source, epoch, index, part))}"


def spin_briefly(has_come: Callable[[], bool]) -> bool:
    """Poll for a tenth of a millisecond, yielding the core to others; return whether it came. Sleeping and waking takes
    as long, at least on a virtual machine."""
    end = time.perf_counter() + _SOON_S
    while not has_come():
        if time.perf_counter() > end:
            return False
        os.sched_yield()
    return True


class WorkerLink:
    """Worker number `index`: its channel, its lanes, and the items received but not taken yet."""

    def __init__(self, index: int, prefetch_factor: int, quota: BufferQuota) -> None:
        self.index, self._prefetch_factor, self._quota = index, prefetch_factor, quota
        self._begin_number = self.num_received = 0
        self._lanes: list[int] = []
        self._state: LoaderState | None = None
        self._queue: collections.deque[tuple[LaneMessage, LaneState, memoryview, MappedBuffers]] = collections.deque()
        self._num_ready = 0
        self.broken: WorkerError | None = None

    def attach(
        self,
        uid: int,
        channel: Channel,
        page: WatchPage,
        load: Load,
        dataset: int,
        services: WorkerServices | None,
    ) -> None:
        """Connect to a new process. If lanes had started, it continues after the last batch received."""
        self.uid, self._channel, self.page = uid, channel, page
        self._buffers = MappedBuffers(self._quota)
        self.ready, self.importing, self.hung_up_at = False, "", math.inf
        self._services = services
        if services is not None:
            load = load._replace(service=pickle.dumps(services.of_worker(self.index)))
        self._send(load, dataset)
        if self._state is not None:
            self._send_begin(self._state)

    def begin(self, lanes: Sequence[int], state: LoaderState) -> None:
        """Drop all received items, and produce these lanes in the order of their turns, from `state`."""
        for message, *_, buffers in self._queue:
            if isinstance(message, BatchMessage):
                buffers.discard(message.body)
        self._queue.clear()
        self._lanes = list(lanes)
        self._state = dataclasses.replace(state, lanes={lane: state.lanes[lane] for lane in lanes})
        self._send_begin(self._state)

    def _send_begin(self, state: LoaderState) -> None:
        self._begin_number, self.num_received = self._begin_number + 1, 0
        ahead = sum(isinstance(message, BatchMessage) for message, *_ in self._queue)
        self._allowed = self._prefetch_factor - ahead
        self._note_taken()
        self.page.produced = 0
        self.page.allowed = self._allowed
        self._send(Begin(self._begin_number, list(self._lanes), state, self._prefetch_factor))

    def receive(self) -> None:
        """Receive all messages that have arrived."""
        while self.receive_one():
            pass

    def receive_one(self) -> bool:
        """Receive one message; False if none has arrived."""
        if self.hung_up:
            return False
        try:
            self._note(self._channel.receive(wait=False))
        except BlockingIOError:
            return False
        except EOFError:
            self.hung_up_at = time.monotonic()
            return False
        return True

    def _note(self, packet: Packet) -> None:
        message: Ready | Importing | LaneMessage = packet.message
        if isinstance(message, BatchMessage):
            self._buffers.note(message.body, packet.descriptors)
        elif isinstance(message, Ready):
            self.ready = message.failure is None
            if not self.ready:
                self.broken = WorkerError(f"worker {self.index}: {message.failure}")
            elif self._services is not None:  # not before: a user may have few descriptors on the way
                with contextlib.suppress(OSError):  # the worker does without, if there are too many
                    self._channel.send(ConnectService(), self._services.descriptors(self.index), wait=False)
            return
        elif isinstance(message, Importing):
            self.importing = message.module
            return
        is_next = message.begin_number == self._begin_number and message.number == self.num_received
        if not is_next and isinstance(message, BatchMessage):
            self._buffers.discard(message.body)
        if message.begin_number != self._begin_number:
            return
        assert self._state is not None
        if not is_next:  # one was lost: the trainer was interrupted while it received it
            self._send_begin(self._state)
            return
        self.num_received += 1
        state: LaneState = {}
        if isinstance(message, BatchMessage):
            state = self._state.lanes[message.lane] = changed(self._state.lanes[message.lane], message.change)
        self._queue.append((message, state, packet.payload, self._buffers))
        if isinstance(message, EndMessage):
            self._lanes.remove(message.lane)
        elif isinstance(message, FailureMessage):
            self._lanes.clear()

    @property
    def hung_up(self) -> bool:
        """Whether the process has closed its end."""
        return self.hung_up_at < math.inf

    def describe(self, name: Callable[[SampleRef], str]) -> str:
        """What the process does, in words; `name` says what a sample is called."""
        if self.ready:
            return self.page.describe(name)
        return f"importing {self.importing}" if self.importing else "loading the data set"

    def has_item(self) -> bool:
        return bool(self._queue)

    def ask(self) -> bool:
        """Note how many batches are ready now, when one is requested; return whether one has been received."""
        ready = self._prefetch_factor - (self._allowed - self.page.produced)
        self._num_ready = min(max(ready, 0), self._prefetch_factor)  # the worker may not have seen `Begin` yet
        return bool(self._queue)

    def take(self, lane: int) -> Produced[Any] | Ended:
        """The oldest received item, which must be of `lane`. Raises what the lane raised."""
        message, state, payload, buffers = self._queue.popleft()
        if isinstance(message, FailureMessage):
            raise error_of(message)
        if isinstance(message, EndMessage):
            return Ended(lane, message.skipped)
        assert message.lane == lane
        batch = decode(buffers.open(message.body, payload))
        self._allowed += 1
        self.page.allowed = self._allowed
        self._note_taken()
        if (self._buffers.released or self.page.waits) and not self.hung_up:
            self._free()
        counts = as_counts((*message.counts, self._num_ready, self._prefetch_factor))
        return Produced(lane, batch, state, message.skipped, counts, message.notes)

    def _note_taken(self) -> None:
        if self._services is not None:
            self._services.note_taken(self.index, self._allowed - self._prefetch_factor)

    def wake(self) -> None:
        if self.page.waits:
            self._free()

    def _free(self) -> None:
        """Return the released buffers, which also wakes the worker. If it has not read many messages, they wait."""
        released = self._buffers.take_released()
        try:
            self._channel.send(Freed(released), wait=False)
        except BlockingIOError:
            self._buffers.released.extend(released)

    def fileno(self) -> int:
        return self._channel.fileno()

    def close(self) -> None:
        """Disconnect from the process."""
        self.hung_up_at = time.monotonic()
        self._channel.close()

    def _send(self, message: Any, *descriptors: int) -> None:
        self._channel.send(message, descriptors)


def error_of(message: FailureMessage) -> BaseException:
    """What the lane raised."""
    if message.error is not None:
        with contextlib.suppress(Exception):  # it may be of a class that only the worker has
            error: BaseException = pickle.loads(message.error)
            return error
    return WorkerError(message.text)
