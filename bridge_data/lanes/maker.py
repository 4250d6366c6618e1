"""From references to samples: reading, decoding, and the hooks of samples.

A `Maker` gets references of samples and returns what is made of them. `EncodingMaker` is the one that does the work.
What else a run wants of it (samples that were made before, or by another process; times) wraps a maker: see
`MakerWrapper`.

Whoever makes it, the same reference gives the same sample, on any lane, worker, rank or resume. What is skipped, and
what was read and decoded, is counted once, where it happens: in the `Hooks` of the lane and in `COUNTS`. Whoever keeps
a sample, or makes it for another lane, keeps with it what was counted: an `Outcome`.
"""

import collections
import copy
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from bridge_data.counts import COUNTS, NONE_SLOWEST
from bridge_data.data import RawSample
from bridge_data.decode import SourceReader
from bridge_data.errors import ConfigError, SampleError
from bridge_data.order import ALL_OUTPUTS, SampleRef
from bridge_data.order.cursor import SampleIds
from bridge_data.order.extras import LaneExtras
from bridge_data.samples import CrudeSample, Sample
from bridge_data.samples.arena import no_arena
from bridge_data.task import Hooks, Packing, SourceCook
from bridge_data.task.task_encoder import declared

Key: TypeAlias = tuple[Any, ...]
"""A restore key; see `restoring`."""

Watch: TypeAlias = Callable[[SampleRef], None]
"""Called with each sample before work on it starts."""


class Outputs(list[tuple[int, Any]]):
    """The outputs of a sample, each with its number; none if it is skipped."""


Made: TypeAlias = Any
"""What is made of a reference: the sample, if it is one, numbered 0; else its `Outputs`."""


def outputs_of(made: Made) -> Sequence[tuple[int, Any]]:
    """The outputs of a sample, each with its number."""
    return made if made.__class__ is Outputs else ((0, made),)


class Maker(Protocol):
    """Makes samples. It belongs to one lane, which calls it inside `with hooks:`."""

    def make(self, refs: Sequence[SampleRef]) -> Iterable[Made]:
        """What is made of each of one or more references, in order. A list is made already; an iterator makes each as
        it is asked for.

        Raises:
            FatalSampleError: if a hook fails too often in a row.
            DatasetError: if data cannot be read.
        """


