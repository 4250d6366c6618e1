"""What a lane makes batches of: items (each one part of a sample), packs of items, and micro-batches of either.

Each has a restore key, under `__restore_key__`, that says what it was made of:

    sample  (source, epoch, index, part)                part: which of several that a generator made of it
    pack    ("pack", key of a sample, ...)
    batch   ("batch", number, part, key of a sample or pack, ...)

The number of a batch is its index among the micro-batches of the job, for hooks that ask for it. Keys are plain tuples;
read back, lists serve as well, so that they survive JSON. A `Restorer` makes a sample, a pack or a batch once more from
its key: equal to the bit, as long as data and hooks are the same, since random numbers depend on the sample alone.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from bridge_data.errors import ConfigError, SampleError
from bridge_data.lanes.tallies import NO_COUNTS, CountValues
from bridge_data.order import Cursor, SampleRef
from bridge_data.order.stream import packed_references
from bridge_data.task import NO_STAGES

if TYPE_CHECKING:
    from bridge_data.lanes.work import Work

Key: TypeAlias = tuple[Any, ...]

_PACK, _BATCH = "pack", "batch"

RESTORED = -1
"""The draw number of an item that no lane has drawn."""

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


def references_of(keys: Sequence[Key], numbers: Mapping[str, int]) -> bytes:
    """The samples with these keys, of sources with these numbers, as in `order.ledger`."""
    values = [*itertools.chain.from_iterable(keys)]
    values[::4] = [numbers[name] for name in values[::4]]
    return packed_references(values)


def packed_by(cursor: Cursor, units: Sequence[Unit]) -> bytes | None:
    """The references of items as `cursor` has packed them, which takes a third of the time; None if they are not the
    samples that it has drawn last."""
    if not units:
        return None
    first, last, count = units[0], units[-1], len(units)
    assert isinstance(first, Item) and isinstance(last, Item)
    if not first.draw + count == last.draw + 1 == cursor.draws:
        return None
    return cursor.packed_references(count)


class SampleKey(NamedTuple):
    """A part of a sample: unique name of its source, epoch, index in the source, number of the part."""

    source: str
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs of a key
    part: int


@dataclasses.dataclass(frozen=True, slots=True)
class UnitKey:
    """A sample, or a pack of some."""

    members: tuple[SampleKey, ...]
    is_pack: bool


@dataclasses.dataclass(frozen=True, slots=True)
class BatchKey:
    """A micro-batch."""

    number: int
    part: int
    units: tuple[UnitKey, ...]


def pack_key(members: Sequence[Key]) -> Key:
    """The key of a pack of samples with these keys."""
    return _PACK, *members


def batch_key(number: int, part: int, units: Sequence[Key]) -> Key:
    """The key of a batch of samples or packs with these keys."""
    return _BATCH, number, part, *units


def read_key(key: Any) -> UnitKey | BatchKey:
    """The parts of a key.

    Raises:
        ConfigError: if it is none.
    """
    match key:
        case [str(tag), int(number), int(part), *units] if tag == _BATCH and units:
            return BatchKey(number, part, tuple(_unit(unit, key) for unit in units))
        case _:
            return _unit(key, key)


def _unit(unit: Any, key: Any) -> UnitKey:
    match unit:
        case [str(tag), *members] if tag == _PACK and members:
            return UnitKey(tuple(_sample(member, key) for member in members), True)
        case _:
            return UnitKey((_sample(unit, key),), False)


def _sample(sample: Any, key: Any) -> SampleKey:
    match sample:
        case [str(source), int(epoch), int(index), int(part)] if min(epoch, index, part) >= 0:
            return SampleKey(source, epoch, index, part)
    text = repr(key)
    raise ConfigError(
        f"{text if len(text) < 200 else text[:200] + '...'} is no restore key"
        f"{'' if sample is key else f', because of {sample!r} in it'}: expected the __restore_key__ of a sample "
        "(source, epoch, index, part), of a pack ('pack', key, ...) or of a batch ('batch', number, part, key, ...)"
    )


class Restorer:
    """Restores what `work` has made of sources with `names` and `sizes` in samples."""

    def __init__(self, work: Work, names: Sequence[str], sizes: Sequence[int]) -> None:
        self._work = work
        self._sources: Mapping[str, int] = {name: number for number, name in enumerate(names)}
        self._sizes = sizes

    def restore(self, key: Any) -> Any:
        """The sample, pack or batch with the `__restore_key__` `key`. Of a member of a pack: what the pack was made of.

        Raises:
            ConfigError: if it is no key, or of no sample of this data set. SampleError: if the hooks now leave it out.
        """
        parsed = read_key(key)
        with self._work.hooks:
            if isinstance(parsed, BatchKey):
                return self._batch(parsed)
            if parsed.is_pack:
                return self._unit(parsed).sample
            made = self._work.members(self._item(parsed.members[0]))
            return self._made(made[0] if made else None, parsed)

    def _batch(self, key: BatchKey) -> Any:
        for unit in key.units:
            if unit.is_pack != self._work.packs:
                raise ConfigError(
                    f"the restore key is of a batch of {'packs' if unit.is_pack else 'samples'}, but this data set "
                    f"{'packs samples' if self._work.packs else 'has no packing_buffer_size'}: restore it from one "
                    "with the settings of the run"
                )
        hooks = self._work.hooks
        if self._work.knows_batch_of_samples:
            hooks.batch_index = key.number
        units = [self._unit(unit) for unit in key.units]
        hooks.batch_index = key.number
        batches = self._work.batch(units, self._work.keys_of(units), collate=True)
        if key.part >= len(batches):
            raise self._left_out(f"part {key.part} of the batch of", key.units[0])
        return batches[key.part]

    def _unit(self, key: UnitKey) -> Unit:
        items = [self._item(member) for member in key.members]
        if not key.is_pack:
            return items[0]
        if not self._work.packs:
            raise ConfigError(
                "the restore key is of a pack, but this data set has no packing_buffer_size: restore it from one with "
                "the settings of the run"
            )
        return self._made(self._work.pack(items), key)

    def _item(self, key: SampleKey) -> Item:
        if key.source not in self._sources:
            raise ConfigError(
                f"the restore key is of source {key.source!r}, which this data set does not have; it has "
                f"{', '.join(self._sources)}. (The name stands for the content: data that changed is another source.)"
            )
        number = self._sources[key.source]
        if key.index >= self._sizes[number]:
            raise ConfigError(
                f"the restore key is of sample {key.index} of source {key.source!r}, which has {self._sizes[number]}"
            )
        ref = SampleRef(number, key.epoch, key.index, key.part)
        if self._work.forgotten is not None and ref in self._work.forgotten:
            raise SampleError(f"the sample {tuple(key)} is forgotten (`bridge-data forget`): it is not made again")
        made = dict(self._work.samples(ref)).get(key.part)
        return Item(RESTORED, ref, key.part, self._made(made, UnitKey((key,), False)))

    def _made(self, made: T | None, key: UnitKey) -> T:
        if made is None:
            raise self._left_out("the pack of" if key.is_pack else "the sample", key)
        return made

    def _left_out(self, what: str, key: UnitKey) -> SampleError:
        skipped = (stage for stage, count in self._work.hooks.skipped.items() if count and stage not in NO_STAGES)
        stages = ", ".join(skipped) or "no hook, which makes fewer samples or batches now"
        return SampleError(
            f"{what} {tuple(key.members[0])} cannot be restored: it is left out by {stages}. Have the hooks changed "
            "since, or do they depend on more than the sample (on a generator of their own, a clock, another sample)?"
        )


def keys_of_batch(batch: Any) -> list[str] | None:
    """The keys of a batch's samples, under `__key__`, `__keys__` or, in a dict, `keys`; None if it has none."""
    for name in ("__key__", "__keys__", "keys"):
        found = batch.get(name) if isinstance(batch, dict) else getattr(batch, name, None)
        if isinstance(found, str):
            return [found]
        if isinstance(found, (list, tuple)):
            return [str(key) for key in found]
    return None
