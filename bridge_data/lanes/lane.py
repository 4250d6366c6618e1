"""A lane: one independent stream of micro-batches, with a cursor of its own.

Enters: a cursor (which sample comes next) and the work (what is done to it). Leaves: micro-batches, each with the
lane's state after it. Guarantees: the stream is a function of plan, seed and lane number; a lane set to a saved state
continues exactly where it was; a skipped sample shifts only its own lane. The state holds no payload: samples
drawn and not yet emitted are kept as references, and read again after a restore; the members of packs and groups are
chosen once, and are the same then.

A micro-batch comes about from below: the next item (`_next_item`), with packing the next pack of items (`_next_pack`),
the next full bucket of these units, the only one or that of a group (`_next_bucket`, `_next_group`), its batches.
"""

import collections
import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bridge_data.errors import FatalSampleError
from bridge_data.lanes.assembly import Assembly
from bridge_data.lanes.maker import LaneView, MakerWrapper, Parts, Trial, parts_of, wrapped
from bridge_data.lanes.observing import ObservedMaker, TimedMaker
from bridge_data.lanes.produced import NO_OTHERS, CountValues, Produced
from bridge_data.lanes.reading import ReadAhead
from bridge_data.lanes.survival import Survivals
from bridge_data.lanes.units import UNREAD, Batching, Item, Pack, Unit
from bridge_data.lanes.upcoming import Upcoming
from bridge_data.order import ALL_PARTS, Cursor, SampleRef
from bridge_data.order.extras import LaneExtras
from bridge_data.order.pending import OLD, Drawn, Pending
from bridge_data.plugins.planned.planned import ContextStep, LanePacks
from bridge_data.process_counts import COUNTS
from bridge_data.samples.arena import current_arena
from bridge_data.samples.collation import with_tensors
from bridge_data.task.hooks import LEFT_OUT, REMEASURED, TRUNCATED

logger = logging.getLogger("bridge_data")

_GROUPED, _BUFFERS, _PACKS, _BATCHES = "samples or packs to be grouped", "packing buffers", "packs", "micro-batches"
"""What is counted besides the samples of each source, by which nothing may be left."""

_MEASURE = "measure the data again (bridge-data measure)"


