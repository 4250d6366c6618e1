"""Messages between trainer, server and workers, and the channel that carries them.

Sends a small picklable message and descriptors. Returns the same at the other end, complete or not at all: one message
is one packet, so an interrupted reader never reads half of one. A message that is too large for a packet travels in an
anonymous file, so sending does not block on the reader.

Lane states travel as changes: each holds only what the state before it does not have. Objects that two states of a lane
share are kept, as states never change; so the packs of a packing buffer are sent once, and then how many are left.
"""

from __future__ import annotations

import array
import contextlib
import errno
import mmap
import os
import pickle
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from bridge_data.order.state import LaneState, LoaderState
from bridge_data.replacement import Replacement, replacement

_MAX_PACKET_BYTES = 1 << 16
_LENGTH = struct.Struct("I")
_IN_FILE = b"\0"  # a packet equal to this has its contents in the first file that came with it
MAX_DESCRIPTORS = 253
"""That the kernel sends with a message."""
_ROOM_FOR_DESCRIPTORS = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)

_FULL_S = 0.01

_NOTHING = object()

# As numbers: the operators of `socket.MsgFlag` cost more than a system call.
_DO_NOT_WAIT, _CLOSE_ON_EXEC = int(socket.MSG_DONTWAIT), int(socket.MSG_CMSG_CLOEXEC)
_NO_SIGNAL, _CUT_SHORT = int(socket.MSG_NOSIGNAL), int(socket.MSG_CTRUNC)


class StateChange(NamedTuple):
    """The difference of two states of a lane: the names of `kept` entries, and `new` entries. The last `num_packs`
    packs of the state before are left (0: the packs are among the new entries, or there are none)."""

    kept: list[str]
    new: dict[str, Any]
    num_packs: int = 0
    pending: StateChange | None = None


def change_of(before: LaneState, state: LaneState) -> StateChange:
    """The change from `before` ({} for the first state) to `state`. A state without pending samples is sent whole."""
    if not before or "pending" not in state:
        return StateChange([], {**state})
    return _difference(before, state)


def _difference(before: Mapping[str, Any], state: Mapping[str, Any]) -> StateChange:
    kept = [name for name, value in state.items() if before.get(name, _NOTHING) is value]
    new = {name: value for name, value in state.items() if name not in kept}
    packs, packs_before = state.get("packs"), before.get("packs")
    if packs and packs_before and packs[-1] is packs_before[-1]:
        new.pop("packs", None)
        return StateChange(kept, new, num_packs=len(packs))
    if "pending" in new and "pending" in before:
        return StateChange(kept, new, pending=_difference(before["pending"], new.pop("pending")))
    return StateChange(kept, new)


def applied(before: LaneState, change: StateChange) -> LaneState:
    """The state passed to `change_of(before, state)`."""
    return cast("LaneState", _after(before, change))


def _after(before: Mapping[str, Any], change: StateChange) -> dict[str, Any]:
    state = {name: before[name] for name in change.kept} | change.new
    if change.num_packs:
        state["packs"] = before["packs"][-change.num_packs :]
    if change.pending is not None:
        state["pending"] = _after(before["pending"], change.pending)
    return state


class Environment(NamedTuple):
    """Trainer to server, the first message: where to import modules from, what Energon is replaced by. Its descriptor
    is of an `ImportPage`."""

    sys_path: tuple[str, ...]
    argv: tuple[str, ...]
    pythonpath: str | None
    replacement: Replacement

    @classmethod
    def of_this_process(cls) -> Environment:
        return cls(tuple(sys.path), tuple(sys.argv), os.environ.get("PYTHONPATH"), replacement())


class Import(NamedTuple):
    """Trainer to server: import these modules, which workers will need."""

    modules: list[str]


class AddLoader(NamedTuple):
    """Trainer to server, with the channel of a loader: serve it too."""


class Importing(NamedTuple):
    """Worker to trainer: it begins to import this module for the dataset."""

    module: str


class Joined(NamedTuple):
    """Server to loader: the server now serves it."""


class Load(NamedTuple):
    """Trainer to worker, the first message, with the file of the dataset: load it, after importing these modules."""

    environment: Environment
    modules: list[str]
    service: bytes = b""
    """What opens the worker's service, pickled."""


class StartWorker(NamedTuple):
    """Loader to server, with the worker's channel and watch page: start a worker."""

    uid: int


class KillWorker(NamedTuple):
    """Loader to server."""

    uid: int


class Stop(NamedTuple):
    """Loader to server: kill its workers, and close its channel when they are gone. Trainer to server: end."""


class Exited(NamedTuple):
    """Server to loader: a worker has exited. `code` is negative for a signal, as in `subprocess`."""

    uid: int
    code: int


class ConnectService(NamedTuple):
    """Trainer to worker, with descriptors: what its service shares with those of others (see `services`)."""


class Begin(NamedTuple):
    """Trainer to worker: drop all lanes, then produce these in the order of their turns, from this state.

    The watch page says how many batches the worker may produce; `num_ahead` of them may wait to be taken.
    """

    begin_number: int
    lanes: list[int]
    state: LoaderState
    num_ahead: int


class Freed(NamedTuple):
    """Trainer to worker: these buffers may be written again. With no buffers, it only wakes a waiting worker."""

    buffers: list[int]


