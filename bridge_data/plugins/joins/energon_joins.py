"""Join indexes that Energon made, in the folder `<metadataset>.cache`.

Reads that folder, and the members of a join. Returns for row i the numbers of the members' samples, -1 for none, and
the rows of each shard of the first member. An index is found only by members with the preparations, exclusions and
nonmatch settings that its name encodes; one that does not fit their shards is an error. Opening it reads a few rows.

The file is `join_index_<digest>.bin`: the magic `JIDX0001`, the number of members (i64), then, for each row and member,
three i64: the number of the shard in the split part, excluded ones counted, and offset and size of the sample in it;
-1, -1, -1 for none. The rows are sorted by the shard of the first member. A join without rows is an empty file. The
name does not encode the split part: if two parts join the same data sets, Energon makes only the index of the first.

Source: Megatron-Energon 7.4.1, `energon prepare` of a metadataset.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge_data import storage
from bridge_data.data.metadata import INDEX_UUID, meta_folder, read_split
from bridge_data.data.sample_offsets import read_offsets
from bridge_data.errors import DatasetError
from bridge_data.storage import Location, RecentlyUsed

if TYPE_CHECKING:
    from bridge_data.data.shard_set import ShardSet

CACHE_SUFFIX = ".cache"
ENERGON_SUFFIX = ".bin"

_MAGIC = b"JIDX0001"
_HEADER = struct.Struct("=8sq")
_ROW_BYTES = 24
"""Of one member."""

_ROWS_AT_ONCE = 4096
"""Rows read at once when reading all."""

_MAX_OFFSET_BYTES = 64 << 20
"""What the offsets of shards that are kept may take, of all members."""

_MAX_NAMES = 120
"""Maximum names to try: Energon's digest takes excluded samples in an order that differs between processes."""

_PATTERN = f"join_index_*{ENERGON_SUFFIX}"


class EnergonRows:
    """The rows of an index. They are pickled as its path, and read by each process.

    Raises:
        DatasetError: if the file is damaged, or was made for other shards than those of `members`.
    """

    def __init__(self, path: Path, members: Sequence[ShardSet]) -> None:
        self.path, self._members = path, tuple(members)
        self._version = storage.version(path)
        num_bytes = self._version.num_bytes
        self.num_rows, rest = divmod(max(num_bytes - _HEADER.size, 0), _ROW_BYTES * len(members))
        header = _HEADER.pack(_MAGIC, len(members))
        if rest or (num_bytes and storage.read(path, 0, min(num_bytes, _HEADER.size)) != header):
            raise DatasetError(f"{path}: is damaged, or no join of {len(members)} data sets")
        self._shards = [_shards_as_listed(shards) for shards in members]
        self.counts = self._counts()

    def row(self, index: int) -> list[int]:
        """The numbers of the members' samples in row `index`, -1 for none.

        Raises:
            DatasetError: if a member has no such sample.
        """
        numbers = self._read(index, 1)
        return [
            -1 if shard < 0 else self._number(member, shard, offset)
            for member, (shard, offset, _) in enumerate(zip(numbers[0::3], numbers[1::3], numbers[2::3], strict=True))
        ]

    def lacks_some(self, member: int) -> bool:
        """Whether a row has no sample of member number `member`. Rows are read up to the first such one."""
        width = 3 * len(self._members)
        starts = range(0, self.num_rows, _ROWS_AT_ONCE)
        batches = (self._read(row, min(_ROWS_AT_ONCE, self.num_rows - row)) for row in starts)
        return any(min(numbers[3 * member :: width].tolist()) < 0 for numbers in batches)

    def _read(self, row: int, num_rows: int) -> memoryview:
        """The numbers of `num_rows` rows from `row` on."""
        row_bytes = _ROW_BYTES * len(self._members)
        data = storage.read(self._checked_path, _HEADER.size + row * row_bytes, num_rows * row_bytes)
        return memoryview(data).cast("q")

    @functools.cached_property
    def _checked_path(self) -> Path:
        """The path of the file, checked once per process: it must be the one that was opened."""
        if storage.version(self.path) != self._version:
            raise DatasetError(
                f"{self.path}: was replaced while it was in use: the join was prepared again. Start again."
            )
        return self.path

    def _first_shard(self, row: int) -> int:
        """The shard of the first member in a row."""
        return self._read(row, 1)[0]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_offsets", "_checked_path")}

    def _counts(self) -> list[int]:
        """The rows of each shard of the first member."""
        shards = self._shards[0]
        ends = [0]
        for shard in range(len(shards)):
            ends.append(bisect.bisect_right(range(self.num_rows), shard, lo=ends[-1], key=self._first_shard))
        counts = [0] * len(self._members[0].names)
        for number, (start, end) in zip(shards, itertools.pairwise(ends), strict=True):
            if number >= 0:
                counts[number] = end - start
            elif end > start:
                raise DatasetError(f"{self.path}: has samples of a shard of {self._members[0].root} that is excluded")
        most = self._members[0].counts
        if ends[-1] != self.num_rows or any(count > limit for count, limit in zip(counts, most, strict=True)):
            raise DatasetError(f"{self.path}: {self._other_shards(0)}")
        return counts

    def _number(self, member: int, shard: int, offset: int) -> int:
        """The number of the sample of a member that begins at byte `offset` of this shard of its split part."""
        shards, listed = self._members[member], self._shards[member]
        number = listed[shard] if shard < len(listed) else -1
        if number >= 0:
            offsets = self._offsets_of(member, number)
            position = bisect.bisect_left(offsets, offset, 0, len(offsets) - 1)
            found = shards.number(number, position) if offsets[position] == offset else None
            if found is not None:
                return found
        raise DatasetError(f"{self.path}: {self._other_shards(member)}")

    @functools.cached_property
    def _offsets(self) -> RecentlyUsed[tuple[int, int], Sequence[int]]:
        return RecentlyUsed(_MAX_OFFSET_BYTES)

    def _offsets_of(self, member: int, shard: int) -> Sequence[int]:
        """The offsets of the samples of a shard of a member."""
        offsets = self._offsets.get((member, shard))
        if offsets is None:
            shards = self._members[member]
            index = shards.index
            offsets = None if index is None else index.offsets_if_intact(shards.names[shard])
            if offsets is None:
                offsets = read_offsets(str(shards.path(shard)), shards.stored_counts[shard])
            self._offsets.put((member, shard), offsets, 8 * len(offsets))
        return offsets

    def _other_shards(self, member: int) -> str:
        shards = self._members[member]
        return (
            f"Energon made this index of a join for other shards than those of {shards.root} [{shards.split_part}]: "
            "for another split part (it keeps one index for all), or before the split was changed"
        )


