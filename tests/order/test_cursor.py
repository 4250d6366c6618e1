"""Where a lane is in its samples: drawn, read front to back, left in inboxes by reshards, and waiting in its state."""

import collections
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import StateError
from bridge_data.lanes.maker import Item, Pack
from bridge_data.order import ALL_OUTPUTS, BEGINNING, Blend, Cursor, Geometry, OrderedCursor, OrderedRow, Row, SampleRef
from bridge_data.order.cursor import Entry, Inbox, Stream, cut_entry, entry_size
from bridge_data.order.pending import OLD, Drawn, Pending, num_pending


def shuffled(lane: int, *, lanes: int = 4, repeat: bool = True, weights: tuple[float, ...] = (3, 1)) -> Cursor:
    rows = [
        Row([30 * (number + 1)], Geometry(lanes, 5, 2, 16), key=number, num_epochs=None if repeat else 1)
        for number in range(len(weights))
    ]
    return Cursor([rows], Blend(weights, seed=9) if len(weights) > 1 else None, lane)


def drain(cursor: Cursor, limit: int = 10_000) -> list[SampleRef]:
    """Its next samples, up to the end or to `limit`."""
    taken = []
    with contextlib.suppress(StopIteration):
        while len(taken) < limit:
            taken.append(cursor.next())
    return taken


@pytest.mark.processes
@given(lane=st.integers(0, 3), before=st.integers(0, 300), weights=st.sampled_from([(1.0,), (3.0, 1.0), (1, 2, 5)]))
def test_a_saved_cursor_goes_on_as_the_one_it_came_from(lane: int, before: int, weights: tuple[float, ...]) -> None:
    cursor = shuffled(lane, weights=weights)
    for _ in range(before):
        cursor.next()
    saved = json.loads(json.dumps(cursor.state()))
    other = shuffled(lane, weights=weights)
    other.seek(saved)
    assert [cursor.next() for _ in range(200)] == [other.next() for _ in range(200)]
    assert cursor.state() == other.state()


@given(
    shards=st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=6), min_size=1, max_size=3),
    geometry=st.builds(
        Geometry, st.integers(1, 8), st.integers(1, 30), st.integers(1, 3), st.sampled_from([1, 16, 90])
    ),
    lane=st.integers(0, 7),
    counts=st.lists(st.integers(1, 600), min_size=1, max_size=4),
)
def test_passing_over_samples_comes_to_the_state_after_taking_them(
    shards: list[list[int]], geometry: Geometry, lane: int, counts: list[int]
) -> None:
    """Also where windows of the lane are empty, as of few samples on many lanes."""
    rows = [Row(sizes, geometry, key=number) for number, sizes in enumerate(shards)]
    blend = Blend([3.0, 1.0, 2.0][: len(rows)], seed=9) if len(rows) > 1 else None
    taking, passing = (Cursor([rows], blend, lane % geometry.num_lanes) for _ in range(2))
    for count in counts:
        left = count
        while left:
            left -= len(taking.take(left))
        passing.skip(count)
        assert passing.state() == taking.state()
        assert passing.next() == taking.next()


def test_a_cursor_restored_at_its_end_stays_there() -> None:
    cursor, other = shuffled(1, repeat=False), shuffled(1, repeat=False)
    drain(cursor)
    at_end = cursor.state()
    other.seek(at_end)
    assert drain(other) == drain(cursor) == []
    assert cursor.state() == at_end


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    lanes=st.integers(1, 7),
    size=st.integers(1, 6),
    before=st.integers(0, 9),
)
def test_ordered_micro_batches_of_the_lanes_in_turn_are_the_data_front_to_back(
    sizes: list[int], lanes: int, size: int, before: int
) -> None:
    row = OrderedRow(sum(sizes), lanes, size)
    batches = []
    for lane in range(lanes):
        cursor, other = (OrderedCursor(sizes, [row], lane) for _ in range(2))
        stream = drain(cursor, before)
        other.seek(cursor.state())
        stream += drain(other)
        batches.append([stream[i : i + size] for i in range(0, len(stream), size)])
    in_turn = []
    for number in range(max(map(len, batches))):
        in_turn += [ref for lane in batches if number < len(lane) for ref in lane[number]]
    assert in_turn == [SampleRef(source, 0, index) for source, size in enumerate(sizes) for index in range(size)]


