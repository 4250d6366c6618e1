"""A worker process: sets itself up, loads the dataset, runs lanes, sends each batch with its lane's state after it.

Enters: `Begin` and `Freed` messages. Leaves: batches of the lanes of `Begin` in the order of their slots, without lanes
that ended; never more than the watch page allows. Guarantee: a child dies with its parent, keeps few descriptors,
ignores Ctrl-C and computes in one thread; a worker returns only by `os._exit`.
"""

import contextlib
import faulthandler
import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Iterator, Sequence
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
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import MakerWrapper
from bridge_data.lanes.produced import Produced
from bridge_data.loader.lane_runner import Ended, LaneRunner
from bridge_data.loader.position import Turns
from bridge_data.loader.workers.batches import Encoder
from bridge_data.loader.workers.link import WatchPage, spin_briefly
from bridge_data.loader.workers.messages import (
    BatchMessage,
    Begin,
    Channel,
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
from bridge_data.loader.workers.slots import MAX_INLINE_BYTES, SlotArena, SlotWriter
from bridge_data.order.state import LaneState
from bridge_data.plugins.helping.board import Introduction
from bridge_data.plugins.helping.helping import Helping
from bridge_data.replacement import replacement

if TYPE_CHECKING:
    from bridge_data.loader.workers.messages import Environment

_MAX_INLINE_AHEAD_BYTES = 1 << 16


def adopt(environment: "Environment") -> None:
    """Use the module search path of the trainer, and its replacement of Energon."""
    sys.path[:] = environment.sys_path
    sys.argv[:] = environment.argv
    os.environ.pop("PYTHONPATH", None)
    if environment.pythonpath is not None:
        os.environ["PYTHONPATH"] = environment.pythonpath
    if environment.replacement != replacement():
        from bridge_data.energon.replacing import install

        install(environment.replacement)


def imported(modules: list[str], trainer: Channel) -> Iterator[str]:
    """Import those modules that are missing; returns the name of each, which `trainer` is told before.

    An import that fails is no error here: whatever needs the module imports it again, and reports why it fails.
    """
    for name in modules:
        if name in sys.modules:
            continue
        with contextlib.suppress(BlockingIOError):  # the trainer is busy, and many messages wait for it
            trainer.send(Importing(name), wait=False)
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
        for _ in imported(load.modules, channel):
            pass
        dataset = pickle.loads(contents_of(file))
    except BaseException as error:
        _, text = Encoder().encode_error(error, "while the dataset was loaded in a worker")
        channel.send(Ready(failure=text))
        return
    channel.send(Ready())
    _Worker(channel, page, dataset).run()


class _Worker:
    def __init__(self, channel: Channel, page: WatchPage, dataset: LaneDataset) -> None:
        self._channel, self._page, self._dataset = channel, page, dataset
        self._helping: Helping | None = None  # until it knows its peers
        self._encoder, self._slots = Encoder(), SlotWriter(num_spare=0)  # until `Begin` says how many
        self._arena = SlotArena(self._slots)
        self._begin_number = self._number = self._num_batches = 0
        self._num_beyond = self._batch_bytes = 0
        """Batches that it prepares ahead beyond those that the trainer asks for; the size of the largest."""
        self._turns: Turns | None = None
        self._sent: dict[int, LaneState] = {}
        self._runner: LaneRunner

    def run(self) -> None:
        while True:
            self._listen()
            message, payload, descriptors = self._next()
            self._channel.send(message, descriptors, payload)
            self._page.produced = self._num_batches
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
                self._slots.free(message.slots)
            elif isinstance(message, Introduction):
                self._helping = Helping(message, descriptors, self._dataset, self._page)
            elif isinstance(message, Begin):
                self._begin_number, self._number, self._num_batches = message.begin_number, 0, 0
                self._num_beyond = 0
                state, self._sent = message.state, {}
                self._turns = Turns(state, message.lanes)
                self._slots.num_spare = message.num_ahead  # as many as the trainer may release at once
                wrappers: list[MakerWrapper] = []
                if self._helping is not None:
                    self._helping.begin()
                    wrappers.append(self._helping.wrap)
                self._runner = LaneRunner(self._dataset, message.state, self._arena, self._page.watch, wrappers)

    def _receive(self) -> Packet:
        if spin_briefly(self._may_go_on):
            return self._channel.receive(wait=False)
        self._page.waits = True
        try:
            helping, may_go_on = self._helping, self._may_go_on()  # the trainer may just have changed it
            if helping is not None and not may_go_on:
                may_grow = bool(self._turns) and self._num_beyond < self._most_beyond
                may_go_on = helping.wait(self._channel, self._num_batches, may_grow=may_grow)
                self._num_beyond += may_go_on
                self._slots.num_spare += may_go_on
            return self._channel.receive(wait=not may_go_on)
        finally:
            self._page.waits = False

    def _may_go_on(self) -> bool:
        return bool(self._turns) and self._num_batches < self._num_allowed

    @property
    def _num_allowed(self) -> int:
        """The batches that it may produce: those that the trainer asks for, and some beyond."""
        return self._page.allowed + min(self._num_beyond, self._most_beyond)

    @property
    def _most_beyond(self) -> int:
        """The batches that it may prepare beyond those that the trainer asks for."""
        if self._helping is None or not self._batch_bytes:
            return 0
        most, most_bytes = self._helping.max_ahead
        if self._batch_bytes <= MAX_INLINE_BYTES:  # these fill the channel, whose messages should not wait
            most_bytes = min(most_bytes, _MAX_INLINE_AHEAD_BYTES)
        return min(most, most_bytes // self._batch_bytes)

    def _taken(self, lane: int, turns: Turns) -> Produced[Any] | Ended:
        """The next item of `lane`, with the help of peers if they are idle and samples take long."""
        helping, runner = self._helping, self._runner
        if helping is None:
            return runner.take(lane)
        if helping.posts:
            num_ahead = self._num_allowed - self._num_batches + 1
            lanes = [runner.lane(one).number for one in turns.following(num_ahead)]
            helping.prepare(lanes, self._num_batches, turns.slot)
        item = runner.take(lane)
        helping.note_loading(lane)
        return item

    def _next(self) -> tuple[LaneMessage, Sequence[Any], list[int]]:
        """The next item of the lane whose turn it is: a message, its payload and its descriptors."""
        assert self._turns is not None
        lane = self._turns.lane
        head = self._begin_number, self._number, lane
        self._number += 1
        self._page.enter(lane)
        try:
            item = self._taken(lane, self._turns)
            if isinstance(item, Ended):
                self._turns.end_lane()
                return EndMessage(*head, item.skipped), [], []
            state, skipped, references, counts = item.state, item.skipped, item.references, item.counts[:-2]
            parts = self._encoder.encode(item.batch)
            del item  # a reference to the batch would keep it from being sent without a copy
            body, payload, descriptors = self._arena.place(parts)
            self._batch_bytes = max(self._batch_bytes, max(end for _, end in body.ranges))
            self._turns.advance()
            self._num_batches += 1
            change, self._sent[lane] = change_of(self._sent.get(lane, {}), state), state
            return BatchMessage(*head, change, skipped, references, body, counts), payload, descriptors
        except BaseException as error:
            self._turns = None
            return FailureMessage(*head, *self._encoder.encode_error(error, f"in a worker, lane {lane}")), [], []
        finally:
            self._page.leave()
