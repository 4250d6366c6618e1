"""Random access to the tar in a file that gzip has compressed.

Reads a path. Returns bytes by their offset in the tar. Raises `DatasetError` if the file is damaged, or in a store.

A compressed file can only be read from its beginning, or from a point where the state of the decompressor is known:
`<shard>.gzidx`, written by `prepare`, holds such points, `SPACING_BYTES` apart. Without it each process finds them
while reading. Checksums of gzip are verified when a shard is prepared.

Source: the format of `.gzidx` is that of indexed_gzip, https://github.com/pauldmccarthy/indexed_gzip
"""

import functools
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from bridge_data import storage
from bridge_data.counts import COUNTS
from bridge_data.data.tar_files import TAR_UNIT, seek_index_path
from bridge_data.errors import DatasetError
from bridge_data.extensions import needed_package

logger = logging.getLogger("bridge_data")

SPACING_BYTES = 1 << 22
"""Approximate maximum bytes that a read decompresses and discards. A point takes 32 KiB, in `.gzidx` and in memory."""

_OPEN_BYTES, _BYTES_PER_POINT_BYTE = 1 << 16, 50
"""What a compressed tar takes that is open, and how many bytes of it, compressed, there are for one of its points: of
text, which is compressed to 40%."""


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
        size = storage.size_bytes(path)  # names the file if it is missing
        self.held_bytes = _OPEN_BYTES + size // _BYTES_PER_POINT_BYTE
        """About how much memory it takes, with all its points."""
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
                    self.held_bytes = _OPEN_BYTES + points.stat().st_size
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
            self.end = self._file.seek(0, os.SEEK_END) if self._file.pread(1, 0) else 0
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
        COUNTS.bytes_read += num_bytes
        return data

    def window(self, offset: int) -> tuple[bytes, int]:
        """The header at `offset`, and 0, where it begins in it."""
        return self.read(offset, TAR_UNIT), 0

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
    decompress = "decompress them: gunzip, then `bridge-data prepare`"
    library = needed_package("indexed_gzip", f"{path}: reading compressed shards", decompress)
    # The buffer, by default of 1 MiB, is that of `read`: `pread` does not use it.
    return library.IndexedGzipFile(path, spacing=SPACING_BYTES, buffer_size=TAR_UNIT)


@functools.lru_cache(maxsize=1024)
def _warn(folder: str) -> None:
    logger.warning(
        "%s: compressed shards without their .gzidx, each of which must be read from its beginning; "
        "run `bridge-data prepare --tar-index-only` on the data set to read them faster",
        folder,
    )
