import collections
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.order import Blend, Cursor, Geometry, OrderedCursor, OrderedRow, Row, SampleRef
from bridge_data.order.cursor import packed_references


def shuffled(lane: int, *, lanes: int = 4, repeat: bool = True, weights: tuple[float, ...] = (3, 1)) -> Cursor:
    rows = [
        Row([30 * (number + 1)], Geometry(lanes, 5, 2, 16), key=number, num_epochs=None if repeat else 1)
        for number in range(len(weights))
    ]
    return Cursor([rows], Blend(weights, seed=9) if len(weights) > 1 else None, lane)


def drain(cursor: Cursor) -> list[SampleRef]:
    taken = []
    try:
        while True:
            taken.append(cursor.next())
    except StopIteration:
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


def test_without_repeat_every_sample_comes_once_whatever_the_weights() -> None:
    taken = [ref for lane in range(4) for ref in drain(shuffled(lane, repeat=False, weights=(1, 50)))]
    expected = {SampleRef(source, 0, index) for source, size in ((0, 30), (1, 60)) for index in range(size)}
    assert collections.Counter(taken) == dict.fromkeys(expected, 1)


def test_a_cursor_restored_at_its_end_stays_there() -> None:
    cursor = shuffled(1, repeat=False)
    taken = drain(cursor)
    at_end = cursor.state()
    replayed = shuffled(1, repeat=False)
    assert [replayed.next() for _ in taken] == taken
    assert replayed.state() == at_end
    drain(cursor)
    assert cursor.state() == at_end
    other = shuffled(1, repeat=False)
    other.seek(cursor.state())
    with pytest.raises(StopIteration):
        other.next()


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    lanes=st.integers(1, 7),
    block=st.integers(1, 6),
)
def test_ordered_blocks_of_the_lanes_in_turn_are_the_data_front_to_back(
    sizes: list[int], lanes: int, block: int
) -> None:
    row = OrderedRow(sum(sizes), lanes, block)
    streams = [drain(OrderedCursor(sizes, [row], lane)) for lane in range(lanes)]
    blocks = [[stream[i : i + block] for i in range(0, len(stream), block)] for stream in streams]
    in_turn = []
    for number in range(max(map(len, blocks))):
        in_turn += [ref for lane in blocks if number < len(lane) for ref in lane[number]]
    assert in_turn == [SampleRef(source, 0, index) for source, size in enumerate(sizes) for index in range(size)]


def test_an_ordered_cursor_can_be_set() -> None:
    cursor, other = (OrderedCursor([10, 5], [OrderedRow(15, 2, 3)], 0) for _ in range(2))
    for _ in range(4):
        cursor.next()
    other.seek(cursor.state())
    assert drain(other) == drain(cursor) != []


@given(counts=st.lists(st.integers(1, 256), min_size=1, max_size=6), before=st.integers(0, 40))
def test_references_come_packed_if_all_samples_were_drawn_here(counts: list[int], before: int) -> None:
    cursor = shuffled(2, weights=(1,))
    for _ in range(before):
        cursor.next()
    other = shuffled(2, weights=(1,))
    other.seek(cursor.state())
    drawn = []
    for count in counts:
        refs = [ref for _, ref in other.take(count)]
        drawn += refs
        expected = packed_references([value for ref in refs for value in (*ref[:3], 0)])
        assert other.packed_references(len(refs)) == expected
    assert other.packed_references(len(drawn) + 1) is None


def test_references_of_a_blend_and_of_several_sources_front_to_back_do_not_come_packed() -> None:
    blend, ordered, one = shuffled(0), OrderedCursor([10, 5], [OrderedRow(15, 1, 3)], 0), shuffled(0, weights=(1,))
    for cursor in (blend, ordered, one):
        cursor.take(3)
    assert blend.packed_references(3) is ordered.packed_references(3) is None
    assert one.packed_references(3) is not None


@given(counts=st.lists(st.integers(1, 70), max_size=8), weights=st.sampled_from([(1.0,), (3.0, 1.0)]))
def test_taking_several_is_taking_each(counts: list[int], weights: tuple[float, ...]) -> None:
    together, single = shuffled(2, repeat=False, weights=weights), shuffled(2, repeat=False, weights=weights)
    for count in counts:
        expected = []
        try:
            for _ in range(count):
                ref = single.next()
                expected.append((single.draws - 1, ref))
        except StopIteration:
            pass
        try:
            taken = together.take(count)
        except StopIteration:
            taken = []
        assert taken == expected
        assert together.state() == single.state()
