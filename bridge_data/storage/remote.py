"""Objects in stores: whole, in ranges, listed, written, and copied to this machine.

Reads a URL. Returns bytes, sizes, the path of a copy: never a part of what was asked for. Transient faults are retried
for a bounded time; ranges announced by `prefetch` are read from memory; a copy is complete, has the object's current
size and version, and is downloaded once per machine. All functions may be called from any thread. They raise
`DatasetError` if the object cannot be read, and `ConfigError` as `open_store` does.

Copies are in `$BRIDGE_DATA_CACHE`, or in `bridge_data` in the user's cache. Only the newest version of each object is
kept; a process that has opened an older one keeps it.
"""

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.stores.clients import open_store
from bridge_data.plugins.stores.object_stores import Content, Missing, ObjectInfo, RequestError, persist
from bridge_data.plugins.stores.prefetching import Prefetcher
from bridge_data.process_counts import COUNTS
from bridge_data.storage.atomic import locked
from bridge_data.storage.locations import OF_THE_MACHINE, output_on_disk

MAX_KNOWN_OBJECTS = 1 << 17

PIECE_BYTES = 16 << 20
"""Longer ranges are read in pieces, several at a time: a single request would take long and restart after a fault."""

NUM_THREADS = 4

CACHE_VARIABLE = "BRIDGE_DATA_CACHE"
_LOCK = "lock"

T = TypeVar("T")


class _Known:
    """What this process knows about objects: sizes and versions from the last answers, and prefetched ranges."""

    def __init__(self) -> None:
        self.objects: dict[str, ObjectInfo] = {}
        self.ahead = Prefetcher(_range)

    def after_fork(self) -> None:
        """In a forked child: drop prefetched ranges, as the fetching threads do not exist here."""
        self.ahead = Prefetcher(_range)


def read(url: str, start: int, num_bytes: int) -> bytes:
    """`num_bytes` bytes of the object at `url`, from byte `start`."""
    if not num_bytes:
        return b""
    began_ns = time.perf_counter_ns()
    content = _known.ahead.take(url, start, num_bytes)
    if content is None:
        in_pieces = num_bytes > PIECE_BYTES
        content = _in_pieces(url, start, num_bytes) if in_pieces else bytes(_persistently(url, start, num_bytes))
    took_ns = time.perf_counter_ns() - began_ns
    COUNTS.store_ns += took_ns
    return content


def read_all(url: str) -> bytes:
    """The object at `url`."""
    store, key = open_store(url)
    content = persist(lambda: store.read_all(key, PIECE_BYTES), url)
    return _in_pieces(url, 0, content) if isinstance(content, int) else content


def read_if_there(url: str) -> bytes | None:
    """The object at `url`; None if there is none."""
    store, key = open_store(url)
    content = persist(lambda: _unless_missing(store.read_all, key, PIECE_BYTES), url) if key else None
    return _in_pieces(url, 0, content) if isinstance(content, int) else content


def size_bytes(url: str) -> int:
    """The size of the object at `url`, as the last answer had it."""
    return last_info(url).num_bytes


def last_info(url: str) -> ObjectInfo:
    """Size and version of the object at `url`, as the last answer had them."""
    found = _known.objects.get(url)
    if found is None:
        found = info(url)
        _remember(url, found)
    return found


def info(url: str) -> ObjectInfo:
    """Size and version of the object at `url` as it is now."""
    store, key = open_store(url)
    return persist(lambda: store.info(key), url)


def find(url: str) -> ObjectInfo | None:
    """Size and version of the object at `url`; None if there is none."""
    store, key = open_store(url)
    return persist(lambda: _unless_missing(store.info, key), url) if key else None


def is_folder(url: str) -> bool:
    """Whether there are objects below `url`."""
    store, key = open_store(url)
    return bool(persist(lambda: _unless_missing(lambda folder: next(store.list(folder), None), key), url))


def list_objects(url: str) -> dict[str, ObjectInfo]:
    """Sizes and versions of all objects below `url`, by their paths relative to it, sorted."""
    store, key = open_store(url)
    return persist(lambda: dict(sorted(store.list(key))), url)


def list_sizes(url: str) -> dict[str, int]:
    """The sizes of all objects below `url`, by their paths relative to it, sorted."""
    return {name: found.num_bytes for name, found in list_objects(url).items()}


def write(url: str, content: bytes | Path) -> ObjectInfo:
    """Write the object at `url`: these bytes, or the content of a file. It appears whole or not at all; the last writer
    wins. Returns its size and version."""
    store, key = open_store(url)
    _known.objects.pop(url, None)
    version = persist(lambda: store.write(key, content), url, "written")
    if version is None:
        return info(url)
    return ObjectInfo(content.stat().st_size if isinstance(content, Path) else len(content), version)


def delete(url: str) -> None:
    """Delete the object at `url`, if there is one, and its copy."""
    store, key = open_store(url)
    _known.objects.pop(url, None)
    persist(lambda: store.delete(key), url, "deleted")
    shutil.rmtree(_copies(url), ignore_errors=True)