class EncodingMaker:
    """Makes samples of the sources that `readers` read: decodes them, cooks crude ones by `cooks`, and calls the hooks
    of samples of an encoder.

    With packing, the hooks end before `postencode_sample`, and a `Packing` of the encoder does to each sample what its
    method `limit` does, which cuts or leaves out those that are too long for a pack; "" without packing. `watch` is
    called before work on a sample, except on plain ones that are in memory: nothing could hang or crash. With `singly`,
    samples are read one by one, not in the blocks that the lanes of this process hold. While the hooks have an
    observer, samples are made one by one, each read inside the stage `read`: the first of a block takes that of all.

    Raises:
        ConfigError: if the encoder overrides hooks that exclude each other.
    """

    def __init__(
        self,
        readers: Sequence[SourceReader],
        cooks: Sequence[SourceCook],
        ids: SampleIds,
        hooks: Hooks,
        *,
        limit: str = "",
        watch: Watch | None = None,
        singly: bool = False,
    ) -> None:
        self.hooks, self.ids, self.watch = hooks, ids, watch
        self._readers, self._cooks, self._singly = readers, cooks, singly
        self._may_yield = not hooks.has_no_generators  # as far as known before they run
        self._stages, self._limit = _stages(hooks, limit), limit

    def make(self, refs: Sequence[SampleRef]) -> Iterable[Made]:
        """See `Maker`. Plain samples that are in memory are made together: they come as a list."""
        if self._stages or self._singly or self.hooks.observer is not None:
            return map(self._one, refs)
        held = self._held(refs)
        if held is not None and not self.hooks.failures and not [None for sample in held if sample is None]:
            return held
        return self._loaded(refs, held or [None] * len(refs))

    def read(self, ref: SampleRef) -> RawSample:
        """A sample as stored.

        Raises:
            SampleError: if it exceeds a limit.
            DatasetError: if it cannot be read.
        """
        reader, observer = self._readers[ref.source], self.hooks.observer
        read = reader.read_singly if self._singly else reader.read
        if observer is None:
            return read(ref.index)
        observer.begin("read", self.ids.source_keys[ref.source])
        try:
            return read(ref.index)
        finally:
            observer.end()

    @property
    def is_plain(self) -> bool:
        """Whether samples are made of text, numbers and bytes, if no hook is overridden."""
        return all(reader.is_plain for reader in self._readers)

    def is_quick(self, ref: SampleRef) -> bool:
        """Whether this sample is made in less time than it takes to ask for it: plain ones are, from their block."""
        return not self._stages and self._readers[ref.source].is_plain

    @property
    def only_loads(self) -> bool:
        """Whether samples are made as the readers build them: then each reference makes one, unless it is cooked."""
        return not self._stages

    @property
    def is_ours_alone(self) -> bool:
        """Whether samples are as our own code decoded them: no user's code has seen them before."""
        return not self._stages and all(reader.is_ours_alone for reader in self._readers)

    @property
    def stages(self) -> list[str]:
        """The hooks that are called for a sample, after decoding and cooking."""
        return [stage for stage, _ in self._stages]

    @property
    def settings(self) -> list[str]:
        """What tells, beside the encoder, what is done to samples."""
        return [*self.stages, self._limit]

    @property
    def is_seeded(self) -> bool:
        """Whether hooks that are called for samples may draw random numbers."""
        selection = self.hooks.functions["select_samples_to_pack"]
        truncate = selection.truncate if isinstance(selection, Packing) and self._limit else None
        hooks = {"cook_crude_sample", *self.stages} - {"select_samples_to_pack"}
        return bool(hooks & self.hooks.seeded) or (truncate is not None and declared(truncate).seeded)

    def preencoded(self) -> "EncodingMaker":
        """The same, but it ends where the length of a sample is known: before `postencode_sample`."""
        changed = copy.copy(self)
        changed._stages = [stage for stage in self._stages if stage[0] != "postencode_sample"]
        return changed

    def _held(self, refs: Sequence[SampleRef]) -> list[Any] | None:
        """The only output of each reference, if plain and in memory, else None; None if it is of none. All are made in
        one loop."""
        sources, epochs, indices, outputs = zip(*refs, strict=True)
        if max(outputs) > 0:
            return None
        source, source_ids = sources[0], self.ids.source_ids
        if sources.count(source) == len(sources):
            return self._readers[source].take_held(indices, source_ids[source], epochs) or None
        samples: list[Any] = [None] * len(refs)
        numbers: dict[int, list[int]] = collections.defaultdict(list)
        for number, source in enumerate(sources):
            numbers[source].append(number)
        for source, own in numbers.items():
            own_epochs, own_indices = [epochs[number] for number in own], [indices[number] for number in own]
            found = self._readers[source].take_held(own_indices, source_ids[source], own_epochs)
            for number, sample in zip(own, found, strict=False):  # none if a source never has any
                samples[number] = sample
        return samples

    def _loaded(self, refs: Sequence[SampleRef], held: Sequence[Any]) -> Iterator[Made]:
        """Samples that no hook changes, of which some are `held`: read as streams where a reader has them."""
        hooks, watch, ids = self.hooks, self.watch, self.ids
        indices: dict[int, list[int]] = collections.defaultdict(list)
        for ref, sample in zip(refs, held, strict=True):
            if sample is None and ref.output <= 0:
                indices[ref.source].append(ref.index)
        left = {source: iter(numbers) for source, numbers in indices.items()}
        streams = {source: self._readers[source].stream(numbers) for source, numbers in left.items()}
        for ref, sample in zip(refs, held, strict=True):
            if sample is not None:
                if hooks.failures:
                    hooks.succeed("decode")
                yield sample
                continue
            source, epoch, index, output = ref
            stream = streams[source] if output <= 0 else None
            if stream is None:
                yield self._one(ref)
                continue
            if watch is not None:
                watch(ref)
            hooks.sample = ids.source_keys[source], epoch, index, 0
            try:
                loaded: Any = next(stream)
            except Exception:  # this iterator has ended; the sample is retried by itself, to be reported
                streams[source] = self._readers[source].stream(left[source])
                yield self._one(ref)
                continue
            if hooks.failures:
                hooks.succeed("decode")
            loaded.__restore_key__ = ids.source_ids[source], epoch, index, 0
            yield loaded

    def _one(self, ref: SampleRef) -> Made:
        """What is made of one reference."""
        if self.watch is not None:
            self.watch(ref)
        outputs = self._decoded(ref)
        if self._stages:
            for stage, hook in self._stages:
                outputs = self._mapped(stage, hook, outputs, ref)
            for number, sample in enumerate(outputs):
                mark(sample, self.ids.restore_key(ref, number), add=True)
        if len(outputs) == 1 and ref.output <= 0:
            return outputs[0]
        return Outputs(numbered for numbered in enumerate(outputs) if ref.output in (ALL_OUTPUTS, numbered[0]))

    def _decoded(self, ref: SampleRef) -> list[Any]:
        """Read, decode and cook. A failed decoder, and a sample beyond a limit, count as a failure of the sample; a
        failed read stops the run."""
        raw: RawSample | SampleError
        try:
            raw = self.read(ref)
        except SampleError as error:
            raw = error
        build = functools.partial(_built, self._readers[ref.source], index=ref.index)
        for sample in self.hooks.run("decode", build, raw, self.ids.random_key(ref, 0)):
            if isinstance(sample, dict):
                return self._cooked(sample, ref)
            sample.__restore_key__ = self.ids.restore_key(ref, 0)
            return [sample]
        return []

    def _cooked(self, sample: dict[str, Any], ref: SampleRef) -> list[Any]:
        sample["__restore_key__"] = self.ids.restore_key(ref, 0)
        cooked = self.hooks.run("cook_crude_sample", self._cooks[ref.source], sample, self.ids.random_key(ref, 0))
        for number, output in enumerate(cooked):
            mark(output, self.ids.restore_key(ref, number), add=True)
        return cooked

    def _mapped(self, stage: str, hook: Callable[[Any], Any], samples: list[Any], ref: SampleRef) -> list[Any]:
        return [
            result
            for number, sample in enumerate(samples)
            for result in self.hooks.run(stage, hook, sample, self.ids.random_key(ref, number))
        ]

    # ----- for wrappers -----------------------------------------------------------------------------------------------

    def recorded(self, maker: Maker, ref: SampleRef) -> "Outcome":
        """What `maker`, which wraps this one, makes of a sample, with what is counted for it."""
        hooks, began_ns, before = self.hooks, time.perf_counter_ns(), COUNTS.saved()
        skipped, known = hooks.skipped.copy(), hooks.has_no_generators
        hooks.is_positional, hooks.has_no_generators = False, not self._may_yield
        try:
            (made,) = maker.make((ref,))
        finally:
            found_generator = hooks.has_no_generators == self._may_yield
            hooks.has_no_generators = known and hooks.has_no_generators
        *counts, store_ns = (now - then for now, then in zip(COUNTS.saved(), before, strict=True))
        new = dict(hooks.skipped - skipped)
        took_ns = time.perf_counter_ns() - began_ns - store_ns
        outputs = list(outputs_of(made))
        return Outcome(outputs, new, hooks.last_skip, tuple(counts), took_ns, hooks.is_positional, found_generator)

    def adopted(self, ref: SampleRef, outcome: "Outcome") -> Made:
        """What another has made of a sample, after counting it as if it had been made here."""
        hooks = self.hooks
        hooks.skipped.update(outcome.skipped)
        hooks.is_positional |= outcome.is_positional
        if outcome.skipped:
            hooks.last_skip = outcome.last_skip
        if hooks.failures:
            last = None if outcome.outputs else outcome.last_skip[0]
            for stage in ("decode", "cook_crude_sample", *self.stages):
                hooks.succeed(stage)
                if stage == last:
                    break
        COUNTS.add(outcome.counts)
        self._readers[ref.source].release(ref.index)
        for number, sample in outcome.outputs:
            mark(sample, self.ids.restore_key(ref, number), add=True)
        return outcome.made


