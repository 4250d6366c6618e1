"""Work over the shards of a data set in parallel, whose results are kept in files, so that it can be resumed.

Reads names of shards, an `Executor`, and a function that works on some shards. A task works on a few and writes one
file to a hidden folder of the data set; it appears whole or not at all. So a killed run resumes where it was, and any
process of any machine may do a share, at any time, even twice.
"""

import contextlib
import dataclasses
import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Generic, TypeVar

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.prepare.executors import Executor
from bridge_data.storage import Location, RemotePath, Version
from bridge_data.storage.atomic import writing

_RUN_SHARDS, _RUN_BYTES = 32, 16 << 20
"""Maximum shards of one task, and maximum bytes."""

Result = TypeVar("Result")


class ShardFiles:
    """The files below `root`: on a disk, as of each call; in a store, as of when it was listed, with one request per
    thousand objects."""

    def __init__(self, root: Location) -> None:
        self._root = root
        self._listed = storage.list_objects(root) if isinstance(root, RemotePath) else None

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
        return found

    def size_bytes(self, name: str) -> int | None:
        """The size of the file `name`; None if it is not there."""
        try:
            return self.version(name).num_bytes
        except OSError:
            return None


def shard_runs(files: ShardFiles, names: Sequence[str], num_workers: int) -> Iterator[list[str]]:
    """The names, small shards grouped into one task: sending a task takes as long as scanning a hundred samples."""
    longest = min(_RUN_SHARDS, 1 + len(names) // (8 * min(num_workers, len(names))))
    run: list[str] = []
    total_bytes = 0
    for name in names:
        num_bytes = files.size_bytes(name) or 0  # if it is gone, the work will report it
        if run and (len(run) == longest or total_bytes + num_bytes > _RUN_BYTES):
            yield run
            run, total_bytes = [], 0
        run.append(name)
        total_bytes += num_bytes
    if run:
        yield run


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardWork(Generic[Result]):
    """Work on shards of the data set at `root`; `what` says in messages what was done, such as `scanned shards`.

    `do` writes the results of some shards to a file, and returns the errors of those that cannot be used. `open` opens
    such a file, which is in `folder`; its name begins with `prefix`, and depends on the names of the shards.
    """

    root: Location
    folder: Location
    what: str
    do: Callable[[BinaryIO, list[str]], list[str]]
    open: Callable[[Location], Result | None]
    suffix: str
    prefix: str = ""

    def results(self, names: Sequence[str], executor: Executor) -> Iterator[tuple[Result, list[str], list[str]]]:
        """Work on the shards `names`. Yields (results, names of their shards, errors) of each task, in order.

        Raises:
            DatasetError: if a file cannot be written, or is not there afterwards.
        """
        if not names:
            return
        with writing(self.root):
            storage.make_folder(self.folder)
        runs = shard_runs(ShardFiles(self.root), names, executor.num_workers)
        with contextlib.closing(executor.map(self._do_run, runs, what=f"{self.what} of {self.root}")) as found:
            for file, run, errors in found:
                result = self.open(self.folder / file)
                if result is None:
                    raise DatasetError(
                        f"{self.folder / file}: is not there, though it was written: do all workers see {self.root} "
                        "under this path?"
                    )
                yield result, run, errors

    def _do_run(self, names: list[str]) -> tuple[str, list[str], list[str]]:
        """Work on some shards. Returns the name of the file with their results, `names`, and errors."""
        import hashlib  # imported here: slow, and not needed for an unchanged data set

        file = self.prefix + hashlib.blake2b("\0".join(names).encode(), digest_size=16).hexdigest() + self.suffix
        output = io.BytesIO()
        errors = self.do(output, names)
        with writing(self.folder):
            storage.write(self.folder / file, output.getvalue(), durable=False)
        return file, names, errors
