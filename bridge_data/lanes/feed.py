"""The samples of one lane, in their order, each made by its work.

Reads the references of a cursor. Returns an `Item` for each output of a sample that hooks keep; the others are counted
as skipped. An item that came back from a state has no payload: `read` makes it again. Raises what hooks and reads
raise, and `FatalSampleError` when nothing is left of a source.
"""

import collections
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from bridge_data.lanes.assembly import UNREAD, Assembly, Item, Pack, Unit
from bridge_data.lanes.maker import Maker, Outputs, outputs_of
from bridge_data.lanes.reading import ReadAhead
from bridge_data.lanes.survival import Survivals
from bridge_data.order import Cursor, SampleRef
from bridge_data.order.cursor import CursorState
from bridge_data.order.extras import LaneExtras
from bridge_data.order.pending import Pending, encoded_item
from bridge_data.samples.arena import current_arena
from bridge_data.task.hooks import TRUNCATED

logger = logging.getLogger("bridge_data")


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
