"""What the processes of a run get of the machine.

Enters: what the kernel writes in `/proc` and `/sys/fs/cgroup`. Leaves: the CPU time of this process and of all that it
has started, the cores there are for them, and the time in which those had nothing to do.
"""

import collections
import math
import os
import time
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PARENT, _CPU = 1, slice(11, 13)  # of the fields of /proc/PID/stat that stand after the name
_IDLE = slice(4, 6)  # of a core's line in /proc/stat: idle, and waiting for a disk
_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def tree_cpu_s() -> float:
    """CPU seconds so far of this process and of its descendants that are alive."""
    stats = {int(path.name): _stat(path) for path in Path("/proc").iterdir() if path.name.isdecimal()}
    children = collections.defaultdict(list)
    for process, fields in stats.items():
        if fields:
            children[int(fields[_PARENT])].append(process)
    total, waiting = time.process_time(), [*children[os.getpid()]]
    while waiting:
        process = waiting.pop()
        total += sum(map(int, stats[process][_CPU])) * _TICK_S
        waiting += children[process]
    return total


def num_cores() -> float:
    """The cores that this process may use; fewer than it may run on, if its container is given less of their time."""
    cores = float(len(os.sched_getaffinity(0)))
    try:
        limit = _LIMIT.read_text()
    except OSError:
        return cores
    return min(cores, allowed_cores(limit))


def allowed_cores(limit: str) -> float:
    """The cores that the text of a control group's `cpu.max` allows: microseconds in each so many, or `max`."""
    quota, period = limit.split()
    return math.inf if quota == "max" else int(quota) / int(period)


def idle_cores_s() -> float:
    """Seconds so far in which cores that this process may run on had nothing to do for anybody, added up."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    rows = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    return sum(sum(map(int, row[_IDLE])) for row in rows if row[0] in names) * _TICK_S


def _stat(process: Path) -> list[str]:
    """The fields of its `stat` from the state on; none if the process has ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
