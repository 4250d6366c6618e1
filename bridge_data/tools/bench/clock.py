"""A clock that knows what is being done.

Enters: the beginnings and ends of nested pieces of work, each under a key. Leaves: how long each took, without the
pieces inside. Guarantee: every nanosecond since the clock was made is charged to exactly one key, so shares add up.
"""

import collections
import contextlib
import dataclasses
import time
from typing import IO, NamedTuple, Self

CPU_EVERY = 8
"""Every so many batches CPU time is read, too; that takes several times as long as reading the time."""


class Key(NamedTuple):
    """What is done: `read`, the name of a hook, ...; and for which source, by its number, if it is for one."""

    what: str
    source: int | None = None


BETWEEN = Key("between")
"""What a worker does from one batch to the next: sending the batch, and waiting until it may go on."""

LANE = Key("order")
"""What making a batch takes besides the pieces that have keys of their own."""


@dataclasses.dataclass(slots=True)
class Tally:
    """How long something took, and how often it was done. Of `sampled_ns` of it, `cpu_ns` were spent computing in this
    thread."""

    wall_ns: int = 0
    calls: int = 0
    sampled_ns: int = 0
    cpu_ns: int = 0

    def add(self, other: Self) -> None:
        """Add another's."""
        self.wall_ns += other.wall_ns
        self.calls += other.calls
        self.sampled_ns += other.sampled_ns
        self.cpu_ns += other.cpu_ns

    @property
    def waited(self) -> float:
        """The share of its time that the thread did not compute: it waited for a disk, a network, another thread, or
        for a core that others were using."""
        return min(1.0, max(0.0, 1 - self.cpu_ns / self.sampled_ns)) if self.sampled_ns else 0.0


class Clock:
    """The clock of one process, for one thread of it."""

    def __init__(self) -> None:
        self._tallies: collections.defaultdict[Key, Tally] = collections.defaultdict(Tally)
        self._current = self._tallies[BETWEEN]
        self._outer: list[Tally] = []
        self._num_batches = 0
        self._reads_cpu = True
        self._wall_ns, self._cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self._schedule = _Schedule()

    def begin_batch(self) -> None:
        """Work on a batch begins."""
        self.enter(LANE)
        self._reads_cpu = self._num_batches % CPU_EVERY == 0
        self._num_batches += 1

    def end_batch(self) -> None:
        """It is done, or has failed."""
        self.leave()
        if not self._reads_cpu:
            self._reads_cpu, self._cpu_ns = True, time.thread_time_ns()

    def enter(self, key: Key) -> None:
        """A piece of work begins, maybe inside another."""
        self._charge()
        self._outer.append(self._current)
        self._current = self._tallies[key]
        self._current.calls += 1

    def leave(self) -> None:
        """The innermost piece of work is done."""
        self._charge()
        self._current = self._outer.pop()

    def take(self) -> dict[Key, Tally]:
        """What was charged since this was last called. Call it outside all pieces of work."""
        assert not self._outer
        taken = self._tallies
        self._tallies = collections.defaultdict(Tally)
        self._current = self._tallies[BETWEEN]
        return dict(taken)

    def take_delay_ns(self) -> int:
        """How long, since this was last called, the thread was ready to compute and no core was free for it."""
        return self._schedule.take_delay_ns()

    def _charge(self) -> None:
        current, now_ns = self._current, time.perf_counter_ns()
        passed_ns = now_ns - self._wall_ns
        current.wall_ns += passed_ns
        self._wall_ns = now_ns
        if self._reads_cpu:
            cpu_ns = time.thread_time_ns()
            current.sampled_ns += passed_ns
            current.cpu_ns += cpu_ns - self._cpu_ns
            self._cpu_ns = cpu_ns


class _Schedule:
    """The kernel's account of this thread, where it keeps one."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        with contextlib.suppress(OSError):
            self._file = open("/proc/thread-self/schedstat", "rb", buffering=0)  # noqa: SIM115 - for as long as this is
        self._delay_ns = 0
        self.take_delay_ns()

    def take_delay_ns(self) -> int:
        if self._file is None:
            return 0
        self._file.seek(0)
        delay_ns = int(self._file.read().split()[1])
        taken, self._delay_ns = delay_ns - self._delay_ns, delay_ns
        return taken
