"""Writing small files and objects: whole or not at all, at a path or a URL alike."""

import shutil
from pathlib import Path

from bridge_data.storage import remote
from bridge_data.storage.atomic import write_file
from bridge_data.storage.reading import Location


def write(path: Location, data: bytes, *, durable: bool = True) -> None:
    """Write `data` to `path`; see `write_file`. An object is durable when the store has it."""
    if isinstance(path, Path):
        write_file(path, data, durable=durable)
    else:
        remote.write(str(path), data)


def make_folder(path: Location) -> None:
    """Make the folder `path`, unless it is there. In a store there is nothing to make."""
    if isinstance(path, Path):
        path.mkdir(exist_ok=True)


def delete_below(folder: Location) -> None:
    """Delete `folder` and all that is in it, if it is there."""
    if isinstance(folder, Path):
        if folder.exists():
            shutil.rmtree(folder)
        return
    for name in remote.list_objects(str(folder)):
        remote.delete(f"{folder}/{name}")
