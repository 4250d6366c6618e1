"""Files that appear whole or not at all."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from bridge_data.errors import DatasetError


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Faults of the file system while files are written below `folder` become a `DatasetError` that says so."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise DatasetError(f"{folder}: cannot be written to: {error}") from error


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A temporary path beside `path`; its file replaces `path` when the block ends, or is deleted if the block raises.

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
    """Put a file with this content at `path`."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
