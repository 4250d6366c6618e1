"""What is done to samples together: packs, groups and batches, by the hooks of an encoder.

An `Item` is a part of a sample between its draw and its micro-batch. Without packing it is a unit by itself; with
packing a unit is a `Pack` of items. Neither needs its payload in memory: after a restore, it is read when it is needed.

`Assembly` gets items and units, whose samples are made. Returns which items share a pack, packed samples, the group of
a unit, the batches of some units. No sample is lost or packed twice; a group has one batch size; random numbers depend
on the first sample.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from bridge_data.errors import ConfigError, FatalSampleError
from bridge_data.lanes.maker import EncodingMaker, Key, SampleTimes, mark
from bridge_data.order import SampleRef

PACK, BATCH = "pack", "batch"

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


class Assembly:
    """Packs (with `packing`), groups and batches what `maker`, or one that wraps it, makes; for one lane.

    Raises:
        ConfigError: if the encoder does not override the hooks that packing needs.
    """

    def __init__(self, maker: EncodingMaker, *, packing: bool) -> None:
        self.maker, self.hooks, self.times = maker, maker.hooks, SampleTimes()
        self._ids = maker.ids
        self.numbers = {source_id: number for number, source_id in enumerate(self._ids.source_ids)}
        """Numbers of the sources, by their ids in restore keys."""
        self.packs = packing
        """Whether samples are packed."""
        self._encoder, self.does = self.hooks.encoder, self.hooks.does
        self.groups = "batch_group_criterion" in self.does
        """Whether the encoder says which samples are batched together."""
        self._group_sizes: dict[str, int] = {}
        self._postencodes = "postencode_sample" in self.does
        for hook in ("select_samples_to_pack", "pack_selected_samples") if packing else ():
            if hook not in self.does:
                raise ConfigError(
                    f"packing_buffer_size is set, but {type(self._encoder).__name__} does not override {hook}; "
                    "override it, or leave packing_buffer_size out"
                )

    @property
    def is_plain(self) -> bool:
        """Whether no hook is overridden, and samples are made of text, numbers and bytes."""
        return not self.does and self.maker.is_plain

    @functools.cached_property
    def only_stacks(self) -> bool:
        """Whether samples are batched as decoded, by the default batch hook: no user's code has seen them, or could
        have kept them."""
        return self._batches_decoded and "batch" not in self.does

    @functools.cached_property
    def _batches_decoded(self) -> bool:
        """Whether samples are batched as our own code decoded them."""
        return not (self.packs or self.groups) and self.maker.is_ours_alone

    @property
    def batch_index_known_when_encoding(self) -> bool:
        """Whether a sample is encoded for its batch: without packing, groups and generators."""
        return not self.packs and not self.groups and self.hooks.has_no_generators

    @property
    def may_multiply(self) -> bool:
        """Whether there may be more batches than full buckets of samples and one that is not full: with groups, or
        with hooks that are generators."""
        return self.groups or not self.hooks.has_no_generators or self.hooks.makes_batches_of_one

    def keys_of(self, units: Sequence[Unit]) -> list[Key]:
        """The restore keys of all samples in some units, in order."""
        if self._batches_decoded:
            return [unit.sample.__restore_key__ for unit in units]
        source_ids = self._ids.source_ids
        items = [item for unit in units for item in unit.items]
        return [(source_ids[item.ref[0]], item.ref[1], item.ref[2], item.part) for item in items]

    # ----- packs ------------------------------------------------------------------------------------------------------

    def select(self, items: list[Item]) -> tuple[list[list[Item]], list[Item]]:
        """(packs, items in none of them) from a buffer of items, as the encoder chooses."""
        samples = [item.sample for item in items]
        hook, key = self.hooks.functions["select_samples_to_pack"], self._first_key(items[0])
        chosen = self.hooks.run("select_samples_to_pack", hook, list(samples), key, len(items))
        if not chosen:
            return [], []
        free = {id(sample): item for sample, item in zip(samples, items, strict=True)}
        try:
            packs = [[free.pop(id(sample)) for sample in pack] for pack in chosen[0]]
        except TypeError:
            raise FatalSampleError(
                f"{type(self._encoder).__name__}.select_samples_to_pack returned an object of type "
                f"{type(chosen[0]).__name__}; it must return a list of lists of samples"
            ) from None
        except KeyError:
            raise FatalSampleError(
                f"{type(self._encoder).__name__}.select_samples_to_pack returned a sample twice, or one that is not "
                "among the samples it was given; it must return those very objects, each at most once"
            ) from None
        return [pack for pack in packs if pack], list(free.values())

    def pack(self, items: list[Item]) -> Pack | None:
        """The packed sample of some items; None if nothing of it is left."""
        members = [(item, sample) for item in items for sample in self.members(item)]
        if not members:
            return None
        kept, samples = [item for item, _ in members], [sample for _, sample in members]
        hook, key = self.hooks.functions["pack_selected_samples"], self._first_key(kept[0])
        packed = self.hooks.run("pack_selected_samples", hook, samples, key, len(kept))
        if len(packed) > 1:
            raise ConfigError(
                f"pack_selected_samples of {type(self._encoder).__name__} made {len(packed)} samples of one pack, "
                "which a resume could not distinguish; have select_samples_to_pack return a pack for each"
            )
        if not packed:
            return None
        unit = Pack(items, packed[0], len(set(map(id, kept))))
        mark(packed[0], (PACK, *self.keys_of([unit])))
        return unit

    def members(self, item: Item) -> list[Any]:
        """What `pack_selected_samples` gets for an item."""
        if not self._postencodes:
            return [item.sample]
        hook, began_ns = self.hooks.functions["postencode_sample"], time.perf_counter_ns()
        made = self.hooks.run("postencode_sample", hook, item.sample, self._first_key(item))
        self.times.note(item.ref, began_ns)
        return made

    # ----- groups -----------------------------------------------------------------------------------------------------

    def group(self, unit: Unit, batch_size: int | None) -> tuple[str, int] | None:
        """(group, its batch size) of a unit as the encoder says; None if it is skipped. `batch_size` is that of groups
        without their own.

        Raises:
            ConfigError: if the group cannot be saved, or its batch size is invalid, or differs from the earlier one.
        """
        hook, key = self.hooks.functions["batch_group_criterion"], self._first_key(unit.items[0])
        result = self.hooks.run("batch_group_criterion", hook, unit.sample, key, len(unit.items))
        if not result:
            return None
        criterion = f"batch_group_criterion of {type(self._encoder).__name__}"
        try:
            group, asked = result[0]
        except (TypeError, ValueError):
            raise ConfigError(
                f"{criterion} returned {result[0]!r}; expected a pair: key of the group, its batch size or None"
            ) from None
        name = repr(group)
        if " at 0x" in name:
            raise ConfigError(
                f"{criterion} returned the key {name}, which cannot be saved; return numbers, strings or tuples of them"
            )
        if asked is not None and asked < 1:
            raise ConfigError(f"{criterion} gave group {name} the batch size {asked}; expected 1 or more, or None")
        size = asked or batch_size
        if size is None:
            raise ConfigError(
                f"batch_size is None, and {criterion} has no batch size for group {name}; give one of them"
            )
        if self._group_sizes.setdefault(name, size) != size:
            raise ConfigError(
                f"{criterion} gave group {name} the batch size {size}, and before {self._group_sizes[name]}; a group "
                "has one batch size"
            )
        return name, size

    # ----- batches ----------------------------------------------------------------------------------------------------

    def batch(self, units: list[Unit], keys: list[Key], *, collate: bool) -> list[Any]:
        """The batches made of some units, whose samples have these keys: one, several (with generators), or none.

        Without `collate` there is one unit, its sample is the batch, and neither `batch` nor `encode_batch` is called.
        """
        if not collate:
            return [units[0].sample]
        sample_key = self._first_key(units[0].items[0])
        count = len(keys)
        samples = [unit.sample for unit in units]
        batches = self.hooks.run("batch", self.hooks.functions["batch"], samples, sample_key, count)
        if "encode_batch" in self.does:
            hook = self.hooks.functions["encode_batch"]
            batches = [
                batch
                for number, value in enumerate(batches)
                for batch in self.hooks.run(
                    "encode_batch", hook, value, (*sample_key, number) if number else sample_key, count
                )
            ]
        of_samples = iter(keys)
        made_of = [(PACK, *itertools.islice(of_samples, len(unit.items))) for unit in units] if self.packs else keys
        for part, batch in enumerate(batches):
            mark(batch, (BATCH, self.hooks.batch_index or 0, part, *made_of))
        return batches

    def _first_key(self, first: Item) -> tuple[int, int, int, int]:
        """Packs and batches draw random numbers with the key of their first member."""
        return self._ids.random_key(first.ref, first.part)
