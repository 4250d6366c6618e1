"""The keys of the members of a join, read piece by piece.

Enters: the records of a member. Leaves: ranges of its samples, and the keys of a range. Guarantee: of tars only an
index is read, of tables only the column of keys, and memory is bounded by the range.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Protocol

from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.shards import Records, ShardSet, Subset
from bridge_data.shards.key_index import KeyIndex
from bridge_data.shards.segment import DamagedIndexError
from bridge_data.shards.table_columns import KEY, pyarrow_for
from bridge_data.shards.table_records import TableRecords
from bridge_data.storage import on_disk


class MemberKeys(Protocol):
    """The keys of the samples of a member."""

    @property
    def records(self) -> Records:
        """The member."""

    @property
    def way_out(self) -> str:
        """How its keys become unique, for messages."""

    def pieces(self, num_samples: int) -> Iterator[range]:
        """All samples, in order, in at least one range; each of up to `num_samples`, or of a single shard of tar."""

    def of(self, samples: range) -> Iterable[str]:
        """The keys of the samples of a piece.

        Raises:
            DatasetError: if they cannot be read.
        """

    def key(self, index: int) -> str:
        """The key of sample `index` and where it is, for messages."""


def keys_of(records: Records) -> MemberKeys:
    """The keys of a member.

    Raises:
        ConfigError: if a column of keys has neither texts nor whole numbers. DatasetError: if tars have no index of
            their keys.
    """
    if isinstance(records, ShardSet):
        return ShardKeys.open(records)
    return RowKeys.open(records) if isinstance(records, TableRecords) else LineKeys(records)


@dataclasses.dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of the samples of `records`, without excluded ones: from our index, or from Energon's `index`, in which
    the shards have these `numbers`. No shard is read."""

    records: ShardSet
    index: KeyIndex | None
    numbers: tuple[int, ...]

    @classmethod
    def open(cls, shards: ShardSet) -> ShardKeys:
        """The keys of `shards`."""
        if shards.index is not None:
            return cls(shards, None, ())
        index = KeyIndex.find(on_disk(shards.root))  # in a store, keys are looked up by our index only
        if index is None:
            raise DatasetError(
                f"{shards.root}: has no index of its keys; run "
                f"`{bridge_command('prepare', shards.root, '--tar-index-only')}`"
            )
        numbers = {name: number for number, name in enumerate(index.shard_names)}
        return cls(shards, index, tuple(numbers[name] for name in shards.names))

    @property
    def way_out(self) -> str:
        command = bridge_command("prepare", self.records.root, "--force-overwrite", "--fix-duplicates")
        return f"Write the shards again with other keys: `{command}` puts the shard's name in front of each."

    def pieces(self, num_samples: int) -> Iterator[range]:
        first = end = 0
        for count in self.records.counts:
            if end > first and end + count - first > num_samples:
                yield range(first, end)
                first = end
            end += count
        yield range(first, end)

    def of(self, samples: range) -> Iterator[str]:
        starts = self.records.starts
        shards = range(*(bisect.bisect_left(starts, at, hi=len(starts) - 1) for at in (samples.start, samples.stop)))
        return (key for shard in shards for key in self.of_shard(shard))

    def of_shard(self, shard: int) -> list[str]:
        """The keys of the samples of shard number `shard`."""
        shards = self.records
        if self.index is not None:
            keys = self.index.keys(self.numbers[shard])
        else:
            assert shards.index is not None
            name = shards.names[shard]
            try:
                keys = shards.index.segment(name).keys()
            except DamagedIndexError as error:
                raise DatasetError(
                    f"{error}. Run `bridge-data prepare {shards.root} --tar-index-only` before the metadataset."
                ) from error
        if len(keys) != shards.stored_counts[shard]:
            raise DatasetError(
                f"{shards.root}: the index knows {len(keys)} samples in {shards.names[shard]}, but the metadata "
                f"{shards.stored_counts[shard]}; run `{bridge_command('prepare', shards.root, '--tar-index-only')}`"
            )
        excluded = shards.excluded_positions.get(shard, ())
        if excluded:
            left_out = set(excluded)
            keys = [key for position, key in enumerate(keys) if position not in left_out]
        return keys

    def key(self, index: int) -> str:
        """Its key after its shard."""
        shard, _ = self.records.locate(index)
        return f"{self.records.names[shard]}/{self.of_shard(shard)[index - self.records.starts[shard]]}"


@dataclasses.dataclass(frozen=True, slots=True)
class RowKeys:
    """The keys of the rows of tables with a column of keys."""

    records: TableRecords
    way_out = f"Write the tables again with one row for each {KEY}."

    @classmethod
    def open(cls, records: TableRecords) -> RowKeys:
        """The keys of `records`."""
        for entry in records.files[:1]:  # the others have a column of the same type
            kind, types = entry.opened().schema.field(KEY).type, pyarrow_for(entry.path).types
            value = kind.value_type if types.is_dictionary(kind) else kind
            if not (types.is_string(value) or types.is_large_string(value) or types.is_integer(value)):
                raise ConfigError(
                    f"{entry.path}: its column {KEY!r} has the type {kind}; for a join, write it as texts, or as whole "
                    "numbers"
                )
        return cls(records)

    def pieces(self, num_samples: int) -> Iterator[range]:
        return _ranges(self.records.num_samples, num_samples)

    def of(self, samples: range) -> Iterator[str]:
        return (key for _, keys in self.records.keys(samples) for key in keys)

    def key(self, index: int) -> str:
        """Its file, key and row."""
        (key,) = self.of(range(index, index + 1))
        file, row = self.records.file_of(index)
        return f"{self.records.files[file].name}/{key} (row {row})"


@dataclasses.dataclass(frozen=True, slots=True)
class LineKeys:
    """The keys of the lines of a JSONL file, or of a range of one: their numbers in the file, which are unique."""

    records: Records
    way_out = ""

    def pieces(self, num_samples: int) -> Iterator[range]:
        return _ranges(self.records.num_samples, num_samples)

    def of(self, samples: range) -> Iterator[str]:
        first = self.records.start if isinstance(self.records, Subset) else 0
        return map(str, range(first + samples.start, first + samples.stop))

    def key(self, index: int) -> str:
        """Its file and number."""
        return self.records.describe(index)


def _ranges(num_samples: int, size: int) -> Iterator[range]:
    return (range(first, min(first + size, num_samples)) for first in range(0, max(num_samples, 1), size))
