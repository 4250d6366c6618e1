"""Walking through one shard: which samples stand in it, and what is wrong with how they stand.

Enters: the path of a shard. Leaves: its samples, one by one, as places in the file; and faults. No content is read, and
a fault does not end the walk, but for a damaged header, beyond which nothing can be found.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.shards.metadata import is_meta_member, split_name
from bridge_data.shards.tar_bytes import FileTar, GzipTar, open_tar
from bridge_data.shards.tar_headers import walk
from bridge_data.tools.lint.faults import Fault

Report = Callable[[Fault], None]


@dataclasses.dataclass(slots=True)
class StoredSample:
    """A sample: where its first header is, and (offset, size) of its parts in the shard."""

    key: str
    offset: int
    parts: dict[str, tuple[int, int]]


class ShardWalk:
    """The samples of the shard `name` of the data set `root`; faults are given to `report` as they are met.

    `end` is where the last sample ends, once all are passed.
    """

    def __init__(self, root: Path, name: str, report: Report) -> None:
        self._dataset, self._name, self._report = str(root), name, report
        self._path = str(root / name)
        self._known: dict[str, tuple[str, ...]] = {}
        self.end = 0
        self.is_whole = False
        """Whether the end of the shard was reached."""
        self._tar: FileTar | GzipTar | None = None

    def samples(self) -> Iterator[StoredSample]:
        """The samples, in order."""
        try:
            for sample in self._grouped():
                parts = tuple(sample.parts)
                before = self._known.get(sample.key)
                if before is None:
                    self._known[sample.key] = parts
                    yield sample
                    continue
                if set(before) & set(parts):
                    self._fault("duplicate-key", "another sample of this shard has the same", sample.key)
                else:
                    cause = f"{', '.join(before)} come first, then other samples, then {', '.join(parts)}"
                    self._fault("scattered-sample", cause, sample.key)
                yield sample
        except DatasetError as error:
            self._fault("tar-damaged", str(error))
        except ConfigError as error:
            self._fault("no-decoder", str(error))

    def read(self, offset: int, num_bytes: int) -> bytes:
        """This range of the shard.

        Raises:
            DatasetError: if it cannot be read.
        """
        if isinstance(self._tar, GzipTar):
            return self._tar.read_exactly(offset, num_bytes)
        return storage.read(self._path, offset, num_bytes)

    def _grouped(self) -> Iterator[StoredSample]:
        """Members that stand together and have the same key."""
        self._tar = open_tar(self._path)
        size = self._tar.end
        sample: StoredSample | None = None
        for member in walk(self._tar, 0, size, file=self._path):
            self.end = member.next_offset
            name = split_name(member.name) if member.is_file else None
            if name is None:
                if member.is_file and not is_meta_member(member.name):
                    self._fault("nameless-member", f"{member.name!r} has no part name")
                continue
            key, part = name
            if sample is None or sample.key != key:
                if sample is not None:
                    yield sample
                sample = StoredSample(key, member.offset, {})
            if part in sample.parts:
                self._fault("duplicate-part", "the sample has it twice", key, part)
            sample.parts[part] = member.content_offset, member.num_bytes
        if sample is not None:
            yield sample
        self.is_whole = True
        if sample is None:
            self._fault("empty-shard", "it holds no samples")
        elif self.end >= size:
            self._fault("tar-unfinished", "it ends after its last sample, so it was perhaps cut off", sample.key)

    def _fault(self, code: str, cause: str, key: str = "", part: str = "") -> None:
        self._report(Fault(code, cause, self._dataset, self._name, key, part))
