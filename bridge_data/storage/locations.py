"""Naming what is on a disk or in a store: paths and URLs alike.

Reads a path or a URL. Returns a `pathlib.Path`, or a `RemotePath` with the `Path` methods that this package needs,
which can be pickled and holds no client. Raises `ConfigError` for a URL of an unknown kind, and for one in a store
where only a disk will do.
"""

import os
import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import TypeAlias, TypeVar

from bridge_data.errors import ConfigError
from bridge_data.options import path_text
from bridge_data.storage.store import STORES, store_of

_DATASET_SERVICE = "dss://"

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>//?)")
"""How a URL begins, or what `pathlib` leaves of one."""

_WITHOUT_SLASHES = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?!/)")

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")

_OF_THIS_MACHINE = re.compile(r"^localhost/", re.IGNORECASE)


class RemotePath:
    """The object, or the folder of objects, at `url`. Its methods are those of `pathlib.Path`.

    Raises:
        ConfigError: for a URL of an unknown kind.
    """

    __slots__ = ("_base", "_path")

    def __init__(self, url: str) -> None:
        self._base, key = store_of(url).split(url)
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
        """This location for any process; see `Store.pinned`."""
        return RemotePath(store_of(str(self)).pinned(str(self)))

    def is_file(self) -> bool:
        return store_of(str(self)).find(str(self)) is not None

    def is_dir(self) -> bool:
        return store_of(str(self)).is_folder(str(self))

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


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a URL."""
    return "://" in os.fspath(path)


def of_dataset_service(url: str) -> str:
    """The folder of `dss://NAME@VERSION/PATH`, a data set of NVIDIA's dataset service, in its cache on this machine:
    `$NVDATASET_CACHE_DIR/NAME/VERSION/PATH`. Other paths and URLs are returned unchanged.

    Raises:
        ConfigError: if no version is named, or the variable is not set.
    """
    if not url.startswith(_DATASET_SERVICE):
        return url
    dataset, _, path = url.removeprefix(_DATASET_SERVICE).partition("/")
    name, at, version = dataset.rpartition("@")
    if not (name and at and version):
        raise ConfigError(f"{url}: names no version of the data set; expected dss://NAME@VERSION/PATH")
    cache = os.environ.get("NVDATASET_CACHE_DIR")
    if not cache:
        raise ConfigError(f"{url}: the environment variable NVDATASET_CACHE_DIR, the cache of the service, is not set")
    return "/".join(part for part in (cache.rstrip("/"), name, version, path) if part)


def without_scheme(path: str) -> str:
    """The path that a `file:` URL names; other paths and URLs unchanged.

    Raises:
        ConfigError: for a URL without its slashes, of which `pathlib` takes one.
    """
    match = _WITHOUT_SLASHES.match(path)
    if match is not None and (scheme := match["scheme"]).lower() in ("file", *STORES.names):
        rest = path[match.end() :]
        raise ConfigError(
            f"{path}: a URL without slashes; expected {scheme}:///PATH, or {scheme}://NAME/PATH of a store"
        )
    if (match := _URL.match(path)) is None:
        return path
    rest = path[match.end() :]
    if match["scheme"].lower() == "file":
        from urllib.parse import unquote  # imported here: slow, and few paths are such URLs

        return unquote(_OF_THIS_MACHINE.sub("/", rest) if match["slashes"] == "//" else f"/{rest}")
    if match["slashes"] == "/":
        raise ConfigError(
            f"{path}: a URL without its second slash, which `pathlib.Path` takes away: give it as text, "
            f"{match['scheme']}://{rest}"
        )
    return path


def with_variables(path: str) -> str:
    """`path` with the values of the environment variables that it names, as `$NAME` or `${NAME}`.

    Raises:
        ConfigError: if one is not set.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in os.environ:
            raise ConfigError(f"{path}: the environment variable {name} is not set; set it, or write the path itself")
        return os.environ[name]

    return _VARIABLE.sub(value, path)


def location(path: str | os.PathLike[str]) -> Location:
    """The location that `path` names; `~` is the home folder.

    Raises:
        ConfigError: for a URL of an unknown kind.
    """
    name = os.fspath(path)
    if ":" in name and is_remote(name := without_scheme(name)):
        return RemotePath(name)
    return Path(os.path.expanduser(name))


def absolute(path: str | os.PathLike[str]) -> str:
    """`path` as an absolute path, as workers may start in another folder; a URL unchanged.

    Raises:
        ConfigError: if it is not a path, or a URL of an unknown kind.
    """
    path = of_dataset_service(without_scheme(path_text("path", path)))
    return str(RemotePath(path).absolute()) if is_remote(path) else os.path.abspath(os.path.expanduser(path))


def located(text: str, file: str) -> str:
    """The path or URL that `text` in `file` names: relative to the folder of the file, which may be in a store, with
    `~` and environment variables.

    Raises:
        ConfigError: for a URL of an unknown kind, or a variable that is not set.
    """
    path = of_dataset_service(os.path.expanduser(without_scheme(with_variables(text))))
    if is_remote(path):
        return str(RemotePath(path).absolute())
    if is_remote(file) and not os.path.isabs(path):
        base, key = store_of(file).split(file)
        return f"{base}{posixpath.normpath(posixpath.join('/', posixpath.dirname(key), path))}"
    return os.path.normpath(os.path.join(os.path.dirname(file), path))


def output(name: str, path: str | os.PathLike[str]) -> Location:
    """The location to write to that the argument `name` gives, maybe with environment variables. Every output of a user
    becomes a location here, or in `output_on_disk`.

    Raises:
        ConfigError: naming the argument, if it is no path, a URL of an unknown kind, in a store that is only read, or
            names a variable that is not set.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{name}={path!r}: expected a path or a URL to write to")
    try:
        found = location(with_variables(text))
        check_writable(found)
    except ConfigError as error:
        raise ConfigError(f"{name}={text!r} cannot be written to: {error}") from error
    return found


def check_writable(path: Location) -> None:
    """Ensure that something can be written at `path`, before there is something to write.

    Raises:
        ConfigError: if it is in a store that is only read.
    """
    if isinstance(path, RemotePath) and (read_only := store_of(str(path)).read_only):
        raise ConfigError(f"{path}: {read_only}")


OF_THE_MACHINE = "the processes of a machine share it: give a folder of this machine"
"""The fix for folders that hold what is kept for speed alone."""

COPY_IT = "write it to a disk, and copy it to the store"
"""The fix for a file that a command writes."""


def output_on_disk(name: str, path: str | os.PathLike[str], fix: str) -> Path:
    """`output`, for what is written to a disk only; `fix` says what a user with a store can do.

    Raises:
        ConfigError: as `output`, and for a URL of a store.
    """
    found = output(name, path)
    if isinstance(found, RemotePath):
        raise ConfigError(f"{name}={str(found)!r}: is written to a disk, not to an object store; {fix}")
    return found


def on_disk(path: Location) -> Path:
    """`path`, for code that writes there or reads all of it.

    Raises:
        ConfigError: if it is in an object store.
    """
    if isinstance(path, RemotePath):
        raise ConfigError(f"{path}: this takes data on a disk; copy them to one, and back if they were written to")
    return path