@given(num_lanes=st.integers(1, 7), first_batch=st.integers(0, 20), lane=st.integers(0, 6), taken=st.integers(0, 40))
def test_the_micro_batch_after_the_last_one_touched_is_untouched(
    num_lanes: int, first_batch: int, lane: int, taken: int
) -> None:
    row = OrderedRow(1_000, num_lanes, 3, first_batch)
    stream = Stream(row, lane % num_lanes)
    touched = [int(index) // 3 for index in stream.take(taken)[1]] if taken else []
    assert row.untouched_batch(lane % num_lanes, taken) == max(touched, default=first_batch - 1) + 1


def row_of(first_epoch: int = 0, num_epochs: int | None = None) -> Row:
    return Row([30, 7], Geometry(3, 5, 2, 16, first_epoch), key=1, num_epochs=num_epochs)


def drained(stream: Any, count: int) -> list[Any]:
    """All that is left, `count` at a time."""
    taken: list[Any] = []
    while part := stream.take(count):
        if isinstance(stream, Stream):
            part = list(zip(*part, strict=True))
            if not part:
                return taken
        taken += part
    return taken


@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=12), size=st.integers(1, 8))
def test_an_inbox_gives_what_was_cut_in_its_order(cuts: list[int], size: int) -> None:
    old, new = row_of(num_epochs=1), row_of(first_epoch=1)
    expected = [(epoch, index, ALL_OUTPUTS) for epoch, index in drained(Stream(old, 1), 99)]
    rest: Entry = [0, 1, *BEGINNING[:3], 0, len(expected)]
    entries: list[Entry] = [[[0, 5, 2]]]
    for cut in cuts:
        first, rest = cut_entry(rest, min(cut, entry_size(rest)))
        entries += [first] if entry_size(first) else []
    entries += [rest] if entry_size(rest) else []
    assert drained(Inbox(entries, [old, new], "inbox"), size) == [(0, 5, 2), *expected]


@pytest.mark.parametrize("taken", range(0, 11, 2))
@pytest.mark.parametrize("unread", [0, 2])
def test_an_inbox_continues_from_the_entries_of_another(taken: int, unread: int) -> None:
    rows = [row_of(num_epochs=1), row_of(first_epoch=1)]
    entries: list[Entry] = [[[0, 1, 0], [0, 2, 0]], [0, 0, 0, 0, 0, 3, 4], [0, 2, 0, 0, 0, 0, 5]]
    expected = drained(Inbox(entries, rows, "inbox"), 99)
    inbox, got, last = Inbox(entries, rows, "inbox"), 0, 0
    while got < taken and (part := inbox.take(taken - got)):
        got, last = got + len(part), len(part)
    unread = min(unread, last)
    assert drained(Inbox(inbox.entries(unread), rows, "inbox"), 2) == expected[got - unread :]


ITEMS = st.builds(lambda draw, part: Item(draw, SampleRef(0, 0, draw), part), st.integers(0, 99), st.integers(0, 3))
UNITS = st.lists(st.builds(Pack, st.lists(ITEMS, max_size=3)), min_size=1, max_size=3)
PENDING = st.builds(
    Pending,
    queue=st.lists(ITEMS, max_size=3).map(collections.deque),
    carried=st.lists(ITEMS, max_size=3),
    packs=st.lists(st.lists(ITEMS, min_size=1, max_size=3), max_size=3).map(collections.deque),
    buckets=st.dictionaries(st.text(), UNITS, max_size=2),
    open=st.lists(st.tuples(UNITS, st.integers(0, 3)), max_size=2).map(collections.deque),
)


def in_order() -> OrderedCursor:
    """Draw n is sample n."""
    return OrderedCursor([1 << 41], [OrderedRow(1 << 41, 1, 1)], 0)


@given(pending=PENDING, base=st.integers(0, 50))
def test_what_waits_comes_back_as_it_was_written(pending: Pending[Item, Pack], base: int) -> None:
    def as_drawn(item: Item) -> Drawn:
        return Drawn(item.draw if item.draw >= base else OLD, item.ref, item.output)

    expected = pending.map(as_drawn, lambda unit: [*map(as_drawn, unit.items)])
    written = json.loads(json.dumps(pending.encode(base)))
    start = in_order()
    for _ in range(base):
        start.next()
    state = {"draws": 100, "pending": {**written, "base": start.state()}}
    assert Pending.decode(state, in_order()) == expected
    assert all(written.values())
    assert num_pending(state) == len(list(expected.items()))


def test_only_draws_that_something_waits_of_are_replayed() -> None:
    order = in_order()
    base = order.state()
    (drawn,) = Pending.decode({"draws": 1 << 40, "pending": {"queue": [3], "base": base}}, order).items()
    assert (drawn.ref, order.num_drawn) == (SampleRef(0, 0, 3), 4)


def test_a_draw_beyond_the_end_of_the_data_is_refused() -> None:
    order = OrderedCursor([20], [OrderedRow(20, 1, 1)], 0)
    state = {"draws": 30, "pending": {"packs": [[1, 25]], "base": order.state()}}
    with pytest.raises(StateError, match=r"lanes\.0\.pending: an item waits since draw 25, the data ends after 20"):
        Pending.decode(state, order)
