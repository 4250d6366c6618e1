"""Work: what is done to samples, as functions of the sample alone.

Enters: a reference, the units of a micro-batch. Leaves: encoded samples, batches. Guarantee: the same reference gives
the same result on any lane, worker, rank or resume.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from bridge_data.decode import Loader
from bridge_data.errors import ConfigError, SampleError
from bridge_data.lanes.produced import NONE_SLOWEST
from bridge_data.order import ALL_PARTS, SampleRef
from bridge_data.samples import CrudeSample, Sample
from bridge_data.shards import RawSample
from bridge_data.task import STAGES, TRUNCATED, Hooks, Packing, SourceCook, does_something, hook_of, is_overridden
from bridge_data.task.observer import StageTracer, observed_iterator

if TYPE_CHECKING:
    from bridge_data.lanes.packs import Unit

Key: TypeAlias = tuple[Any, ...]
"""A restore key; see `restoring`."""

PACK, BATCH = "pack", "batch"

Parts: TypeAlias = Sequence[tuple[int, Any]]
"""The parts of a sample, each with its number."""

Watch: TypeAlias = Callable[[SampleRef], None]
"""Called with each sample before work on it starts."""

UNREAD = object()
"""The sample of an item that is not in memory: after a restore it is read when needed."""


@dataclasses.dataclass(slots=True, eq=False)
class Item:
    """One part of a sample (the only one, except with generators) between its draw and its micro-batch."""

    draw: int
    ref: SampleRef
    part: int
    sample: Any = UNREAD
    num_samples: ClassVar[int] = 1

    @property
    def items(self) -> tuple[Item]:
        """As a unit: itself."""
        return (self,)


class Work:
    """The hooks of one encoder over the samples of a plan.

    `source_names` are the unique names of sources in provenance, `source_keys` their 64-bit keys for random numbers.
    `cooks` cook their crude samples.

    Raises:
        ConfigError: if the encoder overrides hooks that exclude each other, or not those that packing needs.
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
        self._slowest_ns = 0
        self._slowest: SampleRef | None = None  # if it was found since it was last taken
        self.forgotten: Container[SampleRef] | None = None  # samples that lanes drop
        self._encoder = encoder = hooks.encoder
        self._loaders, self._cooks, self._names, self._keys = loaders, cooks, source_names, source_keys
        self.numbers = {name: number for number, name in enumerate(source_names)}
        """Names of the sources in the plan."""
        self.packs = packing
        """Whether samples are packed."""
        self.groups = is_overridden(encoder, "batch_group_criterion")
        """Whether the encoder says which samples are batched together."""
        self.does = {hook for hook in STAGES if hook != "decode" and does_something(encoder, hook)}
        preencodes = any(is_overridden(encoder, hook) for hook in ("preencode_sample", "postencode_sample"))
        if preencodes and is_overridden(encoder, "encode_sample"):
            raise ConfigError(
                f"{type(encoder).__name__} overrides encode_sample and also preencode_sample or postencode_sample: "
                "encode in one go (encode_sample) or in two with packing in between (the other two), not both"
            )
        stages = ["encode_sample"]
        if preencodes:
            stages = ["preencode_sample"] if packing else ["preencode_sample", "postencode_sample"]
        self._stages = [(stage, hook_of(encoder, stage)) for stage in stages if stage in self.does]
        if packing:
            selection = hook_of(encoder, "select_samples_to_pack")
            if isinstance(selection, Packing):
                self._stages.append(("select_samples_to_pack", functools.partial(_admitted, selection, hooks)))
            for hook in ("select_samples_to_pack", "pack_selected_samples"):
                if not is_overridden(encoder, hook):
                    raise ConfigError(
                        f"packing_buffer_size is set, but {type(encoder).__name__} does not override {hook}; "
                        "override it, or leave packing_buffer_size out"
                    )

    def samples(self, ref: SampleRef) -> Parts:
        """The encoded (with packing: pre-encoded) parts of a sample, each with its number; none if it is skipped."""
        parts = self._load(ref)
        if self._stages:
            for stage, hook in self._stages:
                parts = self._map(stage, hook, parts, ref)
            for number, sample in enumerate(parts):
                mark(sample, self._key(ref, number), add=True)
        if len(parts) == 1 and ref.part <= 0:
            return ((0, parts[0]),)  # the usual case: no generator
        return [part for part in enumerate(parts) if ref.part in (ALL_PARTS, part[0])]

    @property
    def only_loads(self) -> bool:
        """Whether samples are batched or packed as the loader returns them: then each reference makes one, unless it is
        cooked."""
        return not self._stages

    @functools.cached_property
    def only_stacks(self) -> bool:
        """Whether samples are batched as decoded, by the default batch hook: no user's code has seen them, or could
        have kept them."""
        if self._stages or self.packs or self.groups or "batch" in self.does:
            return False
        return all(loader.is_ours_alone for loader in self._loaders)

    @property
    def is_plain(self) -> bool:
        """Whether no hook is overridden, and samples are made of text, numbers and bytes."""
        return not self.does and all(loader.is_plain for loader in self._loaders)

    def held(self, refs: Sequence[SampleRef]) -> Sequence[Any | None]:
        """The only part of each reference, if plain and in memory; None if it is not, or fails. All are made in one
        loop, without being watched: nothing in it could hang or crash."""
        samples: list[Any | None] = [None] * len(refs)
        if self._stages or not refs or self.hooks.observer is not None:
            return samples
        sources, epochs, indices, parts = zip(*refs, strict=True)
        if max(parts) > 0:
            return samples
        if len(set(sources)) == 1:
            return self._loaders[sources[0]].take_held(indices, self._names[sources[0]], epochs) or samples
        places: dict[int, list[int]] = collections.defaultdict(list)
        for place, source in enumerate(sources):
            places[source].append(place)
        for source, own in places.items():
            own_epochs, own_indices = [epochs[place] for place in own], [indices[place] for place in own]
            found = self._loaders[source].take_held(own_indices, self._names[source], own_epochs)
            for place, sample in zip(own, found, strict=False):  # none if a source never has any
                samples[place] = sample
        return samples

    def all_samples(self, refs: Sequence[SampleRef], watch: Watch | None) -> Iterator[Parts]:
        """As `samples` for each, but cheaper if samples are only loaded. `watch` is called before."""
        indices = self._only_loaded(refs)
        streams = {source: self._stream(source, numbers) for source, numbers in indices.items()}
        began_ns = time.perf_counter_ns()
        for ref in refs:
            if watch is not None:
                watch(ref)
            source, epoch, index, part = ref
            stream = streams.get(source) if part <= 0 else None
            if stream is None:
                parts = self.samples(ref)
            else:
                self.hooks.sample = self._keys[source], epoch, index, 0
                try:
                    sample = next(stream)
                except Exception:  # this iterator has ended; the sample is retried by itself, to be reported
                    streams[source] = self._stream(source, indices[source])
                    parts = self.samples(ref)
                else:
                    if self.hooks.failures:
                        self.hooks.succeed("decode")
                    sample.__restore_key__ = self._names[source], epoch, index, 0
                    parts = ((0, sample),)
            began_ns = self.note_time(ref, began_ns)
            yield parts

    def _only_loaded(self, refs: Sequence[SampleRef]) -> dict[int, Iterator[int]]:
        """By source, its whole samples that no hook changes, in order."""
        indices: dict[int, list[int]] = collections.defaultdict(list)
        for source, _, index, part in refs if self.only_loads else ():
            if part <= 0:
                indices[source].append(index)
        return {source: iter(numbers) for source, numbers in indices.items()}

    def _stream(self, source: int, indices: Iterator[int]) -> Iterator[Any] | None:
        observer = self.hooks.observer  # a tracer separates reading and decoding, so samples come one by one
        stream = None if isinstance(observer, StageTracer) else self._loaders[source].stream(indices)
        if stream is None or observer is None:
            return stream
        return observed_iterator(stream, observer, "decode", self._keys[source])

    def note_time(self, ref: SampleRef, began_ns: int) -> int:
        """Note that work on a sample, or on many that start with it, ran from `began_ns` until now. Returns now, when
        work on the next starts."""
        now_ns = time.perf_counter_ns()
        if now_ns - began_ns > self._slowest_ns:
            self._slowest_ns, self._slowest = now_ns - began_ns, ref
        return now_ns

    def take_slowest(self) -> tuple[int, int, int, int]:
        """`Counts.slowest` since the last call."""
        if self._slowest is None:
            return NONE_SLOWEST
        (source, epoch, index, _), self._slowest = self._slowest, None
        return self._slowest_ns, source, epoch, index

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
            mark(part, self._key(ref, number), add=True)
        return cooked

    def _map(self, stage: str, hook: Callable[[Any], Any], samples: list[Any], ref: SampleRef) -> list[Any]:
        return [
            result
            for number, sample in enumerate(samples)
            for result in self.hooks.run(stage, hook, sample, self._sample_key(ref, number))
        ]

    @property
    def knows_batch_of_samples(self) -> bool:
        """Whether a sample is encoded for its batch: without packing, groups and generators."""
        return not self.packs and not self.groups and self.hooks.has_no_generators

    @property
    def may_multiply(self) -> bool:
        """Whether there may be more batches than full buckets of samples and one that is not full: with groups, or
        with hooks that are generators."""
        return self.groups or not self.hooks.has_no_generators or self.hooks.makes_batches_of_one

    def keys_of(self, units: Sequence[Unit]) -> list[Key]:
        """The restore keys of all samples in some units, in order."""
        if self.only_stacks:
            return [unit.sample.__restore_key__ for unit in units]
        items = [item for unit in units for item in unit.items] if self.packs else units
        return [self._key(item.ref, item.part) for item in items if isinstance(item, Item)]

    def batch(self, units: list[Unit], keys: list[Key], *, collate: bool) -> list[Any]:
        """The batches made of some units, whose samples have these keys: one, several (with generators), or none.

        Without `collate` there is one unit, its sample is the batch, and neither `batch` nor `encode_batch` is called.
        """
        if not collate:
            return [units[0].sample]
        sample_key = self.first_key(units[0].items[0])
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
        made_of = [(PACK, *itertools.islice(of_samples, len(unit.items))) for unit in units] if self.packs else keys
        for part, batch in enumerate(batches):
            mark(batch, (BATCH, self.hooks.batch_index or 0, part, *made_of))
        return batches

    def _sample_key(self, ref: SampleRef, part: int) -> tuple[int, int, int, int]:
        return self._keys[ref.source], ref.epoch, ref.index, part

    def first_key(self, first: Item) -> tuple[int, int, int, int]:
        """Packs and batches draw random numbers with the key of their first member."""
        return self._sample_key(first.ref, first.part)

    def _key(self, ref: SampleRef, part: int) -> Key:
        return self._names[ref.source], ref.epoch, ref.index, part


def mark(made: Any, key: Key, *, add: bool = False) -> None:
    """Set the restore key of a sample, a pack or a batch, if it keeps one; with `add`, also of any dict."""
    if isinstance(made, dict):
        if add or "__restore_key__" in made:
            made["__restore_key__"] = key
    elif hasattr(made, "__restore_key__"):
        made.__restore_key__ = key


def _admitted(selection: Packing, hooks: Hooks, sample: Any) -> Any:
    """The sample, if it is not too long for a pack, or cut to fit."""
    admitted, is_cut = selection.admitted(sample)
    hooks.skipped[TRUNCATED] += is_cut
    return admitted


def _read(loader: Loader, index: int) -> RawSample | SampleError:
    """Sample `index` as stored; or, if it exceeds a limit, the error, for `_built`."""
    try:
        return loader.read(index)
    except SampleError as error:
        return error


def _built(loader: Loader, raw: RawSample | SampleError, index: int) -> Sample | CrudeSample:
    if isinstance(raw, SampleError):
        raise raw
    return loader.build(raw, index)
