"""How a child process is set up: it ends with its parent, and drops inherited signals, descriptors, threads and memory.

For Linux only, and only for processes that this package starts: workers, their server, and those that prepare data.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection

from bridge_data.later import torch

SINGLE_THREADED = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
SINGLE_THREADED["TOKENIZERS_PARALLELISM"] = "false"
"""Set for server and workers: libraries that start threads when imported must not, or they could not be forked. And
each worker has a core: tokenizers would start a thread for every core of the machine in each."""

OF_THE_TRAINER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a terminal, Slurm or torchrun sends to all processes of a job, and which ask the trainer to end, or to
save and go on. If it ends, its children do."""

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that created it ends; at once if `parent` is gone already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def close_descriptors(keep: Collection[int]) -> None:
    """Close every descriptor except standard input, output, error and `keep`."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in keep:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def reset_signals() -> None:
    """Default handlers for all signals except those `OF_THE_TRAINER`, which are ignored."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) or number == signal.SIGCHLD:
            signal.signal(number, signal.SIG_DFL)
    for number in OF_THE_TRAINER:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def use_one_thread() -> None:
    """Make numerical libraries, imported now or later, compute in the calling thread."""
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
