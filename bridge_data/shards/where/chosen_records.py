"""The chosen samples of a data set as a data set of their own.

Enters: `Records`, and a `Choice`. Leaves: `Records` of the chosen samples alone, numbered from 0, in the same order;
shards without any are skipped. Guarantee: a sample keeps its key and its stored number; neighbours are read together,
including samples between them that are not chosen, unless there are too many of these.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bridge_data.shards.records import Selection
from bridge_data.shards.where.choices import Choice


@dataclasses.dataclass(frozen=True, eq=False)
class ChosenRecords(Selection):
    """The samples of `records` in `choice`."""

    choice: Choice

    @property
    def num_samples(self) -> int:
        return self.choice.num_chosen

    @property
    def shard_counts(self) -> Sequence[int]:
        return self.choice.counts

    def to_base(self, index: int) -> int:
        return self.choice.sample(index)

    def rank(self, number: int) -> int:
        return self.choice.rank(number)

    def identity(self) -> dict[str, Any]:
        """The identity of `records`, and a digest of the choice."""
        return {"of": self.records.identity(), "chosen": [self.num_samples, self.choice.digest]}
