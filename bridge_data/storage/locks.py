"""File locks, which the kernel releases when a process dies."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX


def lock(path: str, kind: int, *, wait: bool = True) -> int | None:
    """Lock the file at `path`, which is created if needed; the descriptor holds the lock until it is closed.

    Two descriptors exclude each other also within a process. Remove the file only with its lock held: a lock
    on a file that is no longer at `path` is dropped, and tried again. Without `wait`, None if another has the lock.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: str) -> Iterator[int]:
    """Hold the exclusive lock on the file at `path` during the block."""
    descriptor = lock(path, EXCLUSIVE)
    assert descriptor is not None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: str) -> bool:
    ours = os.fstat(descriptor)
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
