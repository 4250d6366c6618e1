"""What is at a location, on a disk or in a store: read, listed, written, deleted.

Reads a path or a URL; where to start, how many bytes. Returns exactly the bytes that were asked for, never a part. A
`RangeFile` reads on demand, only the requested bytes, and ends at the end of its range. Writes appear whole or not at
all. Raises `DatasetError` for missing, unreadable or too short content, which it names, and `ConfigError` for a URL of
an unknown kind; transient faults of stores and network file systems are retried.

All functions may be called from any thread. Descriptors of local files stay open for the next read, at most `MAX_OPEN`
of them; a forked child closes those it inherited and starts with none. What is at a URL is read by the `Store` of its
scheme.
"""

import collections
import errno
import io
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from bridge_data.counts import COUNTS
from bridge_data.errors import DatasetError
from bridge_data.storage.atomic import write_file
from bridge_data.storage.copies import copy_of, delete_copy
from bridge_data.storage.locations import Location
from bridge_data.storage.store import ObjectRange, Prefetching, Version, existing, no_object, store_of

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

MAX_OPEN = 256
"""Descriptors that a process keeps open for reading."""

RETRY_WAITS_S = (0.1, 0.5, 2.0)
"""Waits before the second, third and fourth attempt at a read that failed for a transient reason."""

_TRANSIENT = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.ENOBUFS})
_TOO_MANY_OPEN = frozenset({errno.EMFILE, errno.ENFILE})


def write(path: Location, data: bytes, *, durable: bool = True) -> None:
    """Write `data` to `path`; see `write_file`. An object is durable when the store has it."""
    if isinstance(path, Path):
        write_file(path, data, durable=durable)
    else:
        upload(path, data)


def upload(path: Location, content: bytes | Path) -> Version:
    """Write the object at `path`, a URL: these bytes, or the content of a file. Return its version."""
    return store_of(str(path)).write(str(path), content)


def make_folder(path: Location) -> None:
    """Make the folder `path` if it does not exist. Stores have no folders: nothing to do."""
    if isinstance(path, Path):
        path.mkdir(exist_ok=True)


def delete(path: Location) -> None:
    """Delete the file, or the object, at `path`, if there is one."""
    if isinstance(path, Path):
        path.unlink(missing_ok=True)
    else:
        store_of(str(path)).delete(str(path))
        delete_copy(str(path))


def delete_below(folder: Location) -> None:
    """Delete `folder` and its content, if it exists."""
    if isinstance(folder, Path):
        if folder.exists():
            shutil.rmtree(folder)
        return
    for name in list_objects(folder):
        delete(folder / name)


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


class _OpenFile:
    """A descriptor that is closed when neither `_files` nor any reading thread refers to it."""

    __slots__ = ("fd", "version")

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.version = _version_of(os.fstat(self.fd))

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class RecentlyUsed(Generic[K, V]):
    """Values by key, of at most `max_size` together, in bytes or in numbers: tables and open files, which are slow to
    make again. Those that were not used for the longest time go first; the last one stays, however large it is. Any
    thread may call; two that miss the same value may both make it."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self.after_fork()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value, which is now the one used last; None if it is not there."""
        with self._lock:
            if (found := self._values.get(key)) is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, size: int = 1) -> None:
        """Keep a value of this size, and drop others, while there is too much."""
        with self._lock:
            _, freed = self._values.pop(key, (None, 0))
            self._values[key] = value, size
            self._size += size - freed
            while self._size > self._max_size and len(self._values) > 1:
                _, (_, freed) = self._values.popitem(last=False)
                self._size -= freed

    def drop(self, key: K) -> None:
        """Forget a value, if it is there."""
        with self._lock:
            if (found := self._values.pop(key, None)) is not None:
                self._size -= found[1]

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._values.clear()
            self._size = 0

    def after_fork(self) -> None:
        """In a forked child: forget all values, with a lock that no thread of the parent can hold."""
        self._lock, self._size = threading.Lock(), 0
        self._values: collections.OrderedDict[K, tuple[V, int]] = collections.OrderedDict()


_files: RecentlyUsed[str, _OpenFile] = RecentlyUsed(MAX_OPEN)
os.register_at_fork(after_in_child=_files.after_fork)


def read(path: str | os.PathLike[str], start: int, num_bytes: int) -> bytes:
    """`num_bytes` bytes of the content at `path`, from byte `start`."""
    return read_with_version(path, start, num_bytes)[0]