class Outcome(NamedTuple):
    """What the work on one sample made, and what is counted for it, in whichever process it ran."""

    outputs: list[tuple[int, Any]]
    skipped: dict[str, int]
    """As `Hooks.skipped`, which may name a failure: see `FAILED` there."""
    last_skip: tuple[str, str]
    counts: tuple[int, ...]
    """As `Counters.saved`, without the time."""
    took_ns: int
    is_positional: bool = False
    """Whether a hook has asked where in the job it runs: see `HookContext`."""
    found_generator: bool = False
    """Whether a plain function has returned a generator. Its lane must find that itself: it changes how later batches
    are counted."""

    @property
    def made(self) -> Made:
        """The sample, or its outputs."""
        return self.outputs[0][1] if len(self.outputs) == 1 and not self.outputs[0][0] else Outputs(self.outputs)


class SampleTimes:
    """How long the work on the samples of one lane takes."""

    def __init__(self) -> None:
        self.num_loaded = self._loading_ns = self._slowest_ns = 0
        self._slowest: SampleRef | None = None  # if it was found since it was last taken

    def note(self, ref: SampleRef, began_ns: int) -> int:
        """Note that work on a sample, or on many that start with it, ran from `began_ns` until now. Returns now, when
        work on the next starts."""
        now_ns = time.perf_counter_ns()
        self._loading_ns += now_ns - began_ns
        if now_ns - began_ns > self._slowest_ns:
            self._slowest_ns, self._slowest = now_ns - began_ns, ref
        return now_ns

    def take_loading(self) -> tuple[int, int]:
        """How many samples were loaded since the last call, and how many nanoseconds that took, without the reads of
        objects, which another process would do again."""
        loading = self.num_loaded, self._loading_ns - COUNTS.store_ns
        self.num_loaded = self._loading_ns = COUNTS.store_ns = 0
        return loading

    def take_slowest(self) -> tuple[int, int, int, int]:
        """`BatchCounts.slowest` since the last call."""
        if self._slowest is None:
            return NONE_SLOWEST
        (source, epoch, index, _), self._slowest = self._slowest, None
        return self._slowest_ns, source, epoch, index