def find_energon_rows(folder: Location, members: Sequence[tuple[ShardSet, str]]) -> EnergonRows | None:
    """The rows of the join of these data sets with these nonmatch settings, from the folder of Energon's indexes.

    Raises:
        DatasetError: if there is an index that is damaged, or does not fit the members.
    """
    if not storage.is_folder(str(folder)):
        return None
    for name in itertools.islice(_names(members), _MAX_NAMES):
        path = storage.local_copy(folder / name)
        if path is not None:
            return _checked(EnergonRows(path, [shards for shards, _ in members]), members)
    return None


def has_energon_index(folder: Location) -> bool:
    """Whether Energon made an index of any join in the folder."""
    return isinstance(folder, Path) and any(folder.glob(_PATTERN))


def _checked(rows: EnergonRows, members: Sequence[tuple[ShardSet, str]]) -> EnergonRows:
    """Check that all samples of the first member are there, unless a member may leave samples out."""
    first = members[0][0]
    if rows.counts != first.counts and all(nonmatch != "skip" for _, nonmatch in members):
        raise DatasetError(
            f"{rows.path}: has {rows.num_rows:,} of the {first.num_samples:,} samples of {first.root} "
            f"[{first.split_part}]: Energon made this index of a join for another split part (it keeps one index for "
            "all), or before the split was changed, or was interrupted"
        )
    return rows


def _names(members: Sequence[tuple[ShardSet, str]]) -> Iterator[str]:
    """The names that an index of these members may have."""
    uuids, excludes = [], []
    for shards, _ in members:
        meta = meta_folder(shards.root)
        uuid = storage.read_if_there(meta / INDEX_UUID)
        if uuid is None:
            return  # without it, Energon joins nothing
        uuids.append(uuid)
        excludes.append({name for name in read_split(meta, shards.split_config).excluded() if "/" in name})
    for orders in itertools.product(*map(itertools.permutations, excludes)):
        digest = hashlib.sha256()
        for uuid, order, (_, nonmatch) in zip(uuids, orders, members, strict=True):
            digest.update(b"\0uuid=" + uuid + b"\0excludes=")
            digest.update(b"".join(name.encode() + b"\0" for name in order))
            digest.update(f"\0nonmatch={nonmatch}\0".encode())
        yield f"join_index_{digest.hexdigest()}{ENERGON_SUFFIX}"


def _shards_as_listed(shards: ShardSet) -> list[int]:
    """The number in `shards` of each shard that the split part lists; -1 for those that are excluded."""
    listed = read_split(meta_folder(shards.root), shards.split_config).shards(shards.split_part)
    numbers = {name: number for number, name in enumerate(shards.names)}
    return [numbers.get(name, -1) for name in listed]
