"""One preparation of a folder at a time, whose files appear together.

Enters: the folder of a data set, files for its `.nv-meta`. Leaves: all of them in place, or those of before. A process
that is killed leaves at most a mark, for which nobody opens the data set, and temporary files: the next preparation
removes both. The folder's lock goes with its process.
"""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bridge_data.errors import DatasetError
from bridge_data.shards.metadata import META_FOLDER, PREPARING
from bridge_data.storage.atomic import sync_folder, write_file, writing

PATIENCE_S = 1.0
"""How long a lock is waited for: the processes of one that was killed end a moment later."""

_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
"""The names that files have while they are written."""


@contextlib.contextmanager
def preparing_alone(root: Path, shards: Iterable[str] = ()) -> Iterator[None]:
    """Hold the lock of the folder `root`, and remove temporary files that a killed process left in its `.nv-meta` and
    beside `shards`. A file system without locks is used without.

    Raises:
        DatasetError: if another process holds it, or the folder cannot be used.
    """
    with writing(root):
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _lock(descriptor, root):
            yield
            return
        with writing(root):
            for folder in {root / META_FOLDER, *(root / shard for shard in map(os.path.dirname, shards))}:
                _remove_temporary(folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, root: Path) -> bool:
    """Lock the folder; False if its file system has no locks."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise DatasetError(
                    f"{root}: another process is preparing it: wait until that has finished, or end it"
                ) from None
            time.sleep(0.02)
        except OSError:
            return False


def _remove_temporary(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for path in [entry.path for entry in entries if _TEMPORARY.fullmatch(entry.name)]:
            os.unlink(path)


@contextlib.contextmanager
def committing(meta: Path) -> Iterator[Callable[[str], Path]]:
    """Yield a function that gives the temporary path at which to write the file of a name in the folder `meta`.

    When the block has succeeded, all files replace those of before, marked by `PREPARING` until the last has. If it
    fails, they are removed, and so is the folder if it was made for them.
    """
    written: dict[str, Path] = {}

    def temporary(name: str) -> Path:
        written[name] = meta / f".{name}.{os.getpid()}.tmp"
        return written[name]

    with contextlib.ExitStack() as undo:
        if not meta.is_dir():
            meta.mkdir()
            undo.callback(_remove_empty, meta)
        undo.callback(_remove_all, written.values())
        yield temporary
        for path in written.values():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        write_file(meta / PREPARING, "")
        undo.pop_all()
        for name, path in written.items():
            os.replace(path, meta / name)
        sync_folder(meta)
        (meta / PREPARING).unlink()


def _remove_all(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it holds something else by now
        folder.rmdir()
