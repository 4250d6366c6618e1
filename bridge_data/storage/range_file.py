"""A range of a location as a file, for code that wants one.

Enters: a function that reads bytes by offset and number; where the range is. Leaves: a read-only file, which reads what
it is asked for, when it is asked for. Guarantee: it ends where the range does.
"""

import io
from collections.abc import Callable


class RangeFile(io.RawIOBase):
    """The `num_bytes` bytes from `start` on, of what `read` reads (offset, number of bytes), as a read-only file."""

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
