"""Locations of data, local paths and URLs alike, and reading what is there.

Enters: a path or a URL. Leaves: a `pathlib.Path`, or a `RemotePath`, which has what this package needs of one; exactly
the bytes that were asked for. Guarantee: a location travels to other processes and holds no client; a read is whole or
a `DatasetError`, or, for a URL that cannot be read here, a `ConfigError`; see `storage.local` and `storage.remote`.
"""

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from bridge_data.errors import ConfigError
from bridge_data.storage import local, remote
from bridge_data.storage.object_stores import split_url
from bridge_data.storage.prefetching import joined


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a URL."""
    return "://" in os.fspath(path)


class RemotePath:
    """The object, or the folder of objects, at `url`.

    Raises:
        ConfigError: for a URL of an unknown kind.
    """

    __slots__ = ("_base", "_path")

    def __init__(self, url: str) -> None:
        self._base, key = split_url(url)
        self._path = PurePosixPath("/", key)

    @property
    def name(self) -> str:
        """The last component."""
        return self._path.name

    @property
    def suffix(self) -> str:
        """The end of the name, from its last dot on."""
        return self._path.suffix

    @property
    def parent(self) -> "RemotePath":
        """The folder that it is in."""
        return self._at(self._path.parent)

    def with_name(self, name: str) -> "RemotePath":
        """The path of `name` in the same folder."""
        return self._at(self._path.with_name(name))

    def with_suffix(self, suffix: str) -> "RemotePath":
        """The same with another suffix."""
        return self._at(self._path.with_suffix(suffix))

    def absolute(self) -> "RemotePath":
        """Itself: a URL is absolute."""
        return self

    def is_file(self) -> bool:
        """Whether there is such an object."""
        return remote.find(str(self)) is not None

    def is_dir(self) -> bool:
        """Whether there are objects below it."""
        return remote.is_folder(str(self))

    def exists(self) -> bool:
        """Whether there is such an object, or some below it."""
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


def on_disk(path: Location) -> Path:
    """`path`, for code that writes there, or reads all of it.

    Raises:
        ConfigError: if it is in an object store.
    """
    if isinstance(path, RemotePath):
        raise ConfigError(f"{path}: this takes data on a disk; copy them to one, and back if they were written to")
    return path


def location(path: str | os.PathLike[str]) -> Location:
    """The location that `path` names.

    Raises:
        ConfigError: for a URL of an unknown kind.
    """
    return RemotePath(os.fspath(path)) if is_remote(path) else Path(path)


def read(path: str | os.PathLike[str], start: int, num_bytes: int) -> bytes:
    """`num_bytes` bytes of the content at `path`, from byte `start`."""
    name = os.fspath(path)
    return remote.read(name, start, num_bytes) if "://" in name else local.read(name, start, num_bytes)


def read_all(path: str | os.PathLike[str]) -> bytes:
    """The whole content at `path`; the file is not kept open."""
    name = os.fspath(path)
    return remote.read_all(name) if "://" in name else local.read_all(name)


def read_if_there(path: str | os.PathLike[str]) -> bytes | None:
    """The whole content at `path`; None if there is none."""
    name = os.fspath(path)
    if "://" in name:
        return remote.read_if_there(name)
    return local.read_all(name) if os.path.isfile(name) else None


def local_copy(path: str | os.PathLike[str]) -> Path | None:
    """The path of a file on this machine with the content at `path`; None if there is none. An object is downloaded,
    once a machine; a local file is its own copy."""
    name = os.fspath(path)
    if "://" in name:
        return remote.local_copy(name)
    return Path(name) if os.path.isfile(name) else None


def size_bytes(path: str | os.PathLike[str]) -> int:
    """The size of the content at `path`; of an object that was read before, its size at that time."""
    name = os.fspath(path)
    return remote.size_bytes(name) if "://" in name else local.size_bytes(name)


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file, or an object, at `path`."""
    name = os.fspath(path)
    return remote.find(name) is not None if "://" in name else os.path.isfile(name)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder at `path`, or objects below it."""
    name = os.fspath(path)
    return remote.is_folder(name) if "://" in name else os.path.isdir(name)


def prefetch(ranges: Sequence[tuple[str | os.PathLike[str], int, int]]) -> None:
    """Fetch ranges (location, offset, number of bytes) in the background, as they will be read soon, in about this
    order. A `read` within one of them waits for it and takes its bytes, which are then freed. Ranges that are never
    read cost requests; a failed fetch is no error; for local files nothing is done.
    """
    located = [(os.fspath(path), start, num_bytes) for path, start, num_bytes in ranges]
    wanted = [one for one in located if "://" in one[0]]
    if wanted:
        remote.prefetch(wanted)


def by_request(ranges: Sequence[tuple[str | os.PathLike[str], int, int]]) -> list[list[tuple[str, int, int]]]:
    """Those of `ranges` that `prefetch` would fetch, grouped by request if they are announced together; in the order in
    which they are wanted first.
    """
    located = [(os.fspath(path), start, num_bytes) for path, start, num_bytes in ranges]
    requests = joined([one for one in located if "://" in one[0] and one[2]])
    return [[(request.url, *one) for one in request.ranges] for request in requests]


class RangeFile(io.RawIOBase):
    """The `num_bytes` bytes from `start` on, of what `read` reads (offset, number of bytes), as a read-only file."""

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
