"""The position of a lane: a cursor in its order, and the samples that it has drawn but not yet emitted.

Input: the rows of the sources, a blend, a lane, a saved state. Output: `SampleRef`s with their draw numbers. Guarantee:
the state is plain integers, a few per source drawn from; a cursor set to it continues exactly as the one that saved it.
Pending packs and groups are restored as they were chosen, and no payload is stored.

A pending item is stored as the number of its draw, counted from a base cursor; on restore, the order is replayed from
there to find the sample again. It is `[offset, part]` where a generator hook made several parts of a sample, and
`[source, epoch, index, part]` where the item is older than the base cursor.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from bridge_data.errors import EDITED, StateError
from bridge_data.order.random_draws import BLOCK, Blend, Schedule
from bridge_data.order.row import Row
from bridge_data.order.stream import ALL_PARTS, BEGINNING, Inbox, OrderedRow, PackedReferences, SampleRef, Stream

State = dict[str, Any]

OLD = -1
"""The draw number of an item restored from an explicit reference: older than any base cursor."""

_RUN = 256
"""References computed at a time."""


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
        epochs, indices = stream.take_arrays(_RUN)
        if self._blend is None:
            self._packed.add(epochs, indices)
        columns = epochs[::-1].tolist(), indices[::-1].tolist()
        refs = zip(itertools.repeat(source), *columns, itertools.repeat(ALL_PARTS))
        run = self._runs[source] = [*map(_as_reference, refs)]
        return run

    def packed_references(self, count: int) -> bytes | None:
        """Those of the last `count` samples, for the ledger, if they are packed: whole samples of the only source."""
        return self._packed.last(count, len(self._runs[0]))

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
        self._packed = PackedReferences(0)


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

    def packed_references(self, count: int) -> bytes | None:
        return super().packed_references(count) if len(self._num_samples) == 1 else None

    def _next_run(self, source: int) -> list[SampleRef]:
        run = super()._next_run(source)
        sources = np.searchsorted(self._first, [ref.index for ref in run], side="right") - 1
        firsts = self._first[sources].tolist()
        run[:] = [
            SampleRef(number, epoch, index - first, part)
            for number, first, (_, epoch, index, part) in zip(sources.tolist(), firsts, run, strict=True)
        ]
        return run


class Drawn(NamedTuple):
    """One part of a sample, with the number of its draw."""

    draw: int
    ref: SampleRef
    part: int


class _Item(Protocol):
    draw: int
    ref: SampleRef
    part: int


class _Unit(Protocol):
    @property
    def items(self) -> Sequence[_Item]: ...


T = TypeVar("T")
U = TypeVar("U")
NewT = TypeVar("NewT")
NewU = TypeVar("NewU")
ItemT = TypeVar("ItemT", bound=_Item)
UnitT = TypeVar("UnitT", bound=_Unit)


@dataclasses.dataclass(slots=True)
class Pending(Generic[T, U]):
    """Items (parts of samples) and units (packs, or single items without packing), by what they wait for."""

    queue: collections.deque[T] = dataclasses.field(default_factory=collections.deque)
    """Items that were drawn together with others and are processed next."""
    carried: list[T] = dataclasses.field(default_factory=list)
    """Items left over by the packer, for the next packing buffer."""
    packs: collections.deque[list[T]] = dataclasses.field(default_factory=collections.deque)
    """Packs that are selected but not yet packed."""
    buckets: dict[str, list[U]] = dataclasses.field(default_factory=dict)
    """Members of incomplete micro-batches, by batch group."""
    open: collections.deque[tuple[list[U], int]] = dataclasses.field(default_factory=collections.deque)
    """(members, number of batches already emitted) of micro-batches that were only partly emitted."""

    def __bool__(self) -> bool:
        return bool(self.queue or self.carried or self.packs or self.buckets or self.open)

    def map(self, item: Callable[[T], NewT], unit: Callable[[U], NewU]) -> "Pending[NewT, NewU]":
        """The same structure with `item` and `unit` applied to each."""
        return Pending(
            queue=collections.deque(map(item, self.queue)),
            carried=list(map(item, self.carried)),
            packs=collections.deque(list(map(item, pack)) for pack in self.packs),
            buckets={name: list(map(unit, bucket)) for name, bucket in self.buckets.items()},
            open=collections.deque((list(map(unit, units)), emitted) for units, emitted in self.open),
        )

    def items(self: "Pending[T, list[T]]") -> Iterator[T]:
        """All items."""
        yield from self.loose()
        for units, _ in self.open:
            yield from itertools.chain.from_iterable(units)

    def loose(self: "Pending[T, list[T]]") -> Iterator[T]:
        """All items except those of partly emitted batches."""
        units = itertools.chain.from_iterable(self.buckets.values())
        return itertools.chain(self.queue, self.carried, *self.packs, *units)

    def explicit(
        self: "Pending[Drawn, list[Drawn]]", numbers: Sequence[int] | None = None
    ) -> "Pending[list[int], list[list[int]]]":
        """All items as `[source, epoch, index, part]`, with sources renumbered by `numbers`, if given."""

        def written(item: Drawn) -> list[int]:
            source, epoch, index, _ = item.ref
            return [source if numbers is None else numbers[source], epoch, index, item.part]

        return self.map(written, lambda unit: [written(item) for item in unit])

    def encode(self: "Pending[ItemT, UnitT]", first: int) -> dict[str, Any]:
        """As plain data for the lane's state; `first` is the draw number of the base cursor."""

        def written(item: _Item) -> int | list[int]:
            if item.draw < first:
                return [item.ref.source, item.ref.epoch, item.ref.index, item.part]
            return [item.draw - first, item.part] if item.part else item.draw - first

        return self.map(written, lambda unit: [written(item) for item in unit.items]).to_dict()

    @staticmethod
    def decode(state: Mapping[str, Any], cursor: Cursor) -> "Pending[Drawn, list[Drawn]]":
        """The pending items of a lane's state. Moves `cursor`, a cursor of the lane, to replay their draws.

        Raises:
            StateError: if a draw or a sample does not exist.
        """
        pending, num_samples = state.get("pending", {}), cursor.num_samples
        waiting = Pending.from_dict(pending)
        stored = ([item, 0] if isinstance(item, int) else item for item in waiting.items())
        offsets = [item[0] for item in stored if len(item) == 2]
        refs = _replayed(cursor, pending["base"], max(offsets) + 1) if offsets else {}
        first = pending["base"]["draws"] if offsets else state["draws"]

        def read(item: int | list[int]) -> Drawn:
            stored = [item, 0] if isinstance(item, int) else item
            if len(stored) > 2:
                source, epoch, index, part = stored
                if index < num_samples[source]:
                    return Drawn(OLD, SampleRef(source, epoch, index), part)
                fault = f"there is no sample {index}, source {source} has {num_samples[source]}"
            else:
                offset, part = stored
                if offset in refs:
                    return Drawn(first + offset, refs[offset], part)
                fault = f"draw {first + offset} gave no sample"
            raise StateError(f"lanes.{cursor.lane}.pending: {stored}: {fault}; {EDITED}")

        return waiting.map(read, lambda unit: [read(item) for item in unit])

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and dicts, empty ones left out."""
        lists = {
            "queue": list(self.queue),
            "carried": self.carried,
            "packs": list(self.packs),
            "buckets": self.buckets,
            "open": [list(batch) for batch in self.open],
        }
        return {name: value for name, value in lists.items() if value}

    @staticmethod
    def from_dict(written: Mapping[str, Any]) -> "Pending[Any, list[Any]]":
        """The inverse of `to_dict`."""
        return Pending(
            queue=collections.deque(written.get("queue", ())),
            carried=list(written.get("carried", ())),
            packs=collections.deque(written.get("packs", ())),
            buckets=dict(written.get("buckets", {})),
            open=collections.deque((units, emitted) for units, emitted in written.get("open", ())),
        )


def num_pending(state: Mapping[str, Any]) -> int:
    """The number of samples (or parts of samples) that a lane has drawn but not yet emitted, from its state."""
    return sum(1 for _ in Pending.from_dict(state.get("pending", {})).items())


def _replayed(cursor: Cursor, base: dict[str, Any], count: int) -> dict[int, SampleRef]:
    """The references of `count` draws from the base cursor on, by their offset from it."""
    cursor.seek(base)
    path, first, end = f"lanes.{cursor.lane}.pending", cursor.draws, cursor.draws + count
    refs: dict[int, SampleRef] = {}
    try:
        while cursor.draws < end:
            refs |= {draw - first: ref for draw, ref in cursor.take(end - cursor.draws)}
    except StopIteration:
        fault = f"an item waits since draw {end - 1}, the data ends after {cursor.draws}"
        raise StateError(f"{path}: {fault}; {EDITED}") from None
    except StateError as error:
        raise StateError(f"{path}.base: {error}") from None
    return refs
