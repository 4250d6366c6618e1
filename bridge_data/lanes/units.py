"""What a lane makes batches of: items, packs, and the micro-batches that it hands out.

Enters: draws of the cursor. Leaves: items (each one part of a sample), packs of items, and micro-batches of either,
combined as `Batching` says.
"""

import dataclasses
from typing import Any, TypeAlias

from bridge_data.order import SampleRef


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How samples become micro-batches.

    `batch_size` None: a sample is a batch, unless the encoder groups samples, and gives each group its batch size.
    `packing_buffer_size` None: no packing. `max_micro_batches`: the lane ends after this many (None: with its data).
    """

    batch_size: int | None
    drop_last: bool = False
    packing_buffer_size: int | None = None
    max_micro_batches: int | None = None


@dataclasses.dataclass(slots=True)
class LaneBatch:
    """A micro-batch, the lane's state after it (plain JSON), and the samples left out since the one before, by hook
    (those cut short, as `TRUNCATED`)."""

    batch: Any
    state: dict[str, Any]
    skipped: dict[str, int]


UNREAD = object()
"""The sample of an item whose payload is not in memory: after a restore it is read when it is needed."""


@dataclasses.dataclass(slots=True, eq=False)
class Item:
    """One part of a sample (the only one, but for generators) between its draw and its micro-batch."""

    draw: int
    ref: SampleRef
    part: int
    sample: Any = UNREAD

    @property
    def items(self) -> tuple["Item"]:
        """As a unit: itself."""
        return (self,)


@dataclasses.dataclass(slots=True, eq=False)
class Pack:
    """A packed sample with the items in it."""

    items: list[Item]
    sample: Any = UNREAD


Unit: TypeAlias = Item | Pack
"""What micro-batches are made of."""
