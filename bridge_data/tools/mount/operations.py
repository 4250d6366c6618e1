"""The view as a file system of the operating system, read-only, by FUSE.

Enters: a view and a folder. Leaves: nothing; `mount` returns when the folder is unmounted. A file is read in the ranges
that are asked for, from its shard.
"""

import errno
import importlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.shards.key_index import StoredPart
from bridge_data.tools.mount.view import View

_DEVICE = Path("/dev/fuse")


class ViewOperations:
    """The operations that mfusepy calls, in its form: paths with a slash in front; failures are `OSError`s.

    The attributes of `mfusepy.Operations` that are not here are added by `mount`.
    """

    use_ns = True

    def __init__(self, view: View) -> None:
        self._view = view
        self._mtime_ns = os.stat(view.catalog.path).st_mtime_ns
        self._open: dict[int, StoredPart] = {}
        self._next = 0
        self._size: tuple[int, int] | None = None

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """What `path` is: kind, rights, size and times."""
        part = self._open.get(fh) if fh is not None else None
        part = part or self._checked(self._view.file, path)
        if part is not None:
            mode, num_bytes, links = stat.S_IFREG | 0o444, part.num_bytes, 1
        elif self._checked(self._view.is_folder, path):
            mode, num_bytes, links = stat.S_IFDIR | 0o555, 0, 2
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), self._mtime_ns)
        return {
            "st_mode": mode,
            "st_nlink": links,
            "st_size": num_bytes,
            "st_uid": os.getuid(),
            "st_gid": os.getgid(),
        } | times

    def readdir(self, path: str, fh: int) -> Iterator[str]:
        """The names in the folder `path`."""
        yield from (".", "..")
        yield from self._checked(self._view.names, path)

    def open(self, path: str, flags: int) -> int:
        """A handle on the file `path`."""
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        part = self._checked(self._view.file, path)
        if part is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._next += 1
        self._open[self._next] = part
        return self._next

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """`size` bytes of an open file from `offset` on, fewer at its end."""
        try:
            return self._view.catalog.read(self._open[fh], offset, size)
        except BridgeDataError as error:
            raise OSError(errno.EIO, str(error), path) from error

    def release(self, path: str, fh: int) -> int:
        """Forget a handle."""
        self._open.pop(fh, None)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        """The size of the whole, for `df`."""
        if self._size is None:
            self._size = self._view.catalog.size()
        num_bytes, num_samples = self._size
        return {"f_bsize": 512, "f_blocks": num_bytes // 512, "f_files": num_samples, "f_namemax": 1024}

    @staticmethod
    def _checked(ask: Any, path: str) -> Any:
        try:
            return ask(path)
        except BridgeDataError as error:
            raise OSError(errno.EIO, str(error), path) from error


def mount(view: View, mountpoint: Path, *, detach: bool = False) -> None:
    """Show `view` at the folder `mountpoint` until it is unmounted; with `detach`, from a process in the background.

    Raises:
        ConfigError: if there is no FUSE here, or the folder cannot be used.
    """
    library = import_fuse()
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        raise ConfigError(
            f"{_DEVICE}: {'may not be used by this user' if _DEVICE.exists() else 'no such device'}: this machine, or "
            "container, cannot mount by FUSE (docker run --device /dev/fuse --cap-add SYS_ADMIN)"
        )
    try:
        mountpoint.mkdir(parents=True, exist_ok=True)
        if next(mountpoint.iterdir(), None) is not None:
            raise ConfigError(f"{mountpoint}: is not empty, and what is in it would be hidden; give another folder")
    except OSError as error:
        raise ConfigError(f"{mountpoint}: cannot be mounted on: {error.strerror}") from error
    operations = type("Operations", (ViewOperations, library.Operations), {})(view)
    try:
        library.FUSE(operations, str(mountpoint), foreground=not detach, nothreads=True, ro=True, fsname="bridge-data")
    except RuntimeError as error:
        raise ConfigError(
            f"{mountpoint}: FUSE could not mount on it (code {error}): see its message above. May this user mount?"
        ) from error


def import_fuse() -> Any:
    """The module mfusepy."""
    try:
        return importlib.import_module("mfusepy")
    except ImportError as error:
        raise ConfigError(f'mounting needs a package ({error}): pip install "bridge-data[mount]"') from error
    except OSError as error:
        raise ConfigError(f"mounting needs libfuse ({error}): apt install fuse3, or its like") from error