def read_with_version(path: str | os.PathLike[str], start: int, num_bytes: int) -> tuple[bytes, Version]:
    """What `read` returns, and the version of the content: of a file, when it was opened; of an object, in the last
    answer. A file that is overwritten in place while it is open is not noticed."""
    name = os.fspath(path)
    if "://" in name:
        return _read_object(name, start, num_bytes)
    file = _files.get(name)
    try:
        data = os.pread(file.fd, num_bytes, start) if file is not None else b""
    except OSError:
        data = b""
    if file is None or len(data) != num_bytes:
        file, data = _attempt(name, _read_range, start, num_bytes)
    if len(data) != num_bytes:
        _files.drop(name)
        raise DatasetError(
            f"{name}: wanted bytes {start} to {start + num_bytes}, but the file has {size_bytes(name)}. "
            "It is truncated, or was replaced after it was prepared: restore it, or run `bridge-data prepare` again."
        )
    COUNTS.bytes_read += num_bytes
    return data, file.version


def _read_object(url: str, start: int, num_bytes: int) -> tuple[bytes, Version]:
    began_ns = time.perf_counter_ns()
    data, found = store_of(url).read(url, start, num_bytes)
    COUNTS.store_ns += time.perf_counter_ns() - began_ns
    if len(data) != num_bytes:
        raise DatasetError(
            f"{url}: wanted bytes {start} to {start + num_bytes}, but the object has {found.num_bytes}. It is "
            "truncated, or was replaced after it was prepared: restore it, or prepare the data again and copy all."
        )
    COUNTS.bytes_read += num_bytes
    return data, found


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
        return existing(store_of(name).find(name), name)
    found = _version_of(_attempt(name, os.stat))
    if (file := _files.get(name)) is not None and file.version != found:
        _files.drop(name)
    return found


def opened_version(path: str) -> Version:
    """The `version` of a file on a disk, which is opened for the reads that follow."""
    return _attempt(path, _opened_anew).version


def versions(paths: Sequence[str]) -> list[Version]:
    """The `version` of each path. Of several objects of a store, those below their common folder are listed."""
    listed: dict[str, Version] = {}
    if len(paths) > 1 and all("://" in path for path in paths):
        levels = zip(*(path.split("/")[:-1] for path in paths), strict=False)
        shared = [names[0] for names in itertools.takewhile(lambda names: len(set(names)) == 1, levels)]
        folder = "/".join(shared)
        if len(shared) > 2:  # scheme, nothing, and the bucket
            listed = {f"{folder}/{name}": found for name, found in list_objects(folder).items()}
    return [listed[path] if path in listed else version(path) for path in paths]


def read_all(path: str | os.PathLike[str]) -> bytes:
    """The whole content at `path`; the file is not kept open."""
    name = os.fspath(path)
    if "://" not in name:
        return _attempt(name, _read_whole)
    data = store_of(name).read_all(name)
    if data is None:
        raise no_object(name)
    return data


def read_if_there(path: str | os.PathLike[str]) -> bytes | None:
    """The whole content at `path`; None if there is no file. One that cannot be read is an error, not absent."""
    name = os.fspath(path)
    if "://" in name:
        return store_of(name).read_all(name)
    try:
        return _read_whole(name)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError:
        return read_all(name)  # tries again, or says why it cannot


def local_copy(path: str | os.PathLike[str]) -> Path | None:
    """The path of a file on this machine with the content at `path`; None if there is none. An object is downloaded
    once per machine; a local file is its own copy."""
    name = os.fspath(path)
    if "://" in name:
        return copy_of(name)
    return Path(name) if os.path.isfile(name) else None


def size_bytes(path: str | os.PathLike[str]) -> int:
    """The size of the content at `path`; of an object that was read before, its size at that time."""
    name = os.fspath(path)
    return store_of(name).size_bytes(name) if "://" in name else _attempt(name, os.stat).st_size


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file, or an object, at `path`."""
    name = os.fspath(path)
    return store_of(name).find(name) is not None if "://" in name else os.path.isfile(name)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder at `path`, or objects below it."""
    name = os.fspath(path)
    return store_of(name).is_folder(name) if "://" in name else os.path.isdir(name)


