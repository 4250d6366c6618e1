"""Paths of objects in stores, with the methods of `pathlib.Path` that this package needs."""

import os
from pathlib import PurePosixPath

from bridge_data.storage.object_stores import split_url
from bridge_data.storage.remote import find, is_folder


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
        return self

    def is_file(self) -> bool:
        return find(str(self)) is not None

    def is_dir(self) -> bool:
        return is_folder(str(self))

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
