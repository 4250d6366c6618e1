"""What a child process does with itself: it dies with its parent, keeps few descriptors, ignores Ctrl-C, and computes
in one thread."""

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

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_ADAPTED_TO = (32 << 20) - (1 << 16)
"""glibc's DEFAULT_MMAP_THRESHOLD_MAX is 32 MiB, what it adds to a block included."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that created it ends; at once if `parent` is gone already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


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
    """Find modules where the trainer finds them."""
    sys.path[:] = environment.sys_path
    sys.argv[:] = environment.argv
    os.environ.pop("PYTHONPATH", None)
    if environment.pythonpath is not None:
        os.environ["PYTHONPATH"] = environment.pythonpath


def use_one_thread() -> None:
    """Have numerical libraries compute in the calling thread: those that are imported, and those that will be."""
    os.environ.update(SINGLE_THREADED)
    if "torch" in sys.modules:
        torch.set_num_threads(1)


def keep_freed_memory() -> None:
    """Have glibc reuse the memory of freed images, which else is given back and faulted in again for each."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 512 << 20)


def have_freed_memory_kept() -> None:
    """Let glibc find out that large blocks come and go here, as it does by itself when the first one is freed: from
    then on it keeps some 60 MB of what is freed. Unlike `keep_freed_memory`, this sets nothing for other code."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.free(libc.malloc(_LARGEST_ADAPTED_TO))


def give_back_freed_memory() -> None:
    """Return the memory of what was freed to the system, however much of it glibc would keep."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def write_lines_at_once() -> None:
    """Let each printed line out when it is printed: a killed process flushes nothing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)


def num_threads() -> int:
    """Threads of this process, those of native libraries included."""
    return len(os.listdir("/proc/self/task"))
