"""What a lane's state has besides positions: samples left over by a re-deal, and samples not yet emitted.

Input: entries and items of a saved state, the rows of all generations. Output: references of the samples, and what
is left of them. Guarantee: a lane that starts from them continues exactly as the one that saved them; pending packs and
groups are restored as they were chosen, and no payload is stored.

An `Inbox` has what a re-deal left of one source to a lane; it is read before the lane's share of the row. An entry is
a slice `[generation, lane, shuffle, window, offset, skip, count]`: from that position of an old lane's stream, skip
`skip` samples and take the next `count`. Or it is a list of `[epoch, index, part]`: single samples, or parts of them.

`Pending` has what was drawn and not yet emitted. An item is stored as the number of its draw, counted from a base
cursor; on restore, the order is replayed from there to find the sample again. It is `[offset, part]` where a generator
hook made several parts of a sample, and `[source, epoch, index, part]` where the item is older than the base cursor.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from bridge_data.errors import DAMAGED_STATE, StateError
from bridge_data.order.cursor import ALL_PARTS, Cursor, SampleRef, Stream
from bridge_data.order.ordered import OrderedRow
from bridge_data.order.row import Row

Entry = list[Any]
"""An entry of an inbox."""

OLD = -1
"""The draw number of an item restored from an explicit reference: older than any base cursor."""


class Inbox:
    """What a re-deal left of one source to one lane, read before the lane's own row.

    `rows` are the source's rows by generation. A slice never reaches into the epochs of the next generation. `path` is
    the location of the entries in the state, for errors.
    """

    def __init__(self, entries: Iterable[Entry], rows: Sequence[Row | OrderedRow], path: str) -> None:
        self._entries = collections.deque(entries)
        self._rows, self._path = rows, path
        self._stream: Stream | None = None
        """The stream of the first entry, if it is a slice from which samples were taken."""
        self._num_taken = 0
        """Samples taken by the last `take`, all of the first entry."""

    def take(self, count: int) -> list[tuple[int, int, int]]:
        """(epoch, index, part) of the next `count` samples or fewer; empty at the end. `ALL_PARTS`: a whole sample.

        Raises:
            StateError: if an entry names samples that do not exist.
        """
        self._leave()
        if not self._entries:
            return []
        head = self._entries[0]
        if not is_slice(head):
            parts = [(epoch, index, part) for epoch, index, part in head[:count]]
            num_samples = self._rows[-1].num_samples
            for number, (_, index, _) in enumerate(parts):
                if index >= num_samples:
                    raise self._error(head[number], f"there is no sample {index}, the data has {num_samples}")
            self._num_taken = len(parts)
            return parts
        end = self._rows[head[0] + 1].starts_at(0)
        if self._stream is None:
            self._stream = self._opened(head, end)
        epochs, indices = self._stream.take(min(count, head[-1]))
        if not indices or (epochs[-1], indices[-1]) >= end:
            raise self._error(self._entries[0], "the lane had fewer samples left than the count says")
        self._num_taken = len(indices)
        return list(zip(epochs, indices, itertools.repeat(ALL_PARTS)))

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
    """Whether an entry is a slice; if not, it is a list of single parts."""
    return not isinstance(entry[0], list)


def entry_size(entry: Entry) -> int:
    """The number of samples (or parts of samples) in an entry."""
    if not entry:
        return 0
    return entry[-1] if is_slice(entry) else len(entry)


def cut_entry(entry: Entry, size: int) -> tuple[Entry, Entry]:
    """Split an entry into its first `size` samples and the rest."""
    if not is_slice(entry):
        return entry[:size], entry[size:]
    *stream, skip, count = entry
    return [*stream, skip, size], [*stream, skip + size, count - size]


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
            raise StateError(f"lanes.{cursor.lane}.pending: {stored}: {fault}; {DAMAGED_STATE}")

        return waiting.map(read, lambda unit: [read(item) for item in unit])

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and dicts, without empty ones."""
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
        raise StateError(f"{path}: {fault}; {DAMAGED_STATE}") from None
    except StateError as error:
        raise StateError(f"{path}.base: {error}") from None
    return refs
