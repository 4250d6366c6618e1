"""Writing `index.bridge`: the segment of each scanned shard, and the table of shards.

Reads keys, parts and offsets of the samples of a shard. Returns its segment as bytes; writes segments and their table
to a file, which is valid once it is finished. `data.index_file` reads it, and describes the layout.
"""

import array
import json
import zlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, BinaryIO

from bridge_data.data.index_file import DIRECTORY, MAGIC, PAGE, Part, Segment, directory_size
from bridge_data.data.paged_file import begin_index, finish_index

PAGE_SAMPLES = 256
"""Samples of a page, if they have few parts."""

PAGE_PARTS = 1024
"""Approximate parts of a page, if samples have many."""


def build_segment(
    keys: Sequence[str],
    offsets: Sequence[int],
    part_ends: Sequence[int],
    parts: Sequence[Part],
    digests: Sequence[int] | None = None,
) -> bytes:
    """The segment of samples `keys`; sample i takes bytes `offsets[i]` to `offsets[i + 1]`, and has the parts from
    `part_ends[i - 1]` to `part_ends[i]`; `digests` are the CRC-32 of their contents."""
    numbers: dict[str, int] = {}
    name_of_part = array.array("I", (numbers.setdefault(name, len(numbers)) for name, _, _ in parts))
    content_offsets = array.array("Q", (offset for _, offset, _ in parts))
    sizes = array.array("Q", (num_bytes for _, _, num_bytes in parts))
    sums = array.array("I", digests or ())
    page_samples = max(1, min(PAGE_SAMPLES, PAGE_PARTS * len(keys) // max(1, len(parts))))
    pages = []
    first_part = 0
    for first in range(0, len(keys), page_samples):
        last = min(len(keys), first + page_samples)
        encoded = [key.encode("utf-8", "surrogateescape") for key in keys[first:last]]
        key_ends = array.array("I", accumulate(map(len, encoded)))
        own = slice(first_part, part_ends[last - 1])
        body = b"".join(
            (
                PAGE.pack(last - first, own.stop - own.start, key_ends[-1]),
                array.array("Q", offsets[first : last + 1]).tobytes(),
                content_offsets[own].tobytes(),
                sizes[own].tobytes(),
                array.array("I", (end - first_part for end in part_ends[first:last])).tobytes(),
                key_ends.tobytes(),
                name_of_part[own].tobytes(),
                sums[own].tobytes(),
                *encoded,
            )
        )
        pages.append(body + bytes(-len(body) % 8))
        first_part = own.stop
    names = json.dumps(list(numbers)).encode()
    size = DIRECTORY.size + 12 * len(pages) + len(names)
    padding = bytes(-size % 8)
    has_digests = int(digests is not None)
    return b"".join(
        (
            DIRECTORY.pack(len(keys), page_samples, len(names), has_digests, size + len(padding)),
            array.array("Q", accumulate(map(len, pages))).tobytes(),
            array.array("I", map(zlib.crc32, pages)).tobytes(),
            names,
            padding,
            *pages,
        )
    )


class BridgeIndexWriter:
    """Writes an index of shards to an open file, segment by segment; nothing of it is valid before `finish`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rows: list[tuple[Any, ...]] = []
        self._has_digests = True
        begin_index(file)

    def add(self, name: str, num_bytes: int, mtime_ns: int, segment: bytes, head: int) -> None:
        """Append the segment of shard `name`; `head` is the CRC-32 of its first bytes, or `UNKNOWN`."""
        start, read = self._file.tell(), Segment.of(segment)
        self._file.write(segment)
        self._has_digests = self._has_digests and read.has_digests
        directory = segment[: directory_size(segment)]
        sums = zlib.crc32(directory), head, read.keys_checksum()
        self._rows.append((name, num_bytes, mtime_ns, len(read), start, len(segment), len(directory), *sums))

    def content_uuid(self) -> str:
        """A uuid of the content: the same for the same shards, regardless of how and when they were indexed."""
        import hashlib  # imported here: readers do without
        import uuid

        rows = [(name, num_bytes, *rest) for name, num_bytes, _, *rest in self._rows]
        return str(uuid.UUID(bytes=hashlib.blake2b(json.dumps(rows).encode(), digest_size=16).digest()))

    def finish(self, uuid: str, notes: dict[str, Any] | None = None) -> None:
        """Write the table, with `notes` by shard, and then the header, which makes the file valid."""
        table = {"uuid": uuid, "digests": self._has_digests, "shards": self._rows}
        finish_index(self._file, MAGIC, table if notes is None else table | {"notes": notes})
