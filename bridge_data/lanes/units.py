"""What a lane makes batches of: items (each one part of a sample), packs of items, and micro-batches of either; and
what is counted of these: samples, tokens, images, bytes and time, for metrics.

Each has a restore key, under `__restore_key__`, that says what it was made of:

    sample  (source, epoch, index, part)                part: which of several that a generator made of it
    pack    ("pack", key of a sample, ...)
    batch   ("batch", number, part, key of a sample or pack, ...)

The number of a batch is its index among the micro-batches of the job, for hooks that ask for it. Keys are plain tuples;
a `Restorer` makes a sample, a pack or a batch once more from its key.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from bridge_data.errors import ConfigError
from bridge_data.order import Cursor, SampleRef
from bridge_data.order.cursor import packed_references
from bridge_data.process_counts import COUNTS

Key: TypeAlias = tuple[Any, ...]

PACK, BATCH = "pack", "batch"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How samples become micro-batches.

    `batch_size` None: a sample is a batch, unless the encoder groups samples, and gives each group its batch size.
    `packing_buffer_size` None: no packing. `max_micro_batches`: the job, or a lane, ends after this many (None: with
    its data).
    """

    batch_size: int | None
    drop_last: bool = False
    packing_buffer_size: int | None = None
    max_micro_batches: int | None = None

    def of_lane(self, lane: int, num_lanes: int) -> Batching:
        """The same for one lane of a job: its share of `max_micro_batches`."""
        if self.max_micro_batches is None:
            return self
        limit = -(-max(0, self.max_micro_batches - lane) // num_lanes)
        return dataclasses.replace(self, max_micro_batches=limit)


class GroupSizes:
    """The batch size of each group of samples or packs: what `encoder` says, else `batch_size`."""

    def __init__(self, batch_size: int | None, encoder: str) -> None:
        self._batch_size, self._encoder = batch_size, encoder
        self._sizes: dict[str, int] = {}

    def of(self, group: str, asked: int | None) -> int:
        """The batch size of `group`, of which the encoder has `asked` for one.

        Raises:
            ConfigError: if it is none, or another one than before.
        """
        criterion = f"batch_group_criterion of {self._encoder}"
        if asked is not None and asked < 1:
            raise ConfigError(f"{criterion} gave group {group} the batch size {asked}; expected 1 or more, or None")
        size = asked or self._batch_size
        if size is None:
            raise ConfigError(
                f"batch_size is None, and {criterion} has no batch size for group {group}; give one of them"
            )
        if self._sizes.setdefault(group, size) != size:
            raise ConfigError(
                f"{criterion} gave group {group} the batch size {size}, and before {self._sizes[group]}; a group has "
                "one batch size"
            )
        return size


_NONE_SLOWEST = (0, 0, 0, 0)


class Counts(NamedTuple):
    """What a micro-batch holds, and what its process did for it since the one before, of any lane; or sums of these.

    `samples` in it (of a generator, each part). `tokens` without padding, and the `token_slots` that they fill; 0 where
    it has none, see `tokens_of`. Images decoded, bytes read, reads tried again. `slowest` is the work that took longer
    than any before in its lane: nanoseconds, source, epoch, index; 0 nanoseconds if none did. Of its worker,
    `ready_batches` were ready when the trainer asked for this one, of `ready_slots` that could have been; 0 and 0 if
    the trainer made it.
    """

    samples: int = 0
    tokens: int = 0
    token_slots: int = 0
    images: int = 0
    bytes_read: int = 0
    retries: int = 0
    slowest: tuple[int, int, int, int] = _NONE_SLOWEST
    ready_batches: int = 0
    ready_slots: int = 0


NO_COUNTS = Counts()
as_counts = functools.partial(tuple.__new__, Counts)  # `Counts._make`, twice as fast

CountValues: TypeAlias = tuple[int, int, int, int, int, int, tuple[int, int, int, int], int, int]
"""The values of a `Counts`: to make a plain tuple of each batch costs less."""


def sums_of(several: Sequence[CountValues]) -> Counts:
    """All of them in one, with the slowest sample of all."""
    columns = dict(zip(Counts._fields, zip(*several, strict=True), strict=True))
    return Counts(**{name: max(column) if name == "slowest" else sum(column) for name, column in columns.items()})


@dataclasses.dataclass(slots=True)
class Produced(Generic[T]):
    """A micro-batch of a lane, the lane's state after it (plain JSON), the samples left out since the one before, by
    hook (those cut short or that failed, as `NO_STAGES`), and what is counted."""

    lane: int
    batch: T
    state: dict[str, Any]
    skipped: dict[str, int]
    references: bytes
    """Of its samples, as in `order.ledger`."""
    counts: CountValues = dataclasses.field(default=NO_COUNTS, compare=False)


UNREAD = object()
"""The sample of an item whose payload is not in memory: after a restore it is read when it is needed."""


@dataclasses.dataclass(slots=True, eq=False)
class Item:
    """One part of a sample (the only one, but for generators) between its draw and its micro-batch."""

    draw: int
    ref: SampleRef
    part: int
    sample: Any = UNREAD
    num_samples: ClassVar[int] = 1

    @property
    def items(self) -> tuple[Item]:
        """As a unit: itself."""
        return (self,)


@dataclasses.dataclass(slots=True, eq=False)
class Pack:
    """A packed sample with the items in it, of which `postencode_sample` may have left out some: `num_samples` are
    left."""

    items: list[Item]
    sample: Any = UNREAD
    num_samples: int = 0


Unit: TypeAlias = Item | Pack
"""What micro-batches are made of."""


def references_of(
    units: Sequence[Unit], keys: Sequence[Key], numbers: Mapping[str, int], cursor: Cursor | None
) -> bytes:
    """The samples of `units`, with these keys and of sources with these numbers, as in `order.ledger`. If they are the
    ones that `cursor` has drawn last, it has packed their references, which takes a third of the time."""
    if cursor is not None and units:
        first, last, count = units[0], units[-1], len(units)
        assert isinstance(first, Item) and isinstance(last, Item)
        is_last_drawn = first.draw + count == last.draw + 1 == cursor.draws
        if is_last_drawn and (packed := cursor.packed_references(count)) is not None:
            return packed
    values = [*itertools.chain.from_iterable(keys)]
    values[::4] = [numbers[name] for name in values[::4]]
    return packed_references(values)


def pack_key(members: Sequence[Key]) -> Key:
    """The key of a pack of samples with these keys."""
    return PACK, *members


def batch_key(number: int, part: int, units: Sequence[Key]) -> Key:
    """The key of a batch of samples or packs with these keys."""
    return BATCH, number, part, *units


def keys_of_batch(batch: Any) -> list[str] | None:
    """The keys of a batch's samples, under `__key__`, `__keys__` or, in a dict, `keys`; None if it has none."""
    for name in ("__key__", "__keys__", "keys"):
        found = batch.get(name) if isinstance(batch, dict) else getattr(batch, name, None)
        if isinstance(found, str):
            return [found]
        if isinstance(found, (list, tuple)):
            return [str(key) for key in found]
    return None


def tokens_of(batch: Any) -> tuple[int, int]:
    """(tokens without padding, tokens with it) of a batch's `tokens` or `input_ids`, a tensor (rows, length).

    What is no padding is known by its `cu_seqlens` (rows, bounds), by `cu_seqlens_q` (bounds,), or by an
    `attention_mask` (rows, length); without any of them nothing is.
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


TIMED_NS = 200_000
"""Samples that are drawn together and take less than this are not timed one by one, which would cost a part of it."""
_TRIED_DRAWS = 4


class LaneTally:
    """Counts what the work of one lane does between two batches, and remembers its slowest sample."""

    def __init__(self) -> None:
        self.slowest_ns = 0
        self.longest_ns: float = -1  # draws that took longer are to be noted
        self.times_each = False  # samples that are drawn together
        self._slowest: SampleRef | None = None  # since the last batch
        self._num_draws, self._least_ns = 0, math.inf

    def note(self, ref: SampleRef, took_ns: int) -> None:
        """Note how long the work on a sample took."""
        if took_ns > self.slowest_ns:
            self.slowest_ns, self._slowest = took_ns, ref

    def each(self, refs: Sequence[SampleRef], samples: Iterator[T]) -> Iterator[T]:
        """The same samples, each of them timed."""
        began_ns = time.perf_counter_ns()
        for ref, sample in zip(refs, samples, strict=True):
            self.note(ref, time.perf_counter_ns() - began_ns)
            yield sample
            began_ns = time.perf_counter_ns()

    def note_draw(self, refs: Sequence[tuple[int, SampleRef]], took_ns: int) -> None:
        """Note what samples drawn together took, under the first; the mean if they are worth being timed each."""
        self._num_draws += 1
        self._least_ns = min(self._least_ns, took_ns / len(refs))
        is_cheap = self._least_ns <= TIMED_NS
        self.times_each = self._num_draws >= _TRIED_DRAWS and len(refs) > 1 and not is_cheap
        self.note(refs[0][1], took_ns if is_cheap else took_ns // len(refs))
        if self._num_draws >= _TRIED_DRAWS:
            self.longest_ns = math.inf if self.times_each else self.slowest_ns

    def take(self, batch: Any, num_samples: int) -> CountValues:
        """The counts of a batch of `num_samples` that has just been made: takes those of the process."""
        slowest = _NONE_SLOWEST
        if self._slowest is not None:
            source, epoch, index, _ = self._slowest
            slowest, self._slowest = (self.slowest_ns, source, epoch, index), None
        if images := COUNTS.num_images:
            COUNTS.num_images -= images
        if bytes_read := COUNTS.num_bytes:
            COUNTS.num_bytes -= bytes_read
        if retries := COUNTS.num_retries:
            COUNTS.num_retries -= retries
        tokens, slots = tokens_of(batch)
        return num_samples, tokens, slots, images, bytes_read, retries, slowest, 0, 0
