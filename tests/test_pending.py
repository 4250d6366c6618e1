import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.order import Geometry, Row, SampleRef, ShuffledCursor
from bridge_data.pending import OLD, decode_items, encode_items, replayed
from bridge_data.work import Item


@given(
    first=st.integers(0, 100),
    drawn=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3)), max_size=30),
)
def test_items_come_back_as_they_were_written(first: int, drawn: list[tuple[int, int]]) -> None:
    refs = {draw: SampleRef(0, draw // 50, draw % 50) for draw in range(201)}
    items = [Item(draw, refs[draw], part) for draw, part in drawn]
    encoded = json.loads(json.dumps(encode_items(items, first)))
    decoded = list(decode_items(encoded, first, {draw: ref for draw, ref in refs.items() if draw >= first}))
    assert [(ref, part) for _, ref, part in decoded] == [(item.ref, item.part) for item in items]
    assert [draw for draw, _, _ in decoded] == [item.draw if item.draw >= first else OLD for item in items]


def test_a_young_whole_sample_is_one_small_number() -> None:
    assert encode_items([Item(107, SampleRef(3, 2, 10**9), 0)], 100) == [7]


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="pending item"):
        list(decode_items([[1, 2, 3]], 0, {}))


def test_references_since_the_base_are_found_by_replaying_the_order() -> None:
    def cursor() -> ShuffledCursor:
        return ShuffledCursor([[Row([40], Geometry(2, 5, 32), key=1)]], None, 1)

    lane = cursor()
    for _ in range(13):
        lane.next()
    base = lane.state()
    drawn = {13 + number: lane.next() for number in range(30)}
    state = lane.state() | {"pending": {"base": base, "packs": [[0, 1]]}}
    assert replayed(cursor(), state) == (13, drawn)
    assert replayed(cursor(), lane.state()) == (43, {})
