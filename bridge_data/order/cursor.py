"""The position of a lane: what it reads next of each source, and of which source it reads.

Reads the rows of the sources, a blend, a lane, and a saved state. Returns `SampleRef`s with their draw numbers. Its
state is plain integers, a few per source drawn from. A cursor set to it continues exactly as the one that saved it.

A `Stream` is a lane's share of one row, in bulk; its position is four integers. An `Inbox` has what a reshard left of
one source to a lane. An entry of it is a slice `[generation, lane, shuffle, window, offset, skip, count]`: from that
position of an old lane's stream, skip `skip` samples and take the next `count`. Or it is a list of
`[epoch, index, output]`: single samples, or outputs of them. A `Cursor` takes from the streams of all sources, but
first from their inboxes.

The source of a draw is known from its number, or else a `SampleBlend` decides by the samples that come (`blends`).
"""

import bisect
import collections
import contextlib
import copy
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self, TypedDict

import numpy as np

from bridge_data.errors import DAMAGED_STATE, StateError
from bridge_data.order.blends import DRAWS_PER_BLOCK, Blend, BlendSchedule, LaneBlend, SampleBlend
from bridge_data.order.row import Ints, Row, SampleRow, SampleWindow

Entry = list[Any]
"""An entry of an inbox."""


class CursorState(TypedDict, total=False):
    """The position of a lane's cursor; empty at the beginning."""

    draws: int
    """Samples drawn so far, since the last reshard."""
    cursors: dict[str, Sequence[int]]
    """By the number of the source, its position in the source's row: see `Stream`."""
    inbox: dict[str, list[Entry]]
    """By the number of the source, what a reshard left of it, if anything: see `Inbox`."""
    blend: Any
    """The state of a blend that looks at samples: see `LaneBlend`."""


BEGINNING = (0, 0, 0, 0)
"""The position before the first sample."""

ALL_OUTPUTS = -1
"""The output number that means the whole sample."""


class SampleRef(NamedTuple):
    """A sample: number of its source in the plan, epoch, index in the source.

    `output` is the number of one output of a generator hook, if only that one is meant.
    """

    source: int
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which no one calls on a reference
    output: int = ALL_OUTPUTS


class SampleKey(NamedTuple):
    """An output of a sample: id of its source, epoch, index in the source, number of the output."""

    source: str
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which no one uses on a key
    output: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SampleIds:
    """What identifies samples: for restore keys, the ids of their sources; for random numbers, the keys of these."""

    source_ids: Sequence[str]
    source_keys: Sequence[int]

    def restore_key(self, ref: SampleRef, output: int) -> tuple[str, int, int, int]:
        """The `__restore_key__` of an output of a sample."""
        return self.source_ids[ref.source], ref.epoch, ref.index, output

    def random_key(self, ref: SampleRef, output: int) -> tuple[int, int, int, int]:
        """(source key, epoch, index, output): random numbers depend on it, the seed and the hook alone."""
        return self.source_keys[ref.source], ref.epoch, ref.index, output


_MAX_REFS_AHEAD = 256
"""References of a source that are computed at a time."""
_MIN_REFS_AHEAD = 16
"""How many, at least, if there are many sources."""
_MAX_REFS_HELD = 1 << 14
"""References that a lane holds of all sources, unless these are so many that each has the minimum."""


