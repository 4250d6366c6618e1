"""Atomic writes: a file appears whole or not at all."""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from bridge_data.errors import DatasetError


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn errors of the file system, while files are written below `folder`, into a `DatasetError` that names it."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise DatasetError(f"{folder}: cannot be written to: {error}") from error


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` if the block succeeds, else delete it.

    If `durable`, even a crash of the machine leaves either the old file or the new one, after the block the new one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
    """Wait until the names in `folder` are on disk, where its file system can (some network mounts cannot)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
