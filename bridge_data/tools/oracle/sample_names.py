"""Names of samples: source and number from a key, and the shard from a number.

Input: a data set; a key as batches and users write it. Output: number of the source and index of the sample.
Guarantee: a key is one look-up in the key index of each data set (`index.sqlite`, which `prepare` writes); no shard is
read.
"""

import bisect
import functools
import itertools

from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.shards.sample_lookup import find_sample


class SampleNames:
    """The names of the samples of a data set."""

    def __init__(self, dataset: LaneDataset) -> None:
        self.sources = dataset.plan.sources

    def shard(self, source: int, index: int) -> str:
        """The name of the shard of a sample."""
        return self.sources[source].records.names[bisect.bisect_right(self._ends(source), index)]

    def _ends(self, source: int) -> list[int]:
        known = self._known_ends
        if source not in known:
            known[source] = list(itertools.accumulate(self.sources[source].records.counts))
        return known[source]

    @functools.cached_property
    def _known_ends(self) -> dict[int, list[int]]:
        return {}

    def find(self, key: str | None, source: str | int, index: int | None) -> tuple[int, int]:
        """(number of the source, index) of the sample with a key, or of sample `index` of a source.

        Raises:
            ConfigError: if there is no such sample, or several.
        """
        if (key is None) == (index is None):
            raise ConfigError("give a key, or a source and an index")
        numbers = self._numbers(source)
        if index is not None:
            if len(numbers) != 1:
                names = ", ".join(self.sources[number].name for number in numbers)
                raise ConfigError(f"index={index}: of which source? give one of {names}")
            size = self.sources[numbers[0]].num_samples
            if not 0 <= index < size:
                raise ConfigError(f"index={index}: {self.sources[numbers[0]].name} has {size:,} samples")
            return numbers[0], index
        assert key is not None
        found = find_sample([self.sources[number].records for number in numbers], key)
        if len(found) > 1:
            names = ", ".join(self.sources[numbers[one.records]].name for one in found)
            raise ConfigError(f"sample {found[0].name} is in several sources, {names}: say which one is meant")
        return numbers[found[0].records], found[0].index

    def _numbers(self, source: str | int) -> list[int]:
        if source == "":
            return list(range(len(self.sources)))
        names = [one.name for one in self.sources]
        found = [number for number, name in enumerate(names) if source in (number, str(number), name)]
        if not found:
            raise ConfigError(f"source={source!r}: there is none of this name or number; there is {', '.join(names)}")
        return found