class Ready(NamedTuple):
    """Worker to trainer: the dataset is loaded, or why it cannot be."""

    failure: str | None = None


class Body(NamedTuple):
    """The pieces of a batch, its pickle first, then its buffers: start and end of each are in `ranges`.

    They are in buffer number `buffer` of shared memory; -1: they come with the message itself. The buffer is new if
    `new_capacity_bytes` is not 0 (its descriptor comes with the message); buffers in `retired` are not used any more.
    """

    ranges: list[tuple[int, int]]
    buffer: int = -1
    new_capacity_bytes: int = 0
    retired: Sequence[int] = ()


class BatchMessage(NamedTuple):
    """Worker to trainer: a batch of the lane, with the change from the lane's state before it to the state after it,
    and the values of its `BatchCounts`.

    `number` counts the results since each `Begin` from 0, so that a lost message is noticed.
    """

    begin_number: int
    number: int
    lane: int
    change: StateChange
    skipped: dict[str, int]
    notes: dict[str, Any]
    body: Body
    counts: tuple[Any, ...] = ()


class EndMessage(NamedTuple):
    """Worker to trainer: the lane has no more batches, with the change to its state at its end."""

    begin_number: int
    number: int
    lane: int
    change: StateChange
    skipped: dict[str, int]


class FailureMessage(NamedTuple):
    """Worker to trainer: the lane raised `error` (pickled; None if it cannot be)."""

    begin_number: int
    number: int
    lane: int
    error: bytes | None
    text: str


LaneMessage: TypeAlias = BatchMessage | EndMessage | FailureMessage


class Packet(NamedTuple):
    """A message as it was received, with the bytes and the descriptors that came with it."""

    message: Any
    payload: memoryview
    descriptors: list[int]


class Channel:
    """One end of a connected pair of packet sockets."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Channel(one), Channel(other)

    @staticmethod
    def from_descriptor(descriptor: int) -> Channel:
        return Channel(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(
        self, message: Any, descriptors: Sequence[int] = (), payload: Sequence[Any] = (), *, wait: bool = True
    ) -> None:
        """Send `message`, with duplicates of `descriptors` and the bytes of the buffers `payload`; nothing if the other
        end is gone: whoever receives is told, and whoever has to know watches the process.

        Raises:
            BlockingIOError: with `wait=False`, if too many messages wait there.
        """
        flags = _NO_SIGNAL if wait else _NO_SIGNAL | _DO_NOT_WAIT
        data = pickle.dumps(message, 5)
        pieces = [_LENGTH.pack(len(data)), data, *payload]
        if sum(map(len, pieces)) <= _MAX_PACKET_BYTES:
            self._send_packet(pieces, descriptors, flags)
            return
        file = file_of(b"".join(pieces))
        try:
            self._send_packet([_IN_FILE], [file, *descriptors], flags)
        finally:
            os.close(file)

    def receive(self, *, wait: bool = True) -> Packet:
        """The next message.

        Raises:
            EOFError: if the other end is gone.
            BlockingIOError: with `wait=False`, if there is no message.
        """
        packet, descriptors = self._receive_packet(_CLOSE_ON_EXEC if wait else _CLOSE_ON_EXEC | _DO_NOT_WAIT)
        view = memoryview(packet)
        if packet == _IN_FILE:
            file, *descriptors = descriptors
            view = memoryview(contents_of(file))
        end = _LENGTH.size + _LENGTH.unpack_from(view)[0]
        return Packet(pickle.loads(view[_LENGTH.size : end]), view[end:], descriptors)

    # Not `socket.send_fds` and `recv_fds`: those of Python 3.11 ignore their flags.

    def _send_packet(self, pieces: list[Any], descriptors: Sequence[int], flags: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                try:
                    self._socket.sendmsg(pieces, rights, flags)
                    return
                except OSError as error:  # too many descriptors of this user are on the way, and arrive soon
                    if error.errno != errno.ETOOMANYREFS or flags & _DO_NOT_WAIT:
                        raise
                    time.sleep(_FULL_S)

    def _receive_packet(self, flags: int) -> tuple[bytes, list[int]]:
        try:
            packet, ancillary, received, _ = self._socket.recvmsg(_MAX_PACKET_BYTES, _ROOM_FOR_DESCRIPTORS, flags)
        except ConnectionResetError:  # told once, if the other end left messages unread; its own are still to be read
            packet, ancillary, received, _ = self._socket.recvmsg(_MAX_PACKET_BYTES, _ROOM_FOR_DESCRIPTORS, flags)
        if not packet:
            raise EOFError
        if not ancillary and not received & _CUT_SHORT:
            return packet, []
        if received & _CUT_SHORT:
            raise OSError(errno.EMFILE, "no descriptor left for a batch's shared memory; raise the limit (ulimit -n)")
        descriptors = array.array("i")
        for _, kind, data in ancillary:
            if kind == socket.SCM_RIGHTS:
                descriptors.frombytes(data)
        return packet, descriptors.tolist()


def file_of(data: bytes) -> int:
    """The descriptor of an anonymous file with `data`."""
    descriptor = os.memfd_create("bridge_data", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as stream:
        stream.write(data)
    return descriptor


def contents_of(descriptor: int) -> mmap.mmap:
    """The contents of an anonymous file, whose descriptor is closed."""
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
