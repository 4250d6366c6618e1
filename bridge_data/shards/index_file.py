"""The frame of our own index files: a header, data that is used in place, then a JSON table.

Enters: a file and the magic of its kind. Leaves: its table. Guarantee: a file of another kind, version or byte order,
or one that is damaged or unfinished, is taken for absent; one that was replaced since it was opened is an error.

Layout: magic (8 bytes), byte-order mark and version (u32), offset and size of the table and its CRC-32 (u64), in native
byte order; the data follow, and the table comes last. The header is written at the end, which makes the file valid.
"""

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.storage import Location

HEADER_BYTES = 40
"""The data begin here."""

_HEADER = struct.Struct("=8sIIQQQ")
_BYTE_ORDER = 0x01020304
_VERSION = 1


class IndexFile(NamedTuple):
    """An index file that was found valid: its path on this machine, its kind, and what its header says of the table."""

    path: Path
    magic: bytes
    table_offset: int
    checksum: int

    @classmethod
    def open(cls, path: Location, magic: bytes) -> "tuple[IndexFile, dict[str, Any]] | None":
        """(the file at `path`, its table); None if there is none that can be used here. One in an object store is
        copied to the disk first, once a machine.

        Raises:
            ConfigError, DatasetError: if it cannot be copied.
        """
        copy = storage.local_copy(path)
        if copy is None:
            return None
        try:
            with open(copy, "rb") as file:
                found, order, version, offset, num_bytes, checksum = _HEADER.unpack(file.read(HEADER_BYTES))
                if (found, order, version) != (magic, _BYTE_ORDER, _VERSION):
                    return None
                if offset + num_bytes > os.fstat(file.fileno()).st_size:
                    return None
                file.seek(offset)
                table = file.read(num_bytes)
            if zlib.crc32(table) != checksum:
                return None
            return cls(copy, magic, offset, checksum), json.loads(table)
        except (OSError, struct.error, ValueError):
            return None

    def check(self, file: BinaryIO) -> None:
        """See that `file`, which was opened at `path`, is the one that was found valid.

        Raises:
            DatasetError: if it is another one.
        """
        try:
            magic, _, _, offset, _, checksum = _HEADER.unpack(file.read(HEADER_BYTES))
        except struct.error as error:
            raise self.replaced() from error
        if (magic, offset, checksum) != (self.magic, self.table_offset, self.checksum):
            raise self.replaced()

    def replaced(self) -> DatasetError:
        """The error that says that another file is at `path` now, or none."""
        return DatasetError(
            f"{self.path}: was replaced or removed while it was in use: the data was prepared again. Start again."
        )


def begin(file: BinaryIO) -> None:
    """Leave the space of the header free; nothing of the file is valid before `finish`."""
    file.write(bytes(HEADER_BYTES))


def finish(file: BinaryIO, magic: bytes, table: dict[str, Any]) -> None:
    """Write the table behind the data, and then the header."""
    offset = file.tell()
    content = json.dumps(table, ensure_ascii=False).encode()
    file.write(content)
    file.seek(0)
    file.write(_HEADER.pack(magic, _BYTE_ORDER, _VERSION, offset, len(content), zlib.crc32(content)))