def walk(folder: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk`, but a folder that cannot be listed is an error.

    Raises:
        DatasetError: naming the folder.
    """
    return os.walk(os.fspath(folder), onerror=_raise_listing)


def _raise_listing(error: OSError) -> None:
    raise DatasetError(f"{error.filename}: cannot be listed: {error.strerror}") from error


def list_objects(folder: str | os.PathLike[str]) -> dict[str, Version]:
    """The versions of all objects below `folder`, a URL, by their paths relative to it, sorted."""
    return store_of(os.fspath(folder)).list(os.fspath(folder))


def list_sizes(folder: str | os.PathLike[str]) -> dict[str, int]:
    """The sizes of all objects below `folder`, a URL, by their paths relative to it, sorted."""
    return {name: found.num_bytes for name, found in list_objects(folder).items()}


def prefetch(ranges: Sequence[tuple[str | os.PathLike[str], int, int]]) -> None:
    """Fetch ranges (location, offset, number of bytes) in the background, as they will be read soon, in about this
    order. A `read` within one of them waits for it and takes its bytes, which are then freed. Ranges that are never
    read cost requests; a failed fetch is no error; for local files nothing is done.
    """
    for ahead, wanted in _by_prefetching(ranges).items():
        ahead.prefetch(wanted)


def release(ranges: Sequence[tuple[str | os.PathLike[str], int, int]]) -> None:
    """Free ranges that were announced by `prefetch`, or do not fetch them: they will not be read."""
    for ahead, unwanted in _by_prefetching(ranges).items():
        ahead.release(unwanted)


def by_request(ranges: Sequence[tuple[str | os.PathLike[str], int, int]]) -> list[list[ObjectRange]]:
    """The `ranges` that `prefetch` would fetch, grouped by request if announced together, in order of first use."""
    wanted = _by_prefetching([one for one in ranges if one[2]])
    return [request for ahead, some in wanted.items() for request in ahead.by_request(some)]


def _by_prefetching(
    ranges: Sequence[tuple[str | os.PathLike[str], int, int]],
) -> dict[Prefetching, list[ObjectRange]]:
    """The ranges that can be fetched before they are read, by what does so."""
    found: dict[Prefetching, list[ObjectRange]] = {}
    for path, start, num_bytes in ranges:
        name = os.fspath(path)
        if "://" in name and (ahead := store_of(name).ahead) is not None:
            found.setdefault(ahead, []).append((name, start, num_bytes))
    return found


def close_file(path: str | os.PathLike[str]) -> None:
    """Close the file at `path`, so that the next read opens what is there then."""
    _files.drop(os.fspath(path))


def close_files() -> None:
    """Close the files that are kept open for the next read."""
    _files.clear()


def _version_of(status: os.stat_result) -> Version:
    return Version(status.st_size, status.st_mtime_ns)


def _opened_anew(path: str) -> _OpenFile:
    file = _OpenFile(path)
    _files.put(path, file)
    return file


def _read_range(path: str, start: int, num_bytes: int) -> tuple[_OpenFile, bytes]:
    """(the file, as much of the range as exists): a system call reads less than 2 GiB, and may read less than asked
    for."""
    file = _files.get(path) or _opened_anew(path)
    pieces, have = [], 0
    while have < num_bytes and (piece := os.pread(file.fd, num_bytes - have, start + have)):
        pieces.append(piece)
        have += len(piece)
    return file, b"".join(pieces)


def _read_whole(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _attempt(path: str, action: Callable[..., T], *arguments: int) -> T:
    """The result of `action` for a path, retried while it fails for a transient reason."""
    waits = iter(RETRY_WAITS_S)
    while True:
        try:
            return action(path, *arguments)
        except OSError as error:
            if error.errno in _TOO_MANY_OPEN:
                _files.clear()
            else:
                _files.drop(path)
            wait_s = next(waits, None) if error.errno in _TRANSIENT | _TOO_MANY_OPEN else None
            if wait_s is None:
                raise _failure(path, error) from error
            COUNTS.retries += 1
            time.sleep(wait_s)


def _failure(path: str, error: OSError) -> DatasetError:
    if isinstance(error, FileNotFoundError):
        return DatasetError(
            f"{path}: no such file. Restore it, or take it out of the data set (tars: run `bridge-data prepare` again)."
        )
    return DatasetError(f"{path}: cannot be read: {error.strerror or error}")
