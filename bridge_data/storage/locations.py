"""Locations of data, local paths and URLs alike: writing small files there, and a range of one as a file.

Enters: a path or a URL. Leaves: a `pathlib.Path`, or a `RemotePath` with the `Path` methods that this package needs.
Guarantee: a location can be pickled and holds no client; writes appear whole or not at all. A `RangeFile` reads on
demand, only the requested bytes, and ends at the end of its range.
"""

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from bridge_data.later import LaterModule
from bridge_data.storage.atomic import write_file
from bridge_data.storage.object_stores import split_url

if TYPE_CHECKING:
    from bridge_data.storage import clients, remote
else:  # the first URL imports the clients of object stores
    clients, remote = LaterModule("bridge_data.storage.clients"), LaterModule("bridge_data.storage.remote")


class RemotePath:
    """The object, or the folder of objects, at `url`. Its methods are those of `pathlib.Path`.

    Raises:
        ConfigError: for a URL of an unknown kind.
    """

    __slots__ = ("_base", "_path")

    def __init__(self, url: str) -> None:
        self._base, key = split_url(url)
        self._path = PurePosixPath("/", key)

    @property
    def name(self) -> str:
        return self._path.name

    @property
    def suffix(self) -> str:
        return self._path.suffix

    @property
    def parent(self) -> "RemotePath":
        return self._at(self._path.parent)

    def with_name(self, name: str) -> "RemotePath":
        return self._at(self._path.with_name(name))

    def with_suffix(self, suffix: str) -> "RemotePath":
        return self._at(self._path.with_suffix(suffix))

    def absolute(self) -> "RemotePath":
        """This location for any process; on the Hugging Face hub with the commit that its revision is now."""
        return RemotePath(clients.pinned(str(self)))

    def is_file(self) -> bool:
        return remote.find(str(self)) is not None

    def is_dir(self) -> bool:
        return remote.is_folder(str(self))

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def _at(self, path: PurePosixPath) -> "RemotePath":
        return RemotePath(f"{self._base}{path}")

    def __truediv__(self, below: str | os.PathLike[str]) -> "RemotePath":
        return self._at(self._path / below)

    def __fspath__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{self._base}{self._path}".rstrip("/")

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[type["RemotePath"], tuple[str]]:
        return RemotePath, (str(self),)


Location: TypeAlias = Path | RemotePath

AnyLocation = TypeVar("AnyLocation", Path, Location)
"""For functions that return a `Path` if they get one."""


def write(path: Location, data: bytes, *, durable: bool = True) -> None:
    """Write `data` to `path`; see `write_file`. An object is durable when the store has it."""
    if isinstance(path, Path):
        write_file(path, data, durable=durable)
    else:
        remote.write(str(path), data)


def make_folder(path: Location) -> None:
    """Make the folder `path` if it does not exist. Stores have no folders: nothing to do."""
    if isinstance(path, Path):
        path.mkdir(exist_ok=True)


def delete_below(folder: Location) -> None:
    """Delete `folder` and its content, if it exists."""
    if isinstance(folder, Path):
        if folder.exists():
            shutil.rmtree(folder)
        return
    for name in remote.list_objects(str(folder)):
        remote.delete(f"{folder}/{name}")


class RangeFile(io.RawIOBase):
    """A read-only file of `num_bytes` bytes from `start` on, read by `read(offset, number of bytes)`."""

    def __init__(self, read: Callable[[int, int], bytes], start: int, num_bytes: int) -> None:
        self._read, self._start, self._num_bytes = read, start, num_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), max(0, self._num_bytes - self._position))
        data = self._read(self._start + self._position, wanted) if wanted else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position
