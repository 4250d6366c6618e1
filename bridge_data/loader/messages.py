"""Messages between trainer, server and workers, and the channel they go through.

Enters: a small picklable message and descriptors. Leaves: the same at the other end, whole or not at all.
Guarantee: one message is one packet, so an interrupted reader never stands in the middle of one; what is too large
for a packet travels in an anonymous file, so sending does not block on the reader.
"""

import array
import dataclasses
import errno
import mmap
import os
import pickle
import socket
from collections.abc import Sequence
from typing import Any

from bridge_data.state import LaneState, LoaderState

_MAX_PACKET_BYTES = 1 << 16
_MAX_DESCRIPTORS = 8
_HERE, _IN_FILE = b"\0", b"\1"


@dataclasses.dataclass(frozen=True, slots=True)
class Environment:
    """Trainer to server and worker, first of all: where modules are found, and those to import before forking."""

    sys_path: list[str]
    argv: list[str]
    pythonpath: str | None
    modules: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class StartWorker:
    """Trainer to server, with the worker's channel and watch page: start a worker."""

    uid: int


@dataclasses.dataclass(frozen=True, slots=True)
class KillWorker:
    """Trainer to server."""

    uid: int


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """Trainer to server: kill all workers, then end."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exited:
    """Server to trainer: a worker is no more. `code` is as `subprocess` gives it: negative for a signal."""

    uid: int
    code: int


@dataclasses.dataclass(frozen=True, slots=True)
class Begin:
    """Trainer to worker: drop all lanes, then produce in this order, round and round, from this state."""

    generation: int
    order: list[int]
    state: LoaderState
    credits: int


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """Trainer to worker: so many batches were handed out, and these slots may be written again."""

    credits: int
    freed: list[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Ready:
    """Worker to trainer: the dataset is loaded."""


@dataclasses.dataclass(frozen=True, slots=True)
class Body:
    """A pickled batch and its buffers: here, or one after the other in a shared-memory slot.

    `parts`: the bytes themselves, if they are few. Else `lengths` of the parts in slot number `slot`, which is new if
    `new_capacity_bytes` is not 0 (its descriptor comes with the message); slots in `retired` are used no more.
    """

    parts: list[Any] | None = None
    lengths: list[int] = dataclasses.field(default_factory=list)
    slot: int = -1
    new_capacity_bytes: int = 0
    retired: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class LaneMessage:
    """Worker to trainer. `number` counts from 0 in each generation, so that a lost message is noticed."""

    generation: int
    number: int
    lane: int


@dataclasses.dataclass(frozen=True, slots=True)
class BatchMessage(LaneMessage):
    """A batch of the lane, with the lane's state after it."""

    state: LaneState
    skipped: dict[str, int]
    body: Body


@dataclasses.dataclass(frozen=True, slots=True)
class EndMessage(LaneMessage):
    """The lane has no more batches."""

    skipped: dict[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class FailureMessage(LaneMessage):
    """The lane raised `error` (pickled; None where it cannot be), or loading the dataset did (lane -1)."""

    error: bytes | None
    text: str


class Channel:
    """One end of a connected pair of packet sockets."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @staticmethod
    def pair() -> tuple["Channel", "Channel"]:
        """Two ends."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Channel(one), Channel(other)

    @staticmethod
    def from_descriptor(descriptor: int) -> "Channel":
        """The end that was handed to this process."""
        return Channel(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send `message`, with duplicates of `descriptors`. Raises `OSError` if the other end is gone."""
        data = pickle.dumps(message, protocol=5)
        if len(data) < _MAX_PACKET_BYTES:
            self._send_packet([_HERE, data], descriptors)
            return
        file = file_of(data)
        try:
            self._send_packet([_IN_FILE], [file, *descriptors])
        finally:
            os.close(file)

    def receive(self, *, wait: bool = True) -> tuple[Any, list[int]]:
        """The next message with its descriptors.

        Raises:
            EOFError: if the other end is gone.
            BlockingIOError: with `wait=False`, if there is no message.
        """
        packet, descriptors = self._receive_packet(0 if wait else socket.MSG_DONTWAIT)
        if packet[:1] == _HERE:
            return pickle.loads(memoryview(packet)[1:]), descriptors
        file, *descriptors = descriptors
        return pickle.loads(contents_of(file)), descriptors

    # Not `socket.send_fds` and `recv_fds`: those of Python 3.11 ignore the flags they are given.

    def _send_packet(self, parts: list[bytes], descriptors: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self._socket.sendmsg(parts, rights, socket.MSG_NOSIGNAL)

    def _receive_packet(self, flags: int) -> tuple[bytes, list[int]]:
        room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
        try:
            packet, ancillary, received, _ = self._socket.recvmsg(
                _MAX_PACKET_BYTES + 1, room, flags | socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            raise EOFError from None
        if not packet:
            raise EOFError
        if received & socket.MSG_CTRUNC:
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