class Stream:
    """The samples of `lane` in `row`, starting at `position`.

    A position is (shuffle, window in the lane's share of it, offset in the window, samples taken of that share).
    """

    __slots__ = ("_number", "_offset", "_row", "_shuffle", "_taken", "_window", "lane")

    def __init__(self, row: SampleRow, lane: int, position: Sequence[int] = BEGINNING) -> None:
        self._row, self.lane = row, lane
        self._shuffle, self._number, self._offset, self._taken = position
        self._window: SampleWindow | None = None

    def fault(self) -> str | None:
        """Why the position, from a saved state, is none in these data; None if it is one."""
        self._window = self._row.window(self.lane, self._shuffle, self._number)
        size = len(self._window) if self._window else 0
        if self._offset > size:
            return (
                f"offset {self._offset} is beyond window {self._number} of shuffle {self._shuffle}, of {size} samples"
            )
        return None

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """(epochs, indices) of the next samples: `count`, or the rest of the window; empty at the end of the row."""
        epochs, indices = self.take_arrays(count)
        return epochs.tolist(), indices.tolist()

    def take_arrays(self, count: int) -> tuple[Ints, Ints]:
        """What `take` returns, as arrays."""
        self._leave()
        while self._window is None:
            self._window = self._row.window(self.lane, self._shuffle, self._number)
            if self._window is None and not self._advance():
                return np.empty(0, np.int64), np.empty(0, np.int64)
        epochs, indices = self._window.take(self._offset, self._offset + count)
        self._offset += len(indices)
        self._taken += len(indices)
        return epochs, indices

    def skip(self, count: int) -> None:
        """Go on as if `count` samples had been taken, without computing them; the row must have no end."""
        self._leave()
        row, lane, target = self._row, self.lane, self._taken + count
        assert isinstance(row, Row) and row.num_whole is None
        shuffle = self._shuffle
        if row.chunks.equal_length is not None:  # then shuffles are counted by arithmetic

            def before(end: int) -> int:
                return int(row.num_samples_to(end, [self._shuffle] * row.num_lanes)[lane])

            step = 1
            while before(self._shuffle + step) < target:
                step *= 2
            ends = range(self._shuffle, self._shuffle + step)
            shuffle = ends[max(0, bisect.bisect_left(ends, target, key=before) - 1)]  # which may end there
            target -= before(shuffle)
        self._shuffle, self._number, self._offset, self._taken = row.find(lane, shuffle, target)
        self._window = None

    def position(self, unread: int = 0) -> list[int]:
        """The current position, or the one `unread` samples earlier, within what was taken last."""
        if not unread:
            self._leave()
        return [self._shuffle, self._number, self._offset - unread, self._taken - unread]

    def _leave(self) -> None:
        """Go to the next window if this one is finished."""
        if self._window is not None and self._offset == len(self._window):
            self._advance()

    def _advance(self) -> bool:
        """Go to the start of the next window; False if there is none."""
        after = self._row.after(self.lane, self._shuffle, self._number)
        if after is None:
            return False
        self._taken = self._taken if after[0] == self._shuffle else 0
        self._shuffle, self._number = after
        self._offset, self._window = 0, None
        return True


class Inbox:
    """What a reshard left of one source to one lane, read before the lane's own row.

    `rows` are the source's rows by generation. A slice never reaches into the epochs of the next generation. `path` is
    the location of the entries in the state, for errors.
    """

    def __init__(self, entries: Iterable[Entry], rows: Sequence[SampleRow], path: str) -> None:
        self._entries = collections.deque(entries)
        self._rows, self._path = rows, path
        self._stream: Stream | None = None
        """The stream of the first entry, if it is a slice from which samples were taken."""
        self._num_taken = 0
        """Samples taken by the last `take`, all of the first entry."""

    def take(self, count: int) -> list[tuple[int, int, int]]:
        """(epoch, index, output) of the next `count` samples or fewer; empty at the end. `ALL_OUTPUTS`: a whole sample.

        Raises:
            StateError: if an entry names samples that do not exist.
        """
        self._leave()
        if not self._entries:
            return []
        head = self._entries[0]
        if not is_slice(head):
            outputs = [(epoch, index, output) for epoch, index, output in head[:count]]
            num_samples = self._rows[-1].num_samples
            for number, (_, index, _) in enumerate(outputs):
                if index >= num_samples:
                    raise self._error(head[number], f"there is no sample {index}, the data has {num_samples}")
            self._num_taken = len(outputs)
            return outputs
        end = self._rows[head[0] + 1].starts_at(0)
        if self._stream is None:
            self._stream = self._opened(head, end)
        epochs, indices = self._stream.take(min(count, head[-1]))
        if not indices or (epochs[-1], indices[-1]) >= end:
            raise self._error(self._entries[0], "the lane had fewer samples left than the count says")
        self._num_taken = len(indices)
        return list(zip(epochs, indices, itertools.repeat(ALL_OUTPUTS)))

    def entries(self, unread: int = 0) -> list[Entry]:
        """The remaining entries, for the state, including the last `unread` samples of the last `take`."""
        if not unread:
            self._leave()
        if not self._num_taken:
            return list(self._entries)
        head, *rest = self._entries
        return [self._rest(head, unread), *rest]

    def _opened(self, head: Entry, end: tuple[int, int]) -> Stream:
        """The stream of a slice, at its first sample; its `skip` is applied and removed from the entry."""
        generation, lane, shuffle, window, offset, skip, count = head
        row = self._rows[generation]
        if row.starts_at(shuffle) >= end:
            raise self._error(head, f"shuffle {shuffle} is one of the next generation's")
        stream = Stream(row, lane, (shuffle, window, offset, offset))
        if fault := stream.fault():
            raise self._error(head, fault)
        if not skip:
            return stream
        try:
            position = row.seek(lane, shuffle, window, offset + skip, end)
        except ValueError as error:
            raise self._error(head, f"the skip is too long: {error}") from None
        self._entries[0] = [generation, lane, *position, 0, count]
        return Stream(row, lane, (*position, 0))

    def _error(self, entry: Entry, fault: str) -> StateError:
        return StateError(f"{self._path}: {entry}: {fault}; {DAMAGED_STATE}")

    def _leave(self) -> None:
        """Remove the samples of the last `take` from the first entry."""
        if not self._num_taken:
            return
        rest = self._rest(self._entries.popleft(), 0)
        self._num_taken = 0
        if entry_size(rest):
            self._entries.appendleft(rest)
        else:
            self._stream = None

    def _rest(self, head: Entry, unread: int) -> Entry:
        """The first entry after the last `take`, whose last `unread` samples were not used."""
        used = self._num_taken - unread
        if not is_slice(head):
            return head[used:]
        assert self._stream is not None
        generation, lane, *_, count = head
        shuffle, window, offset, _ = self._stream.position(unread)
        return [generation, lane, shuffle, window, offset, 0, count - used]


