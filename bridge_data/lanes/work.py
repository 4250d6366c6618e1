"""Work: what is done to samples, as functions of the sample alone.

Enters: references, items to be packed, a unit to be grouped, the units of a micro-batch. Leaves: encoded samples,
packs, the group, batches. Guarantees: the same reference gives the same result on any lane, worker, rank or resume; no
sample is lost or packed twice; a group has one batch size.
"""

import collections
import copy
import functools
import itertools
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from bridge_data.data import RawSample
from bridge_data.decode import Loader
from bridge_data.errors import ConfigError, FatalSampleError, SampleError
from bridge_data.lanes.produced import NONE_SLOWEST
from bridge_data.lanes.units import Item, Pack, Unit
from bridge_data.order import ALL_PARTS, SampleRef
from bridge_data.process_counts import COUNTS
from bridge_data.samples import CrudeSample, Sample
from bridge_data.samples.arena import no_arena
from bridge_data.task import STAGES, Hooks, Packing, SourceCook, does_something, hook_of, is_overridden
from bridge_data.task.observer import StageTracer, observed_iterator
from bridge_data.task.task_encoder import declared

Key: TypeAlias = tuple[Any, ...]
"""A restore key; see `restoring`."""

PACK, BATCH = "pack", "batch"


class Parts(list[tuple[int, Any]]):
    """The parts of a sample, each with its number; none if it is skipped."""


Watch: TypeAlias = Callable[[SampleRef], None]
"""Called with each sample before work on it starts."""


class Outcome(NamedTuple):
    """What the work on one sample made, and what is counted for it, in whichever process it ran."""

    parts: list[tuple[int, Any]]
    skipped: dict[str, int]
    """As `Hooks.skipped`, which may name a failure: see `FAILED` there."""
    last_skip: tuple[str, str]
    counts: tuple[int, ...]
    """Bytes read, images decoded, reads retried, damaged images, images of which only the first frame was taken."""
    took_ns: int
    is_positional: bool = False
    """Whether a hook has asked where in the job it runs: see `HookContext`."""
    found_generator: bool = False
    """Whether a plain function has returned a generator. Its lane must find that itself: it changes how later batches
    are counted."""


class Outcomes(Protocol):
    """Outcomes of work that another process may have done."""

    def find(self, ref: SampleRef) -> Outcome | None:
        """The outcome of a whole sample; None: make it here."""

    def keep(self, ref: SampleRef, outcome: Outcome | None) -> None:
        """Called with what was made after `find` returned None; None if that failed."""


