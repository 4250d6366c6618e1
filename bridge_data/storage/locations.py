"""Locations of data, local paths and URLs alike: naming them, reading what is there, and writing small files.

Reads a path or a URL; where to start, how many bytes. Returns a `pathlib.Path`, or a `RemotePath` with the `Path`
methods that this package needs, which can be pickled and holds no client; and exactly the bytes that were asked for. A
`RangeFile` reads on demand, only the requested bytes, and ends at the end of its range. Writes appear whole or not at
all.

Never a partial read: raises `DatasetError` for missing, unreadable or too short content, which it names, and
`ConfigError` for an unsupported URL; transient faults of stores and network file systems are retried. All functions may
be called from any thread. Descriptors of local files stay open for the next read, at most `MAX_OPEN` of them; a forked
child closes those it inherited and starts with none.
"""

import collections
import errno
import io
import itertools
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.later import LaterModule
from bridge_data.plugins.stores.object_stores import SCHEMES, split_url
from bridge_data.plugins.stores.prefetching import joined
from bridge_data.process_counts import COUNTS
from bridge_data.storage.atomic import write_file

if TYPE_CHECKING:
    from bridge_data.plugins.stores import clients
    from bridge_data.storage import remote
else:  # the first URL imports the clients of object stores
    clients, remote = LaterModule("bridge_data.plugins.stores.clients"), LaterModule("bridge_data.storage.remote")

T = TypeVar("T")

MAX_OPEN = 256
"""Descriptors that a process keeps open for reading."""

RETRY_WAITS_S = (0.1, 0.5, 2.0)
"""Waits before the second, third and fourth attempt at a read that failed for a transient reason."""


class Version(NamedTuple):
    """The version of a location's content: its size, and the modification time of a file in ns, or a store's version of
    an object, such as its ETag."""

    num_bytes: int
    changed: int | str

    @property
    def stamp(self) -> int:
        """`changed` as a number, for an index: for an object a digest, larger than any modification time of a file."""
        if isinstance(self.changed, int):
            return self.changed
        import hashlib  # imported here: slow, and readers do without

        return 1 << 62 | int.from_bytes(hashlib.blake2b(self.changed.encode(), digest_size=7).digest())


_TRANSIENT = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.ENOBUFS})
_TOO_MANY_OPEN = frozenset({errno.EMFILE, errno.ENFILE})

_DATASET_SERVICE = "dss://"

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>//?)")
"""How a URL begins, or what `pathlib` leaves of one."""

_WITHOUT_SLASHES = re.compile(rf"(?i:file|{'|'.join(SCHEMES)}):(?!/)")

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")

_OF_THIS_MACHINE = re.compile(r"^localhost/", re.IGNORECASE)


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


def delete(path: Location) -> None:
    """Delete the file, or the object, at `path`, if there is one."""
    if isinstance(path, Path):
        path.unlink(missing_ok=True)
    else:
        remote.delete(str(path))


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
    if _WITHOUT_SLASHES.match(path):
        scheme, _, rest = path.partition(":")
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
    name = without_scheme(os.fspath(path))
    return RemotePath(name) if is_remote(name) else Path(os.path.expanduser(name))


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
        if isinstance(found, RemotePath):
            clients.check_writable(str(found))
    except ConfigError as error:
        raise ConfigError(f"{name}={text!r} cannot be written to: {error}") from error
    return found


OF_THE_MACHINE = "the processes of a machine share it: give a folder of this machine"
"""The fix for folders that hold what is kept for speed alone."""

COPY_IT = "write it to a disk, and copy it to the store"
"""The fix for a file that a command writes."""


