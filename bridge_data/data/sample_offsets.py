"""Where samples are, in Energon's files beside the data: `<shard>.tar.idx`, and `<file>.jsonl.idx`.

Reads the bytes of such a file, or the path of a shard. Returns the offsets. Raises `DatasetError`, which names the
file, if they do not fit the shard.

The format is Energon's, byte for byte: one u64, little-endian, for each sample, the offset of its first byte (in a tar,
of its first header), and one more for the end of the last sample. It has no checksum.
"""

import array
import itertools
import operator
import sys
import zlib

from bridge_data import storage
from bridge_data.data.metadata import tar_index_path
from bridge_data.errors import DatasetError
from bridge_data.storage import Location, location


def encode_offsets(offsets: "array.array[int]") -> bytes:
    """The content of the file for these offsets (type code `Q`)."""
    return _little_endian(offsets).tobytes()


DIGESTED_BYTES = 1 << 12
"""The end of the offsets by which a rewritten file is noticed: it costs one read."""


def offsets_digest(data: bytes) -> str:
    """A digest of the end of encoded offsets."""
    return f"{zlib.crc32(data[-DIGESTED_BYTES:]):08x}"


def read_offsets(shard: str | Location, count: int) -> "array.array[int]":
    """The `count` + 1 offsets of the shard at the path `shard`.

    Raises:
        DatasetError: if the file is missing, or does not fit a shard of `count` samples.
    """
    path = tar_index_path(location(shard))
    data = storage.read_if_there(path)
    if data is None:
        raise DatasetError(
            f"{path}: no such file, so the samples of the shard cannot be found; "
            "run `bridge-data prepare --tar-index-only` on the data set"
        )
    if len(data) != 8 * (count + 1):
        raise DatasetError(
            f"{path}: has {len(data)} bytes, but {count} samples, as .nv-meta says, take {8 * (count + 1)}. Shard and "
            "metadata are not of one preparation: run `bridge-data prepare` again."
        )
    offsets = decode_offsets(data)
    if not are_ascending(offsets):
        raise DatasetError(
            f"{path}: is damaged: its offsets do not ascend. Run `bridge-data prepare --tar-index-only` on the data "
            "set."
        )
    return offsets


def are_ascending(offsets: "array.array[int]") -> bool:
    """Whether each offset is greater than the one before."""
    return all(map(operator.lt, offsets, itertools.islice(offsets, 1, None)))


def decode_offsets(data: bytes) -> "array.array[int]":
    """The offsets in the content of such a file, or in a range of it."""
    offsets = array.array("Q")
    offsets.frombytes(data)
    return _little_endian(offsets)


def _little_endian(offsets: "array.array[int]") -> "array.array[int]":
    if sys.byteorder == "big":
        offsets = offsets[:]
        offsets.byteswap()
    return offsets
