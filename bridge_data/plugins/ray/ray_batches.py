"""How batches get from an actor on a Ray cluster to the trainer; Ray itself carries requests and replies.

Reads, in the actor, the parts of a batch. Returns, in the trainer, the same parts in memory that may be written.

A batch is built in a buffer of shared memory, as by a worker process, and the buffer is written again only when the
trainer has given it back with a later request. On its own machine, the trainer maps the buffers, as files of the
actor's process: no copy. From other machines batches come with the replies; above 32 MiB, through Ray's object store.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import uuid
from concurrent.futures import Future
from typing import Any, NamedTuple

from bridge_data.loader.workers.messages import BatchMessage, Body, LaneMessage
from bridge_data.loader.workers.shared_buffers import BufferQuota, MappedBuffers, SharedArena, SharedBuffers


class SharedMemoryHandle(NamedTuple):
    """Where the buffers of an actor are: open files of its process."""

    process: int
    token: str
    """The name of one of the files, which no other process has, on any machine."""
    token_file: int


class Reply(NamedTuple):
    """A result of a lane; the bytes of its batch, if that is in no buffer; the file of its buffer, if that is new."""

    message: LaneMessage
    payload: Any = b""
    files: tuple[int, ...] = ()


class BatchSender:
    """The actor's side. With `by_reply`, no batch is in a buffer: the trainer cannot reach them."""

    def __init__(self) -> None:
        self.buffers = SharedBuffers(num_spare=0)
        self.arena = SharedArena(self.buffers)
        self.by_reply = True
        self._files: dict[int, int] = {}

    def export_handle(self) -> SharedMemoryHandle:
        """Let the trainer reach the buffers."""
        token = uuid.uuid4().hex
        return SharedMemoryHandle(os.getpid(), token, os.memfd_create(token, os.MFD_CLOEXEC))

    def place(self, parts: list[pickle.PickleBuffer]) -> tuple[Body, Any, tuple[int, ...]]:
        """What to reply so that these parts of a batch arrive. The list is emptied, as by `SlotArena.place`."""
        body, payload, files = self.arena.place(parts)
        for number in body.retired:
            os.close(self._files.pop(number))
        self._files |= dict.fromkeys([body.buffer], *files) if files else {}
        if self.by_reply and body.buffer >= 0:
            self.buffers.free([body.buffer])  # Ray copies it before the next batch is built
            memory = memoryview(self.buffers.maps[body.buffer])[: max(end for _, end in body.ranges)]
            return Body(body.ranges), pickle.PickleBuffer(memory), ()
        return body, b"".join(payload), tuple(files)


class BatchReader:
    """The trainer's side, for one actor."""

    def __init__(self, quota: BufferQuota) -> None:
        self.buffers = MappedBuffers(quota)

    def open(self, handle: SharedMemoryHandle) -> None:
        """Find the buffers of the actor."""
        self._handle, self.by_reply = handle, not is_on_this_machine(handle)

    def parts(self, reply: Reply) -> list[Any]:
        """The parts of a batch; none of any other result.

        Raises:
            OSError: if the actor has ended.
        """
        if not isinstance(reply.message, BatchMessage):
            return []
        return self.buffers.open(self._noted(reply.message.body, reply.files), memoryview(reply.payload))

    def _noted(self, body: Body, files: tuple[int, ...]) -> Body:
        """The body, whose buffer is now mapped."""
        if files and not is_on_this_machine(self._handle):
            raise ProcessLookupError("the actor has ended, and another process may have its number")
        paths = [f"/proc/{self._handle.process}/fd/{file}" for file in files]
        self.buffers.note(body, [os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in paths])
        return body

    def discard(self, request: Future[Reply | None]) -> None:
        """Give back the buffer of a reply that nobody waits for any more."""
        with contextlib.suppress(Exception):  # there is no reply, or the actor has ended
            reply = request.result()
            if reply is not None and isinstance(reply.message, BatchMessage):
                self.buffers.discard(self._noted(reply.message.body, reply.files))


def is_on_this_machine(handle: SharedMemoryHandle) -> bool:
    """Whether the process of the actor runs on this machine, and its files can be opened."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{handle.process}/fd/{handle.token_file}") == f"/memfd:{handle.token} (deleted)"
    return False