def output_on_disk(name: str, path: str | os.PathLike[str], fix: str) -> Path:
    """The same, for what is written to a disk only; `fix` says what a user with a store can do.

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


class _OpenFile:
    """A descriptor that is closed when neither the table nor any reading thread refers to it."""

    __slots__ = ("fd", "version")

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.version = _version_of(os.fstat(self.fd))

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class DescriptorTable:
    """The open files of this process, in order of last use."""

    def __init__(self, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self._files: collections.OrderedDict[str, _OpenFile] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str) -> _OpenFile:
        """The open file at `path`; keep a reference while its descriptor is used."""
        with self._lock:
            file = self._files.get(path)
            if file is not None:
                self._files.move_to_end(path)
                return file
        file = _OpenFile(path)
        with self._lock:
            file = self._files.setdefault(path, file)
            while len(self._files) > self._max_open:
                self._files.popitem(last=False)
        return file

    def drop(self, path: str) -> None:
        """Forget `path`, so that the next read opens it again."""
        with self._lock:
            self._files.pop(path, None)

    def keep_if(self, path: str, version: Version) -> None:
        """Forget `path`, unless the open file is of this version."""
        with self._lock:
            file = self._files.get(path)
            if file is not None and file.version != version:
                del self._files[path]

    def clear(self) -> None:
        """Forget all files."""
        with self._lock:
            self._files.clear()

    def after_fork(self) -> None:
        """In a forked child: close what was inherited, with a lock that no thread of the parent can hold."""
        self._lock = threading.Lock()
        self._files.clear()


_table = DescriptorTable()
os.register_at_fork(after_in_child=_table.after_fork)


def read(path: str | os.PathLike[str], start: int, num_bytes: int) -> bytes:
    """`num_bytes` bytes of the content at `path`, from byte `start`."""
    return read_with_version(path, start, num_bytes)[0]


def read_with_version(path: str | os.PathLike[str], start: int, num_bytes: int) -> tuple[bytes, Version]:
    """The same, and the version of the content: of a file, when it was opened; of an object, in the last answer. A file
    that is overwritten in place while it is open is not noticed."""
    name = os.fspath(path)
    if "://" in name:
        data = remote.read(name, start, num_bytes)
        COUNTS.num_bytes += num_bytes
        return data, Version(*remote.last_info(name))
    try:
        file = _table.get(name)
        data = os.pread(file.fd, num_bytes, start)
    except OSError:
        data = b""
    if len(data) != num_bytes:
        file, data = _attempt(name, lambda: _read_range(name, start, num_bytes))
    if len(data) != num_bytes:
        _table.drop(name)
        raise DatasetError(
            f"{name}: wanted bytes {start} to {start + num_bytes}, but the file has {size_bytes(name)}. "
            "It is truncated, or was replaced after it was prepared: restore it, or run `bridge-data prepare` again."
        )
    COUNTS.num_bytes += num_bytes
    return data, file.version


class PinnedFile:
    """The content at `path`, which must stay of one version: `version`, or if that is None, the first one that is
    found, which must have `num_bytes` bytes if that is not None. `fix` ends the message if it does not."""

    __slots__ = ("fix", "num_bytes", "path", "version")

    def __init__(
        self,
        path: str,
        version: Version | None = None,
        *,
        num_bytes: int | None = None,
        fix: str = "Restore it, or start again.",
    ) -> None:
        self.path, self.version, self.num_bytes, self.fix = path, version, num_bytes, fix

    def read(self, start: int, num_bytes: int) -> bytes:
        """`num_bytes` bytes from byte `start`.

        Raises:
            DatasetError: if they cannot be read, or are of another version.
        """
        data, found = read_with_version(self.path, start, num_bytes)
        if found is not self.version:
            self.check(found)
        return data

    def check(self, found: Version) -> None:
        """Ensure that `found` is the version.

        Raises:
            DatasetError: if it is another.
        """
        if self.num_bytes not in (None, found.num_bytes):
            raise DatasetError(
                f"{self.path}: has {found.num_bytes} bytes, but had {self.num_bytes} when it was prepared. It was "
                f"replaced. {self.fix}"
            )
        known = self.version or found
        if known != found:
            raise DatasetError(
                f"{self.path}: was replaced while it was in use: size and time of change, or in a store the ETag, were "
                f"{known.num_bytes} and {known.changed}, and are {found.num_bytes} and {found.changed}. {self.fix}"
            )
        self.version = found


def version(path: str | os.PathLike[str]) -> Version:
    """The version of the content at `path` as it is now; later reads are of this one, or a newer one."""
    name = os.fspath(path)
    if "://" in name:
        return Version(*remote.info(name))
    found = _version_of(_attempt(name, lambda: os.stat(name)))
    _table.keep_if(name, found)
    return found


def versions(paths: Sequence[str]) -> list[Version]:
    """The `version` of each path. Of several objects of a store, those below their common folder are listed."""
    listed: dict[str, tuple[int, str]] = {}
    if len(paths) > 1 and all("://" in path for path in paths):
        levels = zip(*(path.split("/")[:-1] for path in paths), strict=False)
        shared = [names[0] for names in itertools.takewhile(lambda names: len(set(names)) == 1, levels)]
        folder = "/".join(shared)
        if len(shared) > 2:  # scheme, nothing, and the bucket
            listed = {f"{folder}/{name}": found for name, found in remote.list_objects(folder).items()}
    return [Version(*listed[path]) if path in listed else version(path) for path in paths]


def read_all(path: str | os.PathLike[str]) -> bytes:
    """The whole content at `path`; the file is not kept open."""
    name = os.fspath(path)
    return remote.read_all(name) if "://" in name else _attempt(name, Path(name).read_bytes)


def read_if_there(path: str | os.PathLike[str]) -> bytes | None:
    """The whole content at `path`; None if there is no file. One that cannot be read is an error, not absent."""
    name = os.fspath(path)
    if "://" in name:
        return remote.read_if_there(name)
    try:
        return read_all(name)
    except DatasetError as error:
        if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
            return None
        raise


def local_copy(path: str | os.PathLike[str]) -> Path | None:
    """The path of a file on this machine with the content at `path`; None if there is none. An object is downloaded
    once per machine; a local file is its own copy."""
    name = os.fspath(path)
    if "://" in name:
        return remote.local_copy(name)
    return Path(name) if os.path.isfile(name) else None


def size_bytes(path: str | os.PathLike[str]) -> int:
    """The size of the content at `path`; of an object that was read before, its size at that time."""
    name = os.fspath(path)
    return remote.size_bytes(name) if "://" in name else _attempt(name, lambda: os.stat(name).st_size)


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file, or an object, at `path`."""
    name = os.fspath(path)
    return remote.find(name) is not None if "://" in name else os.path.isfile(name)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder at `path`, or objects below it."""
    name = os.fspath(path)
    return remote.is_folder(name) if "://" in name else os.path.isdir(name)


def walk(folder: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk`, but a folder that cannot be listed is an error.

    Raises:
        DatasetError: naming the folder.
    """
    return os.walk(os.fspath(folder), onerror=_raise_listing)


