"""Set-up of child processes: they die with their parent, keep few descriptors, ignore Ctrl-C and compute in one
thread."""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

from bridge_data.later import torch

if TYPE_CHECKING:
    from bridge_data.loader.workers.messages import Environment

SINGLE_THREADED = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Set for server and workers: libraries that start threads when imported must not, or they could not be forked."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def close_descriptors(keep: Collection[int]) -> None:
    """Close every descriptor but standard input, output, error and `keep`."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in keep:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def reset_signals() -> None:
    """Default handlers for all signals but SIGINT and SIGTERM, which end the trainer and through it this process."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) or number == signal.SIGCHLD:
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def adopt(environment: "Environment") -> None:
    """Use the module search path of the trainer."""
    sys.path[:] = environment.sys_path
    sys.argv[:] = environment.argv
    os.environ.pop("PYTHONPATH", None)
    if environment.pythonpath is not None:
        os.environ["PYTHONPATH"] = environment.pythonpath


def use_one_thread() -> None:
    """Let numerical libraries compute in the calling thread, imported now or later."""
    os.environ.update(SINGLE_THREADED)
    if "torch" in sys.modules:
        torch.set_num_threads(1)


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed images: otherwise each image costs new page faults."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 512 << 20)


def give_back_freed_memory() -> None:
    """Return freed memory to the system, also the part that glibc would keep."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def write_lines_at_once() -> None:
    """Flush each printed line: a killed process flushes nothing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)


def num_threads() -> int:
    """Threads of this process, those of native libraries included."""
    return len(os.listdir("/proc/self/task"))
