"""From the draws of a lane to its micro-batches: samples in their order, and what is done to them together.

An `Item` is an output of a sample between its draw and its micro-batch. Without packing it is a unit by itself; with
packing a unit is a `Pack` of items. Neither needs its payload in memory: after a restore, it is read when it is needed.

`Assembly` gets items and units, whose samples are made. Returns which items share a pack, packed samples, the group of
a unit, the batches of some units. No sample is lost or packed twice; a group has one batch size; random numbers depend
on the first sample.

`SampleFeed` reads the references of a cursor. Returns an `Item` for each output of a sample that hooks keep; the others
are counted as skipped. An item that came back from a state has no payload: `read` makes it again. Raises what hooks and
reads raise, and `FatalSampleError` when nothing is left of a source.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from bridge_data.errors import ConfigError, FatalSampleError
from bridge_data.lanes.maker import EncodingMaker, Key, Maker, Outputs, SampleTimes, mark, outputs_of
from bridge_data.lanes.reading import ReadAhead
from bridge_data.lanes.survival import Survivals
from bridge_data.order import Cursor, SampleRef
from bridge_data.order.cursor import CursorState
from bridge_data.order.extras import LaneExtras
from bridge_data.order.pending import Pending, encoded_item
from bridge_data.samples.arena import current_arena
from bridge_data.task.hooks import TRUNCATED

logger = logging.getLogger("bridge_data")

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
        return self.groups or not self.hooks.has_no_generators or self.hooks.of_encoder.makes_batches_of_one

    def keys_of(self, units: Sequence[Unit]) -> list[Key]:
        """The restore keys of all samples in some units, in order."""
        if self._batches_decoded:
            return [unit.sample.__restore_key__ for unit in units]
        source_ids = self._ids.source_ids
        items = [item for unit in units for item in unit.items]
        return [(source_ids[item.ref[0]], item.ref[1], item.ref[2], item.output) for item in items]

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
        for output, batch in enumerate(batches):
            mark(batch, (BATCH, self.hooks.batch_index or 0, output, *made_of))
        return batches

    def _first_key(self, first: Item) -> tuple[int, int, int, int]:
        """Packs and batches draw random numbers with the key of their first member."""
        return self._ids.random_key(first.ref, first.output)


class SampleFeed:
    """The samples that `cursor` draws, without those that `extras` leave out, made by `maker`; `work` is done to them
    together. `ahead` gets the position of the cursor. With `stacks`, images are put where their batch will be."""

    def __init__(
        self,
        cursor: Cursor,
        work: Assembly,
        maker: Maker,
        survivals: Survivals,
        *,
        extras: LaneExtras | None = None,
        ahead: ReadAhead | None = None,
        stacks: bool = False,
    ) -> None:
        self.cursor, self.work, self.survivals, self.ahead = cursor, work, survivals, ahead
        self.queue: collections.deque[Item] = collections.deque()
        """Items that were drawn together with others and come next."""
        self._maker, self._extras, self._stacks, self._draws_many = maker, extras, stacks, work.maker.only_loads
        self._base: CursorState | None = None
        """The state of the cursor from which a state counts the draws of items; None: from the current one."""
        self._carried, self._packs = _WrittenOnce(), _WrittenOnce()
        self._lookahead = _Lookahead(cursor)

    def next(self, num_missing: int = 1) -> Item:
        """The next output of a sample; the work on the `num_missing` next ones is started together.

        Raises:
            StopIteration: at the end of the data.
        """
        while not self.queue:
            self.draw(num_missing)
        return self.queue.popleft()

    def draw(self, count: int) -> None:
        """Queue the next sample, or, where the work on many is faster, `count` samples; or all that are left."""
        work = self.work
        count = count if self._draws_many else 1
        if self.ahead is not None:
            self.ahead.follow(self.cursor, count)
        drawn = self.cursor.take(count)
        if self._extras is not None:
            refs = [ref for _, ref in drawn]
            if len(kept := self.let_through(refs, survivals=True)) < len(refs):
                is_kept = {*kept}
                drawn = [pair for pair in drawn if pair[1] in is_kept]
        if not drawn:
            return
        new, queue, num_kept, times = object.__new__, self.queue, self.survivals.kept, work.times
        arena = current_arena() if self._stacks else None
        with contextlib.nullcontext() if arena is None else arena.images(len(drawn)):
            began_ns = time.perf_counter_ns()
            times.num_loaded += len(drawn)
            many = self._maker.make([ref for _, ref in drawn])
            if are_made := many.__class__ is list:
                times.note(drawn[0][1], began_ns)
            for (draw, ref), sample in zip(drawn, many, strict=True):
                if not are_made:
                    began_ns = times.note(ref, began_ns)
                if sample.__class__ is not Outputs:
                    item = new(Item)  # not by its constructor, which takes three times as long
                    item.draw, item.ref, item.output, item.sample = draw, ref, 0, sample
                    queue.append(item)
                elif sample:
                    queue += [Item(draw, ref, output, one) for output, one in sample]
                else:
                    self.count_skip(ref[0])
                    continue
                num_kept[ref[0]] += 1

    def let_through(self, refs: Sequence[SampleRef], *, survivals: bool = False) -> Sequence[SampleRef]:
        """Those of some samples that no extra leaves out; the others are counted as skips, also in the `survivals`."""
        if self._extras is None:
            return refs
        kept = self._extras.filter(refs)
        for ref, extra in self._extras.left_out(refs) if len(kept) < len(refs) else ():
            self.work.hooks.count_skip(extra.skips_as, 1, extra.reason)
            if survivals:
                self.count_skip(ref.source)
        return kept

    def count_skip(self, what: int | str) -> None:
        """Count a sample of source `what`, or one of `what`, that a hook skipped."""
        self.survivals[what].count_skip(*self.work.hooks.last_skip)

    def load(self, item: Item) -> dict[int, Any]:
        """All outputs of the sample of an item, made now, by number."""
        began_ns, times = time.perf_counter_ns(), self.work.times
        (made,) = self._maker.make((item.ref,))
        times.num_loaded += 1
        times.note(item.ref, began_ns)
        return dict(outputs_of(made))

    def read(self, item: Item) -> bool:
        """Ensure that the payload of an item is in memory; False if, made again, it is now skipped."""
        if item.sample is not UNREAD:
            return True
        skipped = self.work.hooks.skipped
        num_truncated = skipped[TRUNCATED]
        outputs = self.load(item)
        if skipped[TRUNCATED] > num_truncated:
            skipped[TRUNCATED] = num_truncated  # it was counted before the resume
        if item.output not in outputs:
            skipped["restore"] += 1
            logger.warning("pending sample %s, output %d, was skipped when read again", item.ref, item.output)
            return False
        item.sample = outputs[item.output]
        return True

    def pack(self, items: Sequence[Item]) -> Pack | None:
        """The pack of some items, which are read first; None if hooks skip all of it."""
        read = [item for item in items if self.read(item)]
        return self.work.pack(read) if read else None

    # ----- state ------------------------------------------------------------------------------------------------------

    def count_from_here(self) -> None:
        """Let states count the draws of items from here, where it is replayed on restore: that is shorter than naming
        them. Items of before are named."""
        self._base, self._carried, self._packs = self.cursor.state(), _WrittenOnce(), _WrittenOnce()

    def resume(self, queue: collections.deque[Item], base: CursorState | None) -> None:
        """Continue with the `queue` of a state, and count draws from its `base`."""
        self.queue, self._base, self._carried, self._packs = queue, base, _WrittenOnce(), _WrittenOnce()

    def written(self, pending: Pending[Item, Unit]) -> dict[str, Any]:
        """Items as a state keeps them. What waits for many batches is written once."""
        base = self._base
        first = self.cursor.num_drawn if base is None else base["draws"]
        others: Pending[Item, Unit] = Pending(pending.queue, buckets=pending.buckets, open=pending.open)
        encoded = others.encode(first)
        if pending.carried:
            encoded["carried"] = self._carried.written(pending.carried, lambda item: encoded_item(item, first))
        if pending.packs:
            encoded["packs"] = self._packs.written(
                [*pending.packs], lambda pack: [encoded_item(item, first) for item in pack]
            )
        return encoded if base is None else {**encoded, "base": base}

    # ----- what comes next --------------------------------------------------------------------------------------------

    def upcoming(self, num_items: int, most: int) -> list[SampleRef]:
        """Up to `most` of the samples that the next `num_items` items beyond those in the queue come from, in order."""
        return self._lookahead.refs(min(num_items - len(self.queue), most))


class _WrittenOnce:
    """Items or packs that wait, as they were last written: most of them wait for many batches."""

    def __init__(self) -> None:
        self._waiting: list[Any] = []
        self._written: list[Any] = []

    def written(self, waiting: list[Any], write: Callable[[Any], Any]) -> list[Any]:
        """What `write` returns for each; the same list, if the same ones wait as before."""
        num_gone = len(self._waiting) - len(waiting)
        if num_gone < 0 or self._waiting[num_gone:] != waiting:
            known = dict(zip(map(id, self._waiting), self._written, strict=True))
            self._written = [write(one) if (made := known.get(id(one))) is None else made for one in waiting]
        elif num_gone:
            self._written = self._written[num_gone:]
        else:
            return self._written
        self._waiting = [*waiting]
        return self._written


class _Lookahead:
    """The samples that come after the position of `cursor`: from a second one, which runs ahead of it."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._scout: Cursor | None = None
        self._found: collections.deque[tuple[int, SampleRef]] = collections.deque()
        """What the scout has drawn and the cursor has not, with draw numbers."""

    def refs(self, count: int) -> list[SampleRef]:
        """The next `count` samples; fewer at the end of the data."""
        found, now = self._found, self._cursor.num_drawn
        while found and found[0][0] < now:
            found.popleft()
        if self._scout is None or self._scout.num_drawn < now:
            self._scout = self._cursor.copy()
        if count > len(found):
            with contextlib.suppress(StopIteration):
                found += self._scout.take(count - len(found))
        return [ref for _, ref in itertools.islice(found, max(0, count))]
