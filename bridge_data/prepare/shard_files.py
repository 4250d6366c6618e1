"""The shards of a data set that is prepared, as files: what they are now, scanning one, and unique keys for their
samples.

Enters: the folder of a data set. Leaves: names, sizes and versions of files: on a disk, as of the call; in a store, as
of when the folder was listed, with one request per thousand objects. For a scanned shard, what `scan_tar` finds; its
`.tar.idx` is written next to it, and for a compressed one `.gzidx`.

For samples that have the same names in several shards, `prefix_keys` puts the members of each below a folder of its
name: `0001.jpg` of `shards/a.tar` becomes `shards/a.tar/0001.jpg`. Each shard is rewritten next to the old one and
replaces it at once; a shard whose members already have the prefix stays unchanged. Source: the names are those of
`energon prepare --fix-duplicates` of Energon 7.4.
"""

import array
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from bridge_data import storage
from bridge_data.shards.metadata import META_FOLDER, PREPARING, tar_index_path
from bridge_data.shards.shard_table import encode_offsets
from bridge_data.shards.tar_files import GzipTar, is_gzip, seek_index_path
from bridge_data.shards.tar_scan import ShardScan, scan_tar
from bridge_data.storage import Location, RemotePath, Version
from bridge_data.storage.atomic import replacing, write_file, writing
from bridge_data.storage.remote import list_objects


class ShardFiles:
    """The files below `root`."""

    def __init__(self, root: Location) -> None:
        self._root = root
        self._listed = list_objects(str(root)) if isinstance(root, RemotePath) else None

    def version(self, name: str) -> Version:
        """The version of the file `name`.

        Raises:
            OSError: if it does not exist, or cannot be accessed.
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
    """Scan shard `name` of the data set at `root`, and write its `.tar.idx`; with `digest`, also read every part.

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
    """Write the `.tar.idx` of `shard`, unless it is up to date. If a crash of the machine truncates it, its size shows
    it."""
    path, data = tar_index_path(shard), encode_offsets(offsets)
    if storage.read_if_there(path) != data:  # replacing a file can take a thousand times as long as reading it
        storage.write(path, data, durable=False)


def has_seek_index(shard: Location) -> bool:
    """Whether `shard` is not compressed, or has the points from which it can be decompressed."""
    return not is_gzip(str(shard)) or seek_index_path(str(shard)).is_file()


_MARK = "--fix-duplicates"
"""Content of the mark of an unfinished preparation from the first shard on."""

_LONG_NAMES = ("path", "linkpath")
"""Extended headers of long names, which are recreated."""


def is_interrupted(root: Path) -> bool:
    """Whether `prefix_keys` was called and the indexes not renewed since: perhaps only some shards are rewritten."""
    try:
        return (root / META_FOLDER / PREPARING).read_text() == _MARK
    except OSError:
        return False


def prefix_keys(root: Path, names: Sequence[str]) -> int:
    """Put the members of each shard below a folder of its name; return the number of rewritten shards. If it is
    interrupted, call it again: finished shards are skipped. The data set is marked as unfinished: renew its indexes.

    Raises:
        DatasetError: if a shard cannot be written.
    """
    meta = root / META_FOLDER
    with writing(root):
        meta.mkdir(exist_ok=True)
        write_file(meta / PREPARING, _MARK)
        return sum(_prefix(root / name, f"{name}/") for name in names)


def _prefix(path: Path, folder: str) -> bool:
    import tarfile  # here: few data sets need it

    with tarfile.open(path) as source:
        if all(member.name.startswith(folder) for member in source):
            return False
    with (
        replacing(path) as temporary,
        tarfile.open(path) as source,
        tarfile.open(temporary, "w:gz" if is_gzip(path) else "w") as target,
    ):
        for member in source:
            content = source.extractfile(member) if member.isfile() else None
            if not member.name.startswith(folder):
                member.name = folder + member.name
            if member.islnk() and not member.linkname.startswith(folder):
                member.linkname = folder + member.linkname
            member.pax_headers = {key: text for key, text in member.pax_headers.items() if key not in _LONG_NAMES}
            target.addfile(member, content)
        shutil.copymode(path, temporary)
    tar_index_path(path).unlink(missing_ok=True)
    return True
