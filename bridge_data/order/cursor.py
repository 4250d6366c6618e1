"""Cursors: where a lane stands in its order, and which sample it takes next.

Enters: rows or counts, a lane, a saved state. Leaves: `SampleRef`s. Guarantee: the state is plain integers, and a
cursor set to it goes on exactly as the one it was taken from.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from bridge_data.order.blend import BLOCK, Blend
from bridge_data.order.inbox import ALL_PARTS, Entry, Inbox
from bridge_data.order.row import Row, Window
from bridge_data.order.schedule import Schedule

State = dict[str, Any]

_RUN = 256
"""References made at a time."""


class SampleRef(NamedTuple):
    """A sample by its source's number in the plan, the epoch, and its index in the source.

    `part` names one of the parts that a generator made of it, where only that one is meant.
    """

    source: int
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs of a reference
    part: int = ALL_PARTS


class Cursor(Protocol):
    """A position in one lane's order."""

    draws: int
    """Samples taken so far (for a blend at a finite end: turns of the blend, some without a sample)."""

    def next(self) -> SampleRef:
        """Take the next sample; `StopIteration` at a finite end."""

    def take(self, count: int) -> list[tuple[int, SampleRef]]:
        """Take the next samples, `count` of them or at the end fewer, each with the number of its draw;
        `StopIteration` if there is none."""

    def state(self) -> State:
        """The position as plain integers."""

    def seek(self, state: State) -> None:
        """Go to a position that `state()` returned."""


class ShuffledCursor:
    """Training order: every source by its inbox, then its row; sources by the blend.

    `generations` holds the rows of all sources under each geometry that the run has had, the current one last.
    A source whose row has come to its end is passed over until all have.
    """

    def __init__(self, generations: Sequence[Sequence[Row]], blend: Blend | Schedule | None, lane: int) -> None:
        self.draws = 0
        self._rows, self._blend, self._lane = generations[-1], blend, lane
        self._history = list(zip(*generations, strict=True))
        self._num_lanes = self._rows[0].geometry.num_lanes
        self._taken = [0] * len(self._rows)
        self._offset = [0] * len(self._rows)
        self._windows: list[Window | None] = [None] * len(self._rows)
        self._runs: list[list[SampleRef]] = [[] for _ in self._rows]
        self._inboxes: dict[int, Inbox] = {}
        self._ended: set[int] = set()
        self._block: tuple[int, list[int]] = (-1, [])

    def next(self) -> SampleRef:
        draws_before = self.draws
        while len(self._ended) < len(self._rows):
            source = 0 if self._blend is None else self._source_of_draw()
            self.draws += 1
            run = self._runs[source]
            if not run:
                if source in self._inboxes:
                    return self._next_of_inbox(source)
                run = self._next_run(source)
            if not run:
                self._ended.add(source)
                continue
            ref = run.pop()
            self._offset[source] += 1
            if not run:
                self._leave_run(source)
            return ref
        self.draws = draws_before  # turns that found nothing are not part of the state
        raise StopIteration

    def take(self, count: int) -> list[tuple[int, SampleRef]]:
        drawn: list[tuple[int, SampleRef]] = []
        runs, offset = self._runs, self._offset
        while len(drawn) < count:
            source = 0 if self._blend is None else self._source_of_draw()
            if len(runs[source]) > 1:
                ref = runs[source].pop()
                offset[source] += 1
                self.draws += 1
            else:  # the last one of a run, and all that is rare
                try:
                    ref = self.next()
                except StopIteration:
                    if drawn:
                        return drawn
                    raise
            drawn.append((self.draws - 1, ref))
        return drawn

    def _next_of_inbox(self, source: int) -> SampleRef:
        inbox = self._inboxes[source]
        ref = SampleRef(source, *inbox.next())
        if not inbox:
            del self._inboxes[source]
        return ref

    def _next_run(self, source: int) -> list[SampleRef]:
        """The next few references of a source, the last one first; none at the end of its row."""
        window = self._windows[source]
        if window is None:
            window = self._windows[source] = self._rows[source].window(self._lane, self._taken[source])
        if window is None:
            return []
        part = slice(self._offset[source], self._offset[source] + _RUN)
        columns = window.epochs[part][::-1].tolist(), window.indices[part][::-1].tolist()
        run = self._runs[source] = [SampleRef(source, epoch, index) for epoch, index in zip(*columns, strict=True)]
        return run

    def _leave_run(self, source: int) -> None:
        """See whether the window ends with the run."""
        window = self._windows[source]
        assert window is not None
        if self._offset[source] == len(window.indices):
            self._taken[source], self._offset[source], self._windows[source] = window.next_chunk, 0, None

    def _source_of_draw(self) -> int:
        assert self._blend is not None
        number, place = divmod(self.draws, BLOCK)
        if self._block[0] != number:
            self._block = number, self._blend.block(self._lane, self._num_lanes, number).tolist()
        return self._block[1][place]

    def state(self) -> State:
        state: State = {"draws": self.draws, "cursors": [[*c] for c in zip(self._taken, self._offset, strict=True)]}
        if self._inboxes:
            state["inbox"] = {str(source): inbox.entries() for source, inbox in sorted(self._inboxes.items())}
        return state

    def seek(self, state: State) -> None:
        self.draws = state["draws"]
        self._taken = [taken for taken, _ in state["cursors"]]
        self._offset = [offset for _, offset in state["cursors"]]
        self._windows = [None] * len(self._rows)
        self._runs = [[] for _ in self._rows]
        inboxes = state.get("inbox", {}).items()
        self._inboxes = {int(source): Inbox(entries, self._history[int(source)]) for source, entries in inboxes}
        self._ended = set()


