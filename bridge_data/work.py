"""Work: what is done to samples, as functions of the sample alone.

Enters: a reference, a pack of items, the units of a micro-batch. Leaves: encoded samples, a packed sample, batches.
Guarantee: the same reference gives the same result on any lane, worker, rank or resume.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from bridge_data.decode import Loader
from bridge_data.errors import ConfigError, FatalSampleError
from bridge_data.order import ALL_PARTS, SampleRef
from bridge_data.restore_keys import Key, batch_key, pack_key
from bridge_data.task import TRUNCATED, Hooks, Packing, SourceCook, hook_of, is_overridden

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
    and random numbers. `cooks` cook their crude samples.

    Raises:
        ConfigError: if the encoder overrides hooks that exclude each other, or none where packing needs them.
    """

    def __init__(
        self,
        loaders: Sequence[Loader],
        cooks: Sequence[SourceCook],
        source_names: Sequence[str],
        source_keys: Sequence[int],
        hooks: Hooks,
        *,
        packing: bool,
    ) -> None:
        self.hooks = hooks
        self._encoder = encoder = hooks.encoder
        self._loaders, self._cooks, self._names, self._keys = loaders, cooks, source_names, source_keys
        self._packing = packing
        selection = hook_of(encoder, "select_samples_to_pack")
        self._admit = selection.admitted if packing and isinstance(selection, Packing) else None
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
        if self._admit is not None:
            parts = self._admitted(self._admit, parts, ref)
        for number, sample in enumerate(parts):
            _mark(sample, self._key(ref, number), add=True)
        return {number: sample for number, sample in enumerate(parts) if ref.part in (ALL_PARTS, number)}

    def _load(self, ref: SampleRef) -> list[Any]:
        """Read, decode and cook. A failed decoder counts as a failure of the sample; a failed read stops the run."""
        loader = self._loaders[ref.source]
        build = functools.partial(loader.build, index=ref.index)
        loaded = self.hooks.run("decode", build, loader.read(ref.index), self._chance(ref, 0))
        for sample in loaded:
            _mark(sample, self._key(ref, 0), add=True)
        if loaded and isinstance(loaded[0], dict):
            return self.hooks.run("cook_crude_sample", self._cooks[ref.source], loaded[0], self._chance(ref, 0))
        return loaded

    def _map(self, stage: str, samples: list[Any], ref: SampleRef) -> list[Any]:
        hook = hook_of(self._encoder, stage)
        return [
            result
            for number, sample in enumerate(samples)
            for result in self.hooks.run(stage, hook, sample, self._chance(ref, number))
        ]

    def _admitted(self, admit: Callable[[Any], tuple[Any, bool]], parts: list[Any], ref: SampleRef) -> list[Any]:
        """The parts that are not too long for a pack, or made shorter."""
        kept = []
        for number, part in enumerate(parts):
            for sample, is_cut in self.hooks.run("select_samples_to_pack", admit, part, self._chance(ref, number)):
                self.hooks.skipped[TRUNCATED] += is_cut
                kept.append(sample)
        return kept

    def select(self, items: list[Item]) -> tuple[list[list[Item]], list[Item]]:
        """(packs, items in none of them) out of a buffer of items."""
        samples = [item.sample for item in items]
        hook = hook_of(self._encoder, "select_samples_to_pack")
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
        """The packed sample of some items; None if nothing of it is left.

        Raises:
            ConfigError: if `pack_selected_samples` makes several of one pack.
        """
        members = [(item, sample) for item in items for sample in self.members(item)]
        if not members:
            return None
        kept, samples = [item for item, _ in members], [sample for _, sample in members]
        hook = hook_of(self._encoder, "pack_selected_samples")
        packed = self.hooks.run("pack_selected_samples", hook, samples, self._first(kept), len(kept))
        if len(packed) > 1:
            raise ConfigError(
                f"pack_selected_samples of {type(self._encoder).__name__} made {len(packed)} samples of one pack, "
                "which could not be told apart after a resume; let select_samples_to_pack return a pack for each"
            )
        if not packed:
            return None
        unit = Unit(items, packed[0])
        _mark(packed[0], self._unit_key(unit))
        return unit

    def members(self, item: Item) -> list[Any]:
        """What `pack_selected_samples` (without packing: the batch) is given of an item."""
        if not (self._packing and self._postencodes):
            return [item.sample]
        hook, chance = hook_of(self._encoder, "postencode_sample"), self._chance(item.ref, item.part)
        return self.hooks.run("postencode_sample", hook, item.sample, chance)

    @property
    def packs(self) -> bool:
        """Whether samples are packed."""
        return self._packing

    @property
    def groups(self) -> bool:
        """Whether the encoder says which samples are batched together."""
        return self._grouping

    def group(self, unit: Unit) -> tuple[str, int | None] | None:
        """(bucket, its batch size or None) of a unit; None if it is left out.

        Raises:
            ConfigError: for a key that is another text in every process, and so no key.
        """
        if not self._grouping:
            return "", None
        hook = hook_of(self._encoder, "batch_group_criterion")
        result = self.hooks.run("batch_group_criterion", hook, unit.sample, self._first(unit.items), len(unit.items))
        if not result:
            return None
        try:
            key, size = result[0]
        except (TypeError, ValueError):
            raise ConfigError(
                f"batch_group_criterion of {type(self._encoder).__name__} returned {result[0]!r}; expected a pair: "
                "key of the group, its batch size or None"
            ) from None
        name = repr(key)
        if " at 0x" in name:
            raise ConfigError(
                f"batch_group_criterion of {type(self._encoder).__name__} returned the key {name}, which cannot be "
                "saved; return numbers, strings or tuples of them"
            )
        return name, size

    def batch(self, units: list[Unit], *, collate: bool) -> list[Any]:
        """The batches made of some units: one, several from generators, none if left out.

        Without `collate` there is one unit, its sample is the batch, and neither `batch` nor `encode_batch` is called.
        """
        if not collate:
            return [units[0].sample]
        items = [item for unit in units for item in unit.items]
        chance, count = self._first(items), len(items)
        raw = self.hooks.run("batch", hook_of(self._encoder, "batch"), [unit.sample for unit in units], chance, count)
        hook = hook_of(self._encoder, "encode_batch")
        batches = [
            batch
            for number, value in enumerate(raw)
            for batch in self.hooks.run("encode_batch", hook, value, (*chance, number) if number else chance, count)
        ]
        keys = [self._unit_key(unit) for unit in units]
        for part, batch in enumerate(batches):
            _mark(batch, batch_key(self.hooks.batch_index or 0, part, keys))
        return batches

    def _chance(self, ref: SampleRef, part: int) -> tuple[int, int, int, int]:
        return self._keys[ref.source], ref.epoch, ref.index, part

    def _first(self, items: list[Item]) -> tuple[int, int, int, int]:
        """Packs and batches draw their random numbers with the key of their first member."""
        return self._chance(items[0].ref, items[0].part)

    def _key(self, ref: SampleRef, part: int) -> Key:
        return self._names[ref.source], ref.epoch, ref.index, part

    def _unit_key(self, unit: Unit) -> Key:
        keys = [self._key(item.ref, item.part) for item in unit.items]
        return pack_key(keys) if self._packing else keys[0]


def _mark(made: Any, key: Key, *, add: bool = False) -> None:
    """Give a sample, a pack or a batch its restore key, if it keeps one; with `add`, to a dict in any case."""
    if isinstance(made, dict):
        if add or "__restore_key__" in made:
            made["__restore_key__"] = key
    elif hasattr(made, "__restore_key__"):
        made.__restore_key__ = key
