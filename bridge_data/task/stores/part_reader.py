"""Parts of a prepared data set, read by their names.

Reads names of parts as their shard has them, `0001.jpg`, or if samples of several shards have the key, `a.tar/0001.jpg`
or `a.tar:0001.jpg`. Returns the bytes that the shard holds under this name; raises an error that says whether the name
or the data is wrong. A `PartReader` may be pickled, forked and used by any thread.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from os import PathLike

from bridge_data import storage
from bridge_data.data.index_file import split_name
from bridge_data.data.key_index import KeyIndex, StoredPart
from bridge_data.data.metadata import split_shard, without_shard
from bridge_data.data.prepared import withheld_keys
from bridge_data.data.tar_files import TAR_UNIT, MemoryTar, is_gzip, read_member
from bridge_data.data.withheld import digest_of_keys
from bridge_data.errors import DatasetError, ForgottenSampleError, SampleError, bridge_command, listed

TOGETHER_BYTES = 1 << 16
"""Contents up to this size are read together with their headers; in a store, all are, to save a request."""

MAX_CHECKED = 1 << 16
"""Maximum parts remembered as checked."""

MAX_HEADER_BLOCKS = 8
"""Blocks before a content that are searched for its name."""


class PartReader:
    """Reads parts of the data set in the folder `root` by name; those of forgotten samples are not to be had, which are
    `forgotten`, (shard, key), or if that is None those on the newest list.

    Raises:
        ConfigError: if there is no prepared data set, or it has no index of its keys.
    """

    def __init__(self, root: str | PathLike[str], forgotten: Collection[tuple[str, str]] | None = None) -> None:
        self.root = storage.location(root).absolute()
        self.index = KeyIndex.open(self.root)
        self._forgotten = withheld_keys(self.root) if forgotten is None else forgotten
        self._checked: set[StoredPart] = set()
        """Parts read in ranges whose position was already checked."""

    @functools.cached_property
    def forgotten_digest(self) -> str:
        """A digest of what is forgotten; empty if nothing is."""
        return digest_of_keys(self._forgotten)

    @property
    def forgets(self) -> bool:
        """Whether any sample is forgotten."""
        return bool(self._forgotten)

    def is_forgotten(self, shard: int, key: str) -> bool:
        """Whether the sample `key` of shard number `shard` is forgotten."""
        return self.forgets and (self.index.shard_names[shard], key) in self._forgotten

    def part_names(self) -> Iterator[str]:
        """The names of all parts, in the order of the data set."""
        return (f"{key}.{part}" for shard, key, part in self.index.part_names() if not self.is_forgotten(shard, key))

    def find(self, name: str) -> StoredPart:
        """Where the part `name` is stored. A name that starts with a shard's name is also looked up without it; if
        several shards have the key, the named shard is used.

        Raises:
            SampleError: if there is no such part, or there are several.
            ForgottenSampleError: if it is forgotten.
            DatasetError: if the index cannot be read.
        """
        for shard, candidate in (("", name), split_shard(name) or ("", "")):
            split = split_name(candidate)
            parts = [] if split is None else self.index.part(*split)
            if len(parts) > 1 and shard:
                parts = [part for part in parts if self.index.shard_names[part.shard] == shard] or parts
            if len(parts) > 1:
                raise SampleError(self._choices(parts))
            if parts:
                if self.is_forgotten(parts[0].shard, parts[0].key):
                    raise ForgottenSampleError.of(f"{self.index.shard_path(parts[0].shard)}/{parts[0].name}")
                return parts[0]
        raise SampleError(self._complaint(name))

    def _choices(self, parts: Sequence[StoredPart]) -> str:
        names = [f"{self.index.shard_names[part.shard]}/{part.name}" for part in parts]
        return (
            f"{self.root}: samples of {len(parts)} shards have the key {parts[0].key!r}; say which is meant: "
            f"{listed(names)}. `bridge-data prepare --fix-duplicates` makes keys unique."
        )

    def read(self, part: StoredPart) -> bytes:
        """The content of a part.

        Raises:
            DatasetError: if it cannot be read, or is not stored where the index has it.
        """
        path = self.index.shard_path(part.shard)
        if part.num_bytes > TOGETHER_BYTES and (is_gzip(path) or not storage.is_remote(path)):
            return self.read_range(part, 0, part.num_bytes)
        if storage.is_remote(path) and part.offset + part.num_bytes > storage.size_bytes(path):
            raise self._misplaced(part)
        before = min(TAR_UNIT, part.offset)
        data = self._reading(part)(part.offset - before, before + part.num_bytes)
        self._check(part, data[:TAR_UNIT])
        return data[before:]

    def read_range(self, part: StoredPart, offset: int, num_bytes: int) -> bytes:
        """A range of the content of a part, fewer bytes at its end."""
        wanted = max(0, min(num_bytes, part.num_bytes - offset))
        if part not in self._checked:
            self._check(part, self._reading(part)(part.offset - TAR_UNIT, TAR_UNIT) if part.offset >= TAR_UNIT else b"")
            if len(self._checked) >= MAX_CHECKED:
                self._checked.clear()
            self._checked.add(part)
        return self._reading(part)(part.offset + offset, wanted) if wanted else b""

    def _complaint(self, name: str) -> str:
        split = split_name(without_shard(name) or name)
        if split is None:
            return f"{self.root}: {name!r} names no part of a sample; expected a key, a dot and a part, as in 0001.jpg."
        key, part = split
        parts = sorted({found.part for found in self.index.parts(key)}) if self.index.knows_parts else []
        if parts:
            return f"{self.root}: sample {key!r} has no part {part!r}; it has {', '.join(parts)}."
        return f"{self.root}: there is no part {name!r}: no sample has the key {key!r}. Add it, or correct the name."

    def _reading(self, part: StoredPart) -> Callable[[int, int], bytes]:
        """The function that reads the shard of `part`."""
        path = self.index.shard_path(part.shard)
        if is_gzip(path):
            return self.index.compressed(part.shard).read_exactly
        return functools.partial(storage.read, path)

    def _check(self, part: StoredPart, header: bytes) -> None:
        """Check that the member at the offset of `part`, whose last header this is, has its name and size."""
        path, wanted = self.index.shard_path(part.shard), (part.name, part.offset, part.num_bytes)
        for num_blocks in range(1, MAX_HEADER_BLOCKS + 1):
            start = part.offset - num_blocks * TAR_UNIT
            if start < 0:
                break
            if num_blocks > 1:  # it has a long name, in an extended header before
                header = self._reading(part)(start, num_blocks * TAR_UNIT)
            with contextlib.suppress(DatasetError):
                member = read_member(MemoryTar(header, start), start, file=path)
                if member is not None and (member.name, member.content_offset, member.num_bytes) == wanted:
                    return
        raise self._misplaced(part)

    def _misplaced(self, part: StoredPart) -> DatasetError:
        return DatasetError(
            f"{self.index.shard_path(part.shard)}: does not hold {part.name!r} at byte {part.offset}, where the index "
            "has it. The shard was replaced, or the index is damaged: restore it, or run "
            f"`{bridge_command('prepare', self.root, '--tar-index-only', '--rescan')}`."
        )