class OrderedCursor:
    """Validation order: every sample of every source once, in the order of the plan.

    Blocks of `block_size` samples (a micro-batch) go to the lanes in turn, so that the micro-batches of the job, lane
    after lane, are the data set from front to back. After a re-deal the rest is slices `[num_lanes, lane, draws,
    count]` of old lanes' streams, and single parts `[[source, index, part], ...]`.
    """

    def __init__(self, num_samples: Sequence[int], lane: int, num_lanes: int, block_size: int) -> None:
        self.draws = 0
        self._first = np.concatenate(([0], np.cumsum(num_samples)))
        self._block_size = block_size
        self._inbox: list[Entry] = [[num_lanes, lane, 0, self.length(num_lanes, lane)]]

    def length(self, num_lanes: int, lane: int) -> int:
        """Samples of a lane out of `num_lanes`, before any re-deal."""
        blocks, rest = divmod(int(self._first[-1]), self._block_size)
        whole = -(-max(0, blocks - lane) // num_lanes) * self._block_size
        return whole + (rest if blocks % num_lanes == lane else 0)

    def next(self) -> SampleRef:
        while self._inbox and not self._inbox[0][-1]:
            self._inbox = self._inbox[1:]
        if not self._inbox:
            raise StopIteration
        self.draws += 1
        head, rest = self._inbox[0], self._inbox[1:]
        if isinstance(head[0], list):
            (source, index, part), *others = head
            self._inbox = [others, *rest] if others else rest
            return SampleRef(source, 0, index, part)
        num_lanes, lane, draws, count = head
        self._inbox = [[num_lanes, lane, draws + 1, count - 1], *rest] if count > 1 else rest
        block, place = divmod(draws, self._block_size)
        position = (lane + block * num_lanes) * self._block_size + place
        source = int(np.searchsorted(self._first, position, side="right")) - 1
        return SampleRef(source, 0, int(position - self._first[source]))

    def take(self, count: int) -> list[tuple[int, SampleRef]]:
        drawn: list[tuple[int, SampleRef]] = []
        for _ in range(count):
            try:
                ref = self.next()
            except StopIteration:
                if drawn:
                    break
                raise
            drawn.append((self.draws - 1, ref))
        return drawn

    def state(self) -> State:
        return {"draws": self.draws, "inbox": self._inbox}

    def seek(self, state: State) -> None:
        self.draws = state["draws"]
        self._inbox = state["inbox"]
