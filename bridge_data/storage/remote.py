"""Objects in stores: whole, in ranges, and listed.

Enters: a URL. Leaves: bytes and sizes. Guarantees: never half a read; transient faults are retried for a bounded
time; what was announced by `prefetch` is read from memory. All functions may be called from any thread.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bridge_data.errors import DatasetError
from bridge_data.storage.clients import open_store
from bridge_data.storage.object_stores import Content, Missing, ObjectInfo, RequestError, persist
from bridge_data.storage.prefetching import Prefetcher

MAX_KNOWN_SIZES = 1 << 17

PIECE_BYTES = 16 << 20
"""Longer ranges are read in pieces, several at a time: one request would take long, and start again after a fault."""

NUM_THREADS = 4

T = TypeVar("T")


class _Known:
    """What this process knows of objects: sizes from earlier answers, and ranges fetched ahead."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.ahead = Prefetcher(_range)

    def after_fork(self) -> None:
        """In a forked child: drop what was fetched, as the fetching threads are not here."""
        self.ahead = Prefetcher(_range)


def read(url: str, start: int, num_bytes: int) -> bytes:
    """`num_bytes` bytes of the object at `url`, from byte `start`.

    Raises:
        DatasetError: if there is no such object, it ends earlier, or it cannot be read. ConfigError: see
        `open_store`.
    """
    if not num_bytes:
        return b""
    ahead = _known.ahead.take(url, start, num_bytes)
    if ahead is not None:
        return ahead
    if num_bytes > PIECE_BYTES:
        return _in_pieces(url, start, num_bytes)
    return bytes(_persistently(url, start, num_bytes))


def read_all(url: str) -> bytes:
    """The object at `url`.

    Raises:
        DatasetError: if there is none, or it cannot be read. ConfigError: see `open_store`.
    """
    store, key = open_store(url)
    content = persist(lambda: store.read_all(key, PIECE_BYTES), url)
    return _in_pieces(url, 0, content) if isinstance(content, int) else content


def read_if_there(url: str) -> bytes | None:
    """The object at `url`; None if there is none.

    Raises:
        DatasetError: if it cannot be read. ConfigError: see `open_store`.
    """
    store, key = open_store(url)
    content = persist(lambda: _unless_missing(store.read_all, key, PIECE_BYTES), url) if key else None
    return _in_pieces(url, 0, content) if isinstance(content, int) else content


def size_bytes(url: str) -> int:
    """The size of the object at `url`, as the last answer had it.

    Raises:
        DatasetError: if there is none, or it cannot be found out. ConfigError: see `open_store`.
    """
    num_bytes = _known.sizes.get(url)
    if num_bytes is None:
        num_bytes = info(url).num_bytes
        _remember(url, num_bytes)
    return num_bytes


def info(url: str) -> ObjectInfo:
    """Size and version of the object at `url` as it is now.

    Raises:
        DatasetError: if there is none, or it cannot be found out. ConfigError: see `open_store`.
    """
    store, key = open_store(url)
    return persist(lambda: store.info(key), url)


def find(url: str) -> ObjectInfo | None:
    """Size and version of the object at `url`; None if there is none.

    Raises:
        DatasetError: if it cannot be found out. ConfigError: see `open_store`.
    """
    store, key = open_store(url)
    return persist(lambda: _unless_missing(store.info, key), url) if key else None


def is_folder(url: str) -> bool:
    """Whether there are objects below `url`.

    Raises:
        DatasetError: if it cannot be found out. ConfigError: see `open_store`.
    """
    store, key = open_store(url)
    return bool(persist(lambda: _unless_missing(lambda folder: next(store.list(folder), None), key), url))


def list_sizes(url: str) -> dict[str, int]:
    """The sizes of all objects below `url`, by their paths relative to it, sorted.

    Raises:
        DatasetError: if they cannot be listed. ConfigError: see `open_store`.
    """
    store, key = open_store(url)
    return persist(lambda: dict(sorted(store.list(key))), url)


def prefetch(ranges: Sequence[tuple[str, int, int]]) -> None:
    """Fetch ranges (URL, offset, number of bytes) in the background, as they will be read soon, in about this order."""
    _known.ahead.prefetch(ranges)


def _in_pieces(url: str, start: int, num_bytes: int) -> bytes:
    import concurrent.futures  # here: who has local data only does not wait for it

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
    """A range, whole, by one request."""
    store, key = open_store(url)
    try:
        content, size = store.read(key, start, num_bytes)
    except RequestError as fault:
        if (
            type(fault) is RequestError and not fault.is_transient
        ):  # some stores call a range beyond the end a bad request
            _check_end(url, start, num_bytes, None)
        raise
    if size is not None:
        _remember(url, size)
    if len(content) != num_bytes:
        _check_end(url, start, num_bytes, size)
        raise RequestError(f"the answer had {len(content)} bytes", is_transient=True)
    return content


def _check_end(url: str, start: int, num_bytes: int, size: int | None) -> None:
    store, key = open_store(url)
    size = store.info(key).num_bytes if size is None else size
    if start + num_bytes > size:
        raise DatasetError(
            f"{url}: wanted bytes {start} to {start + num_bytes}, but the object has {size}. It is truncated, or was "
            "replaced after it was prepared: restore it, or prepare the data again and copy all of it."
        )


def _remember(url: str, num_bytes: int) -> None:
    if len(_known.sizes) >= MAX_KNOWN_SIZES:
        _known.sizes.clear()
    _known.sizes[url] = num_bytes


_known = _Known()
os.register_at_fork(after_in_child=_known.after_fork)
