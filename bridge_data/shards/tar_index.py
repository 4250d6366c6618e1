"""`<shard>.tar.idx`: where the samples of a shard begin.

One u64, little-endian, for each sample, the offset of its first header, and one more for the end of the last sample:
Energon's format, byte for byte.
"""

import array
import sys

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.names import tar_index_path
from bridge_data.storage import Location, location


def encode_offsets(offsets: "array.array[int]") -> bytes:
    """The content of the file for these offsets (type code `Q`)."""
    return _little_endian(offsets).tobytes()


def read_offsets(shard: str | Location, count: int) -> "array.array[int]":
    """The `count` + 1 offsets of `shard`, which lies at this path.

    Raises:
        DatasetError: if the file is missing, or is not that of a shard of `count` samples.
    """
    path = tar_index_path(location(shard))
    data = storage.read_if_there(path)
    if data is None:
        raise DatasetError(
            f"{path}: no such file, so the samples of the shard cannot be found; "
            "run `bridge-data prepare --tar-index-only` on the data set"
        )
    offsets = array.array("Q")
    if len(data) != 8 * (count + 1):
        raise DatasetError(
            f"{path}: has {len(data)} bytes, but {count} samples, as .nv-meta says, take {8 * (count + 1)}. Shard and "
            "metadata are not of one preparation: run `bridge-data prepare` again."
        )
    offsets.frombytes(data)
    return _little_endian(offsets)


def _little_endian(offsets: "array.array[int]") -> "array.array[int]":
    if sys.byteorder == "big":
        offsets = offsets[:]
        offsets.byteswap()
    return offsets
