"""The shards of one split part: which samples there are, in which order, under which number.

Enters: what `.nv-meta` says. Leaves: samples per shard, without those that are excluded, and the place of sample
number i. Holds no handles and no data, so it travels to other processes as it is.
"""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Collection, Mapping
from typing import Any

from bridge_data import storage
from bridge_data.shards.bridge_index import BridgeIndex
from bridge_data.shards.gzip_tar import is_gzip
from bridge_data.shards.reader import ShardReader
from bridge_data.storage import Location


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ShardSet:
    """Samples 0..num_samples-1 of the shards `names` (paths relative to `root`), shard after shard.

    `stored_counts` are samples as they lie in the shards, `counts` without the excluded ones. `excluded` are samples
    left out, as `shard/key`; `excluded_positions` are their sorted positions, by shard number.
    """

    root: Location
    split_part: str
    names: tuple[str, ...]
    stored_counts: tuple[int, ...]
    excluded: frozenset[str] = frozenset()
    excluded_positions: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    index: BridgeIndex | None = None

    @functools.cached_property
    def counts(self) -> list[int]:
        """Samples of each shard."""
        without = self.excluded_positions
        return [count - len(without.get(shard, ())) for shard, count in enumerate(self.stored_counts)]

    @functools.cached_property
    def starts(self) -> list[int]:
        """The number of each shard's first sample, and the number of all samples."""
        return [0, *itertools.accumulate(self.counts)]

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return self.starts[-1]

    def __len__(self) -> int:
        return self.num_samples

    def locate(self, index: int) -> tuple[int, int]:
        """(number of the shard, position of the sample in it) of sample `index`.

        Raises:
            IndexError: if there is no such sample.
        """
        starts = self.starts
        if not 0 <= index < starts[-1]:
            raise IndexError(f"{self.root} [{self.split_part}]: sample {index} of {self.num_samples}")
        shard = bisect.bisect_right(starts, index) - 1
        position = index - starts[shard]
        if self.excluded_positions and shard in self._steps:
            position += bisect.bisect_right(self._steps[shard], position)
        return shard, position

    @functools.cached_property
    def _steps(self) -> dict[int, list[int]]:
        """By shard, the numbers (without excluded samples) from which on one more excluded sample lies before."""
        return {
            shard: [position - before for before, position in enumerate(positions)]
            for shard, positions in self.excluded_positions.items()
        }

    def path(self, shard: int) -> Location:
        """Where shard number `shard` lies."""
        return self.root / self.names[shard]

    @functools.cached_property
    def sample_bytes(self) -> float | None:
        """Bytes of a sample in its tar, on the average; where a shard is compressed, on that of the first shard."""
        filled = [name for name, count in zip(self.names, self.stored_counts, strict=True) if count]
        if self.index is None or not filled:
            return None
        if any(map(is_gzip, filled)):
            segment = self.index.segment(filled[0])
            return segment.offsets[len(segment)] / len(segment)
        return sum(self.index.sizes_bytes(filled)) / sum(self.stored_counts)

    def identity(self) -> dict[str, Any]:
        """Names, sizes and sample counts of the shards, and what is excluded.

        Raises:
            DatasetError: if a shard is missing.
        """
        shards = zip(self.names, self._sizes_bytes(), self.counts, strict=True)
        return {"shards": list(shards), "excluded": sorted(self.excluded)}

    def _sizes_bytes(self) -> list[int]:
        if self.index is not None:
            return self.index.sizes_bytes(self.names)
        if storage.is_remote(self.root):
            found = storage.list_sizes(str(self.root))  # one request for a thousand shards
            return [found.get(name) or storage.size_bytes(self.root / name) for name in self.names]
        return [storage.size_bytes(self.path(shard)) for shard in range(len(self.names))]

    def part_names(self, stretch: int) -> Collection[str] | None:
        """The names of the parts in shard number `stretch`; None without our index."""
        return None if self.index is None else self.index.segment(self.names[stretch]).names

    def describe(self, index: int) -> str:
        """The shard of sample `index`."""
        return self.names[self.locate(index)[0]]

    def reader(self) -> ShardReader:
        """A reader of these samples."""
        return ShardReader(self)
