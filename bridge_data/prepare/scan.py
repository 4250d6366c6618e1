"""Scanning a shard of a data set that is prepared: its headers are read, and its `.tar.idx` is written.

Enters: a shard. Leaves: what `scan_tar` finds, with `.tar.idx` beside the shard, and of a compressed one `.gzidx`.
"""

import array

from bridge_data import storage
from bridge_data.shards.metadata import tar_index_path
from bridge_data.shards.shard_table import encode_offsets
from bridge_data.shards.tar_bytes import GzipTar, is_gzip, seek_index_path
from bridge_data.shards.tar_scan import ShardScan, scan_tar
from bridge_data.storage import Location
from bridge_data.storage.atomic import replacing, writing


def scan_shard(root: Location, name: str, *, digest: bool = False) -> ShardScan:
    """Scan shard `name` of the data set at `root`, and write its `.tar.idx`; with `digest`, read every part, too.

    Raises:
        DatasetError: if it cannot be read, is damaged, or its members do not make samples.
    """
    scan = scan_tar(root, name, digest=digest)
    path = root / name
    with writing(path.parent):
        write_tar_index(path, scan.offsets)
        if isinstance(scan.tar, GzipTar):
            with replacing(seek_index_path(str(path)), durable=False) as temporary:
                scan.tar.export_index(temporary)
    return scan


def write_tar_index(shard: Location, offsets: "array.array[int]") -> None:
    """Write the `.tar.idx` of `shard`, unless it is up to date; if a crash of the machine truncates it, its size shows
    that."""
    path, data = tar_index_path(shard), encode_offsets(offsets)
    if storage.read_if_there(path) != data:  # to replace a file can take a thousand times as long as to read it
        storage.write(path, data, durable=False)


def has_seek_index(shard: Location) -> bool:
    """Whether `shard` is not compressed, or has the points from which it can be decompressed."""
    return not is_gzip(str(shard)) or seek_index_path(str(shard)).is_file()
