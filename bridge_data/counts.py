"""Counts for metrics: of what a process reads and decodes, and of what a micro-batch holds.

Any thread adds bytes, retries and images to `COUNTS` where they happen. A lane takes what is new with each batch; a
worker sends it to the trainer with the batch. So each is taken once. `summed` adds up those of batches.

A new count of a process is a field of `ProcessCounts`; one of a batch, a field of `BatchCounts` that `Lane._counts`
fills; and what a user sees of it, a field of `LoaderMetrics` with the same name.
"""

import collections
import dataclasses
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

_OF_IMAGES = {"of_images": True}
"""Of counts of what is decoded for one batch; reads may be for later batches."""


@dataclasses.dataclass(slots=True)
class ProcessCounts:
    """What a process has read and decoded."""

    bytes_read: int = 0
    """Bytes of samples read by their offsets, or as auxiliary files."""
    images: int = dataclasses.field(default=0, metadata=_OF_IMAGES)
    """Images decoded."""
    retries: int = 0
    """Reads retried after a transient fault."""
    damaged_images: int = dataclasses.field(default=0, metadata=_OF_IMAGES)
    """Images whose content is damaged."""
    first_frames: int = dataclasses.field(default=0, metadata=_OF_IMAGES)
    """Images of which only the first frame was taken."""


_FIELDS = dataclasses.fields(ProcessCounts)
_values = operator.attrgetter(*(field.name for field in _FIELDS))
_ARE_OF_IMAGES = ["of_images" in field.metadata for field in _FIELDS]
_NONE = (0,) * len(_FIELDS)

NONE_SLOWEST = (0, 0, 0, 0)
NO_OTHERS: Mapping[str, int] = {}


@dataclasses.dataclass(slots=True)
class Counters(ProcessCounts):
    """Totals of a process, of which each lane takes what is new. `add`, `restore` and `forget_images` change only what
    is new.

    Add with `+=` a number that was computed before: CPython switches threads only at calls and loops, so no count is
    lost, and it takes 30 ns. All else is for the thread that runs lanes.
    """

    store_ns: int = 0
    """Nanoseconds that reads of objects took."""
    others: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """What plug-ins count, by names of their own."""
    _taken: tuple[int, ...] = _NONE

    def take(self) -> tuple[int, ...]:
        """What is new since the last call, in the order of `ProcessCounts`."""
        now, before = _values(self), self._taken
        if now == before:
            return _NONE
        self._taken = now
        return tuple(map(operator.sub, now, before))

    def take_others(self) -> Mapping[str, int]:
        """What is new of plug-ins."""
        if not self.others:
            return NO_OTHERS
        taken, self.others = self.others, collections.Counter()
        return taken

    def forget_images(self) -> None:
        """Take what was counted of images: they are in no batch."""
        if (now := _values(self)) != self._taken:
            pairs = zip(_ARE_OF_IMAGES, now, self._taken, strict=True)
            self._taken = tuple([new if is_of_images else old for is_of_images, new, old in pairs])

    def saved(self) -> tuple[int, ...]:
        """What is not taken yet, in the order of `ProcessCounts`, and `store_ns`: for `restore`."""
        return *map(operator.sub, _values(self), self._taken), self.store_ns

    def restore(self, saved: Sequence[int]) -> None:
        """Forget what was counted since."""
        *values, self.store_ns = saved
        self._taken = tuple(map(operator.sub, _values(self), values))

    def add(self, counts: Sequence[int]) -> None:
        """Count what another process has read and decoded, in the order of `ProcessCounts`."""
        self._taken = tuple(map(operator.sub, self._taken, counts))


COUNTS = Counters()
"""The counters of this process."""


def added(several: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    """The sums of counts by name."""
    if not (found := [one for one in several if one]):
        return NO_OTHERS
    sums: collections.Counter[str] = collections.Counter()
    for one in found:
        sums.update(one)
    return dict(sums)


@dataclasses.dataclass(slots=True)
class BatchCounts(ProcessCounts):
    """What a micro-batch holds, and what its process did for it since the one before, of any lane; or sums of these."""

    samples: int = 0
    """Each output of a generator counts."""
    tokens: int = 0
    """Without padding; 0 if it has none, see `tokens_of`."""
    token_slots: int = 0
    """With padding."""
    others: Mapping[str, int] = dataclasses.field(default_factory=dict, metadata={"sum": added})
    """Counts of plug-ins, by their names."""
    slowest: tuple[int, int, int, int] = dataclasses.field(default=NONE_SLOWEST, metadata={"sum": max})
    """The work that took longer than any before in its lane: nanoseconds, source, epoch, index; 0 nanoseconds if none
    did."""


CountValues: TypeAlias = tuple[Any, ...]
"""The values of a `BatchCounts`, in the order of its fields: a plain tuple per batch costs less."""

NO_COUNTS: CountValues = dataclasses.astuple(BatchCounts())
_SUMS = [field.metadata.get("sum", sum) for field in dataclasses.fields(BatchCounts)]


def summed(several: Iterable[CountValues]) -> CountValues:
    """The sums of one or more, with the slowest sample of all."""
    return tuple(add(column) for add, column in zip(_SUMS, zip(*several, strict=True), strict=True))


def tokens_of(batch: Any) -> tuple[int, int]:
    """(tokens without padding, tokens with it) of a batch's `tokens` or `input_ids`, a tensor (rows, length).

    Padding is known by `cu_seqlens` (rows, bounds), by `cu_seqlens_q` (bounds,), or by an
    `attention_mask` (rows, length); without any of them there is none.
    """
    is_dict = isinstance(batch, dict)  # not by `_field`: of plain samples, these two are most of what counting costs
    tokens = batch.get("tokens") if is_dict else getattr(batch, "tokens", None)
    if tokens is None:
        tokens = batch.get("input_ids") if is_dict else getattr(batch, "input_ids", None)
    if tokens is None or not hasattr(tokens, "numel") or not (slots := tokens.numel()):
        return 0, 0
    for name in ("cu_seqlens", "cu_seqlens_q"):
        if hasattr(bounds := _field(batch, name), "numel"):
            return int(bounds[..., -1].sum()), slots
    mask = _field(batch, "attention_mask")
    return int(mask.sum()) if getattr(mask, "shape", None) == tokens.shape else slots, slots


def _field(batch: Any, name: str) -> Any:
    return batch.get(name) if isinstance(batch, dict) else getattr(batch, name, None)
