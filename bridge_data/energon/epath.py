"""`EPath`: a path on a disk or in an object store, with the methods of Energon's."""

import functools
import io
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError

DEFAULT_PROFILE_NAME = "__filesystem__"
"""The `msc://` profile of the local disk."""

_LOCAL = re.compile(rf"^msc://(?:{DEFAULT_PROFILE_NAME}|default)(?=/)")
_PROTOCOL = re.compile(r"([a-z0-9]+)://")


@functools.total_ordering
class EPath:
    """A path or URL: `EPath("msc://profile/shards") / "0.tar"`. Local paths become absolute; `.` and `..` are resolved.

    Objects in a store can be read and listed, but not written.

    Raises:
        ConfigError: for a URL of an unknown kind.
    """

    __slots__ = ("_location",)

    def __init__(self, initial_path: "str | os.PathLike[str]") -> None:
        text = storage.of_dataset_service(_LOCAL.sub("", storage.without_scheme(os.fspath(initial_path))))
        protocol = _PROTOCOL.match(text)
        if protocol is None:
            self._location: storage.Location = Path(os.path.normpath(os.path.abspath(text)))
            return
        bucket, _, key = text[protocol.end() :].partition("/")
        parts: list[str] = []
        for part in PurePosixPath(key).parts:
            if part == ".." and not parts:
                raise ConfigError(f"{text}: leads above its root")
            parts = parts[:-1] if part == ".." else [*parts, part]
        self._location = storage.location(f"{protocol[0]}{'/'.join([bucket, *parts])}")

    @property
    def name(self) -> str:
        """The last component."""
        return self._location.name

    display_name = name

    @property
    def parent(self) -> "EPath":
        """The folder that it is in."""
        return EPath(self._location.parent)

    @property
    def url(self) -> str:
        """The URL, or the absolute path."""
        return str(self._location)

    def absolute(self) -> "EPath":
        """Itself, as every path is absolute."""
        return self

    def is_local(self) -> bool:
        """Whether it is on a disk."""
        return isinstance(self._location, Path)

    def local_path(self) -> Path:
        """The path on a disk.

        Raises:
            ConfigError: if it is in an object store.
        """
        return storage.on_disk(self._location)

    def is_file(self) -> bool:
        """Whether there is a file, or an object."""
        return storage.is_file(self._location)

    def is_dir(self) -> bool:
        """Whether there is a folder, or objects below it."""
        return storage.is_folder(self._location)

    def size(self) -> int:
        """The size in bytes.

        Raises:
            DatasetError: if there is none.
        """
        return storage.size_bytes(self._location)

    def open(self, mode: str = "r", block_size: int | None = None, prefetch_file: bool = False) -> IO[Any]:
        """The open file. An object is read whole first; `block_size` and `prefetch_file` have no effect.

        Raises:
            ConfigError: to write an object.
            FileNotFoundError: if there is none.
        """
        if isinstance(self._location, Path) or not mode.startswith("r"):
            return open(self.local_path(), mode)
        data = self.read_bytes()
        return io.BytesIO(data) if "b" in mode else io.StringIO(data.decode())

    def read_bytes(self) -> bytes:
        """All bytes.

        Raises:
            FileNotFoundError: if there is none.
        """
        if isinstance(self._location, Path):
            return self._location.read_bytes()
        data = storage.read_if_there(self._location)
        if data is None:
            raise FileNotFoundError(str(self))
        return data

    def read_text(self) -> str:
        """All of the text."""
        return self.read_bytes().decode()

    def write_bytes(self, data: bytes) -> None:
        """Write a local file, and the folders that it is in."""
        self._for_writing().write_bytes(data)

    def write_text(self, text: str) -> None:
        """Write a local file, and the folders that it is in."""
        self._for_writing().write_text(text)

    def _for_writing(self) -> Path:
        path = self.local_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def mkdir(self, exist_ok: bool = True, parents: bool = False) -> None:
        """Create a local folder; object stores need none."""
        if isinstance(self._location, Path):
            self._location.mkdir(exist_ok=exist_ok, parents=parents)

    def copy(self, target: "EPath") -> None:
        """Copy this file, or all files below this folder, to the local path `target`."""
        if self.is_file():
            target.write_bytes(self.read_bytes())
            return
        for path in self.walk():
            (target / path.relative_to(self)).write_bytes(path.read_bytes())

    def move(self, target: "EPath") -> None:
        """Copy this local file or folder, and remove it.

        Raises:
            ConfigError: if it is in an object store, or `target` is in it.
        """
        source = self.local_path()
        if target.local_path().is_relative_to(source):
            raise ConfigError(f"{self} cannot be moved to {target}, which is a part of it")
        self.copy(target)
        shutil.rmtree(source) if source.is_dir() else source.unlink()

    def unlink(self) -> None:
        """Remove a local file."""
        self.local_path().unlink()

    def stat(self) -> os.stat_result:
        """`os.stat` of a local file."""
        return self.local_path().stat()

    def walk(self) -> Iterator["EPath"]:
        """All files below it, without folders."""
        if isinstance(self._location, Path):
            for folder, _, files in os.walk(self._location, followlinks=True):
                yield from (EPath(os.path.join(folder, file)) for file in files)
            return
        try:
            sizes = storage.list_sizes(str(self))
        except DatasetError:
            return
        yield from (self / name for name in sizes)

    def glob(self, pattern: str) -> Iterator["EPath"]:
        """The files below it whose relative paths match `pattern`: `*` within a component, `**` across components."""
        if isinstance(self._location, Path) and "**" not in pattern:
            return (EPath(path) for path in sorted(self._location.glob(pattern)) if path.is_file())
        expression = re.compile(_translated(pattern), re.DOTALL)
        return (path for path in self.walk() if expression.fullmatch(path.relative_to(self)))

    def with_suffix(self, suffix: str) -> "EPath":
        """The same with another suffix."""
        return EPath(self._location.with_suffix(suffix))

    def relative_to(self, other: "EPath") -> str:
        """The path from the folder `other` to this.

        Raises:
            ValueError: if this is not below `other`.
        """
        return str(PurePosixPath(str(self)).relative_to(str(other)))

    def __truediv__(self, other: "str | EPath") -> "EPath":
        if isinstance(other, EPath):
            return other
        if other.startswith("/") or "://" in other:
            return EPath(other)
        return EPath(f"{self}/{other}")

    def __fspath__(self) -> str:
        return str(self._location)

    def __str__(self) -> str:
        return str(self._location)

    def __repr__(self) -> str:
        return f"EPath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (str, EPath)) and str(self) == str(other)

    def __lt__(self, other: "EPath") -> bool:
        return str(self) < str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[type["EPath"], tuple[str]]:
        return EPath, (str(self),)


def _translated(pattern: str) -> str:
    """The regular expression of a pattern with `*`, `**`, `?`, `[0-9]` and `[!0-9]`."""
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", pattern)
    tokens = [f"[^{token[2:]}" if token[:2] == "[!" else token for token in tokens]
    return "".join(token if token[:1] == "[" else meaning.get(token, re.escape(token)) for token in tokens)