def is_slice(entry: Entry) -> bool:
    """Whether an entry is a slice; if not, it is a list of single outputs."""
    return not isinstance(entry[0], list)


def entry_size(entry: Entry) -> int:
    """The number of samples (or outputs of samples) in an entry."""
    if not entry:
        return 0
    return entry[-1] if is_slice(entry) else len(entry)


def cut_entry(entry: Entry, size: int) -> tuple[Entry, Entry]:
    """Split an entry into its first `size` samples and the rest."""
    if not is_slice(entry):
        return entry[:size], entry[size:]
    *stream, skip, count = entry
    return [*stream, skip, size], [*stream, skip + size, count - size]


_AT_ONCE = 1 << 14
"""Samples that are taken together to be passed over."""


def _is_endless(row: SampleRow) -> bool:
    return isinstance(row, Row) and row.num_whole is None


_as_reference = functools.partial(tuple.__new__, SampleRef)
"""`SampleRef._make`, three times as fast."""


class Cursor:
    """The training order of one lane: the blend chooses the source, the source gives first its inbox, then its row.

    A blend that looks at samples has its own part of the state: `blend`.

    `generations` has the rows of all sources under each geometry that inboxes refer to, the current one last. At a
    finite end, sources whose row has ended are passed over until all have ended.
    """

    def __init__(
        self, generations: Sequence[Sequence[SampleRow]], blend: Blend | BlendSchedule | SampleBlend | None, lane: int
    ) -> None:
        self._rows, self._blend, self.lane = generations[-1], blend, lane
        self._history = list(zip(*generations, strict=True))
        self._num_lanes = self._rows[0].num_lanes
        self._run_size = min(_MAX_REFS_AHEAD, max(_MIN_REFS_AHEAD, _MAX_REFS_HELD // len(self._rows)))
        self._draw_block: tuple[int, list[int]] = (-1, [])
        self.num_drawn = 0
        """Samples drawn so far (in a finite blend: draws of the blend, including those of sources that have ended)."""
        self.seek({})

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
                drawn += zip(range(self.num_drawn, self.num_drawn + len(refs)), refs, strict=True)
                self.num_drawn += len(refs)
        elif isinstance(self._blend, Blend | BlendSchedule):
            self._take_of_blend(self._blend, count, drawn)
        elif self._lane_blend is not None:
            self._take_by_samples(self._lane_blend, count, drawn)
        if not drawn:
            raise StopIteration
        return drawn

    def skip(self, count: int) -> None:
        """Go on as if `count` samples had been taken. Of rows without end, and a blend that does not look at samples,
        that takes about the same time for any number; `StopIteration` at a finite end."""
        while count and (self._inboxes or self._lane_blend is not None or not all(map(_is_endless, self._rows))):
            count -= len(self.take(min(count, _AT_ONCE)))
        if not count:
            return
        state, draws = self.state(), self.num_drawn + count
        counts: Sequence[int] | Ints = [count]
        if isinstance(self._blend, Blend | BlendSchedule):
            of_lane = self.lane, self._num_lanes
            counts = self._blend.counts(*of_lane, draws) - self._blend.counts(*of_lane, self.num_drawn)
        for source, number in enumerate(counts):
            if number:
                stream = Stream(self._rows[source], self.lane, state["cursors"].get(str(source), BEGINNING))
                stream.skip(int(number))
                state["cursors"][str(source)] = stream.position()
        self.seek(state | {"draws": draws})

    def _take_of_blend(self, blend: Blend | BlendSchedule, count: int, drawn: list[tuple[int, SampleRef]]) -> None:
        runs, changed, ended, draw = self._runs, self._changed, self._ended, self.num_drawn
        while len(drawn) < count and len(ended) < len(self._rows):
            number, begin = divmod(draw, DRAWS_PER_BLOCK)
            if number != self._draw_block[0]:
                self._draw_block = number, blend.draw_block(self.lane, self._num_lanes, number).tolist()
            for source in self._draw_block[1][begin : begin + count - len(drawn)]:
                run = runs[source]
                if not run and source not in ended:
                    run = self._next_run(source)
                if run:
                    drawn.append((draw, run.pop()))
                    changed.add(source)
                    self.num_drawn = draw + 1  # draws of ended sources after the last sample are not in the state
                else:
                    ended.add(source)
                draw += 1

    def _take_by_samples(self, blend: LaneBlend, count: int, drawn: list[tuple[int, SampleRef]]) -> None:
        while len(drawn) < count and (source := blend.first()) is not None:
            run = self._runs[source]
            if run:
                drawn.append((self.num_drawn, run.pop()))
                self._changed.add(source)
                self.num_drawn += 1
                blend.note_drawn()
            else:
                ahead = self._next_run(source)[::-1]
                outputs = np.array([ref.output for ref in ahead])
                blend.put(source, np.array([ref.index for ref in ahead], dtype=np.int64), outputs == ALL_OUTPUTS)

    def _next_run(self, source: int) -> list[SampleRef]:
        """The next few references of a source, in reverse order; empty at the end of its row."""
        if source in self._inboxes:
            run = [SampleRef(source, *sample) for sample in reversed(self._inboxes[source].take(self._run_size))]
            if run:
                self._runs[source] = run
                return run
            del self._inboxes[source], self._saved_inboxes[str(source)]
        stream = self._streams.get(source) or self._streams.setdefault(source, self._opened(source))
        epochs, indices = stream.take_arrays(self._run_size)
        columns = epochs[::-1].tolist(), indices[::-1].tolist()
        refs = zip(itertools.repeat(source), *columns, itertools.repeat(ALL_OUTPUTS))
        run = self._runs[source] = [*map(_as_reference, refs)]
        return run

    def _opened(self, source: int) -> Stream:
        """The stream of a source's row at its saved position."""
        position = self._saved.get(str(source), BEGINNING)
        stream = Stream(self._rows[source], self.lane, position)
        if fault := stream.fault():
            raise StateError(f"lanes.{self.lane}.cursors.{source}: {list(position)}: {fault}; {DAMAGED_STATE}")
        return stream

    def state(self) -> CursorState:
        """The position as plain integers."""
        for source in self._changed:
            name, unread = str(source), len(self._runs[source])
            if source in self._inboxes:
                self._saved_inboxes[name] = self._inboxes[source].entries(unread)
            else:
                self._saved[name] = self._streams[source].position(unread)
        self._changed.clear()
        state: CursorState = {"draws": self.num_drawn, "cursors": dict(self._saved)}
        if self._lane_blend is not None:
            state["blend"] = self._lane_blend.state()
        if inboxes := {source: entries for source, entries in self._saved_inboxes.items() if entries}:
            state["inbox"] = inboxes
        return state

    def copy(self) -> Self:
        """Another cursor at the same position."""
        copied = copy.copy(self)
        copied.seek(self.state())
        return copied

    def seek(self, state: CursorState) -> None:
        """Continue from a position that `state()` returned; from the beginning, if `state` has none."""
        self.num_drawn = state.get("draws", 0)
        self._saved, self._saved_inboxes = dict(state.get("cursors", {})), dict(state.get("inbox", {}))
        self._streams: dict[int, Stream] = {}
        self._inboxes: dict[int, Inbox] = {}
        if self._saved_inboxes:
            self._inboxes = {
                int(source): Inbox(entries, self._history[int(source)], f"lanes.{self.lane}.inbox.{source}")
                for source, entries in self._saved_inboxes.items()
            }
        self._runs: list[list[SampleRef]] = [[] for _ in self._rows]
        self._changed: set[int] = set()
        self._ended: set[int] = set()
        self._lane_blend: LaneBlend | None = None
        if self._blend is not None and not isinstance(self._blend, Blend | BlendSchedule):
            self._lane_blend = self._blend.lane(self.lane, self._num_lanes, state.get("blend"))


class Lookahead:
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
