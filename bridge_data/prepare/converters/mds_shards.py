"""MosaicML streaming shards as a source: a record for each sample, its columns decoded, arrays as lists.

Enters: a folder with `index.json` and the shards that it names; compressed ones are unpacked one at a time. Guarantee:
a shard that is damaged, or has another number of samples than the index says, breaks its records and no others.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.later import numpy
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.prepare.converters.source_records import (
    BrokenRecord,
    LastOpened,
    SourceRecord,
    digest_of_files,
    even_blocks,
)
from bridge_data.shards.binary_shard import INDEX, check_count
from bridge_data.shards.mds_table import MdsTable, read_index, stored_file

BLOCK_RECORDS = 32


class MdsShards:
    """The samples of MDS shards."""

    title = "MDS shards"
    has_parts = False
    definition = None
    notes = ()

    def __init__(self, folder: Path, limits: Limits = DEFAULT_LIMITS) -> None:
        self._index, self._limits = folder / INDEX, limits
        try:
            data = self._index.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self._index}: cannot be read: {error.strerror}") from None
        self._shards = read_index(data, str(self._index), limits)
        self._paths = [str(folder / shard.name) for shard in self._shards]
        self._files = [*map(stored_file, self._paths)]
        self.is_scattered = self._files == self._paths
        self._firsts = [0, *accumulate(shard.num_samples for shard in self._shards)]
        self._last: LastOpened[MdsTable] = LastOpened()

    def __len__(self) -> int:
        return self._firsts[-1]

    def blocks(self) -> Iterator[range]:
        for shard, first in zip(self._shards, self._firsts, strict=False):
            for block in even_blocks(shard.num_samples, BLOCK_RECORDS):
                yield range(first + block.start, first + block.stop)

    def read(self, numbers: Sequence[int]) -> Iterator[SourceRecord | BrokenRecord]:
        for number in numbers:
            which = bisect_right(self._firsts, number) - 1
            position = number - self._firsts[which]
            where = f"{self._shards[which].name}, sample {position}"
            try:
                values = self._last.get(which, self._table).sample(position)
                yield SourceRecord(number, where, {name: _plain(value) for name, value in values.items()})
            except (ConfigError, DatasetError) as error:
                yield BrokenRecord(number, where, f"cannot be decoded: {error}")

    def _table(self, which: int) -> MdsTable:
        entry = self._shards[which]
        table = MdsTable(self._paths[which], max_unpacked_bytes=self._limits.max_unpacked_bytes)
        check_count(table, entry.name, {entry.name: entry.num_samples})  # the index may be in a folder above
        return table

    def fingerprint(self) -> str:
        return digest_of_files([self._index, *self._files])


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, numpy.ndarray) else value


def is_mds(folder: Path) -> bool:
    """Whether the folder holds MDS shards, judged by the start of its index."""
    try:
        with open(folder / INDEX, "rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return False
    return b'"mds"' in head and b'"shards"' in head and head.lstrip()[:1] == b"{"