class Upcoming:
    """A view of the samples that a lane loads next, for whoever makes samples before the lane needs them: in the order
    in which it will ask for them. Where hooks skip samples, or packs are chosen from a buffer, it is a guess: what is
    made by it may be needed later, or by nobody.

    `look(num_units, most)` returns up to `most` of those of its next units, of which a batch has `batch_size`. Samples
    that `extras` leave out are not among them.
    """

    def __init__(
        self,
        look: Callable[[int, int], Sequence[SampleRef]],
        batch_size: int,
        extras: LaneExtras | None = None,
    ) -> None:
        self._look, self._size, self._extras = look, batch_size, extras
        self._taken: set[SampleRef] = set()
        """What `take` has returned and the lane has not come to."""

    def take(self, num_batches: int, most: int) -> list[SampleRef]:
        """Up to `most` of the samples that the next `num_batches` batches load, in order, without those that it has
        returned before."""
        found = self._look(num_batches * self._size, most + len(self._taken))
        self._taken.intersection_update(found)
        new = [*itertools.islice((ref for ref in self._whole(found) if ref not in self._taken), most)]
        self._taken.update(new)
        return new

    def peek(self, most: int) -> list[SampleRef]:
        """Up to `most` of the next samples, in order."""
        return [*self._whole(self._look(most, most))]

    def _whole(self, found: Sequence[SampleRef]) -> Sequence[SampleRef]:
        """Without outputs of samples, which are left after a reshard: only its own lane makes one."""
        whole = [ref for ref in found if ref.output == ALL_OUTPUTS]
        return whole if self._extras is None else self._extras.filter(whole)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LaneView:
    """What a wrapper may know and do of the lane whose samples it makes."""

    number: int
    """Of the lane; -1 of a `Trial`, which is for samples of any."""
    num_lanes: int
    """Of the job; 0 of a `Trial`."""
    times: SampleTimes
    new_upcoming: Callable[[], Upcoming] | None
    """Makes another view of what the lane loads next; None for a `Trial`."""
    new_trial: "Callable[[Sequence[MakerWrapper]], Trial] | None"
    """Makes a `Trial` inside these wrappers; None for a `Trial`."""
    inside: "Sequence[MakerWrapper]" = ()
    """The wrappers inside the one that is called."""
    maker: EncodingMaker
    """What does the work, in the end."""

    @property
    def hooks(self) -> Hooks:
        """Those of the lane, which count its skips."""
        return self.maker.hooks

    @property
    def watch(self) -> Watch | None:
        """To be called before a wrapper waits for a sample, or has it made."""
        return self.maker.watch

    def may_come_from_others(self, ref: SampleRef) -> bool:
        """Whether it is worth asking others for a sample, and allowed: not for one output of it, nor while an observer
        is to see all work."""
        return ref.output == ALL_OUTPUTS and self.maker.hooks.observer is None and not self.maker.is_quick(ref)


