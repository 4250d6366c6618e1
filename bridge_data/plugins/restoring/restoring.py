"""Making a sample, a pack or a batch again from its `__restore_key__`.

Reads a key, as `lanes.maker` writes it; lists work as well as tuples, so that keys survive JSON. Returns the
sample, pack or batch: bit-identical if data and hooks are unchanged, since random numbers depend on the sample alone.

A key says what the sample, pack or batch was made of:

    sample  (source, epoch, index, output)              output: which of several that a generator made of it
    pack    ("pack", key of a sample, ...)
    batch   ("batch", number, output, key of a sample or pack, ...)

The number of a batch is its index among the micro-batches of the job, for hooks that ask for it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from bridge_data.errors import ConfigError, SampleError
from bridge_data.lanes.maker import BATCH, PACK, Batcher, Item, Unit, outputs_of
from bridge_data.order import SampleRef
from bridge_data.order.cursor import SampleKey
from bridge_data.order.extras import LaneExtras
from bridge_data.order.pending import OLD
from bridge_data.task import NO_STAGES

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class UnitKey:
    """A sample or a pack."""

    members: tuple[SampleKey, ...]
    is_pack: bool


def _unit(unit: Any, key: Any) -> UnitKey:
    match unit:
        case [str(tag), *members] if tag == PACK and members:
            return UnitKey(tuple(_sample(member, key) for member in members), True)
        case _:
            return UnitKey((_sample(unit, key),), False)


def _sample(sample: Any, key: Any) -> SampleKey:
    match sample:
        case [str(source), int(epoch), int(index), int(output)] if min(epoch, index, output) >= 0:
            return SampleKey(source, epoch, index, output)
    text = repr(key)
    raise ConfigError(
        f"{text if len(text) < 200 else text[:200] + '...'} is not a restore key"
        f"{'' if sample is key else f', because of {sample!r} in it'}: expected the __restore_key__ of a sample "
        "(source, epoch, index, output), of a pack ('pack', key, ...) or of a batch ('batch', number, output, key, ...)"
    )


def restored(batcher: Batcher, sizes: Sequence[int], extras: LaneExtras | None, key: Any) -> Any:
    """The sample, pack or batch with the `__restore_key__` `key`: see `Restorer.restore`."""
    return Restorer(batcher, sizes, extras).restore(key)


class Restorer:
    """Restores what `batcher` made from sources of these `sizes` in samples."""

    def __init__(self, batcher: Batcher, sizes: Sequence[int], extras: LaneExtras | None = None) -> None:
        self._batcher, self._sizes, self._extras = batcher, sizes, extras

    def restore(self, key: Any) -> Any:
        """The sample, pack or batch with the `__restore_key__` `key`. For a member of a pack: as it was before packing.

        Raises:
            ConfigError: if the key is invalid, or not of this data set.
            SampleError: if the hooks now skip it.
        """
        with self._batcher.hooks:
            match key:
                case [str(tag), int(number), int(output), *units] if tag == BATCH and units:
                    return self._batch(number, output, [_unit(unit, key) for unit in units])
            unit = _unit(key, key)
            if unit.is_pack:
                return self._unit(unit).sample
            item = self._item(unit.members[0])
            made = self._batcher.members(item) if self._batcher.is_packing else [item.sample]
            return self._made(made[0] if made else None, unit)

    def _batch(self, number: int, output: int, keys: Sequence[UnitKey]) -> Any:
        for unit in keys:
            if unit.is_pack != self._batcher.is_packing:
                raise ConfigError(
                    f"the restore key is of a batch of {'packs' if unit.is_pack else 'samples'}, but this data set "
                    f"{'packs samples' if self._batcher.is_packing else 'has no packing_buffer_size'}: restore it from "
                    "one with the settings of the run"
                )
        hooks = self._batcher.hooks
        if self._batcher.batch_index_known_when_encoding:
            hooks.batch_index = number
        units = [self._unit(key) for key in keys]
        hooks.batch_index = number
        batches = self._batcher.batch(units, self._batcher.keys_of(units), collate=True)
        if output >= len(batches):
            raise self._left_out(f"output {output} of the batch of", keys[0])
        return batches[output]

    def _unit(self, key: UnitKey) -> Unit:
        items = [self._item(member) for member in key.members]
        if not key.is_pack:
            return items[0]
        if not self._batcher.is_packing:
            raise ConfigError(
                "the restore key is of a pack, but this data set has no packing_buffer_size: restore it from one with "
                "the settings of the run"
            )
        return self._made(self._batcher.pack(items), key)

    def _item(self, key: SampleKey) -> Item:
        sources = self._batcher.numbers
        if key.source not in sources:
            raise ConfigError(
                f"the restore key is of source {key.source!r}, which this data set does not have; it has "
                f"{', '.join(sources)}. (The id stands for the content: data that changed is another source.)"
            )
        number = sources[key.source]
        if key.index >= self._sizes[number]:
            raise ConfigError(
                f"the restore key is of sample {key.index} of source {key.source!r}, which has {self._sizes[number]}"
            )
        ref = SampleRef(number, key.epoch, key.index, key.output)
        for _, extra in () if self._extras is None else self._extras.left_out([ref]):
            raise SampleError(f"the sample {tuple(key)} is left out by this run ({extra.skips_as}): it is not restored")
        (outputs,) = self._batcher.bare_maker.make((ref,))
        made = dict(outputs_of(outputs)).get(key.output)
        return Item(OLD, ref, key.output, self._made(made, UnitKey((key,), False)))

    def _made(self, made: T | None, key: UnitKey) -> T:
        if made is None:
            raise self._left_out("the pack of" if key.is_pack else "the sample", key)
        return made

    def _left_out(self, what: str, key: UnitKey) -> SampleError:
        skipped = (stage for stage, count in self._batcher.hooks.skipped.items() if count and stage not in NO_STAGES)
        stages = ", ".join(skipped) or "no hook, which makes fewer samples or batches now"
        return SampleError(
            f"{what} {tuple(key.members[0])} cannot be restored: it is skipped by {stages}. Have the hooks changed "
            "since, or do they depend on more than the sample (on a generator of their own, a clock, another sample)?"
        )
