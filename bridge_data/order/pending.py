"""Pending: the samples that a lane has drawn and not yet emitted, by where they wait, and how its state keeps them.

An item is written as its draw number counted from a base cursor (from which the order is replayed to find the
reference again), `[offset, part]` where a generator made several parts, or, where it is older than the base,
`[source, epoch, index, part]`.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from bridge_data.errors import EDITED, StateError
from bridge_data.order import Cursor, SampleRef

Encoded: TypeAlias = int | list[int]

OLD = -1
"""The draw number of an item that was restored from an explicit reference: it is older than any base."""


class Drawn(NamedTuple):
    """One part of a sample, and the number of the draw that it came with."""

    draw: int
    ref: SampleRef
    part: int


class _Item(Protocol):
    @property
    def draw(self) -> int: ...

    @property
    def ref(self) -> SampleRef: ...

    @property
    def part(self) -> int: ...


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
    """Items (parts of samples), and units (packs; without packing, single items) where they wait."""

    queue: collections.deque[T] = dataclasses.field(default_factory=collections.deque)
    """The rest of what was drawn together."""
    carried: list[T] = dataclasses.field(default_factory=list)
    """What no pack was made of yet, for the next packing buffer."""
    packs: collections.deque[list[T]] = dataclasses.field(default_factory=collections.deque)
    """Packs that are chosen, and not packed."""
    buckets: dict[str, list[U]] = dataclasses.field(default_factory=dict)
    """Members of micro-batches that are not full, by the name of their group."""
    open: collections.deque[tuple[list[U], int]] = dataclasses.field(default_factory=collections.deque)
    """The members of micro-batches of which so many batches are out and others are not."""

    def __bool__(self) -> bool:
        return bool(self.queue or self.carried or self.packs or self.buckets or self.open)

    def without_packs(self) -> "Pending[T, U]":
        """What else is pending but what the packing buffer was made into."""
        return Pending(queue=self.queue, buckets=self.buckets, open=self.open)

    def map(self, item: Callable[[T], NewT], unit: Callable[[U], NewU]) -> "Pending[NewT, NewU]":
        """The same with each item and each unit changed."""
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
        """All items but those of open batches."""
        units = itertools.chain.from_iterable(self.buckets.values())
        return itertools.chain(self.queue, self.carried, *self.packs, *units)

    def explicit(
        self: "Pending[Drawn, list[Drawn]]", numbers: Sequence[int] | None = None
    ) -> "Pending[list[int], list[list[int]]]":
        """All items as `[source, epoch, index, part]`; sources by their new `numbers`, if there are any."""

        def written(item: Drawn) -> list[int]:
            source, epoch, index, _ = item.ref
            return [source if numbers is None else numbers[source], epoch, index, item.part]

        return self.map(written, lambda unit: [written(item) for item in unit])

    def encode(self: "Pending[ItemT, UnitT]", first: int) -> dict[str, Any]:
        """As a lane's state keeps it; `first` is the draw number of the base cursor."""

        def written(item: _Item) -> Encoded:
            if item.draw < first:
                return [item.ref.source, item.ref.epoch, item.ref.index, item.part]
            return [item.draw - first, item.part] if item.part else item.draw - first

        return self.map(written, lambda unit: [written(item) for item in unit.items]).to_dict()

    @staticmethod
    def decode(state: Mapping[str, Any], cursor: Cursor) -> "Pending[Drawn, list[Drawn]]":
        """What is pending in a lane's state; moves `cursor`, of the lane's order, to replay it.

        Raises:
            StateError: if the order has no such draw, or a source no such sample.
        """
        pending, num_samples = state.get("pending", {}), cursor.num_samples
        waiting = Pending.from_dict(pending)
        offsets = [item if isinstance(item, int) else item[0] for item in waiting.items() if not _is_explicit(item)]
        refs = _replayed(cursor, pending["base"], max(offsets) + 1) if offsets else {}
        first = pending["base"]["draws"] if offsets else state["draws"]

        def read(item: Encoded) -> Drawn:
            if isinstance(item, int):
                item = [item, 0]
            if _is_explicit(item):
                source, epoch, index, part = item
                if index >= num_samples[source]:
                    fault = f"there is no sample {index}, source {source} has {num_samples[source]}"
                    raise StateError(f"lanes.{cursor.lane}.pending: {item}: {fault}; {EDITED}")
                return Drawn(OLD, SampleRef(source, epoch, index), part)
            offset, part = item
            if offset not in refs:
                fault = f"draw {first + offset} gave no sample"
                raise StateError(f"lanes.{cursor.lane}.pending: {item}: {fault}; {EDITED}")
            return Drawn(first + offset, refs[offset], part)

        return waiting.map(read, lambda unit: [read(item) for item in unit])

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and dicts, without what is empty."""
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
        """What `to_dict` wrote."""
        return Pending(
            queue=collections.deque(written.get("queue", ())),
            carried=list(written.get("carried", ())),
            packs=collections.deque(written.get("packs", ())),
            buckets=dict(written.get("buckets", {})),
            open=collections.deque((units, emitted) for units, emitted in written.get("open", ())),
        )


def num_pending(state: Mapping[str, Any]) -> int:
    """Samples (or parts of samples) that a lane has drawn and not yet emitted, by its state."""
    return sum(1 for _ in Pending.from_dict(state.get("pending", {})).items())


def _is_explicit(item: Encoded) -> bool:
    """Whether an item is written as a reference rather than as a draw."""
    return not isinstance(item, int) and len(item) > 2


def _replayed(cursor: Cursor, base: dict[str, Any], count: int) -> dict[int, SampleRef]:
    """The references of `count` draws from a base on, by draws since."""
    path = f"lanes.{cursor.lane}.pending"
    cursor.seek(base)
    first = cursor.draws
    refs: dict[int, SampleRef] = {}
    try:
        while cursor.draws < first + count:
            refs |= {draw - first: ref for draw, ref in cursor.take(first + count - cursor.draws)}
    except StopIteration:
        fault = f"an item waits since draw {first + count - 1}, the data ends after {cursor.draws}"
        raise StateError(f"{path}: {fault}; {EDITED}") from None
    except StateError as error:
        raise StateError(f"{path}.base: {error}") from None
    return refs
