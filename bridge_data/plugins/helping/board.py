"""The board: memory that the workers of a loader share, with the jobs that each of them posts, and how far it is.

A job is one sample that a lane of the worker loads next. Whoever works on it holds a lock on a byte of the board's
file, which the kernel releases when the process dies, however it dies; so a job whose lock is free is nobody's.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from typing import NamedTuple

import numpy as np

from bridge_data.loader.workers.messages import MAX_DESCRIPTORS, Channel
from bridge_data.loader.workers.slots import MAX_HELD_SLOTS
from bridge_data.order import SampleRef

MAX_PEERS = MAX_DESCRIPTORS - 3
"""More workers than these do not help each other."""
NUM_JOBS = 256
"""Jobs that a worker has on the board at most."""

_MAX_AHEAD, _AHEAD_SHARE = 14, 4
"""Batches that a worker prepares beyond `prefetch_factor`: at most so many, as each may take a descriptor of the
trainer; and one of so many bytes of `max_shared_bytes`, of all workers."""

# Words of a worker: how far it is, and its jobs; what another process writes is in a cache line of its own.
_TAKEN, _PRODUCED, _SLOT, _POSTS, _IDLE, _HEADER = 0, 8, 9, 10, 16, 24
_STATE, _NUMBER, _LANE, _REF, _JOB = 0, 1, 2, 3, 8
_SIZE = _HEADER + NUM_JOBS * _JOB
_FREE, _OPEN, _CLAIMED, _DONE = range(4)


class Job(NamedTuple):
    """A job that this process has claimed, and whose lock it holds until `Board.finish`."""

    worker: int
    place: int
    number: int
    lane: int
    ref: SampleRef


class Board:
    """The shared memory of all workers of a loader."""

    def __init__(self, descriptor: int, num_workers: int) -> None:
        self._descriptor, memory = descriptor, mmap.mmap(descriptor, num_workers * _SIZE * 8)
        self._words = memoryview(memory).cast("q")
        words = np.frombuffer(memory, np.int64).reshape(num_workers, _SIZE)
        self._headers, self._jobs = words[:, :_HEADER], words[:, _HEADER:].reshape(num_workers, NUM_JOBS, _JOB)

    @staticmethod
    def make(num_workers: int) -> int:
        """The descriptor of a new board."""
        descriptor = os.memfd_create("bridge_data", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, num_workers * _SIZE * 8)
        return descriptor

    # ----- how far a worker is ----------------------------------------------------------------------------------------

    def note_taken(self, worker: int, num_batches: int) -> None:
        """Note how many batches of a worker the trainer has taken since `Begin`."""
        self._words[worker * _SIZE + _TAKEN] = num_batches

    def note_produced(self, worker: int, num_batches: int, *, is_idle: bool) -> None:
        """Note how many batches a worker has produced since `Begin`, and whether it has nothing else to do now."""
        self._words[worker * _SIZE + _PRODUCED], self._words[worker * _SIZE + _IDLE] = num_batches, is_idle

    def note_work(self, worker: int, slot: int, *, posts: bool) -> None:
        """Note the slot of the next batch of a worker, and whether it posts jobs."""
        self._words[worker * _SIZE + _SLOT], self._words[worker * _SIZE + _POSTS] = slot, posts

    def has_posts(self) -> bool:
        """Whether any worker posts jobs."""
        return 1 in self._words[_POSTS::_SIZE]

    def wants_help(self, worker: int) -> bool:
        """Whether the trainer has taken all that this worker has produced, and another is idle."""
        header = self._headers[worker]
        return bool(header[_PRODUCED] <= header[_TAKEN] and self._headers[:, _IDLE].any())

    def behind(self, helper: int) -> list[int]:
        """The workers that post jobs and of whose batches the trainer has all, without `helper`; first the one whose
        batch it needs first."""
        headers = self._headers
        found = np.flatnonzero((headers[:, _POSTS] > 0) & (headers[:, _PRODUCED] <= headers[:, _TAKEN]))
        return sorted((one for one in found.tolist() if one != helper), key=lambda one: int(headers[one, _SLOT]))

    # ----- jobs -------------------------------------------------------------------------------------------------------

    def withdraw(self, worker: int) -> list[int]:
        """Withdraw all jobs of a worker, and return the places on which no helper works any more."""
        self._jobs[worker, :, _STATE] = _FREE
        places = []
        for place in range(NUM_JOBS):
            if self._hold(worker, place):
                self._let_go(worker, place)
                places.append(place)
        return places

    def post(self, worker: int, place: int, number: int, lane: int, ref: SampleRef) -> None:
        """Post a job at a free place."""
        at = (worker * _SIZE + _HEADER + place * _JOB) * 8
        _WORDS.pack_into(self._words, at + 8, number, lane, *ref[:3])
        self._words[at // 8 + _STATE] = _OPEN

    def claim(self, worker: int) -> Job | None:
        """The open job of a worker that was posted first, if there is one."""
        jobs = self._jobs[worker]
        places = np.flatnonzero(jobs[:, _STATE] == _OPEN)
        for place in places[np.argsort(jobs[places, _NUMBER])].tolist():
            if self._hold(worker, place):
                if jobs[place, _STATE] == _OPEN:
                    jobs[place, _STATE] = _CLAIMED
                    number, lane, *ref = jobs[place, _NUMBER : _REF + 3].tolist()
                    return Job(worker, place, number, lane, SampleRef(*ref))
                self._let_go(worker, place)
        return None

    def finish(self, job: Job) -> None:
        """Note that a claimed job is done, unless it was withdrawn."""
        own = self._jobs[job.worker, job.place]
        if own[_NUMBER] == job.number and own[_STATE] == _CLAIMED:
            own[_STATE] = _DONE
        self._let_go(job.worker, job.place)

    def take_back(self, worker: int, place: int) -> bool | None:
        """Free the place of a job: False if nobody has begun it; True if who began it is done, or has died; None, and
        the place is not free, if somebody works on it."""
        if not self._hold(worker, place):
            return None
        at = worker * _SIZE + _HEADER + place * _JOB
        was_begun = self._words[at + _STATE] != _OPEN
        self._words[at + _STATE] = _FREE
        self._let_go(worker, place)
        return was_begun

    def _hold(self, worker: int, place: int) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, worker * NUM_JOBS + place)
        except OSError:
            return False
        return True

    def _let_go(self, worker: int, place: int) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, worker * NUM_JOBS + place)


_WORDS = struct.Struct("5q")


class Introduction(NamedTuple):
    """Trainer to worker, with the descriptors of the board, the bell, the worker's inbox, and for each worker the other
    end of its inbox: the workers of its loader."""

    worker: int
    num_workers: int
    max_ahead: tuple[int, int]
    """Number and bytes of the batches that it may prepare ahead besides those that the trainer asks for, while that
    waits for a peer."""


class Shared:
    """The trainer's end: what all workers of a loader share."""

    def __init__(self, num_workers: int, max_shared_bytes: int) -> None:
        self._num_workers = num_workers
        num_ahead = min(_MAX_AHEAD, MAX_HELD_SLOTS // (2 * num_workers))
        self._max_ahead = num_ahead, max_shared_bytes // (_AHEAD_SHARE * num_workers)
        self._inboxes: list[tuple[Channel, Channel]] = []
        with contextlib.ExitStack() as opened:
            descriptor = Board.make(num_workers)
            opened.callback(os.close, descriptor)
            self.board, self._bell = Board(descriptor, num_workers), os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            opened.callback(os.close, self._bell)
            for _ in range(num_workers):
                self._inboxes.append(Channel.pair())
                for channel in self._inboxes[-1]:
                    opened.callback(channel.close)
            self._opened = opened.pop_all()
        self._descriptors = [descriptor, self._bell]

    def introduce(self, index: int, channel: Channel) -> None:
        """Tell worker `index` of its peers. It does without, if too many descriptors of this user are on the way."""
        inbox = self._inboxes[index][0].fileno()
        others = [theirs.fileno() for _, theirs in self._inboxes]
        introduction = Introduction(index, self._num_workers, self._max_ahead)
        with contextlib.suppress(OSError):
            channel.send(introduction, [*self._descriptors, inbox, *others], wait=False)

    def close(self) -> None:
        self._opened.close()
