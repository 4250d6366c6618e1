"""Restoring: any sample, pack or batch once more, by its restore key.

Enters: a key, the work. Leaves: what the work made when the key was given out, made again from the data; equal to the
bit, as long as data and hooks are the same, since random numbers depend on the sample alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from bridge_data.errors import ConfigError, SampleError
from bridge_data.lanes.restore_keys import BatchKey, SampleKey, UnitKey, read_key
from bridge_data.lanes.units import Item, Unit
from bridge_data.lanes.work import Work
from bridge_data.order import SampleRef
from bridge_data.task import TRUNCATED

T = TypeVar("T")

RESTORED = -1
"""The draw number of an item that no lane has drawn."""


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
        batches = self._work.batch(units, collate=True)
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
        made = dict(self._work.samples(ref)).get(key.part)
        return Item(RESTORED, ref, key.part, self._made(made, UnitKey((key,), False)))

    def _made(self, made: T | None, key: UnitKey) -> T:
        if made is None:
            raise self._left_out("the pack of" if key.is_pack else "the sample", key)
        return made

    def _left_out(self, what: str, key: UnitKey) -> SampleError:
        skipped = (stage for stage, count in self._work.hooks.skipped.items() if count and stage != TRUNCATED)
        stages = ", ".join(skipped) or "no hook, which makes fewer samples or batches now"
        return SampleError(
            f"{what} {tuple(key.members[0])} cannot be restored: it is left out by {stages}. Have the hooks changed "
            "since, or do they depend on more than the sample (on a generator of their own, a clock, another sample)?"
        )
