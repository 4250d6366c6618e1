"""What a lane has drawn and not yet emitted, as its state keeps it.

Reads the items of a saved state, and a cursor. Returns references of the samples. Pending packs and groups are restored
as they were chosen, and no payload is stored. An item is stored as the number of its draw, counted from a base cursor;
on restore, the order is replayed from there to find the sample again. It is `[offset, output]` where a generator hook
made several outputs of a sample, and `[source, epoch, index, output]` where the item is older than the base cursor.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from bridge_data.errors import DAMAGED_STATE, StateError
from bridge_data.order.cursor import Cursor, CursorState, SampleRef

OLD = -1
"""The draw number of an item restored from an explicit reference: older than any base cursor."""


class Drawn(NamedTuple):
    """One output of a sample, with the number of its draw."""

    draw: int
    ref: SampleRef
    output: int


class _Item(Protocol):
    draw: int
    ref: SampleRef
    output: int


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
    """Items (outputs of samples) and units (packs, or single items without packing), by what they wait for."""

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

    def only(self: "Pending[Drawn, list[Drawn]]", refs: Container[SampleRef]) -> "Pending[Drawn, list[Drawn]]":
        """The items of some samples. Packs, buckets and micro-batches lose members; empty ones are dropped, and none is
        refilled."""

        def left(items: Iterable[Drawn]) -> list[Drawn]:
            return [item for item in items if item.ref in refs]

        def units_left(units: Iterable[list[Drawn]]) -> list[list[Drawn]]:
            return [kept for unit in units if (kept := left(unit))]

        buckets = {name: units_left(bucket) for name, bucket in self.buckets.items()}
        opened = [(units_left(units), emitted) for units, emitted in self.open]
        return Pending(
            queue=collections.deque(left(self.queue)),
            carried=left(self.carried),
            packs=collections.deque(units_left(self.packs)),
            buckets={name: bucket for name, bucket in buckets.items() if bucket},
            open=collections.deque(batch for batch in opened if batch[0]),
        )

    def loose(self: "Pending[T, list[T]]") -> Iterator[T]:
        """All items except those of partly emitted batches."""
        units = itertools.chain.from_iterable(self.buckets.values())
        return itertools.chain(self.queue, self.carried, *self.packs, *units)

    def explicit(
        self: "Pending[Drawn, list[Drawn]]", numbers: Sequence[int] | None = None
    ) -> "Pending[list[int], list[list[int]]]":
        """All items as `[source, epoch, index, output]`, with sources renumbered by `numbers`, if given."""

        def written(item: Drawn) -> list[int]:
            source, epoch, index, _ = item.ref
            return [source if numbers is None else numbers[source], epoch, index, item.output]

        return self.map(written, lambda unit: [written(item) for item in unit])

    def encode(self: "Pending[ItemT, UnitT]", first: int) -> dict[str, Any]:
        """As plain data for the lane's state; `first` is the draw number of the base cursor."""

        return self.map(
            lambda item: encoded_item(item, first), lambda unit: [encoded_item(item, first) for item in unit.items]
        ).to_dict()

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
                source, epoch, index, output = stored
                if index < num_samples[source]:
                    return Drawn(OLD, SampleRef(source, epoch, index), output)
                fault = f"there is no sample {index}, source {source} has {num_samples[source]}"
            else:
                offset, output = stored
                if offset in refs:
                    return Drawn(first + offset, refs[offset], output)
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


class WrittenOnce:
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


def encoded_item(item: _Item, first: int) -> int | list[int]:
    """One item as `Pending.encode` writes it."""
    if item.draw < first:
        return [item.ref.source, item.ref.epoch, item.ref.index, item.output]
    return [item.draw - first, item.output] if item.output else item.draw - first


def num_pending(state: Mapping[str, Any]) -> int:
    """The number of samples (or outputs of samples) that a lane has drawn but not yet emitted, from its state."""
    return sum(1 for _ in Pending.from_dict(state.get("pending", {})).items())


def _replayed(cursor: Cursor, base: CursorState, count: int) -> dict[int, SampleRef]:
    """The references of `count` draws from the base cursor on, by their offset from it."""
    cursor.seek(base)
    path, first, end = f"lanes.{cursor.lane}.pending", cursor.num_drawn, cursor.num_drawn + count
    refs: dict[int, SampleRef] = {}
    try:
        while cursor.num_drawn < end:
            refs |= {draw - first: ref for draw, ref in cursor.take(end - cursor.num_drawn)}
    except StopIteration:
        fault = f"an item waits since draw {end - 1}, the data ends after {cursor.num_drawn}"
        raise StateError(f"{path}: {fault}; {DAMAGED_STATE}") from None
    except StateError as error:
        raise StateError(f"{path}.base: {error}") from None
    return refs