class Work:
    """The hooks of one encoder over the samples of a plan.

    `source_names` are the unique names of sources in provenance, `source_keys` their 64-bit keys for random numbers.
    `cooks` cook their crude samples. With packing, a `Packing` of the encoder does to each sample what its method
    `limit` does: too long ones are left out, or cut.

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
        limit: str = "",
    ) -> None:
        self.hooks = hooks
        packing = bool(limit)
        self._slowest_ns = self._loading_ns = self.num_loaded = 0
        self._slowest: SampleRef | None = None  # if it was found since it was last taken
        self.forgotten: Container[SampleRef] | None = None  # samples that lanes drop
        self.ask_peers: Callable[[SampleRef], Outcome | None] | None = None
        """Called for each whole sample before it is made here: a peer may have made it."""
        self.memo: Outcomes | None = None
        """Asked for each whole sample that no peer has made, before it is made here."""
        self.reads_singly = False
        """Whether samples are read one by one, not in the blocks that lanes of this process hold."""
        self._has_no_generators = hooks.has_no_generators  # as far as known before they run
        self._encoder = encoder = hooks.encoder
        self._loaders, self._cooks, self._names, self._keys = loaders, cooks, source_names, source_keys
        self.numbers = {name: number for number, name in enumerate(source_names)}
        """Names of the sources in the plan."""
        self.packs = packing
        """Whether samples are packed."""
        self.limit = limit
        self.groups = is_overridden(encoder, "batch_group_criterion")
        """Whether the encoder says which samples are batched together."""
        self._group_sizes: dict[str, int] = {}
        self.does = {hook for hook in STAGES if hook != "decode" and does_something(encoder, hook)}
        preencodes = any(is_overridden(encoder, hook) for hook in ("preencode_sample", "postencode_sample"))
        self._postencodes = is_overridden(encoder, "postencode_sample")
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
            if isinstance(selection, Packing) and not (limit == "cut" and selection.truncate is None):
                fit = getattr(selection, limit)
                self._stages.append(("select_samples_to_pack", functools.partial(_fitted, fit, hooks)))
            for hook in ("select_samples_to_pack", "pack_selected_samples"):
                if not is_overridden(encoder, hook):
                    raise ConfigError(
                        f"packing_buffer_size is set, but {type(encoder).__name__} does not override {hook}; "
                        "override it, or leave packing_buffer_size out"
                    )

    def load(self, ref: SampleRef) -> Parts:
        """The encoded (with packing: pre-encoded) parts of a sample."""
        if self.makes_all or ref.part != ALL_PARTS or self.is_observed:
            return self._made(ref)
        if self.ask_peers is not None and (made := self.ask_peers(ref)) is not None:
            return self._adopted(ref, made)
        if self.memo is None:
            return self._made(ref)
        outcome, is_made_here = self.outcome(ref)
        return Parts(outcome.parts) if is_made_here else self._adopted(ref, outcome)

    def outcome(self, ref: SampleRef) -> tuple[Outcome, bool]:
        """The outcome of a whole sample, and whether it was made here."""
        if self.memo is None:
            return self._outcome(ref), True
        if (found := self.memo.find(ref)) is not None:
            return found, False
        made = None
        try:
            made = self._outcome(ref)
        finally:
            self.memo.keep(ref, made)
        return made, True

    def tried(self, ref: SampleRef) -> Outcome | None:
        """The outcome of a sample before its lane needs it, or for a lane of another process, counted nowhere; None if
        it fails, or a plain function turns out to return a generator: the lane is to make it in its order."""
        counts = COUNTS.saved()
        try:
            with no_arena(), self.hooks:
                outcome, _ = self.outcome(ref)
            return None if outcome.found_generator else outcome
        except (Exception, SystemExit):
            return None
        finally:
            COUNTS.restore(counts)

    def _outcome(self, ref: SampleRef) -> Outcome:
        hooks, began_ns, before = self.hooks, time.perf_counter_ns(), COUNTS.saved()
        skipped, known = hooks.skipped.copy(), hooks.has_no_generators
        hooks.is_positional, hooks.has_no_generators = False, self._has_no_generators
        try:
            parts = self._made(ref)
        finally:
            found_generator = hooks.has_no_generators != self._has_no_generators
            hooks.has_no_generators = known and hooks.has_no_generators
        *counts, store_ns = (now - then for now, then in zip(COUNTS.saved(), before, strict=True))
        new = dict(hooks.skipped - skipped)
        took_ns = time.perf_counter_ns() - began_ns - store_ns
        return Outcome(parts, new, hooks.last_skip, tuple(counts), took_ns, hooks.is_positional, found_generator)

    def _adopted(self, ref: SampleRef, outcome: Outcome) -> Parts:
        """The parts of an outcome, after counting it as if it had been made here."""
        hooks = self.hooks
        hooks.skipped.update(outcome.skipped)
        if outcome.skipped:
            hooks.last_skip = outcome.last_skip
        if hooks.failures:
            last = None if outcome.parts else outcome.last_skip[0]
            for stage in ("decode", "cook_crude_sample", *self.stages):
                hooks.succeed(stage)
                if stage == last:
                    break
        num_bytes, num_images, num_retries, num_damaged_images, num_first_frames = outcome.counts
        COUNTS.num_bytes += num_bytes
        COUNTS.num_images += num_images
        COUNTS.num_retries += num_retries
        COUNTS.num_damaged_images += num_damaged_images
        COUNTS.num_first_frames += num_first_frames
        self._loaders[ref.source].release(ref.index)
        for number, sample in outcome.parts:
            mark(sample, self._key(ref, number), add=True)
        return Parts(outcome.parts)

    def _made(self, ref: SampleRef) -> Parts:
        parts = self._decoded(ref)
        if self._stages:
            for stage, hook in self._stages:
                parts = self._map(stage, hook, parts, ref)
            for number, sample in enumerate(parts):
                mark(sample, self._key(ref, number), add=True)
        if len(parts) == 1 and ref.part <= 0:
            return Parts(((0, parts[0]),))  # the usual case: no generator
        return Parts(part for part in enumerate(parts) if ref.part in (ALL_PARTS, part[0]))

    @property
    def source_keys(self) -> Sequence[int]:
        """The keys of the sources for random numbers."""
        return self._keys

    @property
    def stages(self) -> list[str]:
        """The hooks of samples that `load` calls, after decoding and cooking."""
        return [stage for stage, _ in self._stages]

    @property
    def draws(self) -> bool:
        """Whether hooks that `load` calls may draw random numbers."""
        selection = hook_of(self._encoder, "select_samples_to_pack")
        truncate = selection.truncate if isinstance(selection, Packing) else None
        hooks = {"cook_crude_sample", *self.stages} - {"select_samples_to_pack"}
        return bool(hooks & self.hooks.seeded) or (self.packs and truncate is not None and declared(truncate).seeded)

    def preencoded(self) -> "Work":
        """The same, but `load` ends where the length of a sample is known: before `postencode_sample`."""
        changed = copy.copy(self)
        changed._stages = [stage for stage in self._stages if stage[0] != "postencode_sample"]
        return changed

    def load_many(self, refs: Sequence[SampleRef], watch: Watch | None) -> Iterable[Any]:
        """As `load` for each, but in fewer steps where samples are only loaded. Of a sample with one part, numbered 0,
        this is the part itself, else `Parts`.

        `watch` is called before work on a sample, except on plain ones that are in memory: nothing could hang or crash.
        """
        began_ns = time.perf_counter_ns()
        self.num_loaded += len(refs)
        held = self._held(refs)
        self.note_time(refs[0], began_ns)
        if held is not None and not self.hooks.failures and not [None for sample in held if sample is None]:
            return held
        return self._load_each(refs, held or [None] * len(refs), watch)

    def asks_peers_for(self, ref: SampleRef) -> bool:
        """Whether a peer may make this sample: not plain ones, which are made from their block."""
        return not (self.only_loads and self._loaders[ref.source].is_plain)

    @property
    def is_observed(self) -> bool:
        """Whether an observer is to see all work, so that nobody else may do it."""
        return self.hooks.observer is not None

    @property
    def makes_all(self) -> bool:
        """Whether nobody else makes samples for it."""
        return self.ask_peers is None and self.memo is None

    @property
    def only_loads(self) -> bool:
        """Whether samples are batched or packed as the loader returns them: then each reference makes one, unless it is
        cooked."""
        return not self._stages

    @functools.cached_property
    def only_stacks(self) -> bool:
        """Whether samples are batched as decoded, by the default batch hook: no user's code has seen them, or could
        have kept them."""
        return self._batches_decoded and "batch" not in self.does

    @functools.cached_property
    def _batches_decoded(self) -> bool:
        """Whether samples are batched as our own code decoded them: no user's code has seen them before."""
        if self._stages or self.packs or self.groups:
            return False
        return all(loader.is_ours_alone for loader in self._loaders)

    @property
    def is_plain(self) -> bool:
        """Whether no hook is overridden, and samples are made of text, numbers and bytes."""
        return not self.does and all(loader.is_plain for loader in self._loaders)

    def _held(self, refs: Sequence[SampleRef]) -> list[Any] | None:
        """The only part of each reference, if plain and in memory, else None; None if it is of none. All are made in
        one loop."""
        if self._stages or self.hooks.observer is not None:
            return None
        sources, epochs, indices, parts = zip(*refs, strict=True)
        if max(parts) > 0:
            return None
        source = sources[0]
        if sources.count(source) == len(sources):
            return self._loaders[source].take_held(indices, self._names[source], epochs) or None
        samples: list[Any] = [None] * len(refs)
        places: dict[int, list[int]] = collections.defaultdict(list)
        for place, source in enumerate(sources):
            places[source].append(place)
        for source, own in places.items():
            own_epochs, own_indices = [epochs[place] for place in own], [indices[place] for place in own]
            found = self._loaders[source].take_held(own_indices, self._names[source], own_epochs)
            for place, sample in zip(own, found, strict=False):  # none if a source never has any
                samples[place] = sample
        return samples

    def _load_each(self, refs: Sequence[SampleRef], held: Sequence[Any], watch: Watch | None) -> Iterator[Any]:
        """`load_many`, of samples of which some may be `held`."""
        hooks = self.hooks
        indices = self._only_loaded([ref for ref, sample in zip(refs, held, strict=True) if sample is None])
        streams = {source: self._stream(source, numbers) for source, numbers in indices.items()}
        began_ns = time.perf_counter_ns()
        for ref, sample in zip(refs, held, strict=True):
            if sample is not None:
                if hooks.failures:
                    hooks.succeed("decode")
                yield sample
                continue
            if watch is not None:
                watch(ref)
            source, epoch, index, part = ref
            stream = streams.get(source) if part <= 0 else None
            loaded: Any = None
            if stream is not None:
                hooks.sample = self._keys[source], epoch, index, 0
                try:
                    loaded = next(stream)
                except Exception:  # this iterator has ended; the sample is retried by itself, to be reported
                    streams[source] = self._stream(source, indices[source])
                else:
                    if hooks.failures:
                        hooks.succeed("decode")
                    loaded.__restore_key__ = self._names[source], epoch, index, 0
            if loaded is None:
                loaded = self.load(ref)
                if len(loaded) == 1 and not loaded[0][0]:
                    loaded = loaded[0][1]
            began_ns = self.note_time(ref, began_ns)
            yield loaded

    def _only_loaded(self, refs: Sequence[SampleRef]) -> dict[int, Iterator[int]]:
        """By source, its whole samples that no hook changes, in order."""
        indices: dict[int, list[int]] = collections.defaultdict(list)
        for source, _, index, part in refs if self.only_loads and self.makes_all else ():
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
        self._loading_ns += now_ns - began_ns
        if now_ns - began_ns > self._slowest_ns:
            self._slowest_ns, self._slowest = now_ns - began_ns, ref
        return now_ns

    def take_loading(self) -> tuple[int, int]:
        """How many samples were loaded since the last call, and how many nanoseconds that took, without the reads of
        objects, which a peer would do again."""
        loading = self.num_loaded, self._loading_ns - COUNTS.store_ns
        self.num_loaded = self._loading_ns = COUNTS.store_ns = 0
        return loading

    def take_slowest(self) -> tuple[int, int, int, int]:
        """`Counts.slowest` since the last call."""
        if self._slowest is None:
            return NONE_SLOWEST
        (source, epoch, index, _), self._slowest = self._slowest, None
        return self._slowest_ns, source, epoch, index

    def _decoded(self, ref: SampleRef) -> list[Any]:
        """Read, decode and cook. A failed decoder, and a sample beyond a limit, count as a failure of the sample; a
        failed read stops the run."""
        loader = self._loaders[ref.source]
        build = functools.partial(_built, loader, index=ref.index)
        observer = self.hooks.observer
        read = observer.reading(_read) if isinstance(observer, StageTracer) else _read
        raw = read(loader.read_singly if self.reads_singly else loader.read, ref.index)
        for sample in self.hooks.run("decode", build, raw, self._sample_key(ref, 0)):
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
        names = self._names
        items = [item for unit in units for item in unit.items]
        return [(names[item.ref[0]], item.ref[1], item.ref[2], item.part) for item in items]

    # ----- packs ------------------------------------------------------------------------------------------------------

    def select(self, items: list[Item]) -> tuple[list[list[Item]], list[Item]]:
        """(packs, items in none of them) from a buffer of items, as the encoder chooses."""
        samples = [item.sample for item in items]
        hook, key = hook_of(self._encoder, "select_samples_to_pack"), self._first_key(items[0])
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
        hook, key = hook_of(self._encoder, "pack_selected_samples"), self._first_key(kept[0])
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
        hook, began_ns = hook_of(self._encoder, "postencode_sample"), time.perf_counter_ns()
        made = self.hooks.run("postencode_sample", hook, item.sample, self._first_key(item))
        self.note_time(item.ref, began_ns)
        return made

    # ----- groups -----------------------------------------------------------------------------------------------------

    def group(self, unit: Unit, batch_size: int | None) -> tuple[str, int] | None:
        """(group, its batch size) of a unit as the encoder says; None if it is skipped. `batch_size` is that of groups
        without their own.

        Raises:
            ConfigError: if the group cannot be saved, or its batch size is invalid, or differs from the earlier one.
        """
        hook, key = hook_of(self._encoder, "batch_group_criterion"), self._first_key(unit.items[0])
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

    def _first_key(self, first: Item) -> tuple[int, int, int, int]:
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


def _fitted(fit: Callable[[Any], tuple[Any, bool]], hooks: Hooks, sample: Any) -> Any:
    """The sample, if it is not too long for a pack, or cut to fit."""
    fitting, hooks.is_cut = fit(sample)
    return fitting


def _read(read: Callable[[int], RawSample], index: int) -> RawSample | SampleError:
    """Sample `index` as stored; or, if it exceeds a limit, the error, for `_built`."""
    try:
        return read(index)
    except SampleError as error:
        return error


def _built(loader: Loader, raw: RawSample | SampleError, index: int) -> Sample | CrudeSample:
    if isinstance(raw, SampleError):
        raise raw
    return loader.build(raw, index)
