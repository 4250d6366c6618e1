"""The job table: memory that the workers of a loader share, with the jobs that each of them posts, and how far it is.

A job is one sample that a lane of the worker loads next. Whoever works on it holds a lock on a byte of the table's
file, which the kernel releases when the process dies, however it dies; so a job whose lock is free is nobody's.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import NamedTuple

import numpy as np

from bridge_data.order import SampleRef

NUM_JOBS = 256
"""Jobs that a worker has in the table at most."""

# Words of a worker: how far it is, and its jobs; what another process writes is in a cache line of its own.
_TAKEN, _PRODUCED, _SLOT, _POSTS, _IDLE, _HEADER = 0, 8, 9, 10, 16, 24
_STATE, _NUMBER, _LANE, _REF, _JOB = 0, 1, 2, 3, 8
_SIZE = _HEADER + NUM_JOBS * _JOB
_FREE, _OPEN, _CLAIMED, _DONE = range(4)
_WORDS = struct.Struct("5q")


class Job(NamedTuple):
    """A job that this process has claimed, and whose lock it holds until `Board.finish`."""

    worker: int
    entry: int
    number: int
    lane: int
    ref: SampleRef


class JobTable:
    """The shared memory of all workers of a loader."""

    def __init__(self, descriptor: int, num_workers: int) -> None:
        self._descriptor, memory = descriptor, mmap.mmap(descriptor, num_workers * _SIZE * 8)
        self._words = memoryview(memory).cast("q")
        words = np.frombuffer(memory, np.int64).reshape(num_workers, _SIZE)
        self._headers, self._jobs = words[:, :_HEADER], words[:, _HEADER:].reshape(num_workers, NUM_JOBS, _JOB)

    @staticmethod
    def make(num_workers: int) -> int:
        """The descriptor of a new table."""
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
        """Withdraw all jobs of a worker, and return the entries on which no helper works any more."""
        self._jobs[worker, :, _STATE] = _FREE
        entries = []
        for entry in range(NUM_JOBS):
            if self._try_lock(worker, entry):
                self._unlock(worker, entry)
                entries.append(entry)
        return entries

    def post(self, worker: int, entry: int, number: int, lane: int, ref: SampleRef) -> None:
        """Post a job at a free entry."""
        at = (worker * _SIZE + _HEADER + entry * _JOB) * 8
        _WORDS.pack_into(self._words, at + 8, number, lane, *ref[:3])
        self._words[at // 8 + _STATE] = _OPEN

    def claim(self, worker: int) -> Job | None:
        """The open job of a worker that was posted first, if there is one."""
        jobs = self._jobs[worker]
        entries = np.flatnonzero(jobs[:, _STATE] == _OPEN)
        for entry in entries[np.argsort(jobs[entries, _NUMBER])].tolist():
            if self._try_lock(worker, entry):
                if jobs[entry, _STATE] == _OPEN:
                    jobs[entry, _STATE] = _CLAIMED
                    number, lane, *ref = jobs[entry, _NUMBER : _REF + 3].tolist()
                    return Job(worker, entry, number, lane, SampleRef(*ref))
                self._unlock(worker, entry)
        return None

    def finish(self, job: Job) -> None:
        """Note that a claimed job is done, unless it was withdrawn."""
        own = self._jobs[job.worker, job.entry]
        if own[_NUMBER] == job.number and own[_STATE] == _CLAIMED:
            own[_STATE] = _DONE
        self._unlock(job.worker, job.entry)

    def take_back(self, worker: int, entry: int) -> bool | None:
        """Free the entry of a job: False if nobody has begun it; True if who began it is done, or has died; None, and
        the entry is not free, if somebody works on it."""
        if not self._try_lock(worker, entry):
            return None
        at = worker * _SIZE + _HEADER + entry * _JOB
        was_begun = self._words[at + _STATE] != _OPEN
        self._words[at + _STATE] = _FREE
        self._unlock(worker, entry)
        return was_begun

    def _try_lock(self, worker: int, entry: int) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, worker * NUM_JOBS + entry)
        except OSError:
            return False
        return True

    def _unlock(self, worker: int, entry: int) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, worker * NUM_JOBS + entry)
