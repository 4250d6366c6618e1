"""Places of data: local paths, and URLs that are used like them.

Enters: a path or a URL. Leaves: a `pathlib.Path`, or a `RemotePath`, which has what this package needs of one. It
travels to other processes, and holds no client.
"""

import os
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from bridge_data.errors import ConfigError
from bridge_data.storage import remote
from bridge_data.storage.urls import is_remote, split_url


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
        """What is called `name` in the same folder."""
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


def on_disk(place: Location) -> Path:
    """`place`, for what writes there, or reads all of it.

    Raises:
        ConfigError: if it is in an object store.
    """
    if isinstance(place, RemotePath):
        raise ConfigError(f"{place}: this takes data on a disk; copy them to one, and back if they were written to")
    return place


def location(path: str | os.PathLike[str]) -> Location:
    """What `path` names.

    Raises:
        ConfigError: for a URL of an unknown kind.
    """
    return RemotePath(os.fspath(path)) if is_remote(path) else Path(path)
