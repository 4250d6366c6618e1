"""Random access to the bytes of a tar: in memory, on disk, or in a compressed file (`.tgz`, `.tar.gz`).

Enters: a path. Leaves: bytes of the tar, by their offset in it. A compressed file can only be read from its beginning,
or from a point where the state of the decompressor is known: `<shard>.gzidx`, written by `prepare`, holds such points,
`SPACING_BYTES` apart. Without it each process finds them while reading. Guarantee: the bytes that gzip would give, or a
`DatasetError`; checksums are verified when a shard is prepared.

Source: the format of `.gzidx` is that of indexed_gzip, https://github.com/pauldmccarthy/indexed_gzip
"""

import functools
import importlib
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.process_counts import COUNTS
from bridge_data.shards.tar_headers import BLOCK

SMALL_STEP_BYTES = 1 << 16
"""Headers at most this far apart are read together with the bytes between them."""

_HEADERS_BYTES = 2048

_STORE_STEP_BYTES, _STORE_READ_BYTES, _STORE_HEADERS_BYTES = 1 << 20, 4 << 20, 1 << 16
"""The same in a store, where a request costs as much time as a MiB or more: nearby headers are read in long runs."""

GZIP_SUFFIXES = (".tgz", ".tar.gz")

SPACING_BYTES = 1 << 22
"""Approximate maximum bytes that a read decompresses and discards. A point takes 32 KiB, in `.gzidx` and in memory."""

logger = logging.getLogger("bridge_data")


class MemoryTar:
    """Bytes in memory that begin at `offset` of a tar."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._data, self._offset = data, offset

    def read(self, offset: int, num_bytes: int) -> bytes:
        """The bytes of this range, fewer at the end."""
        start = offset - self._offset
        return self._data[start : start + num_bytes]

    def window(self, offset: int) -> tuple[bytes, int]:
        """All bytes, and the position of `offset` in them."""
        return self._data, offset - self._offset


class FileTar:
    """A tar of `num_bytes` bytes. Headers are read through a window: small if members are large, to skip contents, and
    large if they are small, so that one read has many headers. With `walks_store`, it is in a store, and many headers
    are needed."""

    def __init__(self, path: str, num_bytes: int, *, walks_store: bool = False) -> None:
        self._path, self.end = path, num_bytes
        self._window, self._base = b"", 0
        self._step_bytes, self._near_bytes, self._far_bytes = (
            (_STORE_STEP_BYTES, _STORE_READ_BYTES, _STORE_HEADERS_BYTES)
            if walks_store
            else (SMALL_STEP_BYTES, SMALL_STEP_BYTES, _HEADERS_BYTES)
        )

    def read(self, offset: int, num_bytes: int) -> bytes:
        """The bytes of this range, fewer at the end."""
        start = self._reach(offset, num_bytes)
        return self._window[start : start + num_bytes]

    def window(self, offset: int) -> tuple[bytes, int]:
        """The window with the header at `offset`, and where in it that begins."""
        start = self._reach(offset, BLOCK)
        return self._window, start

    def _reach(self, offset: int, num_bytes: int) -> int:
        """Move the window to these bytes, as far as they exist; the offset in it where they begin."""
        start = offset - self._base
        if start < 0 or start + num_bytes > len(self._window):
            near = 0 <= start <= len(self._window) + self._step_bytes
            wanted = max(num_bytes, self._near_bytes if near else self._far_bytes)
            available = max(0, self.end - offset)
            self._window = storage.read(self._path, offset, min(wanted, available))
            self._base, start = offset, 0
        return start


def open_tar(path: str) -> "FileTar | GzipTar":
    """The tar at `path`, or in the compressed file there, for walking all of it; its `end` is where to stop."""
    if is_gzip(path):
        return GzipTar(path)
    return FileTar(path, storage.size_bytes(path), walks_store=storage.is_remote(path))


def is_gzip(shard: str | Path) -> bool:
    """Whether a shard is compressed, by its name."""
    return str(shard).endswith(GZIP_SUFFIXES)


def seek_index_path(shard: str | Path) -> Path:
    """Where the points of `shard` are kept."""
    return Path(f"{shard}.gzidx")


class GzipTar:
    """The tar in the compressed file `path`, which any thread may read. `end` is its size, or an upper bound until it
    has been read."""

    def __init__(self, path: str) -> None:
        if storage.is_remote(path):
            raise DatasetError(
                f"{path}: compressed shards are read on a disk only: decompress it (gunzip), and copy the .tar instead"
            )
        self._path = path
        self._lock = threading.Lock()
        self.end = sys.maxsize
        storage.size_bytes(path)  # names the file if it is missing
        try:
            with open(path, "rb") as file:
                magic = file.read(2)
            if magic != b"\x1f\x8b":
                raise DatasetError(
                    f"{path}: is not compressed by gzip, as its name says: "
                    + ("call it .tar, if it is a tar, or write it again" if magic else "it is empty")
                )
            self._file = _opened(path)
            points = seek_index_path(path)
            if points.is_file():
                try:
                    self._file.import_index(str(points))
                    self.end = self._file.seek(0, os.SEEK_END)
                except OSError:  # of another file, or damaged
                    self._file = _opened(path)
                    self.end = sys.maxsize
        except OSError as error:
            raise self._failure(error) from error

    def index(self) -> None:
        """Read the whole file, check it, and find its points."""
        try:
            self._file = _opened(self._path)
            self._file.build_full_index()
            self.end = self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise self._failure(error) from error

    def export_index(self, path: Path) -> None:
        """Write the points to the file `path`."""
        self._file.export_index(str(path))

    def warn_if_slow(self) -> None:
        """Warn, once for each folder, that the points are missing."""
        if self.end == sys.maxsize:
            _warn(os.path.dirname(self._path))

    def read(self, offset: int, num_bytes: int) -> bytes:
        """The bytes of this range of the tar, fewer at the end."""
        try:
            with self._lock:
                data: bytes = self._file.pread(num_bytes, offset)
        except OSError as error:
            raise self._failure(error) from error
        num_bytes = len(data)
        COUNTS.num_bytes += num_bytes
        return data

    def window(self, offset: int) -> tuple[bytes, int]:
        """The header at `offset`, and 0, where it begins in it."""
        return self.read(offset, BLOCK), 0

    def read_exactly(self, offset: int, num_bytes: int) -> bytes:
        """The bytes of this range of the tar.

        Raises:
            DatasetError: if it ends before that.
        """
        data = self.read(offset, num_bytes)
        if len(data) != num_bytes:
            raise DatasetError(
                f"{self._path}: wanted bytes {offset} to {offset + num_bytes} of the tar in it, which ends before. "
                "It is truncated, or was replaced after it was prepared: restore it, or prepare the data set again."
            )
        return data

    def _failure(self, error: OSError) -> DatasetError:
        return DatasetError(
            f"{self._path}: cannot be decompressed: {error}. It is damaged, or was replaced while it was in use: "
            "restore it, or write it again."
        )


def _opened(path: str) -> Any:
    try:
        library = importlib.import_module("indexed_gzip")
    except ImportError:
        raise ConfigError(
            f'{path}: reading compressed shards needs a package: pip install "bridge-data[tgz]"; or decompress them: '
            "gunzip, then `bridge-data prepare`"
        ) from None
    return library.IndexedGzipFile(path, spacing=SPACING_BYTES)


@functools.lru_cache(maxsize=1024)
def _warn(folder: str) -> None:
    logger.warning(
        "%s: compressed shards without their .gzidx, each of which must be read from its beginning; "
        "run `bridge-data prepare --tar-index-only` on the data set to read them faster",
        folder,
    )
