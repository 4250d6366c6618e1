"""What micro-batches are made of: single samples or packs; and how many of them are in one.

An `Item` is a part of a sample between its draw and its micro-batch. Without packing it is a unit by itself; with
packing a unit is a `Pack` of items. Neither needs its payload in memory: after a restore, it is read when it is needed.
"""

import dataclasses
from typing import Any, ClassVar, TypeAlias

from bridge_data.order import SampleRef

UNREAD = object()
"""The sample of an item or a pack that is not in memory."""


@dataclasses.dataclass(slots=True, eq=False)
class Item:
    """One part of a sample (the only one, except with generators) between its draw and its micro-batch."""

    draw: int
    ref: SampleRef
    part: int
    sample: Any = UNREAD
    num_samples: ClassVar[int] = 1

    @property
    def items(self) -> tuple["Item"]:
        """As a unit: itself."""
        return (self,)


@dataclasses.dataclass(slots=True, eq=False)
class Pack:
    """A packed sample with its items; `num_samples` are left, as `postencode_sample` may have skipped some."""

    items: list[Item]
    sample: Any = UNREAD
    num_samples: int = 0
    tokens: tuple[int, int] | None = None
    """Tokens without and with padding, if the sample does not show them as a batch does (see `tokens_of`)."""


Unit: TypeAlias = Item | Pack


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How samples become micro-batches.

    `batch_size` None: a sample is a batch, unless the encoder groups samples and sets each group's batch size.
    `packing_buffer_size`: how many samples are packed together (None: no packing). `max_micro_batches`: the job ends
    after this many (None: with its data).
    """

    batch_size: int | None
    drop_last: bool = False
    packing_buffer_size: int | None = None
    max_micro_batches: int | None = None