MakerWrapper: TypeAlias = Callable[[Maker, LaneView], Maker]
"""Makes a maker that does something else, or more, from one that it may ask. It is called when a lane is opened, in the
process that runs it. What it counts in `COUNTS.others` comes to the trainer, as `LoaderMetrics.others`.

    class Counting:
        def __init__(self, inner: Maker, lane: LaneView) -> None:
            self.inner = inner

        def make(self, refs: Sequence[SampleRef]) -> Iterable[Made]:
            for ref, made in zip(refs, self.inner.make(refs), strict=True):
                COUNTS.others[f"samples of source {ref.source}"] += len(outputs_of(made))
                yield made

    dataset = dataset.changed(wrappers=(*dataset.wrappers, Counting))
"""


def wrapped(maker: Maker, wrappers: Sequence[MakerWrapper], lane: LaneView) -> Maker:
    """`maker` in all `wrappers`, the first innermost."""
    for number, wrap in enumerate(wrappers):
        maker = wrap(maker, dataclasses.replace(lane, inside=wrappers[:number]))
    return maker


class Trial:
    """Makes samples before their lane needs them, or for a lane of another process: by `maker`, which raises failures,
    inside some `wrappers`."""

    def __init__(self, maker: EncodingMaker, wrappers: Sequence[MakerWrapper]) -> None:
        view = LaneView(number=-1, num_lanes=0, times=SampleTimes(), new_upcoming=None, new_trial=None, maker=maker)
        self._core, self._maker = maker, wrapped(maker, wrappers, view)

    def tried(self, ref: SampleRef) -> Outcome | None:
        """The outcome of a sample, counted nowhere but in `COUNTS.others`; None if it fails, or a plain function turns
        out to return a generator: the lane is to make it in its order."""
        counts = COUNTS.saved()
        try:
            with no_arena(), self._core.hooks:
                outcome = self._core.recorded(self._maker, ref)
            return None if outcome.found_generator else outcome
        except (Exception, SystemExit):
            return None
        finally:
            COUNTS.restore(counts)


def mark(made: Any, key: Key, *, add: bool = False) -> None:
    """Set the restore key of a sample, a pack or a batch, if it keeps one; with `add`, also of any dict."""
    if isinstance(made, dict):
        if add or "__restore_key__" in made:
            made["__restore_key__"] = key
    elif hasattr(made, "__restore_key__"):
        made.__restore_key__ = key


_Stage: TypeAlias = tuple[str, Callable[[Any], Any]]


def _stages(hooks: Hooks, limit: str) -> list[_Stage]:
    """What is done to a sample after it is decoded and cooked, in order."""
    overridden = hooks.of_encoder.overridden
    preencodes = not overridden.isdisjoint(("preencode_sample", "postencode_sample"))
    if preencodes and "encode_sample" in overridden:
        raise ConfigError(
            f"{type(hooks.encoder).__name__} overrides encode_sample and also preencode_sample or postencode_sample: "
            "encode in one go (encode_sample) or in two with packing in between (the other two), not both"
        )
    names = ["encode_sample"]
    if preencodes:
        names = ["preencode_sample"] if limit else ["preencode_sample", "postencode_sample"]
    stages = [(name, hooks.functions[name]) for name in names if name in hooks.does]
    if not limit:
        return stages
    selection = hooks.functions["select_samples_to_pack"]
    if isinstance(selection, Packing) and not (limit == "cut" and selection.truncate is None):
        fit = getattr(selection, limit)
        stages.append(("select_samples_to_pack", functools.partial(_fitted, fit, hooks)))
    return stages


def _fitted(fit: Callable[[Any], tuple[Any, bool]], hooks: Hooks, sample: Any) -> Any:
    """The sample, if it is not too long for a pack, or cut to fit."""
    fitting, hooks.is_cut = fit(sample)
    return fitting


def _built(reader: SourceReader, raw: RawSample | SampleError, index: int) -> Sample | CrudeSample:
    if isinstance(raw, SampleError):
        raise raw
    return reader.build(raw, index)
