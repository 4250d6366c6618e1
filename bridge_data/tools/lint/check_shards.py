"""Checking one shard: its samples, whether their members are consecutive, and whether its indexes agree.

Enters: the path of a shard. Leaves: its samples, one by one, as ranges of the file; and faults. No content is read.
Only a damaged header ends the walk, as nothing can be found after it.
"""

import array
import contextlib
import dataclasses
import functools
import itertools
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.shards.index_file import BridgeIndex, Part, Segment, is_meta_member, split_name
from bridge_data.shards.key_index import KeyIndex
from bridge_data.shards.metadata import BRIDGE_INDEX, INDEX_SQLITE, META_FOLDER, tar_index_path
from bridge_data.shards.shard_table import encode_offsets
from bridge_data.shards.tar_files import FOLDER, LINKS, FileTar, GzipTar, Member, open_tar, walk
from bridge_data.shards.tar_scan import MAX_ZERO_BYTES, has_surrogates
from bridge_data.tools.lint.faults import Fault

Report = Callable[[Fault], None]


@dataclasses.dataclass(slots=True)
class StoredSample:
    """A sample: the offset of its first header, and (offset, size) of its parts in the shard."""

    key: str
    offset: int
    parts: dict[str, tuple[int, int]]


class ShardWalk:
    """The samples of the shard `name` of the data set `root`; `report` gets faults as they are found.

    `end` is where the last sample ends, after iteration is complete.
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
        """The bytes of this range of the shard.

        Raises:
            DatasetError: if it cannot be read.
        """
        if isinstance(self._tar, GzipTar):
            return self._tar.read_exactly(offset, num_bytes)
        return storage.read(self._path, offset, num_bytes)

    def _grouped(self) -> Iterator[StoredSample]:
        """Consecutive members with the same key."""
        self._tar = open_tar(self._path)
        size = self._tar.end
        sample: StoredSample | None = None
        for member in walk(self._tar, 0, size, file=self._path):
            self.end = member.next_offset
            name = split_name(member.name)
            if name is None or not member.is_file:
                self._leave_out(member, is_part=name is not None)
                continue
            key, part = name
            if not member.name.isascii() and has_surrogates(member.name):
                self._fault("name-not-utf8", f"{member.name!r} at byte {member.offset}", key)
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
        size = self._tar.end  # of a compressed tar, known only now
        if self.end >= size:
            self._fault("tar-unfinished", f"it ends at byte {self.end}, after its last member, and was perhaps cut off")
        elif size - self.end > MAX_ZERO_BYTES and size < sys.maxsize:
            self._fault("zero-tail", f"from byte {self.end} on there are {size - self.end:,} zeros")

    def _leave_out(self, member: Member, *, is_part: bool) -> None:
        """Report a member that is not part of any sample."""
        if is_part and member.kind in LINKS:
            self._fault("linked-member", f"{member.name!r} at byte {member.offset} is a {member.kind}")
        elif is_part and member.kind != FOLDER:
            self._fault("special-member", f"{member.name!r} at byte {member.offset} is a {member.kind}")
        elif member.is_file and not is_meta_member(member.name):
            self._fault("nameless-member", f"{member.name!r} has no part name")

    def _fault(self, code: str, cause: str, key: str = "", part: str = "") -> None:
        self._report(Fault(code, cause, self._dataset, self._name, key, part))


class ShardContents:
    """The contents of a shard, collected while it is read: keys, offsets and parts of its samples, in order, and the
    CRC-32 of the contents that were read."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.offsets: array.array[int] = array.array("Q")
        self.parts: list[Part] = []
        self.digests: dict[tuple[int, str], int] = {}

    def add(self, sample: StoredSample) -> None:
        """The next sample."""
        self.keys.append(sample.key)
        self.offsets.append(sample.offset)
        self.parts += [(name, *span) for name, span in sample.parts.items()]

    def add_content(self, part: str, content: bytes) -> None:
        """The content of a part of the last sample."""
        self.digests[len(self.keys) - 1, part] = zlib.crc32(content)

    def finish(self, end: int) -> None:
        """End the last sample at this offset."""
        self.offsets.append(end)


def check_indexes(root: Path, name: str, number: int, contents: ShardContents) -> Iterator[Fault]:
    """Faults of the indexes of the shard `name`, which has this number in the metadata."""

    def outdated(file: str, cause: str) -> Fault:
        return Fault("index-outdated", f"{file} {cause}", str(root), name)

    path = tar_index_path(root / name)
    if not path.is_file():
        yield Fault("index-missing", f"there is no {path.name}", str(root), name)
    elif storage.read_all(path) != encode_offsets(contents.offsets):
        yield outdated(path.name, "has other offsets than the samples")
    index = _bridge_index(root / META_FOLDER / BRIDGE_INDEX)
    if index is not None and name in index.entries:
        try:
            segment = index.segment(name)
            differs = _compared(segment, contents)
            changed = list(_changed_contents(root, name, segment, contents)) if differs is None else []
        except DatasetError as error:
            differs, changed = f"cannot be used: {error}", []
        if differs is not None:
            yield outdated(BRIDGE_INDEX, differs)
        yield from changed
    cause = _compared_by_key(root, number, contents)
    if cause is not None:
        yield outdated(INDEX_SQLITE, cause)


def _compared(segment: Segment, contents: ShardContents) -> str | None:
    """How the samples differ from our index of the shard."""
    if segment.keys() != contents.keys:
        return "has other keys than the shard"
    if segment.offsets() != contents.offsets:
        return "has other offsets than the samples"
    if [part for _, *part in segment.rows()] != [[*part] for part in contents.parts]:
        return "has other parts than the samples, or at other offsets"
    return None


def _changed_contents(root: Path, name: str, segment: Segment, contents: ShardContents) -> Iterator[Fault]:
    if segment.has_digests:
        for (position, part), digest in contents.digests.items():
            if segment.digests(position)[part] != digest:
                yield Fault("changed-content", "it has another digest", str(root), name, contents.keys[position], part)


def _bridge_index(path: Path) -> BridgeIndex | None:
    """Our index, if there is one."""
    return _opened(path, path.stat().st_mtime_ns) if path.is_file() else None


@functools.lru_cache(maxsize=4)
def _opened(path: Path, mtime_ns: int) -> BridgeIndex | None:
    """Our index, opened once for all shards, as long as the file does not change."""
    return BridgeIndex.open(path)


def _compared_by_key(root: Path, number: int, contents: ShardContents) -> str | None:
    """How the samples differ from Energon's index of the shard."""
    index = KeyIndex.find(root)
    if index is None:
        return None
    spans = zip(contents.keys, contents.offsets, itertools.islice(contents.offsets, 1, None), strict=False)
    try:
        with contextlib.closing(index.spans(number)) as indexed:
            for row, span in itertools.zip_longest(indexed, spans):
                if row is None or span is None or row != span:
                    return f"has {row!r} where the shard has {span!r} (key, first byte, end)"
    except DatasetError as error:
        if "no such" in str(error.__cause__):  # made by an older Energon, or only for media
            return None
        return f"cannot be read: {error.__cause__}"
    return None