class Lane:
    """The stream of one lane, from its start or from `state`.

    `position` is (number of this lane, number of lanes). `sources` are, for each source, its name and number of
    samples; `ahead` gets the position of the cursor. With `planned`, packs come from there, and the cursor is not
    moved. Samples are made by the maker of `work` inside the `wrappers`; `trial` makes one for samples that others
    need, or that are needed later. `extras` leave samples out, note what was made, and save with the lane; None: there
    are none.
    """

    def __init__(
        self,
        cursor: Cursor,
        work: Assembly,
        batching: Batching,
        *,
        position: tuple[int, int],
        sources: Sequence[tuple[str, int]],
        state: dict[str, Any] | None = None,
        ahead: ReadAhead | None = None,
        planned: LanePacks | None = None,
        extras: LaneExtras | None = None,
        wrappers: Sequence[MakerWrapper] = (),
        trial: Callable[[Sequence[MakerWrapper]], Trial],
    ) -> None:
        self._extras = extras
        self._planned, self._is_told, self._is_ended = planned, False, False
        self._step: ContextStep | None = None  # what was taken last is a part of it
        self._cursor, self.work, self._batching = cursor, work, batching
        self._ahead, self._sources = ahead, sources
        self.number, self._num_lanes = position
        self._kept: dict[int | str, int] = collections.defaultdict(int)
        self._micro_batches = self._num_samples = self._num_read = 0
        self._batched: Sequence[SampleRef] = ()  # last, if extras want to know
        self._pending: Pending[Item, Unit] = Pending()
        self._sizes: dict[str, int] = {}  # of the micro-batches of each group
        self._batches_samples = batching.batch_size is not None or work.groups
        self._stacks = self._batches_samples and work.only_stacks
        self._ready: collections.deque[Any] = collections.deque()
        self._head: dict[str, Any] | None = None  # the last state of the cursor
        if state is not None:
            self._restore(state)
        self._base: dict[str, Any] | None = None if state is None else state.get("pending", {}).get("base")
        """With packing: the state of the cursor from which the draws of pending items are counted."""
        self._chosen: dict[str, Any] | None = None  # the packs chosen from the buffer, as states keep them
        upcoming = functools.partial(Upcoming, cursor, self._pending, batching, planned, extras)
        view = LaneView(number=self.number, times=work.times, new_upcoming=upcoming, new_trial=trial, maker=work.maker)
        self._maker = TimedMaker(wrapped(ObservedMaker(work.maker), wrappers, view), work.times)

    def next(self) -> Produced[Any]:
        """The next micro-batch; `StopIteration` at the end of finite data.

        Raises:
            FatalSampleError: if a hook failed too often, or nothing is left of the data after filtering.
            DatasetError: if data cannot be read.
        """
        observer = self.work.hooks.observer
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
        COUNTS.num_images = COUNTS.num_damaged_images = COUNTS.num_first_frames = (
            0  # what else this process decoded is in no batch
        )
        try:
            with self.work.hooks:
                batch = with_tensors(self._next_batch())
        except StopIteration:
            if not self._micro_batches and (told := self.work.hooks.skip_summary()):
                logger.warning("lane %d ends without a batch: all samples %s", self.number, told)
            raise
        self._micro_batches += 1
        notes: dict[str, Any] = {}
        if self._extras is not None:
            index = (self._micro_batches - 1) * self._num_lanes + self.number
            notes = self._extras.note(index, self._batched)
        return Produced(self.number, batch, self.state(), self.take_skipped(), self._counts(batch), notes)

    def _counts(self, batch: Any) -> CountValues:
        """The `Counts` of a new batch, in the order of their fields; it takes those of the process."""
        if images := COUNTS.num_images:
            COUNTS.num_images -= images
        if bytes_read := COUNTS.num_bytes:
            COUNTS.num_bytes -= bytes_read
        if retries := COUNTS.num_retries:
            COUNTS.num_retries -= retries
        if self._step is None:
            tokens, slots = tokens_of(batch)
        else:
            counted = [tokens_of(one) for one in batch[0].values()]
            tokens, slots = sum(tokens for tokens, _ in counted), sum(slots for _, slots in counted)
        others = COUNTS.take_others() if COUNTS.others else NO_OTHERS
        slowest = self.work.times.take_slowest()
        noted = COUNTS.take_image_notes()
        return self._num_samples, tokens, slots, images, bytes_read, retries, *noted, others, slowest, 0, 0

    def take_skipped(self) -> dict[str, int]:
        """The samples skipped since the last batch, by hook; a call resets them."""
        skipped = dict(self.work.hooks.skipped)
        self.work.hooks.skipped.clear()
        return skipped

    def _next_batch(self) -> Any:
        limit = self._batching.max_micro_batches
        if limit is not None and self._micro_batches * self._num_lanes + self.number >= limit:
            raise StopIteration
        while True:
            if not self._ready:
                if not self._pending.open:
                    self._pending.open.append((self._next_units(), 0))
                units, emitted = self._pending.open[0]
                self._ready.extend(self._batches(units, self._micro_batches - emitted)[emitted:])
            if self._ready:
                batch = self._ready.popleft()
                units, emitted = self._pending.open.popleft()
                self._num_samples = 0 if emitted else self._num_read
                if self._ready:
                    self._pending.open.appendleft((units, emitted + 1))
                self._kept[_BATCHES] += 1
                return batch
            self._pending.open.popleft()
            self._count_skip(_BATCHES)

    def _batches(self, units: list[Unit], number: int) -> list[Any]:
        """The batches made of some units; the first is this lane's batch `number`."""
        hooks, index = self.work.hooks, number * self._num_lanes + self.number
        hooks.batch_index = index if self.work.batch_index_known_when_encoding else None
        try:
            read = [unit for unit in units if unit.sample is not UNREAD or self._read(unit)]
            hooks.batch_index = index
            self._num_read = sum(unit.num_samples for unit in read) if self.work.packs else len(read)
            keys = self.work.keys_of(read)
            if self._extras is not None:
                numbers, flat = self.work.numbers, [*itertools.chain.from_iterable(keys)]
                samples = zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
                self._batched = [SampleRef(numbers[name], *place) for name, *place in samples]
            return self.work.batch(read, keys, collate=self._batches_samples) if read else []
        finally:
            hooks.batch_index = None

    def _next_units(self) -> list[Unit]:
        """The members of the next micro-batch: the first full bucket; at the end of the data, what is left."""
        if not self._batches_samples:
            return [self._next_unit()]
        try:
            return self._next_group() if self.work.groups else self._next_bucket()
        except StopIteration:
            buckets = self._pending.buckets
            full = (name for name, size in self._sizes.items() if len(buckets.get(name, ())) >= size)
            if (name := next(full, None)) is not None:
                return self._first_of(name, self._sizes[name])
            if self._batching.drop_last:
                left = sum(len(unit.items) for bucket in buckets.values() for unit in bucket)
                if left:
                    self.work.hooks.skipped["batch_drop_last"] += left
                buckets.clear()
            if not buckets:
                raise
            return buckets.pop(next(iter(buckets)))

    def _next_bucket(self) -> list[Unit]:
        """The members of the next micro-batch, if there is only one bucket."""
        size = self._batching.batch_size
        assert size is not None
        bucket, queue = self._pending.buckets.setdefault("", []), self._pending.queue
        if self.work.batch_index_known_when_encoding:
            self.work.hooks.batch_index = self._micro_batches * self._num_lanes + self.number
        try:
            while (num_missing := size - len(bucket)) > 0:
                if self.work.packs:
                    bucket.append(self._next_pack())
                    continue
                while not queue:
                    self._draw(num_missing)
                if len(queue) <= num_missing:
                    items = [*queue]
                    queue.clear()
                else:
                    items = [queue.popleft() for _ in range(num_missing)]
                bucket += [item for item in items if item.sample is not UNREAD or self._read(item)]
            return self._pending.buckets.pop("")
        finally:
            self.work.hooks.batch_index = None
            if not bucket:
                self._pending.buckets.pop("", None)

    def _next_group(self) -> list[Unit]:
        """The members of the next micro-batch, if the encoder groups units: the first full bucket."""
        buckets = self._pending.buckets
        while True:
            unit = self._next_unit()
            group = self.work.group(unit, self._batching.batch_size)
            if group is None:
                self._count_skip(_GROUPED)
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
        bucket = self._pending.buckets.pop(name)
        if bucket[size:]:
            self._pending.buckets[name] = bucket[size:]
        return bucket[:size]

    def _next_unit(self) -> Unit:
        """The next sample, or with packing the next pack; `StopIteration` at the end of the data."""
        if self.work.packs:
            return self._next_pack()
        while True:
            item = self._next_item()
            if self._read(item):
                return item

    def _next_pack(self) -> Pack:
        """The next pack; `StopIteration` at the end of the data."""
        while True:
            while not self._pending.packs:
                if self._planned is None:
                    self._fill_packing_buffer()
                else:
                    self._take_planned(self._planned)
            pack = self._packed(self._pending.packs.popleft())
            if pack is not None:
                self._kept[_PACKS] += 1
                return pack
            self._count_skip(_PACKS)

    def _packed(self, members: list[Item]) -> Pack | None:
        read = [item for item in members if self._read(item)]
        if self._planned is not None and self._step is not None:
            return self._part_of(self._step, read, self._planned)
        if self._planned is not None:
            read = self._within_budgets(read, self._planned, self._planned.budgets)
        return self.work.pack(read) if read else None

    def _part_of(self, step: ContextStep, items: list[Item], planned: LanePacks) -> Pack:
        """The samples of a rank in a step, by number, and the groups of all ranks. Other ranks wait for what the step
        plans: a sample that is lost, or longer now, is in it without loss."""
        numbers = {step.members[number]: number for number in step.lengths}
        packs = {}
        for item in items:
            number, member = numbers[item.ref._replace(part=item.part)], planned.member(item.ref, item.part)
            if kept := self._within_budgets([item], planned, [] if member is None else member.costs):
                packs[number] = self.work.pack(kept)
        made = {number: pack.sample for number, pack in packs.items() if pack is not None}
        samples = {number: sequence_of(made.get(number), length) for number, length in step.lengths.items()}
        return Pack(items_of(step.members), (samples, step.groups), len(made))

    def _within_budgets(self, items: list[Item], planned: LanePacks, budgets: Sequence[int]) -> list[Item]:
        """The samples of a planned pack for which it has room, in order: all, if their costs are as measured. What
        differs is counted, and told once."""
        hooks, packing, kept = self.work.hooks, planned.packing, []
        left = list(budgets)
        for item in items:
            costs, member = packing.costs_of(item.sample), planned.member(item.ref, item.part)
            if member is not None and costs != member.costs:
                hooks.skipped[REMEASURED] += 1
                self._tell_once(f"{self._described(item)} costs {costs}, by the cost index {member.costs}")
            if packing.remeasured == "truncate" and costs[0] > left[0] > 0 and packing.truncate is not None:
                item.sample = packing.truncate(item.sample, left[0])
                hooks.skipped[TRUNCATED] += 1
                costs = packing.costs_of(item.sample)
            if all(cost <= most for cost, most in zip(costs, left, strict=True)) or (
                packing.overlong == "alone" and len(items) == 1
            ):
                left = [most - cost for cost, most in zip(costs, left, strict=True)]
                kept.append(item)
                continue
            what = f"{self._described(item)} costs {costs}, and there is room for {left}"
            if packing.remeasured == "error":
                raise FatalSampleError(f"a planned pack is too long: {what}; {_MEASURE}")
            hooks.count_skip(LEFT_OUT, 1, f"its planned pack is full: {what}")
        return kept

    def _check_parts(self, item: Item, num_made: int, planned: LanePacks) -> None:
        """Count the parts of a sample that are in no pack, or that packs miss, as the hooks make others than measured;
        once for each sample, with the first part that is in a pack."""
        member = planned.member(item.ref, item.part)
        if member is None or member.num_parts == num_made or not member.is_first:
            return
        hooks = self.work.hooks
        what = f"{self._described(item)} has {num_made} parts, by the cost index {member.num_parts}"
        if planned.packing.remeasured == "error":
            raise FatalSampleError(f"a planned pack has other parts than were measured: {what}; {_MEASURE}")
        hooks.skipped[REMEASURED] += 1
        self._tell_once(what)
        hooks.count_skip(LEFT_OUT, abs(num_made - member.num_parts), what)

    def _tell_once(self, what: str) -> None:
        if not self._is_told:
            self._is_told = True
            logger.warning(
                "lane %d: %s: %s, if the encoder does not draw random numbers; more are counted as %s",
                *(self.number, what, _MEASURE, REMEASURED),
            )

    def _described(self, item: Item) -> str:
        """The key of a sample, if it has kept it, and its place in the data."""
        sample, (source, epoch, index, _) = item.sample, item.ref
        key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
        named = f"sample {key!r}, " if key else "sample "
        return f"{named}number {index} of {self._sources[source][0]} (epoch {epoch})"

    def _count_left_out(self, count: int) -> None:
        if count:
            reason = "by the cost index: skipped by the encoder, or too long"
            self.work.hooks.count_skip(LEFT_OUT, count, reason)

    def _take_planned(self, planned: LanePacks) -> None:
        """Take the next planned pack, without samples that are left out now."""
        try:
            pack = planned.next()
        except StopIteration:
            self._count_left_out(0 if self._is_ended else planned.num_left_at_end)
            self._is_ended = True
            raise
        self._count_left_out(pack.num_left_out)
        members: Sequence[SampleRef] = pack.members
        self._step = pack.step
        if self._extras is not None:
            members = self._let_through(self._extras, members)
        if members or self._step is not None:
            self._pending.packs.append(items_of(members))
        if self._ahead is not None and (following := planned.upcoming()) is not None:
            self._ahead.announce(following.members)

    def _fill_packing_buffer(self) -> None:
        """Fill the packing buffer, first with what the last one left over, and choose packs from it."""
        pending, size, work = self._pending, self._batching.packing_buffer_size, self.work
        assert size is not None
        self._base = self._cursor.state()
        buffer = [item for item in pending.carried if self._read(item)]
        pending.carried, self._chosen = [], None
        at_end = False
        try:
            while len(buffer) < size:
                item = self._next_item(size - len(buffer))
                if self._read(item):
                    buffer.append(item)
        except StopIteration:
            at_end = True
            if not buffer:
                raise
        packs, pending.carried = work.select(buffer)
        if not packs and pending.carried:
            if not at_end:
                raise FatalSampleError(
                    f"select_samples_to_pack of {type(work.hooks.encoder).__name__} formed no pack out of a "
                    f"full buffer of {len(buffer)} samples. Return a sample that fits nowhere as a pack of its own, "
                    "or raise SkipSample for it before packing."
                )
            packs, pending.carried = [[item] for item in pending.carried], []
        pending.packs.extend(packs)
        if packs:
            self._kept[_BUFFERS] += 1
        else:
            self._count_skip(_BUFFERS)

    def _next_item(self, num_missing: int = 1) -> Item:
        """The next part of a sample; the work on the `num_missing` next ones is started together."""
        while not self._pending.queue:
            self._draw(num_missing)
        return self._pending.queue.popleft()

    def _draw(self, count: int) -> None:
        """Take the next sample, or, where the work on many is faster, `count` samples; or all that are left."""
        work = self.work
        count = count if work.maker.only_loads else 1
        if self._ahead is not None:
            self._ahead.follow(self._cursor, count)
        drawn = self._cursor.take(count)
        if self._extras is not None:
            refs = [ref for _, ref in drawn]
            if len(kept := self._let_through(self._extras, refs, self._survivals)) < len(refs):
                is_kept = {*kept}
                drawn = [pair for pair in drawn if pair[1] in is_kept]
        if not drawn:
            return
        new, queue, num_kept = object.__new__, self._pending.queue, self._kept
        arena = current_arena() if self._stacks else None
        with contextlib.nullcontext() if arena is None else arena.images(len(drawn)):
            many = self._maker.make([ref for _, ref in drawn])
            for (draw, ref), sample in zip(drawn, many, strict=True):
                if sample.__class__ is not Parts:
                    item = new(Item)  # not by its constructor, which takes three times as long
                    item.draw, item.ref, item.part, item.sample = draw, ref, 0, sample
                    queue.append(item)
                elif sample:
                    queue += [Item(draw, ref, part, one) for part, one in sample]
                else:
                    self._count_skip(ref[0])
                    continue
                num_kept[ref[0]] += 1

    def _let_through(
        self, extras: LaneExtras, refs: Sequence[SampleRef], survivals: Survivals | None = None
    ) -> Sequence[SampleRef]:
        """Those of some samples that no extra leaves out; the others are counted as skips, also in `survivals`."""
        kept = extras.filter(refs)
        for ref, extra in extras.left_out(refs) if len(kept) < len(refs) else ():
            self.work.hooks.count_skip(extra.skips_as, 1, extra.reason)
            if survivals is not None:
                survivals[ref.source].count_skip(*self.work.hooks.last_skip)
        return kept

    @functools.cached_property
    def _survivals(self) -> Survivals:
        return Survivals(self.number, self._num_lanes, self._sources, self._kept)

    def _count_skip(self, what: int | str) -> None:
        """Count a sample of source `what`, or one of `what`, that a hook skipped."""
        self._survivals[what].count_skip(*self.work.hooks.last_skip)

    def _read(self, unit: Unit) -> bool:
        """Ensure that the payload of a unit is in memory; False if, read again, it is now skipped."""
        if unit.sample is not UNREAD:
            return True
        if isinstance(unit, Pack):
            if (made := self._packed(unit.items)) is not None:
                unit.sample, unit.num_samples = made.sample, made.num_samples
            return made is not None
        skipped = self.work.hooks.skipped
        num_truncated = skipped[TRUNCATED]
        (made,) = self._maker.make((unit.ref,))
        parts = dict(parts_of(made))
        if self._planned is not None and parts:
            self._check_parts(unit, len(parts), self._planned)
        if skipped[TRUNCATED] > num_truncated and self._planned is None:
            skipped[TRUNCATED] = num_truncated  # it was counted before the resume
        if unit.part not in parts:
            if self._planned is None:
                skipped["restore"] += 1
                logger.warning("pending sample %s, part %d, was skipped when read again", unit.ref, unit.part)
            return False
        unit.sample = parts[unit.part]
        return True

    def state(self) -> dict[str, Any]:
        """The lane's state as plain JSON. What has not changed since the last state is the same object in both."""
        if self._planned is not None:
            self._head = self._planned.state()
        elif self._head is None or self._head["draws"] != self._cursor.draws:
            self._head = self._cursor.state()
        state = {**self._head, "micro_batches": self._micro_batches}
        if self._extras is not None and (saved := self._extras.save()):
            state["extras"] = saved
        if (waits := self._pending).queue or waits.buckets or waits.open or waits.carried or waits.packs:
            is_chosen = self.work.packs and self._planned is None
            state["pending"] = self._encoded_packs() if is_chosen else waits.encode(self._cursor.draws)
        return state

    def _encoded_packs(self) -> dict[str, Any]:
        """What is pending with packing, as a state keeps it. Packs are encoded once, when they are chosen."""
        base, pending = self._base, self._pending
        first = self._cursor.draws if base is None else base["draws"]
        if self._chosen is None:
            self._chosen = Pending(carried=pending.carried, packs=pending.packs).encode(first)
        others: Pending[Item, Unit] = Pending(queue=pending.queue, buckets=pending.buckets, open=pending.open)
        encoded = {**others.encode(first), **self._chosen}
        if pending.packs:
            encoded["packs"] = self._chosen["packs"][-len(pending.packs) :]
        else:
            encoded.pop("packs", None)
        return encoded if base is None else {**encoded, "base": base}

    def _restore(self, state: dict[str, Any]) -> None:
        self._micro_batches = state["micro_batches"]
        drawn = Pending.decode(state, self._cursor)
        if self._extras is not None and drawn:
            waiting = [item.ref for item in drawn.items()]
            if len(kept := self._let_through(self._extras, waiting)) < len(waiting):
                drawn = drawn.only({*kept})
        self._cursor.seek(state)

        def unit(parts: list[Drawn]) -> Unit:
            """A pack, or, without packing, a single item."""
            items = [Item(*part) for part in parts]
            return items[0] if self._batching.packing_buffer_size is None else Pack(items)

        self._pending = drawn.map(lambda part: Item(*part), unit)
        if self._ahead is not None:
            refs = (part.ref for part in drawn.items())
            while self._ahead.announce(refs):
                pass


