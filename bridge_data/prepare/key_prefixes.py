"""Unique keys for shards whose samples have the same names: each shard's members go below a folder of its name.

Enters: shards. Leaves: the same shards, in which `0001.jpg` of `shards/a.tar` is `shards/a.tar/0001.jpg`. Each is
written anew beside the old one and replaces it at once; a shard whose members lie there already stays as it is.

Source: the names are those that `energon prepare --fix-duplicates` of Energon 7.4 gives.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from bridge_data.shards.metadata import META_FOLDER, PREPARING, tar_index_path
from bridge_data.shards.tar_bytes import is_gzip
from bridge_data.storage.atomic import replacing, write_file, writing

_MARK = "--fix-duplicates"
"""What the mark of an unfinished preparation says from the first shard on."""

_NAMES = ("path", "linkpath")
"""Extended headers of long names, which are made anew."""


def is_interrupted(root: Path) -> bool:
    """Whether `prefix_keys` was called, and the indexes not renewed since: perhaps only some shards are written."""
    try:
        return (root / META_FOLDER / PREPARING).read_text() == _MARK
    except OSError:
        return False


def prefix_keys(root: Path, names: Sequence[str]) -> int:
    """Put the members of each shard below a folder of its name; the number of shards that were written. If it is
    interrupted, call it again: what is done is not done again. The data set is marked as unfinished: renew its indexes.

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
            member.pax_headers = {key: text for key, text in member.pax_headers.items() if key not in _NAMES}
            target.addfile(member, content)
        shutil.copymode(path, temporary)
    tar_index_path(path).unlink(missing_ok=True)
    return True
