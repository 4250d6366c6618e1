"""Work: what is done to samples, as functions of the sample alone.

Enters: a reference, a pack of items, the units of a micro-batch. Leaves: encoded samples, a packed sample, batches.
Guarantee: the same reference gives the same result on any lane, worker, rank or resume.
"""

import functools
import itertools
import time
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from bridge_data.decode import Loader
from bridge_data.errors import ConfigError, FatalSampleError, SampleError
from bridge_data.lanes.bulk_loading import BulkLoading, Parts, Watch
from bridge_data.lanes.units import Item, Key, LaneTally, Pack, Unit, batch_key, pack_key
from bridge_data.order import ALL_PARTS, SampleRef
from bridge_data.samples import CrudeSample, Sample
from bridge_data.shards import RawSample
from bridge_data.task import STAGES, TRUNCATED, Hooks, Packing, SourceCook, does_something, hook_of, is_overridden
from bridge_data.task.observer import StageTracer


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
        self.tally: LaneTally | None = None
        """Is told of the samples that take long."""
        self.forgotten: Container[SampleRef] | None = None  # samples that lanes drop
        self._encoder = encoder = hooks.encoder
        self._loaders, self._cooks, self._names, self._keys = loaders, cooks, source_names, source_keys
        self.numbers = {name: number for number, name in enumerate(source_names)}
        """Those of the sources in the plan."""
        self.packs = packing
        """Whether samples are packed."""
        self.groups = is_overridden(encoder, "batch_group_criterion")
        """Whether the encoder says which samples are batched together."""
        self.does = {hook for hook in STAGES if hook != "decode" and does_something(encoder, hook)}
        selection = hook_of(encoder, "select_samples_to_pack")
        self._admit = selection.admitted if packing and isinstance(selection, Packing) else None
        self._postencodes = is_overridden(encoder, "postencode_sample")
        preencodes = self._postencodes or is_overridden(encoder, "preencode_sample")
        if preencodes and is_overridden(encoder, "encode_sample"):
            raise ConfigError(
                f"{type(encoder).__name__} overrides encode_sample and also preencode_sample or postencode_sample: "
                "encode in one go (encode_sample) or in two with packing in between (the other two), not both"
            )
        stages = ["encode_sample"]
        if preencodes:
            stages = ["preencode_sample"] if packing else ["preencode_sample", "postencode_sample"]
        self._changes = self._admit is not None or any(stage in self.does for stage in stages)
        self._stages = [(stage, hook_of(encoder, stage)) for stage in stages if stage in self.does]
        if packing:
            for hook in ("select_samples_to_pack", "pack_selected_samples"):
                if not is_overridden(encoder, hook):
                    raise ConfigError(
                        f"packing_buffer_size is set, but {type(encoder).__name__} does not override {hook}; "
                        "override it, or leave packing_buffer_size out"
                    )

    @functools.cached_property
    def _bulk(self) -> BulkLoading:
        return BulkLoading(self._loaders, self._names, self._keys, self.hooks, self.samples)

    def samples(self, ref: SampleRef) -> Parts:
        """The encoded (with packing: pre-encoded) parts of a sample, each with its number; none if it is left out."""
        parts = self._load(ref)
        if self._changes:
            for stage, hook in self._stages:
                parts = self._map(stage, hook, parts, ref)
            if self._admit is not None:
                parts = self._admitted(self._admit, parts, ref)
            for number, sample in enumerate(parts):
                _mark(sample, self._key(ref, number), add=True)
        if len(parts) == 1 and ref.part <= 0:
            return ((0, parts[0]),)  # which is what happens but for generators
        return [part for part in enumerate(parts) if ref.part in (ALL_PARTS, part[0])]

    @property
    def only_loads(self) -> bool:
        """Whether samples come from the loader as they are batched or packed: then each reference makes one, but for
        cooked ones."""
        return not self._changes

    @functools.cached_property
    def only_stacks(self) -> bool:
        """Whether samples are batched as they are decoded, by the batch hook that everybody has: no cooker, maker,
        handler or other hook has seen them, or could have kept them."""
        decoder = self._encoder.decoder
        if self._changes or self.packs or self.groups or "batch" in self.does:
            return False
        if decoder is not None and not decoder.is_ours_alone:
            return False
        return all(loader.stream(()) is not None for loader in self._loaders)

    @property
    def is_plain(self) -> bool:
        """Whether no hook does anything, and samples are made of text, numbers and bytes."""
        return not self.does and all(loader.is_plain for loader in self._loaders)

    def held(self, refs: Sequence[SampleRef]) -> Sequence[Any | None]:
        """Of each reference its only part, if that is only loaded and quickly had; see `BulkLoading`."""
        return [None] * len(refs) if self._changes else self._bulk.held(refs)

    def all_samples(self, refs: Sequence[SampleRef], watch: Watch | None) -> Iterator[Parts]:
        """What `samples` makes of each, at a lower price where samples are only loaded. `watch` is called before."""
        if not self._changes:
            yield from self._bulk.each(refs, watch)
            return
        for ref in refs:
            if watch is not None:
                watch(ref)
            yield self.samples(ref)

    def _load(self, ref: SampleRef) -> list[Any]:
        """Read, decode and cook. A failed decoder, and a sample beyond a limit, count as a failure of the sample; a
        failed read stops the run."""
        loader = self._loaders[ref.source]
        build = functools.partial(_built, loader, index=ref.index)
        observer = self.hooks.observer
        read = observer.reading(_read) if isinstance(observer, StageTracer) else _read
        for sample in self.hooks.run("decode", build, read(loader, ref.index), self._sample_key(ref, 0)):
            if isinstance(sample, dict):
                return self._cooked(sample, ref)
            sample.__restore_key__ = self._key(ref, 0)
            return [sample]
        return []

    def _cooked(self, sample: dict[str, Any], ref: SampleRef) -> list[Any]:
        sample["__restore_key__"] = self._key(ref, 0)
        cooked = self.hooks.run("cook_crude_sample", self._cooks[ref.source], sample, self._sample_key(ref, 0))
        for number, part in enumerate(cooked):
            _mark(part, self._key(ref, number), add=True)
        return cooked

    def _map(self, stage: str, hook: Callable[[Any], Any], samples: list[Any], ref: SampleRef) -> list[Any]:
        return [
            result
            for number, sample in enumerate(samples)
            for result in self.hooks.run(stage, hook, sample, self._sample_key(ref, number))
        ]

    def _admitted(self, admit: Callable[[Any], tuple[Any, bool]], parts: list[Any], ref: SampleRef) -> list[Any]:
        """The parts that are not too long for a pack, or made shorter."""
        kept = []
        for number, part in enumerate(parts):
            for sample, is_cut in self.hooks.run("select_samples_to_pack", admit, part, self._sample_key(ref, number)):
                self.hooks.skipped[TRUNCATED] += is_cut
                kept.append(sample)
        return kept

    def select(self, items: list[Item]) -> tuple[list[list[Item]], list[Item]]:
        """(packs, items in none of them) out of a buffer of items."""
        samples = [item.sample for item in items]
        hook = hook_of(self._encoder, "select_samples_to_pack")
        chosen = self.hooks.run("select_samples_to_pack", hook, list(samples), self._first(items[0]), len(items))
        if not chosen:
            return [], []
        free = {id(sample): item for sample, item in zip(samples, items, strict=True)}
        try:
            packs = [[free.pop(id(sample)) for sample in pack] for pack in chosen[0]]
        except TypeError:
            raise FatalSampleError(
                f"{type(self._encoder).__name__}.select_samples_to_pack returned no list of packs, but one of type "
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
        hook = hook_of(self._encoder, "pack_selected_samples")
        packed = self.hooks.run("pack_selected_samples", hook, samples, self._first(kept[0]), len(kept))
        if len(packed) > 1:
            raise ConfigError(
                f"pack_selected_samples of {type(self._encoder).__name__} made {len(packed)} samples of one pack, "
                "which could not be told apart after a resume; let select_samples_to_pack return a pack for each"
            )
        if not packed:
            return None
        unit = Pack(items, packed[0], len(set(map(id, kept))))
        _mark(packed[0], pack_key(self.keys_of([unit])))
        return unit

    def members(self, item: Item) -> list[Any]:
        """What `pack_selected_samples` (without packing: the batch) is given of an item."""
        if not (self.packs and self._postencodes):
            return [item.sample]
        hook, began_ns = hook_of(self._encoder, "postencode_sample"), time.perf_counter_ns()
        made = self.hooks.run("postencode_sample", hook, item.sample, self._first(item))
        if self.tally is not None and (took_ns := time.perf_counter_ns() - began_ns) > self.tally.slowest_ns:
            self.tally.note(item.ref, took_ns)
        return made

    @property
    def knows_batch_of_samples(self) -> bool:
        """Whether a sample is encoded for the batch that it goes into: without packing, groups and generators."""
        return not self.packs and not self.groups and self.hooks.makes_one_of_one

    @property
    def may_multiply(self) -> bool:
        """Whether there may be more batches than full buckets of samples, and one bucket that is not full: of samples
        in groups, or with hooks that are generators."""
        return self.groups or not self.hooks.makes_one_of_one or self.hooks.makes_batches_of_one

    def group(self, unit: Unit) -> tuple[str, int | None] | None:
        """(bucket, its batch size or None) of a unit; None if it is left out."""
        hook, sample_key = hook_of(self._encoder, "batch_group_criterion"), self._first(unit.items[0])
        result = self.hooks.run("batch_group_criterion", hook, unit.sample, sample_key, len(unit.items))
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

    def keys_of(self, units: Sequence[Unit]) -> list[Key]:
        """The restore keys of all samples that some units have, in their order."""
        if self.only_stacks:
            return [unit.sample.__restore_key__ for unit in units]
        items = [item for unit in units for item in unit.items] if self.packs else units
        return [self._key(item.ref, item.part) for item in items if isinstance(item, Item)]

    def batch(self, units: list[Unit], keys: list[Key], *, collate: bool) -> list[Any]:
        """The batches made of some units, whose samples have these keys: one, several from generators, or none.

        Without `collate` there is one unit, its sample is the batch, and neither `batch` nor `encode_batch` is called.
        """
        if not collate:
            return [units[0].sample]
        sample_key = self._first(units[0].items[0])
        count = len(keys)
        samples = [unit.sample for unit in units]
        batches = self.hooks.run("batch", hook_of(self._encoder, "batch"), samples, sample_key, count)
        if "encode_batch" in self.does:
            hook = hook_of(self._encoder, "encode_batch")
            batches = [
                batch
                for number, value in enumerate(batches)
                for batch in self.hooks.run(
                    "encode_batch", hook, value, (*sample_key, number) if number else sample_key, count
                )
            ]
        of_samples = iter(keys)
        made_of = [pack_key([*itertools.islice(of_samples, len(unit.items))]) for unit in units] if self.packs else keys
        for part, batch in enumerate(batches):
            _mark(batch, batch_key(self.hooks.batch_index or 0, part, made_of))
        return batches

    def _sample_key(self, ref: SampleRef, part: int) -> tuple[int, int, int, int]:
        return self._keys[ref.source], ref.epoch, ref.index, part

    def _first(self, first: Item) -> tuple[int, int, int, int]:
        """Packs and batches draw their random numbers with the key of their first member."""
        return self._sample_key(first.ref, first.part)

    def _key(self, ref: SampleRef, part: int) -> Key:
        return self._names[ref.source], ref.epoch, ref.index, part


def _mark(made: Any, key: Key, *, add: bool = False) -> None:
    """Give a sample, a pack or a batch its restore key, if it keeps one; with `add`, to a dict in any case."""
    if isinstance(made, dict):
        if add or "__restore_key__" in made:
            made["__restore_key__"] = key
    elif hasattr(made, "__restore_key__"):
        made.__restore_key__ = key


def _read(loader: Loader, index: int) -> RawSample | SampleError:
    """Sample `index` as it is stored; or the error, for `_built`, if it exceeds a limit."""
    try:
        return loader.read(index)
    except SampleError as error:
        return error


def _built(loader: Loader, raw: RawSample | SampleError, index: int) -> Sample | CrudeSample:
    if isinstance(raw, SampleError):
        raise raw
    return loader.build(raw, index)
