"""The chosen samples of a data set as a data set of their own.

Enters: `Records`, and a `Choice`. Leaves: `Records` of the chosen samples alone, numbered from 0, in the same order;
shards without any are skipped. Guarantee: a sample keeps its key and its stored number; neighbours are read together,
including samples between them that are not chosen, unless there are too many of these.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from bridge_data.shards.records import RecordsView
from bridge_data.shards.where.choices import Choice


@dataclasses.dataclass(frozen=True, eq=False)
class ChosenRecords(RecordsView):
    """The samples of `records` in `choice`."""

    choice: Choice

    @property
    def num_samples(self) -> int:
        return self.choice.num_chosen

    def sample(self, index: int) -> int:
        return self.choice.sample(index)

    def rank(self, sample: int) -> int:
        return self.choice.rank(sample)

    def shard(self, number: int) -> int:
        return self._shards[number]

    @functools.cached_property
    def _shards(self) -> list[int]:
        """The numbers of the shards that have chosen samples."""
        return [shard for shard, count in enumerate(self.choice.counts) if count]

    @functools.cached_property
    def counts(self) -> Sequence[int]:
        return [count for count in self.choice.counts if count]

    @functools.cached_property
    def names(self) -> Sequence[str]:
        names = self.records.names
        return [names[shard] for shard in self._shards]

    def identity(self) -> dict[str, Any]:
        """The identity of `records`, and a digest of the choice."""
        return {"of": self.records.identity(), "chosen": [self.num_samples, self.choice.digest]}
