"""Files shared by processes: they appear whole or not at all, and locks are released when their process dies."""

import contextlib
import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from bridge_data.errors import DatasetError

SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX


@contextlib.contextmanager
def writing(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Turn file-system errors of writes below `folder` into a `DatasetError` that names it."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise DatasetError(f"{os.fspath(folder)}: cannot be written to: {error}") from error


def temporary_name(name: str) -> str:
    """A temporary name for the file `name`, unique per writer: threads of a process share a process id, and so may
    containers on one file system. No longer than file systems allow."""
    return f"{temporary_stem(name)}.{os.urandom(4).hex()}.{os.getpid()}.tmp"


def temporary_stem(name: str) -> str:
    """The common prefix of all temporary names for the file `name`."""
    return "." + os.fsdecode(os.fsencode(name)[:200])


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`; rename it to `path` if the block succeeds, else delete it.

    If `durable`, even a crash of the machine leaves the old file or the new one; after the block, the new one.

    Raises:
        OSError: also if `path` is a folder, a device or a pipe, which a file must not replace.
    """
    if not path.name:  # of `/` and `.`
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not (path.is_file() or path.is_dir()):  # root could replace /dev/null for the whole machine
        raise FileExistsError(errno.EEXIST, "is a device, a pipe or a socket, and no file", str(path))
    temporary = path.with_name(temporary_name(path.name))
    try:
        yield temporary
        if durable:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_file(path: Path, data: bytes | str, *, durable: bool = True) -> None:
    """Write `data` to the file at `path`, atomically."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on disk, if its file system supports that (some network mounts do not)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def lock(path: str, kind: int, *, wait: bool = True) -> int | None:
    """Lock the file at `path`, which is created if needed, or the folder there; the descriptor holds the lock until it
    is closed.

    Two descriptors exclude each other also within a process. Remove the file only while holding its lock: a lock on a
    file that is no longer at `path` is dropped and retried. Without `wait`, None if another has the lock.
    """
    while True:
        flags = os.O_RDONLY if os.path.isdir(path) else os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
            if is_at(descriptor, path):
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


def is_at(descriptor: int, path: str | Path) -> bool:
    """Whether the open file is the one at `path`."""
    ours = os.fstat(descriptor)
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
