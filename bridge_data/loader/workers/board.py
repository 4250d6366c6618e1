"""The board: memory that the workers of a loader share, with the jobs that each of them posts, and how far it is.

A job is one sample that a lane of the worker loads next. Whoever works on it holds a lock on a byte of the board's
file, which the kernel releases when the process dies, however it dies; so a job whose lock is free is nobody's.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bridge_data.loader.workers.messages import MAX_DESCRIPTORS, Channel
from bridge_data.order import SampleRef

MAX_PEERS = MAX_DESCRIPTORS - 3
"""More workers than these do not help each other."""
NUM_JOBS = 256
"""Jobs that a worker has on the board at most."""

# Words of a worker on the board, in a cache line of its own what another process writes.
_TAKEN, _PRODUCED, _SLOT, _POSTS, _IDLE, _HEADER = 0, 8, 9, 10, 16, 24
NUMBER, LANE, REF, STATE, _JOB = 0, 1, slice(2, 5), 5, 8
FREE, OPEN, CLAIMED, DONE = range(4)


class Board:
    """The shared file of all workers of a loader: for each, how far it is, and its jobs."""

    def __init__(self, descriptor: int, num_workers: int) -> None:
        self._descriptor, self._memory = descriptor, mmap.mmap(descriptor, self.num_bytes(num_workers))
        words = np.frombuffer(self._memory, np.int64).reshape(num_workers, -1)
        self._headers, self.jobs = words[:, :_HEADER], words[:, _HEADER:].reshape(num_workers, NUM_JOBS, _JOB)

    @staticmethod
    def num_bytes(num_workers: int) -> int:
        return num_workers * (_HEADER + NUM_JOBS * _JOB) * 8

    def note_taken(self, worker: int, num_batches: int) -> None:
        """Note how many batches of a worker the trainer has taken since `Begin`."""
        self._headers[worker, _TAKEN] = num_batches

    def is_full(self, worker: int, num_allowed: int) -> bool:
        """Whether a worker that posts jobs has produced all that it may."""
        header = self._headers[worker]
        return bool(header[_POSTS] and header[_IDLE] and header[_PRODUCED] >= num_allowed)

    def note_work(self, worker: int, slot: int, *, posts: bool) -> None:
        """Note the slot of the next batch of a worker, and whether it posts jobs."""
        self._headers[worker, [_SLOT, _POSTS]] = slot, posts

    def note_produced(self, worker: int, num_batches: int, *, is_idle: bool) -> None:
        """Note how many batches a worker has produced since `Begin`, and whether it has nothing else to do now."""
        self._headers[worker, _PRODUCED], self._headers[worker, _IDLE] = num_batches, is_idle

    def wants_help(self, worker: int) -> bool:
        """Whether some worker is idle, and the trainer has taken all that this one has produced."""
        header = self._headers[worker]
        return bool(header[_PRODUCED] <= header[_TAKEN] and self._headers[:, _IDLE].any())

    def behind(self, helper: int) -> list[int]:
        """The workers that post jobs and of whose batches the trainer has all, without `helper`; first the one whose
        batch it needs first."""
        headers = self._headers
        found = np.flatnonzero((headers[:, _POSTS] > 0) & (headers[:, _PRODUCED] <= headers[:, _TAKEN]))
        return sorted((one for one in found.tolist() if one != helper), key=lambda one: int(headers[one, _SLOT]))

    def open_places(self, worker: int) -> list[int]:
        """The places of the open jobs of a worker, in the order in which they were posted."""
        jobs = self.jobs[worker]
        places = np.flatnonzero(jobs[:, STATE] == OPEN)
        found: list[int] = places[np.argsort(jobs[places, NUMBER])].tolist()
        return found

    def post(self, worker: int, number: int, lane: int, ref: SampleRef) -> int | None:
        """Post a job; its place, or None if there is none."""
        jobs = self.jobs[worker]
        for place in np.flatnonzero(jobs[:, STATE] == FREE).tolist():
            with self.held(worker, place) as is_mine:  # else a helper still works on a job that was withdrawn
                if is_mine:
                    jobs[place, :STATE] = number, lane, *ref[:3]
                    jobs[place, STATE] = OPEN
                    return int(place)
        return None

    def withdraw(self, worker: int) -> None:
        """Withdraw all jobs of a worker."""
        self.jobs[worker, :, STATE] = FREE

    @contextlib.contextmanager
    def held(self, worker: int, place: int) -> Iterator[bool]:
        """Hold the lock of a job; False if another process does."""
        byte = worker * NUM_JOBS + place
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, byte)


class Peers(NamedTuple):
    """Trainer to worker, with the descriptors of the board, the bell, the worker's inbox, and for each worker the other
    end of its inbox: the workers of its loader."""

    worker: int
    num_workers: int


class Shared:
    """The trainer's end: what all workers of a loader share."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers, descriptor = num_workers, os.memfd_create("bridge_data", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, Board.num_bytes(num_workers))
        self.board, self._bell = Board(descriptor, num_workers), os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._inboxes = [Channel.pair() for _ in range(num_workers)]
        self._descriptors = [descriptor, self._bell]

    def introduce(self, index: int, channel: Channel) -> None:
        """Tell worker `index` of its peers."""
        inbox = self._inboxes[index][0].fileno()
        others = [theirs.fileno() for _, theirs in self._inboxes]
        channel.send(Peers(index, self._num_workers), [*self._descriptors, inbox, *others])

    def close(self) -> None:
        for channel in (channel for pair in self._inboxes for channel in pair):
            channel.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