def tokens_of(batch: Any) -> tuple[int, int]:
    """(tokens without padding, tokens with it) of a batch's `tokens` or `input_ids`, a tensor (rows, length).

    Padding is known by `cu_seqlens` (rows, bounds), by `cu_seqlens_q` (bounds,), or by an
    `attention_mask` (rows, length); without any of them there is none.
    """
    is_dict = isinstance(batch, dict)  # not by `_field`: of plain samples, these two are most of what counting costs
    tokens = batch.get("tokens") if is_dict else getattr(batch, "tokens", None)
    if tokens is None:
        tokens = batch.get("input_ids") if is_dict else getattr(batch, "input_ids", None)
    if tokens is None or not hasattr(tokens, "numel") or not (slots := tokens.numel()):
        return 0, 0
    for name in ("cu_seqlens", "cu_seqlens_q"):
        if hasattr(bounds := _field(batch, name), "numel"):
            return int(bounds[..., -1].sum()), slots
    mask = _field(batch, "attention_mask")
    return int(mask.sum()) if getattr(mask, "shape", None) == tokens.shape else slots, slots


def items_of(members: Iterable[SampleRef]) -> list[Item]:
    """The planned members of a pack, not read yet."""
    return [Item(OLD, ref._replace(part=ALL_PARTS), ref.part) for ref in members]


def sequence_of(sample: Any, length: int) -> dict[str, Any]:
    """The tensors (length,) that Megatron takes of a sequence, of a sample, or without loss of None.

    Raises:
        FatalSampleError: if the sample lacks one, or is longer.
    """
    import torch

    fields = {"tokens": torch.int64, "labels": torch.int64, "loss_mask": torch.float32}
    made = {name: torch.zeros(length, dtype=dtype) for name, dtype in fields.items()}
    for name, filled in made.items() if sample is not None else ():
        value = _field(sample, name)
        if not isinstance(value, torch.Tensor) or value.shape[0] > length:
            got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise FatalSampleError(
                f"{name} of a packed sample: expected a tensor of at most {length} tokens, got {got}; have "
                "pack_selected_samples return tokens, labels and loss_mask, and measure the data again"
            )
        filled[: len(value)] = value
    return {**made, "position_ids": torch.arange(length)}


def _field(batch: Any, name: str) -> Any:
    return batch.get(name) if isinstance(batch, dict) else getattr(batch, name, None)