def _raise_listing(error: OSError) -> None:
    raise DatasetError(f"{error.filename}: cannot be listed: {error.strerror}") from error


def prefetch(ranges: Sequence[tuple[str | os.PathLike[str], int, int]]) -> None:
    """Fetch ranges (location, offset, number of bytes) in the background, as they will be read soon, in about this
    order. A `read` within one of them waits for it and takes its bytes, which are then freed. Ranges that are never
    read cost requests; a failed fetch is no error; for local files nothing is done.
    """
    if wanted := _of_objects(ranges):
        remote.prefetch(wanted)


def release(ranges: Sequence[tuple[str | os.PathLike[str], int, int]]) -> None:
    """Free ranges that were announced by `prefetch`, or do not fetch them: they will not be read."""
    if wanted := _of_objects(ranges):
        remote.release(wanted)


def _of_objects(ranges: Sequence[tuple[str | os.PathLike[str], int, int]]) -> list[tuple[str, int, int]]:
    located = [(os.fspath(path), start, num_bytes) for path, start, num_bytes in ranges]
    return [one for one in located if "://" in one[0]]


def by_request(ranges: Sequence[tuple[str | os.PathLike[str], int, int]]) -> list[list[tuple[str, int, int]]]:
    """The `ranges` that `prefetch` would fetch, grouped by request if announced together, in order of first use."""
    requests = joined([one for one in _of_objects(ranges) if one[2]])
    return [[(request.url, *one) for one in request.ranges] for request in requests]


def close_file(path: str | os.PathLike[str]) -> None:
    """Close the file at `path`, so that the next read opens what is there then."""
    _table.drop(os.fspath(path))


def close_files() -> None:
    """Close the files that are kept open for the next read."""
    _table.clear()


def _version_of(status: os.stat_result) -> Version:
    return Version(status.st_size, status.st_mtime_ns)


def _read_range(path: str, start: int, num_bytes: int) -> tuple[_OpenFile, bytes]:
    """(the file, as much of the range as exists): a system call reads less than 2 GiB, and may read less than asked
    for."""
    file = _table.get(path)
    pieces, have = [], 0
    while have < num_bytes and (piece := os.pread(file.fd, num_bytes - have, start + have)):
        pieces.append(piece)
        have += len(piece)
    return file, b"".join(pieces)


def _attempt(path: str, action: Callable[[], T]) -> T:
    """The result of `action`, retried while it fails for a transient reason."""
    waits = iter(RETRY_WAITS_S)
    while True:
        try:
            return action()
        except OSError as error:
            if error.errno in _TOO_MANY_OPEN:
                _table.clear()
            else:
                _table.drop(path)
            wait_s = next(waits, None) if error.errno in _TRANSIENT | _TOO_MANY_OPEN else None
            if wait_s is None:
                raise _failure(path, error) from error
            COUNTS.num_retries += 1
            time.sleep(wait_s)


def _failure(path: str, error: OSError) -> DatasetError:
    if isinstance(error, FileNotFoundError):
        return DatasetError(
            f"{path}: no such file. Restore it, or take it out of the data set (tars: run `bridge-data prepare` again)."
        )
    return DatasetError(f"{path}: cannot be read: {error.strerror or error}")
