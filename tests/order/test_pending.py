import collections
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import StateError
from bridge_data.lanes.packs import Pack
from bridge_data.lanes.work import Item
from bridge_data.order import Cursor, Geometry, Row, SampleRef
from bridge_data.order.pending import OLD, Drawn, Pending, num_pending


class Order:
    """A cursor over `size` samples, 50 per epoch."""

    lane, num_samples = 3, [10**10] * 8

    def __init__(self, size: int = 1_000) -> None:
        self.draws, self.size = 0, size

    def next(self) -> SampleRef:
        if self.draws == self.size:
            raise StopIteration
        self.draws += 1
        return SampleRef(0, *divmod(self.draws - 1, 50))

    def take(self, count: int) -> list[tuple[int, SampleRef]]:
        return [(self.draws, self.next()) for _ in range(count)]

    def state(self) -> dict[str, Any]:
        return {"draws": self.draws}

    def seek(self, state: dict[str, Any]) -> None:
        self.draws = state["draws"]


ITEMS = st.builds(
    lambda draw, part: Item(draw, SampleRef(0, *divmod(draw, 50)), part), st.integers(0, 200), st.integers(0, 3)
)
UNITS = st.lists(st.builds(Pack, st.lists(ITEMS, max_size=3)), min_size=1, max_size=3)
PENDING = st.builds(
    Pending,
    queue=st.lists(ITEMS, max_size=3).map(collections.deque),
    carried=st.lists(ITEMS, max_size=3),
    packs=st.lists(st.lists(ITEMS, min_size=1, max_size=3), max_size=3).map(collections.deque),
    buckets=st.dictionaries(st.text(), UNITS, max_size=2),
    open=st.lists(st.tuples(UNITS, st.integers(0, 3)), max_size=2).map(collections.deque),
)


@given(pending=PENDING, base=st.integers(0, 100))
def test_what_waits_comes_back_as_it_was_written(pending: Pending[Item, Pack], base: int) -> None:
    def as_drawn(item: Item) -> Drawn:
        return Drawn(item.draw if item.draw >= base else OLD, item.ref, item.part)

    expected = pending.map(as_drawn, lambda unit: [*map(as_drawn, unit.items)])
    written = json.loads(json.dumps(pending.encode(base)))
    state = {"draws": 201, "pending": {**written, "base": {"draws": base}}}
    decoded = Pending.decode(state, Order())
    assert decoded == expected
    assert bool(written) == bool(pending)
    assert num_pending(state) == len(list(decoded.items()))
    assert len(list(decoded.loose())) == num_pending({"pending": {**written, "open": []}})


@given(pending=PENDING)
def test_what_is_written_explicitly_needs_no_order(pending: Pending[Item, Pack]) -> None:
    explicit = pending.encode(10**9)
    assert explicit == Pending.decode({"draws": 0, "pending": explicit}, Order(0)).explicit().to_dict()
    moved = Pending.decode({"draws": 0, "pending": explicit}, Order(0)).explicit([7])
    assert {source for source, *_ in moved.items()} <= {7}


def test_the_written_form_is_fixed() -> None:
    young, part, old = (
        Item(107, SampleRef(3, 2, 10**9), 0),
        Item(108, SampleRef(3, 2, 5), 1),
        Item(OLD, SampleRef(1, 0, 9), 0),
    )
    pending: Pending[Item, Item | Pack] = Pending(
        queue=collections.deque([young]),
        carried=[part],
        packs=collections.deque([[young, old]]),
        buckets={"'a'": [Pack([old])]},
        open=collections.deque([([young, part], 2)]),
    )
    assert json.dumps(pending.encode(100)) == (
        '{"queue": [7], "carried": [[8, 1]], "packs": [[7, [1, 0, 9, 0]]], '
        """"buckets": {"'a'": [[[1, 0, 9, 0]]]}, "open": [[[[7], [[8, 1]]], 2]]}"""
    )


def test_a_sample_that_the_data_has_not_is_refused() -> None:
    with pytest.raises(
        StateError, match=r"lanes\.3\.pending: \[1, 0, 10000000000, 0\]: there is no sample 10000000000"
    ):
        Pending.decode({"draws": 0, "pending": {"queue": [[1, 0, 10**10, 0]]}}, Order())


def test_a_draw_beyond_the_end_of_the_data_is_refused() -> None:
    state = {"draws": 30, "pending": {"packs": [[1, 15]], "base": {"draws": 10}}}
    with pytest.raises(StateError, match=r"lanes\.3\.pending: an item waits since draw 25, the data ends after 20"):
        Pending.decode(state, Order(20))


def test_only_draws_that_something_waits_of_are_replayed() -> None:
    order = Order()
    Pending.decode({"draws": 1 << 40, "pending": {"queue": [3], "base": {"draws": 10}}}, order)
    assert order.draws == 14


def test_references_since_the_base_are_found_by_replaying_the_order() -> None:
    def cursor() -> Cursor:
        return Cursor([[Row([40], Geometry(2, 5, 2, 32), key=1)]], None, 1)

    lane = cursor()
    for _ in range(13):
        lane.next()
    base = lane.state()
    drawn = [Drawn(13 + number, lane.next(), 0) for number in range(30)]
    state = lane.state() | {"pending": {"base": base, "packs": [[*range(30)]]}}
    assert list(Pending.decode(state, cursor()).items()) == drawn
    assert not Pending.decode(lane.state(), cursor())
