"""How samples that are drawn and not yet out are written into a lane's state.

An item is written as its draw number counted from a base cursor (from which the order is replayed to find the
reference again), `[offset, part]` where a generator made several parts, or, where it is older than the base,
`[source, epoch, index, part]`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from bridge_data.errors import StateError
from bridge_data.order import Cursor, SampleRef

Encoded = int | list[int]

OLD = -1
"""The draw number of an item that was restored from an explicit reference: it is older than any base."""


class _Pending(Protocol):
    draw: int
    ref: SampleRef
    part: int


def encode_items(items: Iterable[_Pending], first: int) -> list[Encoded]:
    """The items as the state keeps them; `first` is the draw number of the base cursor."""
    return [_encode(item, first) for item in items]


def encode_ref(ref: SampleRef, part: int) -> list[int]:
    """A part of a sample, explicitly."""
    return [ref.source, ref.epoch, ref.index, part]


def _encode(item: _Pending, first: int) -> Encoded:
    if item.draw < first:
        return encode_ref(item.ref, item.part)
    return [item.draw - first, item.part] if item.part else item.draw - first


def decode_items(
    encoded: Iterable[Encoded], first: int, refs: Mapping[int, SampleRef]
) -> Iterator[tuple[int, SampleRef, int]]:
    """(draw number, reference, part) of each item; `refs` holds the references by draw number since the base."""
    for item in encoded:
        match item:
            case int(offset):
                yield first + offset, refs[first + offset], 0
            case [offset, part]:
                yield first + offset, refs[first + offset], part
            case [source, epoch, index, part]:
                yield OLD, SampleRef(source, epoch, index), part
            case _:
                raise ValueError(f"pending item {item!r}: expected an offset, [offset, part] or a full reference")


def replayed(cursor: Cursor, state: dict[str, Any]) -> tuple[int, dict[int, SampleRef]]:
    """(draw number of the base, references by draw number since) of a lane's state; moves `cursor`.

    Raises:
        StateError: if the order is shorter than the state says.
    """
    base = state.get("pending", {}).get("base")
    refs: dict[int, SampleRef] = {}
    if base is None:
        return state["draws"], refs
    cursor.seek(base)
    try:
        while cursor.draws < state["draws"]:
            ref = cursor.next()
            refs[cursor.draws - 1] = ref
    except StopIteration:
        raise StateError(f"a lane's state claims {state['draws']} draws, the data ends after {cursor.draws}") from None
    return base["draws"], refs
