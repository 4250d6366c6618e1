"""The files below the folder of a data set: their names, sizes and versions.

Enters: the folder. Leaves: on a disk, what a file is when it is asked for; in a store, what the objects were when the
folder was listed, which takes one request for a thousand of them.
"""

import os

from bridge_data.storage import Location, RemotePath, Version
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
