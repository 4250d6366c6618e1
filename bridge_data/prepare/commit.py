"""Files of a data set that appear together, and one preparation of a folder, or of a file, at a time.

Reads the folder of a data set, and files for its `.nv-meta`. Writes all of them, or leaves the previous ones. While
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
from bridge_data.data.metadata import INFO_JSON, PREPARING
from bridge_data.errors import DatasetError, bridge_command
from bridge_data.storage import Location, RemotePath, check_writable
from bridge_data.storage.atomic import sync_folder, temporary_name, temporary_stem, write_file, writing

PATIENCE_S = 1.0
"""How long to wait for a lock: child processes of a killed preparation end a moment after it."""

_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
"""The names of files, and folders of files, while they are written."""


def is_temporary(name: str) -> bool:
    """Whether this is the name of a temporary file or folder."""
    return _TEMPORARY.fullmatch(name) is not None


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
    """Hold the lock of the folder or file `root`. Yield a function that removes what killed processes left: all
    temporary files in given folders, and those that were to replace given files. On a file system without locks,
    nothing is locked or removed. `doing` is for the message if another process holds the lock. With `shared`, others
    may hold it in the same way, and nothing is removed. A store has no locks: see `committing`.

    Raises:
        DatasetError: if another process holds it for `patience_s` (None: `PATIENCE_S`), or `root` cannot be used.
        ConfigError: if `root` is in a store that is only read.
    """
    if not isinstance(root, Path):
        check_writable(root)
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
    folder, left = path, _TEMPORARY
    if not path.is_dir():
        folder, left = path.parent, re.compile(rf"{re.escape(temporary_stem(path.name))}\.[0-9a-f]{{8}}\.\d+\.tmp")
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in [entry for entry in entries if left.fullmatch(entry.name)]:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


@contextlib.contextmanager
def committing(meta: Location, scratch: Path | None = None) -> Iterator[Callable[[str], Path]]:
    """Yield a function that gives the path on this machine at which to write the file of a name in the folder `meta`:
    next to the data, or for a store, in a folder below `scratch` (None: the system's).

    If the block succeeds, all files replace the previous ones; the mark `PREPARING` is there until the last has. If it
    fails, they are removed, and so is the folder if it was made for them.

    Raises:
        DatasetError: if the files cannot be written or, in a store, another process has prepared the data set
            meanwhile.
    """
    if isinstance(meta, RemotePath):
        import tempfile  # imported here: slow, and not needed on a disk

        where = tempfile.gettempdir() if scratch is None else str(scratch)
        with writing(where), tempfile.TemporaryDirectory(prefix="bridge_data.", dir=where) as made:
            yield Path(made).joinpath
            _upload(meta, sorted(Path(made).iterdir(), key=lambda file: (file.name == INFO_JSON, file.name)))
        return
    written: dict[str, Path] = {}
    folder = meta if meta.is_dir() else meta.parent
    with writing(meta.parent):
        try:
            yield lambda name: written.setdefault(name, folder / temporary_name(name))
            for path in written.values():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
            meta.mkdir(exist_ok=True)
            write_file(meta / PREPARING, "")
        except BaseException:
            for path in written.values():
                path.unlink(missing_ok=True)
            if folder != meta:
                with contextlib.suppress(OSError):  # it holds something else by now, or was not made
                    meta.rmdir()
            raise
        for name, path in written.items():
            os.replace(path, meta / name)
        sync_folder(meta)
        (meta / PREPARING).unlink()


class Claim:
    """A token of this process in an object of a store: the process that took the object last holds it."""

    def __init__(self, path: RemotePath) -> None:
        self._path, self._token = path, os.urandom(16).hex().encode()

    def take(self) -> None:
        """Write the token."""
        storage.upload(self._path, self._token)

    def is_held(self) -> bool:
        """Whether no other process took the object, or removed it."""
        return storage.read_if_there(self._path) == self._token


def _upload(meta: RemotePath, files: list[Path]) -> None:
    """Write files to the objects of their names in `meta`, in this order."""
    mark = meta / PREPARING
    claim = Claim(mark)
    lost = DatasetError(
        f"{meta.parent}: another process has prepared it at the same time, so its .nv-meta may be from both: when no "
        f"other is running, run `{bridge_command('prepare', meta.parent)}` again"
    )

    def check() -> None:
        if claim.is_held():
            return
        if not mark.exists():  # the other is done, and may not have seen what was written here
            claim.take()
        raise lost

    if not files:
        return
    claim.take()
    versions = {}
    for file in files:
        check()
        versions[file.name] = storage.upload(meta / file.name, file)
    check()
    found = storage.list_objects(meta)
    if any(found.get(name) != version for name, version in versions.items()):
        raise lost
    storage.delete(mark)
