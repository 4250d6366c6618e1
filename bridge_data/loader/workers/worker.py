"""A worker process: sets itself up, loads the dataset, runs lanes, sends each batch with its lane's state after it.

Reads the messages of the trainer. Sends batches of the lanes of `Begin` in the order of their turns, the end of each
lane, or what it raised; never more batches than the watch page allows. Promises that the process dies with its parent,
keeps few descriptors, ignores Ctrl-C and computes in one thread; it returns only by `os._exit`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bridge_data.child_process import (
    close_descriptors,
    die_with_parent,
    give_back_freed_memory,
    keep_freed_memory,
    reset_signals,
    use_one_thread,
    write_lines_at_once,
)
from bridge_data.errors import FailureReport, report_failures_to
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.lane_pool import Ended, LaneRunner, LaneSchedule
from bridge_data.loader.workers.batches import BatchPickler
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
    Packet,
    Ready,
    change_of,
    contents_of,
)
from bridge_data.loader.workers.services import OpenService
from bridge_data.loader.workers.shared_buffers import SharedArena, SharedBuffers
from bridge_data.loader.workers.watch_page import WatchPage, spin_briefly
from bridge_data.order.state import LaneState
from bridge_data.replacement import replacement

if TYPE_CHECKING:
    from bridge_data.loader.workers.messages import Environment


def adopt(environment: Environment) -> None:
    """Use the module search path of the trainer, and its replacement of Energon."""
    sys.path[:] = environment.sys_path
    sys.argv[:] = environment.argv
    os.environ.pop("PYTHONPATH", None)
    if environment.pythonpath is not None:
        os.environ["PYTHONPATH"] = environment.pythonpath
    if environment.replacement != replacement():
        from bridge_data.import_hook import install  # here: few jobs need it

        install(environment.replacement)


def imported(modules: list[str], tell: Callable[[str], object]) -> Iterator[str]:
    """Import those modules that are missing; returns the name of each, after `tell` got it before.

    An import that fails is no error here: whatever needs the module imports it again, and reports why it fails.
    """
    for name in modules:
        if name in sys.modules:
            continue
        tell(name)
        with contextlib.suppress(Exception):
            importlib.import_module(name)
        yield name


def main(parent: int, channel_descriptor: int, watch_descriptor: int) -> None:
    """Run as a worker of the process `parent`."""
    try:
        die_with_parent(parent)
        reset_signals()
        close_descriptors({channel_descriptor, watch_descriptor})
        keep_freed_memory()
        write_lines_at_once()
        if sys.stderr is not None:  # as in a trainer without one, a daemon
            faulthandler.enable()
        use_one_thread()
        page = WatchPage(watch_descriptor)
        page.process = os.getpid()
        os.close(watch_descriptor)
        _serve(Channel.from_descriptor(channel_descriptor), page)
    except EOFError:
        os._exit(0)  # the trainer has closed the channel
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _serve(channel: Channel, page: WatchPage) -> None:
    load, _, (file,) = channel.receive()
    try:
        adopt(load.environment)
        for _ in imported(load.modules, lambda module: _tell(channel, Importing(module))):
            pass
        dataset = pickle.loads(contents_of(file))
        open_service: OpenService | None = pickle.loads(load.service) if load.service else None
    except BaseException as error:
        _, text = BatchPickler().pickle_error(error, "while the dataset was loaded in a worker")
        channel.send(Ready(failure=text))
        return
    channel.send(Ready())
    report_failures_to(lambda report: _tell(channel, report))
    Worker(channel, page, dataset, open_service).run()


def _tell(trainer: Channel, message: Importing | FailureReport) -> bool:
    """Send a message that nobody waits for; False if the trainer is busy, and many messages wait for it."""
    try:
        trainer.send(message, wait=False)
    except BlockingIOError:
        return False
    return True


class Worker:
    """Makes the batches of its lanes, as many as the trainer asks for."""

    def __init__(
        self, channel: Channel, page: WatchPage, dataset: LaneDataset, open_service: OpenService | None
    ) -> None:
        self.channel, self.page, self.dataset = channel, page, dataset
        self._pickler, self._buffers = BatchPickler(), SharedBuffers(num_spare=0)  # until `Begin` says how many
        self._arena = SharedArena(self._buffers)
        self._begin_number = self._number = self.num_batches = 0
        """The latter: batches made since `Begin`."""
        self.batch_bytes = 0
        """Size of the largest."""
        self.schedule: LaneSchedule | None = None
        """Whose turn it is among its lanes; None before `Begin`, and after one has failed."""
        self._sent: dict[int, LaneState] = {}
        self.runner: LaneRunner
        self._service = None if open_service is None else open_service(self)

    def run(self) -> None:
        while True:
            self._listen()
            message, payload, descriptors = self._next()
            self.channel.send(message, descriptors, payload)
            self.page.produced = self.num_batches
            for descriptor in descriptors:
                os.close(descriptor)
            if self._number & (self._number - 1) == 0:  # less and less often
                give_back_freed_memory()

    def _listen(self) -> None:
        """Receive the messages of the trainer; wait for one if there is nothing to do."""
        while True:
            try:
                message, _, descriptors = self._receive()
            except BlockingIOError:
                return
            if isinstance(message, Freed):
                self._buffers.free(message.buffers)
            elif isinstance(message, ConnectService):
                assert self._service is not None
                self._service.connect(descriptors)
            elif isinstance(message, Begin):
                self._begin(message)

    def _begin(self, message: Begin) -> None:
        self._begin_number, self._number, self.num_batches = message.begin_number, 0, 0
        self._sent, self.schedule = {}, LaneSchedule(message.state, message.lanes)
        self._buffers.num_spare = message.num_ahead  # as many as the trainer may release at once
        wrappers = []
        if self._service is not None:
            self._service.begin()
            wrappers.append(self._service.wrap)
        self.runner = LaneRunner(self.dataset, message.state, self._arena, self.page.watch, wrappers)

    def _receive(self) -> Packet:
        if spin_briefly(self._may_go_on):
            return self.channel.receive(wait=False)
        self.page.waits = True
        try:
            may_go_on = self._may_go_on()  # the trainer may just have changed it
            if self._service is not None and not may_go_on:
                may_go_on = self._service.wait()
                self._buffers.num_spare += may_go_on
            return self.channel.receive(wait=not may_go_on)
        finally:
            self.page.waits = False

    def _may_go_on(self) -> bool:
        return bool(self.schedule) and self.num_batches < self.num_allowed

    @property
    def num_allowed(self) -> int:
        """The batches that it may make: those that the trainer asks for, and what its service adds."""
        return self.page.allowed + (0 if self._service is None else self._service.num_beyond)

    def _next(self) -> tuple[LaneMessage, Sequence[Any], list[int]]:
        """The next result of the lane whose turn it is: a message, its payload and its descriptors."""
        assert self.schedule is not None
        lane = self.schedule.lane
        head = self._begin_number, self._number, lane
        self._number += 1
        self.page.enter(lane)
        try:
            result = (self._service or self.runner).take(lane)
            state, skipped = result.state, result.skipped
            change, self._sent[lane] = change_of(self._sent.get(lane, {}), state), state
            if isinstance(result, Ended):
                self.schedule.end_lane()
                return EndMessage(*head, change, skipped), [], []
            notes, counts = result.notes, result.counts
            pieces = self._pickler.pieces_of(result.batch)
            del result  # a reference to the batch would keep it from being sent without a copy
            body, payload, descriptors = self._arena.place(pieces)
            self.batch_bytes = max(self.batch_bytes, max(end for _, end in body.ranges))
            self.schedule.advance()
            self.num_batches += 1
            return BatchMessage(*head, change, skipped, notes, body, counts), payload, descriptors
        except BaseException as error:
            self.schedule = None
            return FailureMessage(*head, *self._pickler.pickle_error(error, f"in a worker, lane {lane}")), [], []
        finally:
            self.page.leave()
