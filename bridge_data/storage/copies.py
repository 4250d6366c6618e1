"""Copies of objects on this machine.

Reads a URL. Returns the path of a file with the content of the object, which is complete, has the object's current size
and version, and is downloaded once per machine. Raises `DatasetError` if the object cannot be read, and `ConfigError`
if the cache cannot be written.

Copies are in `$BRIDGE_DATA_CACHE`, or in `bridge_data` in the user's cache. Only the newest version of each object is
kept; a process that has opened an older one keeps it.
"""

import contextlib
import os
import shutil
from pathlib import Path

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.storage.atomic import locked
from bridge_data.storage.locations import OF_THE_MACHINE, output_on_disk
from bridge_data.storage.store import Store, Version, store_of

PIECE_BYTES = 64 << 20
"""Bytes asked for at a time."""

CACHE_VARIABLE = "BRIDGE_DATA_CACHE"
_LOCK = "lock"


def copy_of(url: str) -> Path | None:
    """The path of a file with the content of the object at `url`; None if there is no such object.

    Raises:
        ConfigError: if the cache cannot be written.
    """
    store = store_of(url)
    found = store.find(url)
    if found is None:
        return None
    folder = _copies(url)
    file = folder / f"{_digest(str(found.changed))}-{found.num_bytes}-{url.rpartition('/')[2]}"
    try:
        if not _is_whole(file, found):
            folder.mkdir(parents=True, exist_ok=True)
            with locked(str(folder / _LOCK)):
                if not _is_whole(file, found):
                    _download(store, url, found, file)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot hold a copy of {url}: {error.strerror or error}; set {CACHE_VARIABLE} to a folder that "
            f"can be written and has {found.num_bytes / 1e6:,.0f} MB of free space"
        ) from error
    return file


def delete_copy(url: str) -> None:
    """Delete the copy of the object at `url`, if there is one."""
    shutil.rmtree(_copies(url), ignore_errors=True)


def cache_folder() -> Path:
    """Where copies are kept, and what else can be made again."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return output_on_disk(CACHE_VARIABLE, given, OF_THE_MACHINE)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bridge_data"


def _copies(url: str) -> Path:
    """The folder of the copy of the object at `url`."""
    return cache_folder() / "copies" / _digest(url)


def _is_whole(file: Path, found: Version) -> bool:
    try:
        return file.stat().st_size == found.num_bytes
    except FileNotFoundError:
        return False


def _download(store: Store, url: str, found: Version, file: Path) -> None:
    """Fetch the object, and remove the copies of its older versions."""
    import tempfile  # imported here: slow, and local data does not need it

    replaced = DatasetError(f"{url}: was replaced while it was downloaded. Start again when it is complete.")
    old = [path for path in file.parent.iterdir() if path.name != _LOCK]
    descriptor, partial = tempfile.mkstemp(dir=file.parent)
    try:
        for start in range(0, found.num_bytes, PIECE_BYTES):
            wanted = min(PIECE_BYTES, found.num_bytes - start)
            data, _ = store.read(url, start, wanted)
            if len(data) != wanted:
                raise replaced
            _write_all(descriptor, data, start)
        if store.find(url) != found:
            raise replaced
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


def _write_all(descriptor: int, data: bytes, start: int) -> None:
    """Write all of `data`: on a full disk, one system call writes a part, and only the next one fails."""
    view = memoryview(data)
    while view:
        num_bytes = os.pwrite(descriptor, view, start)
        view, start = view[num_bytes:], start + num_bytes


def _digest(text: str) -> str:
    import hashlib

    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
