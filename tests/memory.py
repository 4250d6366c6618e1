"""How much memory this process takes."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path


def sizes_bytes() -> tuple[int, int]:
    """(the largest size of this process in memory so far, its size now), without what it was forked from.

    `ru_maxrss` would not do: a child that was started by `vfork` begins with the peak of its parent.
    """
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak, now = (int(lines[name].split()[0]) << 10 for name in ("VmHWM", "VmRSS"))
    return peak, now


def growth_bytes(work: Callable[[], None]) -> int:
    """By how much a process of its own grows, at most, while it does `work`."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def measure() -> None:
        _, before = sizes_bytes()
        work()
        sender.send(sizes_bytes()[0] - before)

    process = context.Process(target=measure)
    process.start()
    sender.close()
    try:
        grown: int = receiver.recv()
    finally:
        process.join()
    return grown
