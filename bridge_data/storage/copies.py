"""Copies of objects on the disk of this machine, for files that are mapped into memory.

Enters: the URL of an object. Leaves: the path of a file with its content. Guarantee: the content is that of the object
as it is now, by its size and version; it is downloaded once per machine, also if several processes ask at once; a file
is there whole or not at all.

The folder is `$BRIDGE_DATA_CACHE`, or `bridge_data` in the user's cache. Of each object only the newest version is
kept; a process that has mapped an older one keeps it.
"""

import contextlib
import os
from pathlib import Path

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.storage import remote
from bridge_data.storage.locks import locked
from bridge_data.storage.object_stores import ObjectInfo, is_remote

CACHE_VARIABLE = "BRIDGE_DATA_CACHE"


def cache_folder() -> Path:
    """Where copies are kept."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bridge_data"


def local_copy(path: str | os.PathLike[str]) -> Path | None:
    """The path of a local file with the content of the object at `path`, or `path` itself, if it is local; None if
    there is no such object or file.

    Raises:
        ConfigError: if the cache cannot be written. DatasetError: if the object cannot be read.
    """
    url = os.fspath(path)
    if not is_remote(url):
        return Path(url) if os.path.isfile(url) else None
    found = remote.find(url)
    if found is None:
        return None
    folder = cache_folder() / "copies" / _digest(url)
    file = folder / f"{_digest(found.version)}-{found.num_bytes}-{url.rpartition('/')[2]}"
    try:
        if not _is_whole(file, found):
            folder.mkdir(parents=True, exist_ok=True)
            with locked(str(folder / _LOCK)):
                if not _is_whole(file, found):
                    _download(url, found, file)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot hold a copy of {url}: {error.strerror or error}; set {CACHE_VARIABLE} to a folder that "
            f"can be written and has {found.num_bytes / 1e6:,.0f} MB of free space"
        ) from error
    return file


def _is_whole(file: Path, found: ObjectInfo) -> bool:
    try:
        return file.stat().st_size == found.num_bytes
    except FileNotFoundError:
        return False


def _download(url: str, found: ObjectInfo, file: Path) -> None:
    """Fetch the object in pieces, several at a time, and remove its older versions."""
    import concurrent.futures  # here: who has local data only does not wait for it
    import tempfile

    old = [path for path in file.parent.iterdir() if path.name != _LOCK]
    descriptor, partial = tempfile.mkstemp(dir=file.parent)
    try:

        def fetch(start: int) -> None:
            os.pwrite(descriptor, remote.read(url, start, min(remote.PIECE_BYTES, found.num_bytes - start)), start)

        with concurrent.futures.ThreadPoolExecutor(remote.NUM_THREADS) as threads:
            list(threads.map(fetch, range(0, found.num_bytes, remote.PIECE_BYTES)))
        if remote.find(url) != found:
            raise DatasetError(f"{url}: was replaced while it was downloaded. Start again when it is complete.")
        os.fsync(descriptor)
        os.rename(partial, file)
    except BaseException:
        os.unlink(partial)
        raise
    finally:
        os.close(descriptor)
    for path in old:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


_LOCK = "lock"


def _digest(text: str) -> str:
    import hashlib

    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
