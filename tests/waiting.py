"""Wait for what other processes and threads do; see what they have open."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait for `condition`, and fail if it does not come within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} seconds for {condition}"
        time.sleep(0.001)


def open_files(pid: int) -> list[str]:
    """Names of what the process has open besides standard input, output and error; it may close some meanwhile."""
    names = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if int(link.name) > 2:
                names.append(str(link.readlink()))
    return names