def prefetch(ranges: Sequence[tuple[str, int, int]]) -> None:
    """Fetch ranges (URL, offset, number of bytes) in the background, as they will be read soon, in about this order."""
    _known.ahead.prefetch(ranges)


def release(ranges: Sequence[tuple[str, int, int]]) -> None:
    """Forget ranges that were announced by `prefetch`: they will not be read."""
    _known.ahead.release(ranges)


def local_copy(url: str) -> Path | None:
    """The path of a file with the content of the object at `url`; None if there is no such object.

    Raises:
        ConfigError: if the cache cannot be written.
    """
    found = find(url)
    if found is None:
        return None
    folder = _copies(url)
    file = folder / f"{_digest(found.version)}-{found.num_bytes}-{url.rpartition('/')[2]}"
    try:
        if not _is_whole(file, found):
            folder.mkdir(parents=True, exist_ok=True)
            with locked(str(folder / _LOCK)):
                if not _is_whole(file, found):
                    _download(url, found, file)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot hold a copy of {url}: {error.strerror or error}; set {CACHE_VARIABLE} to a folder that "
            f"can be written and has {found.num_bytes / 1e6:,.0f} MB of free space"
        ) from error
    return file


def _copies(url: str) -> Path:
    """The folder of the copy of the object at `url`."""
    return cache_folder() / "copies" / _digest(url)


def cache_folder() -> Path:
    """Where copies are kept."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return output_on_disk(CACHE_VARIABLE, given, OF_THE_MACHINE)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bridge_data"


def _in_pieces(url: str, start: int, num_bytes: int) -> bytes:
    import concurrent.futures  # imported here: slow, and local data does not need it

    end = start + num_bytes
    with concurrent.futures.ThreadPoolExecutor(NUM_THREADS) as threads:
        starts = range(start, end, PIECE_BYTES)
        return b"".join(threads.map(lambda at: _persistently(url, at, min(PIECE_BYTES, end - at)), starts))


def _persistently(url: str, start: int, num_bytes: int) -> Content:
    action = functools.partial(_range, url, start, num_bytes)
    return persist(action, f"{url}: bytes {start} to {start + num_bytes}")


def _unless_missing(request: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return request(*arguments)
    except Missing:
        return None


def _range(url: str, start: int, num_bytes: int) -> Content:
    """A complete range, by one request."""
    store, key = open_store(url)
    try:
        content, found = store.read(key, start, num_bytes)
    except RequestError as fault:
        if type(fault) is RequestError and not fault.is_transient:
            # Some stores answer a range beyond the end with "bad request".
            _check_end(url, start, num_bytes, None)
        raise
    if found is not None:
        _remember(url, found)
    if len(content) != num_bytes:
        _check_end(url, start, num_bytes, found)
        raise RequestError(f"the answer had {len(content)} bytes", is_transient=True)
    return content


def _check_end(url: str, start: int, num_bytes: int, found: ObjectInfo | None) -> None:
    store, key = open_store(url)
    size = (store.info(key) if found is None else found).num_bytes
    if start + num_bytes > size:
        raise DatasetError(
            f"{url}: wanted bytes {start} to {start + num_bytes}, but the object has {size}. It is truncated, or was "
            "replaced after it was prepared: restore it, or prepare the data again and copy all of it."
        )


def _remember(url: str, found: ObjectInfo) -> None:
    if len(_known.objects) >= MAX_KNOWN_OBJECTS:
        _known.objects.clear()
    _known.objects[url] = found


def _is_whole(file: Path, found: ObjectInfo) -> bool:
    try:
        return file.stat().st_size == found.num_bytes
    except FileNotFoundError:
        return False


def _download(url: str, found: ObjectInfo, file: Path) -> None:
    """Fetch the object in pieces, several at a time, and remove its older versions."""
    import concurrent.futures  # imported here: slow, and local data does not need it
    import tempfile

    old = [path for path in file.parent.iterdir() if path.name != _LOCK]
    descriptor, partial = tempfile.mkstemp(dir=file.parent)
    try:

        def fetch(start: int) -> None:
            _write_all(descriptor, read(url, start, min(PIECE_BYTES, found.num_bytes - start)), start)

        with concurrent.futures.ThreadPoolExecutor(NUM_THREADS) as threads:
            list(threads.map(fetch, range(0, found.num_bytes, PIECE_BYTES)))
        if find(url) != found:
            raise DatasetError(f"{url}: was replaced while it was downloaded. Start again when it is complete.")
        os.fsync(descriptor)
        os.rename(partial, file)
    except BaseException:
        os.unlink(partial)
        raise
    finally:
        os.close(descriptor)
    for path in old:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _write_all(descriptor: int, data: bytes, start: int) -> None:
    """Write all of `data`: on a full disk, one system call writes a part, and only the next one fails."""
    view = memoryview(data)
    while view:
        num_bytes = os.pwrite(descriptor, view, start)
        view, start = view[num_bytes:], start + num_bytes


def _digest(text: str) -> str:
    import hashlib

    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_known = _Known()
os.register_at_fork(after_in_child=_known.after_fork)
