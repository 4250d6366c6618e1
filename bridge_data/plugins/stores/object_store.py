"""The stores of `s3://`, `gs://`, `az://`, `msc://` and `hf://`.

Reads a URL. Returns what a `Store` returns: bytes, sizes, versions, listings, never a part of what was asked for.
Transient faults are retried for a bounded time; ranges announced by `prefetch` are read from memory. Raises
`DatasetError` if the object cannot be read, and `ConfigError` as `open_bucket` does.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from bridge_data.plugins.stores.clients import has_clients, open_bucket
from bridge_data.plugins.stores.hf_bucket import READ_ONLY, HfBucket
from bridge_data.plugins.stores.prefetching import Prefetcher
from bridge_data.plugins.stores.store_requests import Content, Missing, RequestError, persist, split_url
from bridge_data.storage.store import Store, Version

MAX_KNOWN_OBJECTS = 1 << 17

PIECE_BYTES = 16 << 20
"""Longer ranges are read in pieces, several at a time: a single request would take long and restart after a fault."""

NUM_THREADS = 4

T = TypeVar("T")


class _Known:
    """What this process knows about objects: versions from the last answers, and prefetched ranges."""

    def __init__(self) -> None:
        self.versions: dict[str, Version] = {}
        self.ahead = Prefetcher(_range)

    def after_fork(self) -> None:
        """In a forked child: drop prefetched ranges, as the fetching threads do not exist here."""
        self.ahead = Prefetcher(_range)


class ObjectStore(Store):
    """The objects of all buckets of one scheme. What is known of them, and the memory of prefetched ranges, are those
    of the process, whatever the scheme."""

    def split(self, url: str) -> tuple[str, str]:
        return split_url(url)

    def read(self, url: str, start: int, num_bytes: int) -> tuple[bytes, Version]:
        content = _known.ahead.take(url, start, num_bytes) if num_bytes else b""
        if content is None:
            in_pieces = num_bytes > PIECE_BYTES
            content = _in_pieces(url, start, num_bytes) if in_pieces else bytes(_persistently(url, start, num_bytes))
        return content, _last_version(url)

    def read_all(self, url: str) -> bytes | None:
        bucket, key = open_bucket(url)
        content = persist(lambda: _unless_missing(bucket.read_all, key, PIECE_BYTES), url) if key else None
        return _in_pieces(url, 0, content) if isinstance(content, int) else content

    def size_bytes(self, url: str) -> int:
        return _last_version(url).num_bytes

    def find(self, url: str) -> Version | None:
        bucket, key = open_bucket(url)
        return persist(lambda: _unless_missing(bucket.info, key), url) if key else None

    def is_folder(self, url: str) -> bool:
        bucket, key = open_bucket(url)
        return bool(persist(lambda: _unless_missing(lambda folder: next(bucket.list(folder), None), key), url))

    def list(self, url: str) -> dict[str, Version]:
        bucket, key = open_bucket(url)
        return persist(lambda: dict(sorted(bucket.list(key))), url)

    def write(self, url: str, content: bytes | Path) -> Version:
        bucket, key = open_bucket(url)
        _known.versions.pop(url, None)
        version = persist(lambda: bucket.write(key, content), url, "written")
        if version is None:
            return _version(url)
        return Version(content.stat().st_size if isinstance(content, Path) else len(content), version)

    def delete(self, url: str) -> None:
        bucket, key = open_bucket(url)
        _known.versions.pop(url, None)
        persist(lambda: bucket.delete(key), url, "deleted")

    def may_fork(self) -> bool:
        return not has_clients()

    @property
    def ahead(self) -> Prefetcher:
        return _known.ahead


class HubStore(ObjectStore):
    """The data sets of the Hugging Face hub."""

    read_only: ClassVar[str] = READ_ONLY

    def pinned(self, url: str) -> str:
        """`url` with the commit of its revision, which no other process can read differently.

        Raises:
            ConfigError: as `open_bucket` does.
            DatasetError: if the hub does not tell the commit.
        """
        bucket, key = open_bucket(url)
        assert isinstance(bucket, HfBucket)
        return "/".join(filter(None, (persist(bucket.pinned, url), key)))


def _last_version(url: str) -> Version:
    """The version of the object at `url`, as the last answer had it."""
    found = _known.versions.get(url)
    if found is None:
        found = _version(url)
        _remember(url, found)
    return found


def _version(url: str) -> Version:
    bucket, key = open_bucket(url)
    return persist(lambda: bucket.info(key), url)


def _in_pieces(url: str, start: int, num_bytes: int) -> bytes:
    import concurrent.futures  # imported here: slow, and short reads do not need it

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
    """A range, by one request; it is shorter only if the object ends before."""
    bucket, key = open_bucket(url)
    content: Content = b""
    found = None
    try:
        content, found = bucket.read(key, start, num_bytes)
    except RequestError as fault:
        # Some stores answer a range beyond the end with "bad request".
        if fault.is_transient or type(fault) is not RequestError or _ends_after(url, start + num_bytes):
            raise
    if found is not None:
        _remember(url, found)
    if len(content) != num_bytes and _ends_after(url, start + num_bytes):
        raise RequestError(f"the answer had {len(content)} bytes", is_transient=True)
    return content


def _ends_after(url: str, end: int) -> bool:
    """Whether the object at `url` has at least `end` bytes now."""
    bucket, key = open_bucket(url)
    found = bucket.info(key)
    _remember(url, found)
    return found.num_bytes >= end


def _remember(url: str, found: Version) -> None:
    if len(_known.versions) >= MAX_KNOWN_OBJECTS:
        _known.versions.clear()
    _known.versions[url] = found


_known = _Known()
os.register_at_fork(after_in_child=_known.after_fork)
