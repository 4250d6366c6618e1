"""The one container of all our index files: a table, and data in checked pages, read when they are needed.

Reads the path of an index. Returns a `PagedFile`, which is pickled as its path, and the table; and ranges of the data.
A file of another kind, version or byte order, a damaged or unfinished one, is treated as absent, with a warning, as
nothing else depends on it. Raises `DamagedIndexError` for a range that is not what was written, and `DatasetError` if
the file was replaced. Nothing is mapped into memory: a file truncated or overwritten during use is an error, too.

Layout: magic (8 bytes), byte-order mark and version (u32), offset and size of the table and its CRC-32 (u64), in native
byte order; the data follow, and the table, in JSON, comes last. The header is written at the end, which makes the file
valid. The checksums of the data are in the table, or in data that the table has a checksum of.
"""

import functools
import json
import logging
import os
import struct
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol, TypeVar

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.storage import Location

Page = TypeVar("Page", covariant=True)
Function = TypeVar("Function", bound=Callable[..., Any])

HEADER_BYTES = 40
"""The data of an index file begin here."""

VERSION = 3

MAX_PAGES = 256
"""Pages that a process keeps, of all indexes together: of about 10 KB, so 3 MB; those of a join have 16 KB for each
member, so 8 MB for two. That is enough for the samples of a shuffle window. More would be a copy of the page cache in
each worker, to save 10 to 30 µs for a sample that is read singly."""

_HEADER = struct.Struct("=8sIIQQQ")
_BYTE_ORDER = 0x01020304
logger = logging.getLogger("bridge_data")


class DamagedIndexError(DatasetError):
    """A part of an index differs from what was written."""


class PagedFile:
    """An index file with a valid table: its path on this machine, and the header's data about the table. `fix` ends
    the message about a damaged range."""

    def __init__(self, path: str, magic: bytes, table_offset: int, checksum: int, fix: str) -> None:
        self.path, self.magic, self.table_offset, self.checksum = path, magic, table_offset, checksum
        self.fix = fix

    @classmethod
    def open(cls, path: Location, magic: bytes, fix: str = "") -> "tuple[PagedFile, dict[str, Any]] | None":
        """(the file at `path`, its table); None if there is none, or, with a warning, none that can be used here. One
        in an object store is copied to the disk first, once per machine."""
        copy = storage.local_copy(path)
        if copy is None:
            return None
        try:
            with open(copy, "rb") as file:
                found, order, version, offset, num_bytes, checksum = _HEADER.unpack(file.read(HEADER_BYTES))
                if found == magic and (order, version) != (_BYTE_ORDER, VERSION):
                    warn_unusable(copy, f"is of version {version}, not {VERSION}")
                    return None
                is_whole = found == magic and offset + num_bytes == os.fstat(file.fileno()).st_size
                file.seek(offset if is_whole else 0)
                content = file.read(num_bytes if is_whole else 0)
            table = json.loads(content) if is_whole and zlib.crc32(content) == checksum else None
        except (OSError, struct.error, ValueError, RecursionError):
            table = None
        if not isinstance(table, dict):
            warn_unusable(copy, "is damaged")
            return None
        return cls(str(copy), magic, offset, checksum, fix), table

    def read(self, start: int, num_bytes: int, checksum: int) -> bytes:
        """A range of the data, whose CRC-32 is `checksum`.

        Raises:
            DamagedIndexError: if the checksum differs.
            DatasetError: if the file at the path was replaced or removed.
        """
        for _ in range(2):
            try:
                data = storage.read(self.path, start, num_bytes)
            except DatasetError:
                data = b""
            if len(data) == num_bytes and zlib.crc32(data) == checksum:
                return data
            storage.close_file(self.path)  # perhaps of an earlier file at this path
        self._check_same()
        raise DamagedIndexError(
            f"{self.path}: is damaged: bytes {start} to {start + num_bytes} are not as written{self.fix}"
        )

    def _check_same(self) -> None:
        try:
            with open(self.path, "rb") as file:
                magic, _, _, offset, _, checksum = _HEADER.unpack(file.read(HEADER_BYTES))
            if (magic, offset, checksum) == (self.magic, self.table_offset, self.checksum):
                return
        except (OSError, struct.error):
            pass
        raise DatasetError(
            f"{self.path}: was replaced or removed while it was in use: the data was prepared again. Start again."
        )


def warn_unusable(path: str | os.PathLike[str], why: str) -> None:
    """Warn that the index at `path` is not used."""
    logger.warning(
        "%s: %s, and is not used; its content is found in another, slower way, if there is one. To rebuild it, "
        "run `bridge-data prepare`, with --tar-index-only for a data set; delete a copy in the cache",
        path,
        why,
    )


class PagedData(Protocol[Page]):
    """What is stored in pages."""

    def read_page(self, number: int) -> Page:
        """Page number `number`, read and checked."""


def _kept(function: Function) -> Function:
    return functools.lru_cache(maxsize=MAX_PAGES)(function)  # type: ignore[return-value]


@_kept
def kept_page(pages: PagedData[Page], number: int) -> Page:
    """Page number `number`, which the process keeps."""
    return pages.read_page(number)


def begin_index(file: BinaryIO) -> None:
    """Leave the space of the header free; nothing of the file is valid before `finish_index`."""
    file.write(bytes(HEADER_BYTES))


def finish_index(file: BinaryIO, magic: bytes, table: dict[str, Any]) -> None:
    """Write the table behind the data, and then the header."""
    offset = file.tell()
    content = json.dumps(table, ensure_ascii=False).encode()
    file.write(content)
    file.seek(0)
    file.write(_HEADER.pack(magic, _BYTE_ORDER, VERSION, offset, len(content), zlib.crc32(content)))
