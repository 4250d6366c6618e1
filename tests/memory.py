"""How much memory this process takes."""

from pathlib import Path


def sizes_bytes() -> tuple[int, int]:
    """(the largest size of this process in memory so far, its size now), without what it was forked from.

    `ru_maxrss` would not do: a child that was started by `vfork` begins with the peak of its parent.
    """
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak, now = (int(lines[name].split()[0]) << 10 for name in ("VmHWM", "VmRSS"))
    return peak, now
