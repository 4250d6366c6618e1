"""The shards of a data set that is prepared, as files: what they are now, and scanning one of them.

Enters: the folder of a data set. Leaves: names, sizes and versions of files: on a disk, what a file is when it is asked
for; in a store, what the objects were when the folder was listed, which takes one request for a thousand of them. Of a
shard, what `scan_tar` finds; its `.tar.idx` is written beside it, and of a compressed one `.gzidx`.
"""

import array
import os

from bridge_data import storage
from bridge_data.shards.metadata import tar_index_path
from bridge_data.shards.shard_table import encode_offsets
from bridge_data.shards.tar_bytes import GzipTar, is_gzip, seek_index_path
from bridge_data.shards.tar_scan import ShardScan, scan_tar
from bridge_data.storage import Location, RemotePath, Version
from bridge_data.storage.atomic import replacing, writing
from bridge_data.storage.remote import list_objects


class ShardFiles:
    """The files below `root`."""

    def __init__(self, root: Location) -> None:
        self._root = root
        self._listed = list_objects(str(root)) if isinstance(root, RemotePath) else None

    def version(self, name: str) -> Version:
        """The version of the file `name`.

        Raises:
            OSError: if it is not there, or cannot be looked at.
        """
        if self._listed is None:
            status = os.stat(self._root / name)
            return Version(status.st_size, status.st_mtime_ns)
        found = self._listed.get(name)
        if found is None:
            raise FileNotFoundError(name)
        return Version(*found)

    def size_bytes(self, name: str) -> int | None:
        """The size of the file `name`; None if it is not there."""
        try:
            return self.version(name).num_bytes
        except OSError:
            return None


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
