"""A lane: one independent stream of micro-batches, with a cursor of its own.

Reads a cursor (which sample comes next) and a batcher (what is done to it). Returns micro-batches (`Produced`), each
with the lane's state after it. Raises what hooks and reads raise, `FatalSampleError` if nothing is left of the data
(see `survival`).
The stream is a function of plan, seed and lane number; a lane set to a saved state continues exactly where it was; a
skipped sample shifts only its own lane. The state holds no payload: samples drawn and not yet emitted are kept as
references, and made again after a restore; the members of packs and groups are chosen once, and are the same then.

A micro-batch is made in four steps:

    SampleFeed          draws samples, and has them made: each is an `Item`
    PackSource          with packing, chooses which items share a `Pack` (see `pack_source`)
    Lane._next_units    fills a bucket with items or packs; with groups, one of several
    Lane._batches       collates a full bucket; a generator may make several batches of it

What was drawn and is in no batch yet waits in the queue of the feed, in what the pack source `Held`, in the buckets, or
in a bucket that was only partly emitted: `Lane.pending` is all of it, and `Lane.state` saves it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from bridge_data.counts import COUNTS, NO_COUNTS, CountValues, tokens_of
from bridge_data.lanes.maker import UNREAD, Batcher, Batching, Item, Maker, Outputs, Pack, Unit, outputs_of
from bridge_data.lanes.reading import Announcer
from bridge_data.lanes.survival import Survivals
from bridge_data.order import Cursor, SampleRef
from bridge_data.order.cursor import CursorState, Lookahead
from bridge_data.order.extras import LaneExtras
from bridge_data.order.pending import Drawn, Pending, WrittenOnce, encoded_item
from bridge_data.order.row import Ints
from bridge_data.order.state import LaneState
from bridge_data.samples.arena import current_arena
from bridge_data.samples.collation import with_tensors
from bridge_data.task.hooks import TRUNCATED

logger = logging.getLogger("bridge_data")

T = TypeVar("T")

_BUFFERS, _PACKS, _GROUPED, _BATCHES = "packing buffers", "packs", "samples or packs to be grouped", "micro-batches"
"""What is counted besides the samples of each source, by which nothing may be left."""

Upcoming: TypeAlias = Callable[[int, int], Sequence[SampleRef]]
"""`Lane.upcoming`, which `wrap` gets."""


@dataclasses.dataclass(slots=True)
class Produced(Generic[T]):
    """A micro-batch of a lane, the lane's state after it (plain JSON), the samples skipped since the one before, by
    hook (those cut short or that failed, as `NO_STAGES`), counts, and what extras noted of it, by their names."""

    lane: int
    batch: T
    state: LaneState
    skipped: dict[str, int]
    counts: CountValues = dataclasses.field(default=NO_COUNTS, compare=False)
    """The values of a `BatchCounts`."""
    notes: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    ready_batches: int = dataclasses.field(default=0, compare=False)
    """How many batches its worker had ready when the trainer asked for this one, out of at most `ready_slots`; 0 and 0
    if the trainer made it."""
    ready_slots: int = dataclasses.field(default=0, compare=False)


class SampleFeed:
    """The samples that `cursor` draws, without those that `extras` leave out, made by `maker`; `batcher` has them
    together. `ahead` gets the position of the cursor. With `stacks`, images are put where their batch will be."""

    def __init__(
        self,
        cursor: Cursor,
        batcher: Batcher,
        maker: Maker,
        survivals: Survivals,
        *,
        extras: LaneExtras | None = None,
        ahead: Announcer | None = None,
        stacks: bool = False,
    ) -> None:
        self.cursor, self.batcher, self.survivals, self.ahead = cursor, batcher, survivals, ahead
        self.queue: collections.deque[Item] = collections.deque()
        """Items that were drawn together with others and come next."""
        self._maker, self._extras, self._stacks = maker, extras, stacks
        self._base: CursorState | None = None
        """The state of the cursor from which a state counts the draws of items; None: from the current one."""
        self._written: defaultdict[str, WrittenOnce] = defaultdict(WrittenOnce)
        """By what items wait for."""

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
        batcher = self.batcher
        count = min(count, batcher.bare_maker.most_at_once)
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
        new, queue, num_kept, times = object.__new__, self.queue, self.survivals.kept, batcher.times
        arena = current_arena() if self._stacks else None
        with contextlib.nullcontext() if arena is None else arena.images(len(drawn)):
            began_ns = time.perf_counter_ns()
            times.num_loaded += len(drawn)
            samples = self._maker.make([ref for _, ref in drawn])
            if made_together := samples.__class__ is list:  # else each is made as this loop comes to it
                times.note(drawn[0][1], began_ns)
            for (draw, ref), sample in zip(drawn, samples, strict=True):
                if not made_together:
                    began_ns = times.note(ref, began_ns)
                if sample.__class__ is not Outputs:
                    item = new(Item)  # not by its constructor, which takes three times as long
                    item.draw, item.ref, item.output, item.sample = draw, ref, 0, sample
                    queue.append(item)
                elif sample:
                    queue += [Item(draw, ref, output, one) for output, one in sample]
                else:
                    self.note_not_kept(ref[0])
                    continue
                num_kept[ref[0]] += 1

    def without_left_out(self, refs: Sequence[SampleRef]) -> Sequence[SampleRef]:
        """The samples of `refs` that no extra leaves out."""
        return refs if self._extras is None else self._extras.filter(refs)

    def let_through(self, refs: Sequence[SampleRef], *, survivals: bool = False) -> Sequence[SampleRef]:
        """The samples of `refs` that no extra leaves out; the others are counted as skips, and with `survivals` as not
        kept."""
        if self._extras is None:
            return refs
        kept = self.without_left_out(refs)
        for ref, extra in self._extras.left_out(refs) if len(kept) < len(refs) else ():
            self.batcher.hooks.count_skip(extra.skips_as, 1, extra.reason)
            if survivals:
                self.note_not_kept(ref.source)
        return kept

    def note_not_kept(self, what: int | str) -> None:
        """Note in the survivals that a sample of source number `what`, or one of `what`, was lost to the last skip that
        the hooks have counted."""
        self.survivals[what].count_skip(*self.batcher.hooks.last_skip)

    def load(self, item: Item) -> dict[int, Any]:
        """All outputs of the sample of an item, made now, by number."""
        began_ns, times = time.perf_counter_ns(), self.batcher.times
        (made,) = self._maker.make((item.ref,))
        times.num_loaded += 1
        times.note(item.ref, began_ns)
        return dict(outputs_of(made))

    def read(self, item: Item) -> bool:
        """Ensure that the payload of an item is in memory; False if, made again, it is now skipped."""
        if item.sample is not UNREAD:
            return True
        skipped = self.batcher.hooks.skipped
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

    def select(self, items: list[Item], *, at_end: bool) -> tuple[list[list[Item]], list[Item]]:
        """`Batcher.select` of items that are read; counted as not kept if hooks skip all of them."""
        packs, left = self.batcher.select(items, at_end=at_end)
        if packs:
            self.survivals.kept[_BUFFERS] += 1
        else:
            self.note_not_kept(_BUFFERS)
        return packs, left

    def pack(self, items: Sequence[Item]) -> Pack | None:
        """The pack of some items, which are read first; None if hooks skip all of it."""
        read = [item for item in items if self.read(item)]
        return self.batcher.pack(read) if read else None

    # ----- state ------------------------------------------------------------------------------------------------------

    def count_from_here(self) -> None:
        """Let states count the draws of items from here, where it is replayed on restore: that is shorter than naming
        them. Items of before are named."""
        self._base = self.cursor.state()
        self._written.clear()

    def resume(self, queue: collections.deque[Item], base: CursorState | None) -> None:
        """Continue with the `queue` of a state, and count draws from its `base`."""
        self.queue, self._base = queue, base
        self._written.clear()

    def written(self, pending: Pending[Item, Unit]) -> dict[str, Any]:
        """Items as a state keeps them. What waits for many batches is written once."""
        base = self._base
        first = self.cursor.num_drawn if base is None else base["draws"]
        others: Pending[Item, Unit] = Pending(pending.queue, buckets=pending.buckets, open=pending.open)
        encoded, once = others.encode(first), self._written
        if pending.carried:
            encoded["carried"] = once["carried"].written(pending.carried, lambda item: encoded_item(item, first))
        if pending.packs:
            packs = [*pending.packs]
            encoded["packs"] = once["packs"].written(packs, lambda pack: [encoded_item(item, first) for item in pack])
        return encoded if base is None else {**encoded, "base": base}

    # ----- what comes next --------------------------------------------------------------------------------------------

    def upcoming(self, num_items: int, most: int) -> list[SampleRef]:
        """Up to `most` of the samples that the next `num_items` items beyond those in the queue come from, in order."""
        return self._lookahead.refs(min(num_items - len(self.queue), most))

    @functools.cached_property
    def _lookahead(self) -> Lookahead:
        return Lookahead(self.cursor)


@dataclasses.dataclass(slots=True)
class Held:
    """What a `PackSource` has drawn and not handed out."""

    carried: list[Item] = dataclasses.field(default_factory=list)
    """Items that wait for a pack."""
    packs: collections.deque[list[Item]] = dataclasses.field(default_factory=collections.deque)
    """The members of packs that are chosen. Such a list does not change any more."""


class PackSource(Protocol):
    """The packs of one lane; `OnlinePacker` is one."""

    @property
    def held(self) -> Held:
        """What a state keeps as references."""

    def next(self) -> list[Item]:
        """The members of the next pack.

        Raises:
            StopIteration: at the end of the data.
        """

    def pack(self, items: list[Item]) -> Pack | None:
        """The pack of these members, as `next` returned them, or as they came back from a state; None if hooks skip all
        of it."""

    def state(self) -> Any:
        """What a state keeps besides, as plain JSON; None if there is nothing."""

    def seek(self, state: Any, held: Held) -> None:
        """Continue from what `state` returned, with what was `held`, whose items are not in memory."""

    def upcoming(self, num_packs: int, most: int) -> Sequence[SampleRef]:
        """Up to `most` of the samples that the next packs will load, in order, as far as is known; it may be asked for
        those of `num_packs`."""


class Lane:
    """The stream of one lane, from its start or from `state`.

    It is lane `number` of `num_lanes`. `sources` are, for each source, its label and number of samples; `ahead` gets
    the position of the cursor. With packing, `open_pack_source` opens what chooses the packs. Samples are made by the
    `bare_maker` of `batcher`, or by what `wrap` puts around it. `extras` leave samples out, note what was made, and
    save with the lane; None: there are none. The lane ends when it has made `max_micro_batches`, counted from the start
    of the pass.
    """

    def __init__(
        self,
        cursor: Cursor,
        batcher: Batcher,
        batching: Batching,
        *,
        number: int,
        num_lanes: int,
        sources: Sequence[tuple[str, int]],
        state: LaneState | None = None,
        ahead: Announcer | None = None,
        open_pack_source: Callable[[SampleFeed], PackSource] | None = None,
        extras: LaneExtras | None = None,
        wrap: Callable[[Upcoming], Maker] | None = None,
        max_micro_batches: float = math.inf,
    ) -> None:
        self._extras = extras
        self._cursor, self.batcher, self._batching = cursor, batcher, batching
        self.number, self._num_lanes = number, num_lanes
        self._micro_batches = self._num_samples = self._num_read = 0
        self._max_micro_batches = max_micro_batches
        self._batched: Ints  # the samples of the last micro-batch, set if extras want to know them
        self._tokens: tuple[int, int] | None = None  # of what was batched last, if its units say it
        self._buckets: dict[str, list[Unit]] = {}
        self._open: collections.deque[tuple[list[Unit], int]] = collections.deque()
        """Micro-batches that were only partly emitted, as in `Pending`."""
        self._sizes: dict[str, int] = {}  # of the micro-batches of each group
        self._batches_samples = batching.batch_size is not None or batcher.groups
        self._ready: collections.deque[Any] = collections.deque()
        self._head: LaneState | None = None  # the last state of the cursor
        self._survivals = Survivals(number, num_lanes, sources)
        self._kept = self._survivals.kept
        stacks = self._batches_samples and batcher.only_stacks
        filtering = extras if extras is not None and extras.may_leave_out else None
        maker = batcher.bare_maker if wrap is None else wrap(_upcoming_of(self))
        self.feed = SampleFeed(cursor, batcher, maker, self._survivals, extras=filtering, ahead=ahead, stacks=stacks)
        self.pack_source: PackSource | None = None if open_pack_source is None else open_pack_source(self.feed)
        if state is not None:
            self._restore(state)

    def next(self) -> Produced[Any]:
        """The next micro-batch; `StopIteration` at the end of finite data.

        Raises:
            FatalSampleError: if a hook failed too often, or nothing is left of the data after filtering.
            DatasetError: if data cannot be read.
        """
        observer = self.batcher.hooks.observer
        if observer is None:
            return self._produced()
        observer.begin_batch()
        try:
            made = self._produced()
        finally:
            observer.end_batch()
        made.batch = observer.finished(made.batch)
        return made

    def _produced(self) -> Produced[Any]:
        COUNTS.forget_images()  # what else this process decoded
        try:
            with self.batcher.hooks:
                batch = with_tensors(self._next_batch())
        except StopIteration:
            if not self._micro_batches and (told := self.batcher.hooks.skip_summary()):
                logger.warning("lane %d ends without a batch: all samples %s", self.number, told)
            raise
        self._micro_batches += 1
        notes: dict[str, Any] = {}
        if self._extras is not None and self._extras.want_samples:
            notes = self._extras.note(self._index_of(self._micro_batches - 1), self._batched)
        return Produced(self.number, batch, self.state(), self.batcher.hooks.take_skipped(), self._counts(batch), notes)

    def _index_of(self, number: int) -> int:
        """The index in the job of this lane's micro-batch `number`."""
        return number * self._num_lanes + self.number

    def _counts(self, batch: Any) -> CountValues:
        """The `BatchCounts` of a new batch, in the order of their fields; it takes those of the process."""
        tokens, slots = tokens_of(batch) if self._tokens is None else self._tokens
        slowest = self.batcher.times.take_slowest()
        return *COUNTS.take(), self._num_samples, tokens, slots, COUNTS.take_others(), slowest

    def take_skipped(self) -> dict[str, int]:
        """The samples skipped since the last batch, by hook; a call resets them."""
        return self.batcher.hooks.take_skipped()

    def upcoming(self, num_units: int, most: int) -> Sequence[SampleRef]:
        """Up to `most` of the samples that it will load for its next units, as far as is known."""
        of = self.feed if self.pack_source is None else self.pack_source
        return self.feed.without_left_out(of.upcoming(num_units, most))

    def _next_batch(self) -> Any:
        if self._micro_batches >= self._max_micro_batches:
            raise StopIteration
        while True:
            if not self._ready:
                if not self._open:
                    self._open.append((self._next_units(), 0))
                units, emitted = self._open[0]
                self._ready.extend(self._batches(units, self._micro_batches - emitted)[emitted:])
            if self._ready:
                batch = self._ready.popleft()
                units, emitted = self._open.popleft()
                self._num_samples = 0 if emitted else self._num_read
                if self._ready:
                    self._open.appendleft((units, emitted + 1))
                self._kept[_BATCHES] += 1
                return batch
            self._open.popleft()
            self.feed.note_not_kept(_BATCHES)

    def _batches(self, units: list[Unit], number: int) -> list[Any]:
        """The batches made of some units; the first is this lane's batch `number`."""
        hooks, index = self.batcher.hooks, self._index_of(number)
        hooks.batch_index = index if self.batcher.batch_index_known_when_encoding else None
        try:
            read = [unit for unit in units if unit.sample is not UNREAD or self._read(unit)]
            hooks.batch_index = index
            self._num_read = len(read)
            if self.pack_source is not None:
                self._num_read = sum(unit.num_samples for unit in read)
                self._tokens = _tokens_told(read)
            keys = self.batcher.keys_of(read)
            if self._extras is not None and self._extras.want_samples:
                self._batched = _samples_of(read)
            return self.batcher.batch(read, keys, collate=self._batches_samples) if read else []
        finally:
            hooks.batch_index = None

    def _next_units(self) -> list[Unit]:
        """The members of the next micro-batch: the first full bucket; at the end of the data, what is left."""
        if not self._batches_samples:
            return [self._next_unit()]
        try:
            return self._next_group() if self.batcher.groups else self._next_bucket()
        except StopIteration:
            buckets = self._buckets
            full = (name for name, size in self._sizes.items() if len(buckets.get(name, ())) >= size)
            if (name := next(full, None)) is not None:
                return self._first_of(name, self._sizes[name])
            if self._batching.drop_last:
                left = sum(len(unit.items) for bucket in buckets.values() for unit in bucket)
                if left:
                    self.batcher.hooks.skipped["batch_drop_last"] += left
                buckets.clear()
            if not buckets:
                raise
            return buckets.pop(next(iter(buckets)))

    def _next_bucket(self) -> list[Unit]:
        """The members of the next micro-batch, if there is only one bucket."""
        size = self._batching.batch_size
        assert size is not None
        bucket, feed = self._buckets.setdefault("", []), self.feed
        queue = feed.queue
        if self.batcher.batch_index_known_when_encoding:
            self.batcher.hooks.batch_index = self._index_of(self._micro_batches)
        try:
            while (num_missing := size - len(bucket)) > 0:
                if self.pack_source is not None:
                    bucket.append(self._next_pack(self.pack_source))
                    continue
                while not queue:
                    feed.draw(num_missing)
                if len(queue) <= num_missing:
                    items = [*queue]
                    queue.clear()
                else:
                    items = [queue.popleft() for _ in range(num_missing)]
                bucket += [item for item in items if item.sample is not UNREAD or feed.read(item)]
            return self._buckets.pop("")
        finally:
            self.batcher.hooks.batch_index = None
            if not bucket:
                self._buckets.pop("", None)

    def _next_group(self) -> list[Unit]:
        """The members of the next micro-batch, if the encoder groups units: the first full bucket."""
        buckets = self._buckets
        while True:
            unit = self._next_unit()
            group = self.batcher.group(unit, self._batching.batch_size)
            if group is None:
                self.feed.note_not_kept(_GROUPED)
                continue
            self._kept[_GROUPED] += 1
            name, size = group
            self._sizes[name] = size
            bucket = buckets.setdefault(name, [])
            bucket.append(unit)
            if len(bucket) >= size:
                return self._first_of(name, size)

    def _first_of(self, name: str, size: int) -> list[Unit]:
        """The first `size` members of a bucket. A restored one may have more, if the encoder gives the group less
        now."""
        bucket = self._buckets.pop(name)
        if bucket[size:]:
            self._buckets[name] = bucket[size:]
        return bucket[:size]

    def _next_unit(self) -> Unit:
        """The next sample, or with packing the next pack; `StopIteration` at the end of the data."""
        if self.pack_source is not None:
            return self._next_pack(self.pack_source)
        while True:
            item = self.feed.next()
            if self.feed.read(item):
                return item

    def _next_pack(self, source: PackSource) -> Pack:
        """The next pack; `StopIteration` at the end of the data."""
        while True:
            pack = source.pack(source.next())
            if pack is not None:
                self._kept[_PACKS] += 1
                return pack
            self.feed.note_not_kept(_PACKS)

    def _read(self, unit: Unit) -> bool:
        """Ensure that the payload of a unit is in memory; False if, made again, it is now skipped."""
        if unit.sample is not UNREAD:
            return True
        if not isinstance(unit, Pack):
            return self.feed.read(unit)
        assert self.pack_source is not None
        made = self.pack_source.pack(unit.items)
        if made is not None:
            unit.sample, unit.num_samples, unit.tokens = made.sample, made.num_samples, made.tokens
        return made is not None

    def state(self) -> LaneState:
        """The lane's state as plain JSON. What has not changed since the last state is the same object in both."""
        if self._head is None or self._head["draws"] != self._cursor.num_drawn:
            self._head = cast("LaneState", self._cursor.state())
        state: LaneState = {**self._head, "micro_batches": self._micro_batches}
        if self.pack_source is not None and (own := self.pack_source.state()) is not None:
            state["pack_source"] = own
        if self._extras is not None and (saved := self._extras.save()):
            state["extras"] = saved
        held = _NOTHING if self.pack_source is None else self.pack_source.held
        if self.feed.queue or self._buckets or self._open or held.carried or held.packs:
            state["pending"] = self.feed.written(self.pending)
        return state

    @property
    def pending(self) -> Pending[Item, Unit]:
        """All that it has drawn and not emitted."""
        held = _NOTHING if self.pack_source is None else self.pack_source.held
        return Pending(self.feed.queue, held.carried, held.packs, self._buckets, self._open)

    def _restore(self, state: LaneState) -> None:
        self._micro_batches = state["micro_batches"]
        drawn = Pending.decode(state, self._cursor)
        waiting = [item.ref for item in drawn.items()]
        if len(kept := self.feed.let_through(waiting)) < len(waiting):
            drawn = drawn.only({*kept})
        self._cursor.seek(state)

        def unit(members: list[Drawn]) -> Unit:
            """A pack, or, without packing, a single item."""
            items = [Item(*one) for one in members]
            return items[0] if self.pack_source is None else Pack(items)

        pending = drawn.map(lambda one: Item(*one), unit)
        self.feed.resume(pending.queue, state.get("pending", {}).get("base"))
        self._buckets, self._open = pending.buckets, pending.open
        if self.pack_source is not None:
            self.pack_source.seek(state.get("pack_source"), Held(pending.carried, pending.packs))
        if self.feed.ahead is not None:
            refs = (one.ref for one in drawn.items())
            while self.feed.ahead.announce(refs):
                pass


_NOTHING = Held()


def _upcoming_of(lane: Lane) -> Upcoming:
    """`Lane.upcoming`, for a wrapper of its maker, which must not keep the lane alive."""
    of = weakref.WeakMethod(lane.upcoming)
    return lambda num_units, most: () if (upcoming := of()) is None else upcoming(num_units, most)


def _samples_of(units: Sequence[Unit]) -> Ints:
    """Source, epoch, index and output of the samples in some units, (samples, 4)."""
    items = [item for unit in units for item in unit.items]
    flat = [*itertools.chain.from_iterable(item.ref for item in items)]
    flat[3::4] = [item.output for item in items]
    return np.array(flat, dtype=np.int64).reshape(-1, 4)


def _tokens_told(units: Sequence[Unit]) -> tuple[int, int] | None:
    """The `Pack.tokens` of all units, if they have some."""
    told = [unit.tokens for unit in units if isinstance(unit, Pack) and unit.tokens is not None]
    return (sum(one for one, _ in told), sum(both for _, both in told)) if told else None
