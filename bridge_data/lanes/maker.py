"""What is done to samples: each is made from its reference, then they are packed, grouped and batched.

A `Maker` gets references of samples and returns what is made of them. `EncodingMaker` is the one that does the work:
reading, decoding, and the hooks of samples. What else a run wants of it (samples that were made before, or by another
process; times) wraps a maker: see `maker_wrappers`. `Batcher` has the maker of one lane, and calls the hooks that get
several samples: it says which items share a pack, and returns packed samples, groups and batches.

Whoever makes it, the same reference gives the same sample, on any lane, worker, rank or resume. What is skipped, and
what was read and decoded, is counted once, where it happens: in the `Hooks` of the lane and in `COUNTS`.

An `Item` is an output of a sample between its draw and its micro-batch. Without packing it is a unit by itself; with
packing a unit is a `Pack` of items. Neither needs its payload in memory: after a restore, it is read when it is needed.
No sample is lost or packed twice; a group has one batch size; random numbers of packs and batches depend on their first
sample.
"""

import collections
import copy
import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NoReturn, Protocol, TypeAlias

from bridge_data.counts import COUNTS, NONE_SLOWEST
from bridge_data.data import RawSample
from bridge_data.decode import SourceReader
from bridge_data.errors import ConfigError, FatalSampleError, SampleError
from bridge_data.order import ALL_OUTPUTS, SampleRef
from bridge_data.order.cursor import SampleIds
from bridge_data.running_hook import note_truncation
from bridge_data.task import Hooks, Packing, SourceCook
from bridge_data.task.packers import FitToPack
from bridge_data.task.task_encoder import declared, together_with

Key: TypeAlias = tuple[Any, ...]
"""A restore key: of a sample `(source, epoch, index, output)`, of a pack `("pack", key of a sample, ...)`, of a batch
`("batch", number, output, key of a sample or pack, ...)`. `restore_sample` makes it again from that."""

Watch: TypeAlias = Callable[[SampleRef], None]
"""Called with each sample before work on it starts."""


