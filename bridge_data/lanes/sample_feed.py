"""The samples of a lane: drawn from its cursor, without those that are left out, and made.

Reads a cursor, and what makes samples. Returns an `Item` for each output of a sample, in the order of the draws. Counts
what is skipped on the way, and raises `FatalSampleError` if nothing is left of a source.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from bridge_data.lanes.maker import UNREAD, Item, Maker, Outputs, Pack, Unit, Work, outputs_of
from bridge_data.lanes.reading import ReadAhead
from bridge_data.lanes.survival import Survivals
from bridge_data.order import Cursor, SampleRef
from bridge_data.order.cursor import CursorState, Lookahead
from bridge_data.order.extras import LaneExtras
from bridge_data.order.pending import Pending, WrittenOnce, encoded_item
from bridge_data.samples.arena import current_arena
from bridge_data.task.hooks import TRUNCATED

logger = logging.getLogger("bridge_data")

_BUFFERS = "packing buffers"
"""What is counted besides the samples of each source, by which nothing may be left."""


class SampleFeed:
    """The samples that `cursor` draws, without those that `extras` leave out, made by `maker`; `work` is done to them
    together. `ahead` gets the position of the cursor. With `stacks`, images are put where their batch will be."""

    def __init__(
        self,
        cursor: Cursor,
        work: Work,
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
        work = self.work
        count = min(count, work.maker.most_at_once)
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
            self.work.hooks.count_skip(extra.skips_as, 1, extra.reason)
            if survivals:
                self.note_not_kept(ref.source)
        return kept

    def note_not_kept(self, what: int | str) -> None:
        """Note in the survivals that a sample of source number `what`, or one of `what`, was lost to the last skip that
        the hooks have counted."""
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

    def select(self, items: list[Item], *, at_end: bool) -> tuple[list[list[Item]], list[Item]]:
        """`Work.select` of items that are read; counted as not kept if hooks skip all of them."""
        packs, left = self.work.select(items, at_end=at_end)
        if packs:
            self.survivals.kept[_BUFFERS] += 1
        else:
            self.note_not_kept(_BUFFERS)
        return packs, left

    def pack(self, items: Sequence[Item]) -> Pack | None:
        """The pack of some items, which are read first; None if hooks skip all of it."""
        read = [item for item in items if self.read(item)]
        return self.work.pack(read) if read else None

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
