"""One worker as the trainer sees it, across restarts of its process.

Reads the messages of the worker's process. Returns its results, in the order in which they were produced. Batches
received before the process died are kept, and the next process continues after the last batch received.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

from bridge_data.errors import FailureReport, WorkerError
from bridge_data.lanes.lane import Produced
from bridge_data.loader.lane_pool import Ended, LaneResult
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
    applied,
)
from bridge_data.loader.workers.services import WorkerServices
from bridge_data.loader.workers.shared_buffers import BufferQuota, MappedBuffers
from bridge_data.loader.workers.watch_page import WatchPage
from bridge_data.order import SampleRef
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.samples.pickling import from_pieces


class WorkerLink:
    """Worker number `index`: its channel, its lanes, and the results received but not taken yet."""

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
        self._num_failures: dict[Any, int] = {}
        """Those that the process has told of, by their kind."""
        self._services = services
        if services is not None:
            load = load._replace(service=pickle.dumps(services.of_worker(self.index)))
        self._send(load, dataset)
        if self._state is not None:
            self._send_begin(self._state)

    def begin(self, lanes: Sequence[int], state: LoaderState) -> None:
        """Drop all received results, and produce these lanes in the order of their turns, from `state`."""
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
        message: Ready | Importing | FailureReport | LaneMessage = packet.message
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
        elif isinstance(message, FailureReport):
            message.log_in_all(message.number - self._num_failures.get(message.kind, 0))
            self._num_failures[message.kind] = message.number
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
        if not isinstance(message, FailureMessage):
            state = self._state.lanes[message.lane] = applied(self._state.lanes[message.lane], message.change)
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

    def has_result(self) -> bool:
        return bool(self._queue)

    def note_request(self) -> None:
        """Note how many batches are ready now, when one is requested, for the metrics."""
        ready = self._prefetch_factor - (self._allowed - self.page.produced)
        self._num_ready = min(max(ready, 0), self._prefetch_factor)  # the worker may not have seen `Begin` yet

    def take(self, lane: int) -> LaneResult:
        """The oldest received result, which must be of `lane`. Raises what the lane raised."""
        message, state, payload, buffers = self._queue.popleft()
        if isinstance(message, FailureMessage):
            raise error_of(message)
        if isinstance(message, EndMessage):
            return Ended(lane, state, message.skipped)
        assert message.lane == lane
        batch = from_pieces(buffers.open(message.body, payload))
        self._allowed += 1
        self.page.allowed = self._allowed
        self._note_taken()
        if (self._buffers.released or self.page.waits) and not self.hung_up:
            self._free()
        ready = self._num_ready, self._prefetch_factor
        return Produced(lane, batch, state, message.skipped, message.counts, message.notes, *ready)

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
