"""One preparation of a folder, or of a file, at a time; files that appear together.

Enters: the folder of a data set, files for its `.nv-meta`. Leaves: all of them in place, or those of before. A process
that is killed leaves at most a mark, for which nobody opens the data set, and temporary files: the next preparation
removes both. The lock goes with its process.
"""

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bridge_data.errors import DatasetError
from bridge_data.shards.metadata import PREPARING
from bridge_data.storage import Location
from bridge_data.storage.atomic import sync_folder, temporary_name, temporary_stem, write_file, writing

PATIENCE_S = 1.0
"""How long a lock is waited for: the processes of one that was killed end a moment later."""

_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
"""The names that files have while they are written, and folders of such files."""


def is_temporary(name: str) -> bool:
    """Whether this is the name of such a file or folder."""
    return _TEMPORARY.fullmatch(name) is not None


def temporary_files(path: Path) -> Iterator[Path]:
    """The temporary files beside `path` that were to become it."""
    own = re.compile(rf"{re.escape(temporary_stem(path.name))}\.[0-9a-f]{{8}}\.\d+\.tmp")
    with os.scandir(path.parent) as entries:
        yield from [Path(entry.path) for entry in entries if own.fullmatch(entry.name)]


@contextlib.contextmanager
def scratch_folder(folder: Path, name: str) -> Iterator[Path]:
    """A folder in `folder` for temporary files, which is gone afterwards, or with the next `remove_temporary`."""
    import tempfile  # imported here: slow, and few preparations need it

    with tempfile.TemporaryDirectory(prefix=f".{name}.", suffix=f".{os.getpid()}.tmp", dir=folder) as path:
        yield Path(path)


@contextlib.contextmanager
def preparing_alone(
    root: Location, *, patience_s: float | None = None, doing: str = "preparing", shared: bool = False
) -> Iterator[Callable[[Iterable[Location]], None]]:
    """Hold the lock of the folder or file `root`. Yield a function that removes what killed processes left: such files,
    and of folders the temporary files and folders in them. A file system without locks is used without; there it
    removes nothing. `doing` is for the message, if another process holds the lock. With `shared`, others may hold it
    in the same way, and nothing is removed. A store has no locks, and nothing half-written: see `store_commit`.

    Raises:
        DatasetError: if another process holds it for `patience_s` (None: `PATIENCE_S`), or `root` cannot be used.
    """
    if not isinstance(root, Path):
        yield lambda paths: None
        return
    with writing(root):
        descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        is_locked = _lock(descriptor, root, PATIENCE_S if patience_s is None else patience_s, doing, shared)

        def remove_temporary(paths: Iterable[Location]) -> None:
            if is_locked and not shared:
                with writing(root):
                    for path in paths:
                        _remove_temporary(Path(path))

        yield remove_temporary
    finally:
        os.close(descriptor)


def _lock(descriptor: int, root: Path, patience_s: float, doing: str, shared: bool) -> bool:
    """Lock the folder or file; False if its file system has no locks."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise DatasetError(
                    f"{root}: another process is {doing} it: wait until that has finished, or end it"
                ) from None
            time.sleep(0.02)
        except OSError:
            return False


def _remove_temporary(path: Path) -> None:
    if is_temporary(path.name):
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
        for entry in [entry for entry in entries if is_temporary(entry.name)]:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


@contextlib.contextmanager
def committing(meta: Path) -> Iterator[Callable[[str], Path]]:
    """Yield a function that gives the temporary path at which to write the file of a name in the folder `meta`.

    When the block has succeeded, all files replace those of before, marked by `PREPARING` until the last has. If it
    fails, they are removed, and so is the folder if it was made for them.
    """
    written: dict[str, Path] = {}

    def temporary(name: str) -> Path:
        return written.setdefault(name, meta / temporary_name(name))

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
