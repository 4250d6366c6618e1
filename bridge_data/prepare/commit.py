"""Files of a data set that appear together, and one preparation of a folder, or of a file, at a time.

Enters: the folder of a data set, files for its `.nv-meta`. Leaves: all of them in place, or the previous ones. While
only some are in place, a mark, `PREPARING`, is there: readers that find it open nothing.

On a disk, a lock that ends with its process keeps others away. A killed process leaves at most the mark and temporary
files: the next preparation removes both.

A store writes an object whole or not at all, but cannot rename and has no such locks. So the mark is written before
the first object and removed after the last, with a token of its writer. A killed writer leaves it, and the next
preparation takes it over. If several writers run at once, the last to start continues; the others find its token and
fail; objects that they write in the meantime are noticed at the end. `.info.json`, which makes the folder a data set,
is written last.
"""

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bridge_data import storage
from bridge_data.errors import DatasetError, bridge_command
from bridge_data.shards.metadata import INFO_JSON, PREPARING
from bridge_data.storage import Location, RemotePath, remote
from bridge_data.storage.atomic import sync_folder, temporary_name, temporary_stem, write_file, writing
from bridge_data.storage.clients import check_writable
from bridge_data.storage.object_stores import ObjectInfo

PATIENCE_S = 1.0
"""How long to wait for a lock: child processes of a killed preparation end a moment after it."""

_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
"""The names of files, and folders of files, while they are written."""


def is_temporary(name: str) -> bool:
    """Whether this is the name of a temporary file or folder."""
    return _TEMPORARY.fullmatch(name) is not None


def temporary_files(path: Path) -> Iterator[Path]:
    """The temporary files next to `path` that were to replace it."""
    own = re.compile(rf"{re.escape(temporary_stem(path.name))}\.[0-9a-f]{{8}}\.\d+\.tmp")
    with os.scandir(path.parent) as entries:
        yield from [Path(entry.path) for entry in entries if own.fullmatch(entry.name)]


@contextlib.contextmanager
def scratch_folder(folder: Path, name: str) -> Iterator[Path]:
    """A folder in `folder` for temporary files, removed afterwards, or by the next `remove_temporary`."""
    import tempfile  # imported here: slow, and few preparations need it

    with tempfile.TemporaryDirectory(prefix=f".{name}.", suffix=f".{os.getpid()}.tmp", dir=folder) as path:
        yield Path(path)


@contextlib.contextmanager
def preparing_alone(
    root: Location, *, patience_s: float | None = None, doing: str = "preparing", shared: bool = False
) -> Iterator[Callable[[Iterable[Location]], None]]:
    """Hold the lock of the folder or file `root`. Yield a function that removes what killed processes left: temporary
    files among the given paths, and in given folders. On a file system without locks, nothing is locked or removed.
    `doing` is for the message if another process holds the lock. With `shared`, others may hold it in the same way, and
    nothing is removed. A store has no locks: see `committing_to_store`.

    Raises:
        DatasetError: if another process holds it for `patience_s` (None: `PATIENCE_S`), or `root` cannot be used.
        ConfigError: if `root` is in a store that is only read.
    """
    if not isinstance(root, Path):
        check_writable(str(root))
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
    """Yield a function that gives the temporary path at which to write the file of a name in the folder `meta`: in it,
    or next to it as long as there is none.

    If the block succeeds, all files replace the previous ones; the mark `PREPARING` is there until the last has. If it
    fails, they are removed, and so is the folder if it was made for them.
    """
    written: dict[str, Path] = {}
    folder = meta if meta.is_dir() else meta.parent

    def temporary(name: str) -> Path:
        return written.setdefault(name, folder / temporary_name(name))

    with contextlib.ExitStack() as undo:
        undo.callback(_remove_all, written.values())
        yield temporary
        for path in written.values():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        if folder != meta:
            meta.mkdir(exist_ok=True)
            undo.callback(_remove_empty, meta)
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


@contextlib.contextmanager
def committing_to_store(meta: RemotePath, scratch: Path | None = None) -> Iterator[Callable[[str], Path]]:
    """Yield a function that gives the path on this machine, below `scratch`, at which to write the file of a name in
    the folder `meta`. If the block succeeds, all of them are written to the store.

    Raises:
        DatasetError: if another process has prepared the data set meanwhile, or the store cannot be written to.
    """
    import tempfile  # imported here: slow, and not needed on a disk

    where = tempfile.gettempdir() if scratch is None else scratch
    with contextlib.ExitStack() as stack:
        with writing(where):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bridge_data.", dir=where)))
        written: dict[str, Path] = {}

        def temporary(name: str) -> Path:
            return written.setdefault(name, folder / name)

        with writing(folder):
            yield temporary
        if written:
            _Commit(meta).write(written)


class _Commit:
    """One writing of files to the folder `meta`, with a token of its own."""

    def __init__(self, meta: RemotePath) -> None:
        self._meta = meta
        self._token = os.urandom(16).hex().encode()

    def write(self, files: dict[str, Path]) -> None:
        """Write the files, each to the object of its name."""
        self._mark()
        versions: dict[str, ObjectInfo] = {}
        for name in sorted(files, key=lambda name: name == INFO_JSON):
            self._check_mark()
            versions[name] = remote.write(str(self._meta / name), files[name])
        self._check_mark()
        found = remote.list_objects(str(self._meta))
        if any(found.get(name) != version for name, version in versions.items()):
            raise self._lost()
        remote.delete(str(self._meta / PREPARING))

    def _mark(self) -> None:
        remote.write(str(self._meta / PREPARING), self._token)

    def _check_mark(self) -> None:
        """Ensure that no other writer has started.

        Raises:
            DatasetError: if one has. If it is done, it may not have seen what was written here, so the mark is set
            again: the files there may be from both.
        """
        token = storage.read_if_there(self._meta / PREPARING)
        if token == self._token:
            return
        if token is None:
            self._mark()
        raise self._lost()

    def _lost(self) -> DatasetError:
        root = self._meta.parent
        return DatasetError(
            f"{root}: another process has prepared it at the same time, so its .nv-meta may be from both: when no "
            f"other is running, run `{bridge_command('prepare', root)}` again"
        )
