"""Files that appear together in the `.nv-meta` of a data set in an object store.

Enters: the folder, files that are made on a disk. Leaves: all of them in the store. A store writes an object whole or
not at all, but has no renaming, and no locks that go with their process. So a mark, `PREPARING`, is there from before
the first object is written until after the last: who finds it opens nothing. It holds a token of its writer. Guarantee:
a writer that was killed leaves the mark, and the next preparation takes it over. Of several writers at once the last to
begin goes on, and the others find its token, and fail; an object of theirs that arrives in the meantime is noticed at
the end. `.info.json`, without which there is no data set for anybody, is written last.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from bridge_data import storage
from bridge_data.errors import DatasetError, bridge_command
from bridge_data.shards.metadata import INFO_JSON, PREPARING
from bridge_data.storage import RemotePath, remote
from bridge_data.storage.atomic import writing
from bridge_data.storage.object_stores import ObjectInfo


@contextlib.contextmanager
def committing_to_store(meta: RemotePath, scratch: Path | None = None) -> Iterator[Callable[[str], Path]]:
    """Yield a function that gives the path on this machine, below `scratch`, at which to write the file of a name in
    the folder `meta`. When the block has succeeded, all of them are written to the store.

    Raises:
        DatasetError: if another process has prepared the data set meanwhile, or the store cannot be written to.
    """
    import tempfile  # imported here: slow, and a preparation on a disk does without

    where = tempfile.gettempdir() if scratch is None else scratch
    with contextlib.ExitStack() as stack:
        with writing(where):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bridge_data.", dir=where)))
        written: dict[str, Path] = {}

        def temporary(name: str) -> Path:
            return written.setdefault(name, folder / name)

        with writing(folder):
            yield temporary
        if written:
            _Commit(meta).write(written)


class _Commit:
    """One writing of files to the folder `meta`, with a token of its own."""

    def __init__(self, meta: RemotePath) -> None:
        self._meta = meta
        self._token = os.urandom(16).hex().encode()

    def write(self, files: dict[str, Path]) -> None:
        """Write the files, each to the object of its name."""
        self._mark()
        versions: dict[str, ObjectInfo] = {}
        for name in sorted(files, key=lambda name: name == INFO_JSON):
            self._check_mark()
            versions[name] = remote.write(str(self._meta / name), files[name])
        self._check_mark()
        found = remote.list_objects(str(self._meta))
        if any(found.get(name) != version for name, version in versions.items()):
            raise self._lost()
        remote.delete(str(self._meta / PREPARING))

    def _mark(self) -> None:
        remote.write(str(self._meta / PREPARING), self._token)

    def _check_mark(self) -> None:
        """See that nobody else has begun.

        Raises:
            DatasetError: if somebody has. If that one is done, it may not have seen what was written here, so the mark
            is set again: what is there may be of both.
        """
        token = storage.read_if_there(self._meta / PREPARING)
        if token == self._token:
            return
        if token is None:
            self._mark()
        raise self._lost()

    def _lost(self) -> DatasetError:
        root = self._meta.parent
        return DatasetError(
            f"{root}: another process has prepared it at the same time, so its .nv-meta may be of both: when no other "
            f"is at work, run `{bridge_command('prepare', root)}` once more"
        )
