"""The samples of a lane: drawn from its cursor, without those that are left out, and made.

Reads a cursor, and what makes samples. Returns an `Item` for each output of a sample, in the order of the draws. Counts
what is skipped on the way. Logs one warning, and much later raises `FatalSampleError`, if nothing is left of a source:
see `Survival`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from bridge_data.errors import FatalSampleError
from bridge_data.lanes.maker import UNREAD, Item, Maker, Outputs, Pack, Unit, Work, outputs_of
from bridge_data.lanes.reading import Announcer
from bridge_data.order import Cursor, SampleRef
from bridge_data.order.cursor import CursorState, Lookahead
from bridge_data.order.extras import LaneExtras
from bridge_data.order.pending import Pending, WrittenOnce, encoded_item
from bridge_data.samples.arena import current_arena
from bridge_data.task.hooks import TRUNCATED

logger = logging.getLogger("bridge_data")

FEWEST_SKIPS = 10_000
"""Consecutive skips that are never an error. For packs and micro-batches, whose total is unknown, this many are an
error if none was kept: filters that keep 1 in 200 (0.995^10,000 < e^-50) are safe."""

SKIPS_TO_WARN = 1_000
"""Consecutive skips that are never a warning."""

_MOST_SKIPS = 1_000_000
"""Consecutive skips that are enough for large sources, besides two epochs of the lane's share."""

_EVIDENCE = 50.0
"""-ln of the probability of a false alarm, at each draw."""


def skips_of_empty(num_samples: int, num_lanes: int) -> tuple[int, int]:
    """Consecutive skips before a lane may call a source empty: if none of its samples was kept, and if some were."""
    share_twice = 2 * -(-num_samples // num_lanes)
    two_epochs = max(share_twice, min(2 * num_samples, _MOST_SKIPS))
    none_stayed = max(FEWEST_SKIPS, 50 * min(num_samples, 1_000), two_epochs)
    some_stayed = max(FEWEST_SKIPS, min(50 * num_samples, _MOST_SKIPS), share_twice)
    return none_stayed, max(none_stayed, some_stayed)


class Survival:
    """What was kept and skipped of a source, or of a lane's packs or micro-batches.

    The lane counts `kept`; `what` names them in messages; `limits` are the consecutive skips that may be an
    error, if none was kept and if some were.

    **The bound.** A run is taken as 1e9 draws, over all lanes and sources, and each draw may raise a false alarm with a
    probability of e^-50 = 2e-22: together less than 1e-12. So a run never stops if 1 in 1,000 samples of a source is
    kept, or any of up to 1,000. An alarm needs every condition that applies:

    - *As many consecutive skips as `skips_of_empty` says.* An epoch permutes a source's chunks, so each draw of a lane
      is a given sample with probability 1/n. A filter that decides by the sample skips k consecutive draws with
      probability (1 - 1/n)^k at most, which is below e^-50 after 50 n draws. (Two epochs prove something only with one
      lane: epochs are resharded; a lane of 8 misses a single survivor of an epoch 7 times out of 8.) If some samples
      were kept, it takes those 50 n; over 20,000 samples 1,000,000 are enough, which is safe if 1 in 20,000 samples is
      kept, and they are not all in a few chunks. If none was, the encoder is most likely wrong, and waiting costs more:
      then 50,000 draws and two epochs are enough, which is safe if 1 in 1,000 samples is kept, or any of up to 1,000.
    - *A streak that the survival rate seen so far rules out*, for filters that draw random numbers. If s of M draws
      were kept, the last of them at draw N, any order of the M draws is equally likely; that all s are among the first
      N has the probability C(N, s) / C(M, s) <= (N / M)^s. This needs no estimate of the rate. Draws without
      replacement only make long streaks rarer. The alarm is at s ln(M / N) > 50: about 50 / rate skips if s is large.
      With fewer than 11 survivors that takes too long; then a streak 100 times as long as everything before it is
      enough.

    Counts start at zero with each lane, also after a restore: the bounds hold for any starting point.
    """

    __slots__ = ("_kept_then", "_lane", "_left_out", "_limits", "_reason", "_seen_then", "_warned", "_what", "kept")

    def __init__(self, what: str, lane: int, limits: tuple[int, int] = (FEWEST_SKIPS, FEWEST_SKIPS)) -> None:
        self.kept = 0
        self._what, self._lane, self._limits = what, lane, limits
        self._left_out: collections.Counter[str] = collections.Counter()
        self._kept_then = self._seen_then = 0  # up to the last one kept
        self._reason = ""
        self._warned = False

    def count_skip(self, hook: str, reason: str) -> None:
        """Count one that `hook` skipped.

        Raises:
            FatalSampleError: if nothing is kept any more.
        """
        if self.kept != self._kept_then:
            self._kept_then, self._seen_then = self.kept, self._seen()
        self._left_out[hook] += 1
        self._reason = reason
        streak = self._seen() - self._seen_then
        if streak < SKIPS_TO_WARN:
            return
        limit, evidence = self._limits[bool(self.kept)], self._evidence(streak)
        if not self._warned and (evidence > _EVIDENCE / 2 or streak >= limit):
            self._warned = True
            logger.warning(
                "%s. The run goes on; if none stays for %d in a row or more, it stops",
                self._facts(streak),
                limit,
            )
        if streak >= limit and evidence > _EVIDENCE:
            raise FatalSampleError(
                f"{self._facts(streak)}: this data does not fit this task encoder. "
                "Check the encoder's conditions for SkipSample, and the errors logged before."
            )

    def _seen(self) -> int:
        return self.kept + self._left_out.total()

    def _evidence(self, streak: int) -> float:
        """-ln of the probability of such a streak at the survival rate seen so far."""
        if not self.kept or streak > 100 * (self._seen_then + self._limits[1]):
            return math.inf
        return self.kept * math.log1p(streak / self._seen_then)

    def _facts(self, streak: int) -> str:
        counts = ", ".join(f"{count} in {hook}" for hook, count in self._left_out.items())
        because = f"; the last because {self._reason}" if self._reason else ""
        return (
            f"the last {streak} {self._what} were all left out ({counts}{because}); "
            f"lane {self._lane} has seen {self._seen()}, of which {self.kept} stayed"
        )


class Survivals:
    """The `Survival` of each source of a lane, by its number, and of its packs or micro-batches, by their name.

    A `Survival` is made at the first skip: other lanes only count. `sources` are name and number of samples of each.
    """

    def __init__(self, lane: int, num_lanes: int, sources: Sequence[tuple[str, int]]) -> None:
        self._lane, self._num_lanes, self._sources = lane, num_lanes, sources
        self.kept: dict[int | str, int] = collections.defaultdict(int)
        """What each kept, counted by the lane."""
        self._made: dict[int | str, Survival] = {}

    def __getitem__(self, what: int | str) -> Survival:
        if what not in self._made:
            if isinstance(what, str):
                self._made[what] = Survival(what, self._lane)
            else:
                name, size = self._sources[what]
                limits = skips_of_empty(size, self._num_lanes)
                self._made[what] = Survival(f"samples of {name}", self._lane, limits)
        survival = self._made[what]
        survival.kept = self.kept[what]
        return survival


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
        ahead: Announcer | None = None,
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
