"""What leaves a lane: micro-batches, each with the lane's state after it, and counts for metrics.

What a process does is counted once, with the next batch of any of its lanes. `sums_of` adds counts up.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

NONE_SLOWEST = (0, 0, 0, 0)
NO_OTHERS: Mapping[str, int] = {}


class Counts(NamedTuple):
    """What a micro-batch holds, and what its process did for it since the one before, of any lane; or sums of these.

    `samples` in it (each output of a generator counts). `tokens` without padding, and the `token_slots` that they fill;
    0 if it has none, see `tokens_of`. Images decoded, bytes read, reads retried; images that are damaged, and those of
    which only the first frame was taken; `others` are counts of plug-ins, by their names. `slowest` is the work that
    took longer than any before in its lane: nanoseconds, source, epoch, index; 0 nanoseconds if none did. When the
    trainer asked for this batch, its worker had `ready_batches` ready, out of at most `ready_slots`; 0 and 0 if the
    trainer made it. Workers send all but these last two, which the trainer adds.
    """

    samples: int = 0
    tokens: int = 0
    token_slots: int = 0
    images: int = 0
    bytes_read: int = 0
    retries: int = 0
    damaged_images: int = 0
    first_frames: int = 0
    others: Mapping[str, int] = NO_OTHERS
    slowest: tuple[int, int, int, int] = NONE_SLOWEST
    ready_batches: int = 0
    ready_slots: int = 0


NO_COUNTS = Counts()
as_counts = functools.partial(tuple.__new__, Counts)  # `Counts._make`, twice as fast

CountValues: TypeAlias = tuple[
    int, int, int, int, int, int, int, int, Mapping[str, int], tuple[int, int, int, int], int, int
]
"""The values of a `Counts`: a plain tuple per batch costs less."""


def sums_of(several: Sequence[CountValues]) -> Counts:
    """The sum of all, with the slowest sample of all."""
    columns = dict(zip(Counts._fields, zip(*several, strict=True), strict=True))
    others = [one for one in columns.pop("others") if one]
    sums = {name: max(column) if name == "slowest" else sum(column) for name, column in columns.items()}
    return Counts(**sums, others=added(others) if others else NO_OTHERS)


def added(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of counts by name."""
    sums: collections.Counter[str] = collections.Counter()
    for one in several:
        sums.update(one)
    return dict(sums)


@dataclasses.dataclass(slots=True)
class Produced(Generic[T]):
    """A micro-batch of a lane, the lane's state after it (plain JSON), the samples skipped since the one before, by
    hook (those cut short or that failed, as `NO_STAGES`), counts, and what extras noted of it, by their names."""

    lane: int
    batch: T
    state: dict[str, Any]
    skipped: dict[str, int]
    counts: CountValues = dataclasses.field(default=NO_COUNTS, compare=False)
    notes: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)
