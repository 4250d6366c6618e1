"""Clocks that charge the time of each process of a run to its work: reading, each hook, sending.

`Clock` is the observer of a data set; each batch carries what its process did since the batch before (`Clocked`), so
workers send nothing else to the trainer. Every nanosecond is charged to exactly one `Key`.
"""

import collections
import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import IO, Any, NamedTuple, Self

from bridge_data import samples
from bridge_data.task import STAGES

CPU_EVERY = 8
"""CPU time is read in one of this many batches: it takes several times as long to read as the time."""

_OF_SOURCES = ("read", *STAGES[: STAGES.index("postencode_sample") + 1])
"""Stages that process one sample, so one source."""


class Key(NamedTuple):
    """The work: `read`, the name of a hook, ...; and the number of its source, if it is for one."""

    what: str
    source: int | None = None


BETWEEN = Key("between")
"""A worker's time between batches: sending the batch, and waiting until it may continue."""

LANE = Key("order")
"""The time of making a batch, except for pieces with their own keys."""


@dataclasses.dataclass(slots=True)
class Tally:
    """How long some work took, and how often it was done. In `sampled_ns` of it, this thread computed for `cpu_ns`."""

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


@dataclasses.dataclass(slots=True)
class Clocked:
    """A batch, and what its process did since the batch before."""

    batch: Any
    tallies: dict[Key, Tally]
    delay_ns: int
    """How long the process had to wait for a core."""

    def pin_memory(self) -> "Clocked":
        """A copy with the batch in page-locked memory."""
        pinned = self.batch.pin_memory() if hasattr(self.batch, "pin_memory") else samples.pin(self.batch)
        return Clocked(pinned, self.tallies, self.delay_ns)


class Clock:
    """The clock of one thread of a process: the observer of a data set with these source keys. Observed batches come as
    `Clocked`."""

    def __init__(self, source_keys: Sequence[int] = ()) -> None:
        self._numbers: dict[int | None, int] = {key: number for number, key in enumerate(source_keys)}
        self._tallies: collections.defaultdict[Key, Tally] = collections.defaultdict(Tally)
        self._current = self._tallies[BETWEEN]
        self._outer: list[Tally] = []
        self._num_batches = 0
        self._reads_cpu = True
        self._wall_ns, self._cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self._schedule = _Schedule()

    def begin_batch(self) -> None:
        self._enter(LANE)
        self._reads_cpu = self._num_batches % CPU_EVERY == 0
        self._num_batches += 1

    def end_batch(self) -> None:
        self.end()
        if not self._reads_cpu:
            self._reads_cpu, self._cpu_ns = True, time.thread_time_ns()

    def begin(self, stage: str, source_key: int | None = None) -> None:
        self._enter(Key(stage, self._numbers.get(source_key) if stage in _OF_SOURCES else None))

    def end(self) -> None:
        self._charge()
        self._current = self._outer.pop()

    def finished(self, batch: Any) -> Clocked:
        return Clocked(batch, self.take(), self.take_delay_ns())

    def _enter(self, key: Key) -> None:
        self._charge()
        self._outer.append(self._current)
        self._current = self._tallies[key]
        self._current.calls += 1

    def take(self) -> dict[Key, Tally]:
        """The time charged since the last call. Call it outside all pieces of work."""
        assert not self._outer
        taken = self._tallies
        self._tallies = collections.defaultdict(Tally)
        self._current = self._tallies[BETWEEN]
        return dict(taken)

    def take_delay_ns(self) -> int:
        """How long since the last call the thread was ready to compute and no core was free for it."""
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
    """The kernel's accounting of this thread, if it has any."""

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
