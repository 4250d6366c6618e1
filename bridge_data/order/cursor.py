"""Cursors: the position of a lane in its order, and the samples that it draws next.

Input: the rows of the sources, a blend, a lane, a saved state. Output: `SampleRef`s with their draw numbers. Guarantee:
the state is plain integers, a few per source drawn from; a cursor set to it continues exactly as the one that saved it.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bridge_data.errors import EDITED, StateError
from bridge_data.order.blend import BLOCK, Blend, Schedule
from bridge_data.order.ordered import OrderedRow
from bridge_data.order.row import Row
from bridge_data.order.stream import ALL_PARTS, BEGINNING, Inbox, Stream

State = dict[str, Any]

_RUN = 256
"""References computed at a time."""


class SampleRef(NamedTuple):
    """A sample: number of its source in the plan, epoch, index in the source.

    `part` is the number of one output of a generator hook, if only that one is meant.
    """

    source: int
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on a reference
    part: int = ALL_PARTS


_as_reference = functools.partial(tuple.__new__, SampleRef)
"""`SampleRef._make`, three times as fast."""


class Cursor:
    """The training order of one lane: the blend chooses the source, the source gives first its inbox, then its row.

    `generations` has the rows of all sources under each geometry that inboxes refer to, the current one last. At a
    finite end, sources whose row has ended are passed over until all have ended.
    """

    def __init__(
        self, generations: Sequence[Sequence[Row | OrderedRow]], blend: Blend | Schedule | None, lane: int
    ) -> None:
        self._rows, self._blend, self.lane = generations[-1], blend, lane
        self._history = list(zip(*generations, strict=True))
        self._num_lanes = self._rows[0].num_lanes
        self._block: tuple[int, list[int]] = (-1, [])
        self.draws = 0
        """Samples drawn so far (in a finite blend: draws of the blend, including those of sources that have ended)."""
        self.seek({"draws": 0, "cursors": {}})

    @property
    def num_samples(self) -> Sequence[int]:
        """The number of samples of each source."""
        return [row.num_samples for row in self._rows]

    def next(self) -> SampleRef:
        """Draw the next sample; `StopIteration` at a finite end, `StateError` if the saved position is invalid."""
        return self.take(1)[0][1]

    def take(self, count: int) -> list[tuple[int, SampleRef]]:
        """(draw number, sample) of the next `count` samples; fewer at a finite end, then `StopIteration`."""
        drawn: list[tuple[int, SampleRef]] = []
        if self._blend is None:
            while len(drawn) < count and (run := self._runs[0] or self._next_run(0)):
                self._changed.add(0)
                refs = run[: -1 - count + len(drawn) : -1]
                del run[-len(refs) :]
                drawn += zip(range(self.draws, self.draws + len(refs)), refs, strict=True)
                self.draws += len(refs)
        else:
            self._take_of_blend(self._blend, count, drawn)
        if not drawn:
            raise StopIteration
        return drawn

    def _take_of_blend(self, blend: Blend | Schedule, count: int, drawn: list[tuple[int, SampleRef]]) -> None:
        runs, changed, ended, draw = self._runs, self._changed, self._ended, self.draws
        number, sources = self._block
        while len(drawn) < count and len(ended) < len(self._rows):
            if draw // BLOCK != number:
                number = draw // BLOCK
                sources = blend.block(self.lane, self._num_lanes, number).tolist()
                self._block = number, sources
            source = sources[draw % BLOCK]
            draw += 1
            run = runs[source]
            if not run and source not in ended:
                run = self._next_run(source)
            if run:
                drawn.append((draw - 1, run.pop()))
                changed.add(source)
                self.draws = draw  # draws of ended sources after the last sample are not part of the state
            else:
                ended.add(source)

    def _next_run(self, source: int) -> list[SampleRef]:
        """The next few references of a source, in reverse order; empty at the end of its row."""
        if source in self._inboxes:
            run = [SampleRef(source, *sample) for sample in reversed(self._inboxes[source].take(_RUN))]
            if run:
                self._runs[source] = run
                return run
            del self._inboxes[source]
        stream = self._streams.get(source) or self._streams.setdefault(source, self._opened(source))
        epochs, indices = (reversed(column) for column in stream.take(_RUN))
        columns = zip(itertools.repeat(source), epochs, indices, itertools.repeat(ALL_PARTS))
        run = self._runs[source] = [*map(_as_reference, columns)]
        return run

    def _opened(self, source: int) -> Stream:
        """The stream of a source's row at its saved position."""
        position = self._saved.get(str(source), BEGINNING)
        stream = Stream(self._rows[source], self.lane, position)
        if fault := stream.fault(self.draws):
            raise StateError(f"lanes.{self.lane}.cursors.{source}: {list(position)}: {fault}; {EDITED}")
        return stream

    def state(self) -> State:
        """The position as plain integers."""
        for source in self._changed:
            unread = len(self._runs[source])
            if source in self._inboxes:
                self._saved_inboxes[str(source)] = self._inboxes[source].entries(unread)
            else:
                self._saved_inboxes.pop(str(source), None)
                self._saved[str(source)] = self._streams[source].position(unread)
        self._changed.clear()
        state: State = {"draws": self.draws, "cursors": dict(self._saved)}
        if inboxes := {source: entries for source, entries in self._saved_inboxes.items() if entries}:
            state["inbox"] = inboxes
        return state

    def seek(self, state: State) -> None:
        """Continue from a position that `state()` returned."""
        self.draws = state["draws"]
        self._saved, self._saved_inboxes = dict(state["cursors"]), dict(state.get("inbox", {}))
        self._streams: dict[int, Stream] = {}
        self._inboxes = {
            int(source): Inbox(entries, self._history[int(source)], f"lanes.{self.lane}.inbox.{source}")
            for source, entries in self._saved_inboxes.items()
        }
        self._runs: list[list[SampleRef]] = [[] for _ in self._rows]
        self._changed: set[int] = set()
        self._ended: set[int] = set()


class OrderedCursor(Cursor):
    """The validation order of one lane: every sample of every source once, in the order of the plan.

    The sources, of `num_samples` samples each, are treated as one. `rows` are by generation, the current one last.
    """

    def __init__(self, num_samples: Sequence[int], rows: Sequence[OrderedRow], lane: int) -> None:
        super().__init__([[row] for row in rows], None, lane)
        self._num_samples = num_samples
        self._first = np.concatenate(([0], np.cumsum(num_samples)))

    @property
    def num_samples(self) -> Sequence[int]:
        return self._num_samples

    def _next_run(self, source: int) -> list[SampleRef]:
        run = super()._next_run(source)
        sources = np.searchsorted(self._first, [ref.index for ref in run], side="right") - 1
        firsts = self._first[sources].tolist()
        run[:] = [
            SampleRef(number, epoch, index - first, part)
            for number, first, (_, epoch, index, part) in zip(sources.tolist(), firsts, run, strict=True)
        ]
        return run
