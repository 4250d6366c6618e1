"""Work: what is done to samples, as functions of the sample alone.

Enters: a reference, a pack of items, the units of a micro-batch. Leaves: encoded samples, a packed sample, batches.
Guarantee: the same reference gives the same result on any lane, worker, rank or resume.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bridge_data.decode import SampleLoader
from bridge_data.errors import ConfigError, FatalSampleError
from bridge_data.order import ALL_PARTS, SampleRef
from bridge_data.task import Hooks, is_overridden

UNREAD = object()
"""The sample of an item whose payload is not in memory: after a restore it is read when it is needed."""


@dataclasses.dataclass(slots=True, eq=False)
class Item:
    """One part of a sample (the only one, but for generators) between its draw and its micro-batch."""

    draw: int
    ref: SampleRef
    part: int
    sample: Any = UNREAD


@dataclasses.dataclass(slots=True, eq=False)
class Unit:
    """What micro-batches are made of: a sample with the item behind it, or a pack with its items."""

    items: list[Item]
    sample: Any = UNREAD


class Work:
    """The hooks of one encoder over the samples of a plan.

    `source_names` are the unique names, and `source_keys` the 64-bit keys, by which sources are known to provenance
    and random numbers.

    Raises:
        ConfigError: if the encoder overrides hooks that exclude each other, or none where packing needs them.
    """

    def __init__(
        self,
        loaders: Sequence[SampleLoader],
        source_names: Sequence[str],
        source_keys: Sequence[int],
        hooks: Hooks,
        *,
        packing: bool,
    ) -> None:
        self.hooks = hooks
        self._encoder = encoder = hooks.encoder
        self._loaders, self._names, self._keys = loaders, source_names, source_keys
        self._packing = packing
        self._grouping = is_overridden(encoder, "batch_group_criterion")
        self._postencodes = is_overridden(encoder, "postencode_sample")
        self._preencodes = self._postencodes or is_overridden(encoder, "preencode_sample")
        if self._preencodes and is_overridden(encoder, "encode_sample"):
            raise ConfigError(
                f"{type(encoder).__name__} overrides encode_sample and also preencode_sample or postencode_sample: "
                "encode in one go (encode_sample) or in two with packing in between (the other two), not both"
            )
        if packing:
            for hook in ("select_samples_to_pack", "pack_selected_samples"):
                if not is_overridden(encoder, hook):
                    raise ConfigError(
                        f"packing_buffer_size is set, but {type(encoder).__name__} does not override {hook}; "
                        "override it, or leave packing_buffer_size out"
                    )

    def samples(self, ref: SampleRef) -> dict[int, Any]:
        """The encoded (with packing: pre-encoded) parts of a sample by number; empty if it is left out."""
        parts = self._load(ref)
        if self._preencodes:
            parts = self._map("preencode_sample", parts, ref)
            if not self._packing:
                parts = self._map("postencode_sample", parts, ref)
        else:
            parts = self._map("encode_sample", parts, ref)
        for number, sample in enumerate(parts):
            self._mark(sample, ref, number)
        return {number: sample for number, sample in enumerate(parts) if ref.part in (ALL_PARTS, number)}

    def _load(self, ref: SampleRef) -> list[Any]:
        """Read, decode and cook. A failed decoder counts as a failure of the sample; a failed read stops the run."""
        loaded = self.hooks.run("decode", self._loaders[ref.source].load, ref.index, self._chance(ref, 0))
        for sample in loaded:
            self._mark(sample, ref, 0)
        if loaded and isinstance(loaded[0], dict):
            return self._map("cook_crude_sample", loaded, ref)
        return loaded

    def _map(self, stage: str, samples: list[Any], ref: SampleRef) -> list[Any]:
        hook = getattr(self._encoder, stage)
        return [
            result
            for number, sample in enumerate(samples)
            for result in self.hooks.run(stage, hook, sample, self._chance(ref, number))
        ]

    def select(self, items: list[Item]) -> tuple[list[list[Item]], list[Item]]:
        """(packs, items in none of them) out of a buffer of items."""
        samples = [item.sample for item in items]
        hook = self._encoder.select_samples_to_pack
        chosen = self.hooks.run("select_samples_to_pack", hook, list(samples), self._first(items), len(items))
        if not chosen:
            return [], []
        free = {id(sample): item for sample, item in zip(samples, items, strict=True)}
        try:
            packs = [[free.pop(id(sample)) for sample in pack] for pack in chosen[0]]
        except KeyError:
            raise FatalSampleError(
                f"{type(self._encoder).__name__}.select_samples_to_pack returned a sample twice, or one that is not "
                "among the samples it was given; it must return those very objects, each at most once"
            ) from None
        return [pack for pack in packs if pack], list(free.values())

    def pack(self, items: list[Item]) -> Unit | None:
        """The packed sample of some items; None if nothing of it is left."""
        if self._postencodes:
            kept: list[Item] = []
            samples: list[Any] = []
            for item in items:
                hook = self._encoder.postencode_sample
                chance = self._chance(item.ref, item.part)
                for sample in self.hooks.run("postencode_sample", hook, item.sample, chance):
                    kept.append(item)
                    samples.append(sample)
        else:
            kept, samples = items, [item.sample for item in items]
        if not samples:
            return None
        packed = self.hooks.run(
            "pack_selected_samples", self._encoder.pack_selected_samples, samples, self._first(kept), len(kept)
        )
        return Unit(items, packed[0]) if packed else None

    def group(self, unit: Unit) -> tuple[str, int | None] | None:
        """(bucket, its batch size or None) of a unit; None if it is left out.

        Raises:
            ConfigError: for a key that is another text in every process, and so no key.
        """
        if not self._grouping:
            return "", None
        hook = self._encoder.batch_group_criterion
        result = self.hooks.run("batch_group_criterion", hook, unit.sample, self._first(unit.items), len(unit.items))
        if not result:
            return None
        key, size = result[0]
        name = repr(key)
        if " at 0x" in name:
            raise ConfigError(
                f"batch_group_criterion of {type(self._encoder).__name__} returned the key {name}, which cannot be "
                "saved; return numbers, strings or tuples of them"
            )
        return name, size

    def batch(self, units: list[Unit], *, collate: bool) -> list[Any]:
        """The batches made of some units: one, several from a generator, none if left out.

        Without `collate` (batch size None) there is one unit, and its sample is the batch.
        """
        items = [item for unit in units for item in unit.items]
        chance, count = self._first(items), len(items)
        raw = [units[0].sample]
        if collate:
            raw = self.hooks.run("batch", self._encoder.batch, [unit.sample for unit in units], chance, count)
        if not raw:
            return []
        return self.hooks.run("encode_batch", self._encoder.encode_batch, raw[0], chance, count)

    def _chance(self, ref: SampleRef, part: int) -> tuple[int, int, int, int]:
        return self._keys[ref.source], ref.epoch, ref.index, part

    def _first(self, items: list[Item]) -> tuple[int, int, int, int]:
        """Packs and batches draw their random numbers with the key of their first member."""
        return self._chance(items[0].ref, items[0].part)

    def _mark(self, sample: Any, ref: SampleRef, part: int) -> None:
        restore_key = (self._names[ref.source], ref.epoch, ref.index, part)
        if isinstance(sample, dict):
            sample["__restore_key__"] = restore_key
        elif hasattr(sample, "__restore_key__"):
            sample.__restore_key__ = restore_key