MOST_TOGETHER = 64
"""See `EncodingMaker.most_at_once`."""


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
    """Makes samples of the sources that `readers` read: decodes them, cooks crude ones by the `cook` of their source,
    and calls the hooks of samples of an encoder.

    With packing, the hooks end before `postencode_sample`, and a `Packing` of the encoder does to each sample what
    `fit` says, as it may be too long for a pack; None: there is no packing. `watch` is called before work on a sample,
    except on plain ones in open blocks: nothing could hang or crash. With `singly`, samples are read one by one,
    not in the blocks that the lanes of this process hold. While the hooks have an observer, samples are made one by
    one, each read inside the stage `read`: the first of a block takes that of all.
    """

    def __init__(
        self,
        readers: Sequence[SourceReader],
        cook: Callable[[int], SourceCook],
        ids: SampleIds,
        hooks: Hooks,
        *,
        fit: FitToPack | None = None,
        watch: Watch | None = None,
        singly: bool = False,
    ) -> None:
        self.hooks, self.ids, self.watch = hooks, ids, watch
        self._readers, self._cook, self._singly = readers, cook, singly
        self._stages, self._fit = _stages(hooks, fit), fit
        self._together = together_with(self._stages[0][1]) if self._stages else None
        """What does the first of the stages to many samples, if anything does."""

    def make(self, refs: Sequence[SampleRef]) -> Iterable[Made]:
        """See `Maker`. A sample is made in one of three ways, which give the same:

        | way | which samples | what it leaves out, as it has no effect on them |
        |---|---|---|
        | `_plain` | those of text, if no hook is called for them: many in one loop | `RawSample`, `Hooks.run` |
        | `_made_together` | many whose first hook can be called for all `together`, once all are decoded | nothing |
        | `_one` | all others; all, if there is an observer | nothing |
        """
        if self._singly or self.hooks.observer is not None:
            return map(self._one, refs)
        if self._stages:
            return map(self._one, refs) if len(refs) == 1 or self.most_at_once == 1 else self._made_together(refs)
        plain = self._plain(refs)
        # not `None in plain`, which would compare samples
        if plain and not self.hooks.failures and not [None for sample in plain if sample is None]:
            return plain
        return self._completed(refs, plain) if plain else map(self._one, refs)

    def read(self, ref: SampleRef) -> RawSample:
        """A sample as stored.

        Raises:
            SampleError: if it exceeds a limit of its format, such as the length of a line of JSONL.
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

    def release(self, ref: SampleRef) -> None:
        """Free what is held of a sample: it will not be read."""
        self._readers[ref.source].release(ref.index)

    def is_quick(self, ref: SampleRef) -> bool:
        """Whether this sample is made in less time than it takes to ask for it: plain ones are, from their block."""
        return not self._stages and self._readers[ref.source].is_plain

    @property
    def most_at_once(self) -> int:
        """How many samples are best asked for together, at most: they are in memory at
        once, with their media."""
        if not self._stages:
            return sys.maxsize
        return MOST_TOGETHER if self._together is not None and self.hooks.has_no_generators else 1

    @property
    def is_builtin_only(self) -> bool:
        """Whether samples are as built-in code decoded them: no code of the user has seen them before."""
        return not self._stages and all(reader.is_builtin_only for reader in self._readers)

    @property
    def stages(self) -> list[str]:
        """The hooks that are called for a sample, after decoding and cooking."""
        return [stage for stage, _ in self._stages]

    @property
    def settings(self) -> list[str]:
        """What tells, beside the encoder, what is done to samples."""
        return [*self.stages, "" if self._fit is None else self._fit.value]

    @property
    def is_seeded(self) -> bool:
        """Whether hooks that are called for samples may draw random numbers."""
        selection = self.hooks.functions["select_samples_to_pack"]
        truncate = selection.truncate if isinstance(selection, Packing) and self._fit is not None else None
        hooks = {"cook_crude_sample", *self.stages} - {"select_samples_to_pack"}
        return bool(hooks & self.hooks.seeded) or (truncate is not None and declared(truncate).seeded)

    def preencoded(self) -> "EncodingMaker":
        """This maker without `postencode_sample`: it ends where the length of a sample is known."""
        changed = copy.copy(self)
        changed._stages = [stage for stage in self._stages if stage[0] != "postencode_sample"]
        return changed

    def _plain(self, refs: Sequence[SampleRef]) -> list[Any]:
        """For each reference the sample, if it is plain and in a block, else None; made in one loop. Empty if no source
        has any."""
        sources, epochs, indices, outputs = zip(*refs, strict=True)
        if max(outputs) > 0:
            return []
        source = sources[0]
        if sources.count(source) == len(sources):
            return self._plain_of(source, indices, epochs, refs)
        by_source: dict[int, list[SampleRef]] = collections.defaultdict(list)
        for ref in refs:
            by_source[ref[0]].append(ref)
        found: dict[int, Iterator[Any]] = {}
        for source, own in by_source.items():
            _, epochs, indices, _ = zip(*own, strict=True)
            found[source] = iter(self._plain_of(source, indices, epochs, own))
        return [next(found[source], None) for source in sources]  # None if a source never has any

    def _plain_of(
        self, source: int, indices: Sequence[int], epochs: Sequence[int], refs: Sequence[SampleRef]
    ) -> list[Any]:
        def note(position: int) -> None:
            if self.watch is not None:
                self.watch(refs[position])

        return self._readers[source].take_plain(indices, self.ids.source_ids[source], epochs, note)

    def _completed(self, refs: Sequence[SampleRef], plain: Sequence[Any]) -> Iterator[Made]:
        """Samples that no hook changes, of which the `plain` ones are made already."""
        for ref, sample in zip(refs, plain, strict=True):
            if sample is None:
                yield self._one(ref)
                continue
            if self.hooks.failures:
                self.hooks.succeed("decode")
            yield sample

    def _one(self, ref: SampleRef) -> Made:
        """What is made of one reference."""
        if self.watch is not None:
            self.watch(ref)
        return self._encoded(ref, self._decoded(ref), self._stages)

    def _made_together(self, refs: Sequence[SampleRef]) -> Iterator[Made]:
        """What is made of each of several references, the first hook being called for all of them together."""
        assert self._together is not None
        decoded: list[list[Any]] = []

        def samples() -> Iterator[Any]:
            for ref in refs:
                if self.watch is not None:
                    self.watch(ref)
                decoded.append(self._decoded(ref))
                yield from decoded[-1]

        stages = [(self._stages[0][0], self._together(samples())), *self._stages[1:]]
        for ref, outputs in zip(refs, decoded, strict=True):
            if self.watch is not None:
                self.watch(ref)
            yield self._encoded(ref, outputs, stages)

    def _encoded(self, ref: SampleRef, outputs: list[Any], stages: "Sequence[_Stage]") -> Made:
        """What the hooks of `stages` make of a decoded sample."""
        if stages:
            for stage, hook in stages:
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
        build: Callable[[Any], Any] = functools.partial(self._readers[ref.source].build, index=ref.index)
        try:
            raw = self.read(ref)
        except SampleError as error:
            raw, build = error, _raise
        for sample in self.hooks.run("decode", build, raw, self.ids.random_key(ref, 0)):
            if isinstance(sample, dict):
                return self._cooked(sample, ref)
            sample.__restore_key__ = self.ids.restore_key(ref, 0)
            return [sample]
        return []

    def _cooked(self, sample: dict[str, Any], ref: SampleRef) -> list[Any]:
        sample["__restore_key__"] = self.ids.restore_key(ref, 0)
        cooked = self.hooks.run("cook_crude_sample", self._cook(ref.source), sample, self.ids.random_key(ref, 0))
        for number, output in enumerate(cooked):
            mark(output, self.ids.restore_key(ref, number), add=True)
        return cooked

    def _mapped(self, stage: str, hook: Callable[[Any], Any], samples: list[Any], ref: SampleRef) -> list[Any]:
        return [
            result
            for number, sample in enumerate(samples)
            for result in self.hooks.run(stage, hook, sample, self.ids.random_key(ref, number))
        ]


_Stage: TypeAlias = tuple[str, Callable[[Any], Any]]


def _stages(hooks: Hooks, fit: FitToPack | None) -> list[_Stage]:
    """What is done to a sample after it is decoded and cooked, in order."""
    names = ["encode_sample"]
    if hooks.of_encoder.preencodes:
        names = ["preencode_sample", "postencode_sample"] if fit is None else ["preencode_sample"]
    stages = [(name, hooks.functions[name]) for name in names if name in hooks.does]
    selection = hooks.functions["select_samples_to_pack"]
    if isinstance(selection, Packing):
        if fit is FitToPack.SKIP_OR_TRUNCATE:
            stages.append(("select_samples_to_pack", functools.partial(_fitted, selection.admitted)))
        elif fit is FitToPack.TRUNCATE_ONLY and selection.truncate is not None:
            stages.append(("select_samples_to_pack", functools.partial(_fitted, selection.truncated)))
    return stages


def _fitted(fit: Callable[[Any], tuple[Any, bool]], sample: Any) -> Any:
    """The sample, if it is not too long for a pack, or cut to fit."""
    fitting, is_cut = fit(sample)
    if is_cut:
        note_truncation()
    return fitting


def _raise(error: SampleError) -> NoReturn:
    raise error


PACK, BATCH = "pack", "batch"

UNREAD = object()
"""The sample of an item or a pack that is not in memory."""


@dataclasses.dataclass(slots=True, eq=False)
class Item:
    """One output of a sample (the only one, except with generators) between its draw and its micro-batch."""

    draw: int
    ref: SampleRef
    output: int
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


class Batcher:
    """Packs (with `packing`), groups and batches the samples of one lane, by the hooks that get several. The samples
    are made by `bare_maker`, or by what wraps it."""

    def __init__(self, bare_maker: EncodingMaker, *, packing: bool) -> None:
        self.bare_maker, self.hooks, self.times = bare_maker, bare_maker.hooks, SampleTimes()
        self._ids = bare_maker.ids
        self.numbers = {source_id: number for number, source_id in enumerate(self._ids.source_ids)}
        """Numbers of the sources, by their ids in restore keys."""
        self.is_packing = packing
        """Whether samples are packed."""
        self._encoder, self.does = self.hooks.encoder, self.hooks.does
        self.groups = self.hooks.of_encoder.groups
        """Whether the encoder says which samples are batched together."""
        self._group_sizes: dict[str, int] = {}
        self._postencodes = "postencode_sample" in self.does

    @functools.cached_property
    def only_stacks(self) -> bool:
        """Whether samples are batched as decoded, by the default batch hook: no user's code has seen them, or could
        have kept them."""
        return self._batches_decoded and "batch" not in self.does

    @functools.cached_property
    def _batches_decoded(self) -> bool:
        """Whether samples are batched as built-in code decoded them."""
        return not (self.is_packing or self.groups) and self.bare_maker.is_builtin_only

    @property
    def batch_index_known_when_encoding(self) -> bool:
        """Whether a sample is encoded for its batch: without packing, groups and generators."""
        return not self.is_packing and not self.groups and self.hooks.has_no_generators

    @property
    def may_multiply(self) -> bool:
        """As `EncoderHooks.may_multiply`; what is found while hooks run counts, too."""
        return self.hooks.of_encoder.may_multiply or not self.hooks.has_no_generators

    def keys_of(self, units: Sequence[Unit]) -> list[Key]:
        """The restore keys of all samples in some units, in order."""
        if self._batches_decoded:
            return [unit.sample.__restore_key__ for unit in units]
        source_ids = self._ids.source_ids
        items = [item for unit in units for item in unit.items]
        return [(source_ids[item.ref[0]], item.ref[1], item.ref[2], item.output) for item in items]

    # ----- packs ------------------------------------------------------------------------------------------------------

    def select(self, items: list[Item], *, at_end: bool) -> tuple[list[list[Item]], list[Item]]:
        """(packs, items in none of them) from a buffer of items, as the encoder chooses; `at_end` of the data, items of
        which it makes no pack are packs by themselves."""
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
        packs, left = [pack for pack in packs if pack], list(free.values())
        if packs or not left:
            return packs, left
        if at_end:
            return [[item] for item in left], []
        raise FatalSampleError(
            f"select_samples_to_pack of {type(self._encoder).__name__} formed no pack out of a full buffer of "
            f"{len(items)} samples. Return a sample that fits nowhere as a pack of its own, or raise SkipSample for it "
            "before packing."
        )

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
        made_of = (
            [(PACK, *itertools.islice(of_samples, len(unit.items))) for unit in units] if self.is_packing else keys
        )
        for output, batch in enumerate(batches):
            mark(batch, (BATCH, self.hooks.batch_index or 0, output, *made_of))
        return batches

    def _first_key(self, first: Item) -> tuple[int, int, int, int]:
        """Packs and batches draw random numbers with the key of their first member."""
        return self._ids.random_key(first.ref, first.output)


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


def mark(made: Any, key: Key, *, add: bool = False) -> None:
    """Set the restore key of a sample, a pack or a batch, if it keeps one; with `add`, also of any dict."""
    if isinstance(made, dict):
        if add or "__restore_key__" in made:
            made["__restore_key__"] = key
    elif hasattr(made, "__restore_key__"):
        made.__restore_key__ = key
