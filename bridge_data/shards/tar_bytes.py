"""Random access to the bytes of a tar, in memory or on disk, for walking its headers."""

from bridge_data import storage
from bridge_data.shards.gzip_tar import GzipTar, is_gzip
from bridge_data.shards.tar_headers import BLOCK

SMALL_STEP_BYTES = 1 << 16
"""Headers at most this far apart are read together with what lies between them."""

_HEADERS_BYTES = 2048


class MemoryTar:
    """Bytes in memory that begin at `offset` of a tar."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._data, self._offset = data, offset

    def read(self, offset: int, num_bytes: int) -> bytes:
        """The bytes of this range, fewer at the end."""
        start = offset - self._offset
        return self._data[start : start + num_bytes]

    def window(self, offset: int) -> tuple[bytes, int]:
        """All bytes, and where in them `offset` is."""
        return self._data, offset - self._offset


def open_tar(path: str) -> "FileTar | GzipTar":
    """The tar on disk, or in the compressed file, at `path`; its `end` is where to stop walking.

    Raises:
        DatasetError: if it is missing or unreadable.
    """
    return GzipTar(path) if is_gzip(path) else FileTar(path, storage.size_bytes(path))


class FileTar:
    """A tar on disk of `num_bytes` bytes. Headers come from a window that is small where members are large, so that
    contents are passed over, and large where they are small, so that many headers come with one read."""

    def __init__(self, path: str, num_bytes: int) -> None:
        self._path, self.end = path, num_bytes
        self._window, self._base = b"", 0

    def read(self, offset: int, num_bytes: int) -> bytes:
        """The bytes of this range, fewer at the end."""
        start = self._reach(offset, num_bytes)
        return self._window[start : start + num_bytes]

    def window(self, offset: int) -> tuple[bytes, int]:
        """The window with the header at `offset`, and where in it that begins."""
        start = self._reach(offset, BLOCK)
        return self._window, start

    def _reach(self, offset: int, num_bytes: int) -> int:
        """Where in the window these bytes begin, which it has, as far as there are any."""
        start = offset - self._base
        if start < 0 or start + num_bytes > len(self._window):
            near = 0 <= start <= len(self._window) + SMALL_STEP_BYTES
            wanted = max(num_bytes, SMALL_STEP_BYTES if near else _HEADERS_BYTES)
            available = max(0, self.end - offset)
            self._window = storage.read(self._path, offset, min(wanted, available))
            self._base, start = offset, 0
        return start
