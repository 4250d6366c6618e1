"""A range of a file as a file of its own, so that a part of a shard can be opened without being read as a whole."""

import io
from collections.abc import Callable

Read = Callable[[int, int], bytes]
"""Called with an offset and a number of bytes, returns exactly these."""


class _Range(io.RawIOBase):
    def __init__(self, read: Read, offset: int, num_bytes: int) -> None:
        self._read, self._offset, self._num_bytes = read, offset, num_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), max(0, self._num_bytes - self._position))
        if wanted:
            buffer[:wanted] = self._read(self._offset + self._position, wanted)
            self._position += wanted
        return wanted

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position


def open_range(read: Read, offset: int, num_bytes: int) -> io.BufferedReader:
    """Bytes `offset` to `offset + num_bytes` of what `read` reads, read when they are asked for."""
    return io.BufferedReader(_Range(read, offset, num_bytes), 1 << 16)
