"""Weights of costs: every source has its share of the cost so far, whatever its samples cost."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bridge_data.errors import ConfigError
from bridge_data.order import Cursor, Geometry, Row
from bridge_data.order.blends import Phase
from bridge_data.order.random_draws import key64
from bridge_data.plugins.planned.cost_blend import CostBlend

Ints = NDArray[np.int64]


class Table:
    """Costs in memory, which count how often they are asked for."""

    def __init__(self, costs: Ints) -> None:
        self.costs, self.num_taken = costs, 0

    def take(self, indices: Ints, name: str) -> Ints:
        self.num_taken += 1
        return self.costs[indices]

    def total(self, name: str) -> int:
        return int(self.costs.sum())


class Order:
    """Sources with these costs, in lanes."""

    def __init__(self, costs: Sequence[Ints], phases: Sequence[Phase], num_lanes: int, seed: int = 0) -> None:
        self.tables, self.num_lanes = [Table(one) for one in costs], num_lanes
        names = [f"source {number}" for number in range(len(costs))]
        keys = [key64(seed, number) for number in range(len(costs))]
        self.blend = CostBlend(phases, "tokens", self.tables, [*map(len, costs)], keys, names)
        counts = [[100] * (len(one) // 100) + [len(one) % 100] * (len(one) % 100 > 0) for one in costs]
        geometry = Geometry(num_lanes, 100, 20, 1024)
        self.rows = [Row(count, geometry, key=seed * 99 + number) for number, count in enumerate(counts)]

    def cursor(self, lane: int) -> Cursor:
        return Cursor([self.rows], self.blend, lane)

    def drawn(self, lane: int, count: int) -> Ints:
        """The cost of each source in the first 1, 2, ... draws of a lane, (count, sources)."""
        refs = [ref for _, ref in self.cursor(lane).take(count)]
        found = np.zeros((count, len(self.rows)), np.int64)
        for at, ref in enumerate(refs):
            found[at, ref.source] = self.tables[ref.source].costs[ref.index]
        return found.cumsum(0)


def errors(drawn: Ints, weights: Sequence[float]) -> NDArray[np.float64]:
    """How far each share of the cost is from its weight, at most over the sources."""
    shares = drawn / drawn.sum(1, keepdims=True)
    return np.asarray(np.abs(shares - np.array(weights) / sum(weights)).max(1))


@st.composite
def blends(draw: st.DrawFn) -> tuple[list[Ints], list[float]]:
    """Costs, of which some may be 0, and weights."""
    number = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    costs = [np.minimum(rng.pareto(1.1, rng.integers(1, 400)) * 9, 32_768).astype(np.int64) for _ in range(number)]
    for one in costs:
        one[0] += 1
    return costs, [draw(st.floats(1e-3, 1)) for _ in range(number)]


@given(blend=blends(), num_lanes=st.integers(1, 9), before=st.integers(1, 300), seed=st.integers(0, 99))
def test_no_source_of_a_lane_is_further_from_its_share_than_by_a_sample_and_a_saved_lane_goes_on(
    blend: tuple[list[Ints], list[float]], num_lanes: int, before: int, seed: int
) -> None:
    costs, weights = blend
    order = Order(costs, [(0, weights)], num_lanes, seed)
    lane = seed % num_lanes
    drawn = order.drawn(lane, before + 200)
    shares = np.array(weights) / sum(weights)
    largest = np.array([one.max() for one in costs])
    assert (np.abs(drawn - shares * drawn.sum(1, keepdims=True)) <= largest + shares * largest.sum() + 1).all()

    one, other = order.cursor(lane), order.cursor(lane)
    one.take(before)
    state = one.state()
    assert [state["blend"].get(str(source), 0) for source in range(len(costs))] == drawn[before - 1].tolist()
    other.seek(state)
    assert one.take(200) == other.take(200)
    assert one.state() == other.state()


def lognormal(rng: np.random.Generator, middle: float, width: float) -> Ints:
    return np.clip(np.exp(rng.normal(np.log(middle), width, 30_000)), 10, 32_768).astype(np.int64)


LENGTHS: dict[str, Callable[[np.random.Generator], list[Ints]]] = {
    "lognormal": lambda rng: [lognormal(rng, 500, 1), lognormal(rng, 100, 1), lognormal(rng, 2_000, 0.5)],
    "Pareto": lambda rng: [np.clip(50 * (rng.pareto(1.5, 30_000) + 1), 10, 32_768).astype(np.int64) for _ in range(3)],
    "bimodal": lambda rng: [
        np.where(rng.random(30_000) < 0.9, 50, 20_000),
        lognormal(rng, 500, 1),
        rng.integers(10, 4_000, 30_000),
    ],
    "equal": lambda _: [np.full(30_000, cost) for cost in (256, 1_000, 256)],
    "half skipped": lambda rng: [lognormal(rng, 500, 1) * rng.integers(0, 2, 30_000) for _ in range(3)],
}


@pytest.mark.parametrize("name", LENGTHS)
def test_eight_lanes_are_within_a_thousandth_of_their_weights(name: str) -> None:
    """Where the largest samples are a few hundredths of a lane's cost so far, within two."""
    weights = [0.6, 0.3, 0.1]
    order = Order(LENGTHS[name](np.random.default_rng(3)), [(0, weights)], 8)
    drawn = sum(order.drawn(lane, 5_000) for lane in range(8))
    limit = 0.002 if name == "Pareto" else 0.001
    assert errors(drawn[1_249::1_250], weights).max() < limit  # type: ignore[index]


def test_lanes_in_lockstep_do_not_draw_a_rare_source_at_once() -> None:
    costs = [np.full(1_000, 256)] * 3
    order = Order(costs, [(0, [0.5, 0.499, 0.001])], 64)
    drawn = sum(order.drawn(lane, 400)[:, 2] for lane in range(64)) // 256  # type: ignore[operator]
    due = np.arange(1, 401) * 64 * 0.001
    assert np.abs(drawn - due).max() < 4


def test_one_sample_of_a_million_tokens_is_made_up_for_by_the_samples_after_it() -> None:
    costs = [np.full(20_000, 50), np.full(20_000, 70)]
    costs[0][7] = 1_000_000
    drawn = Order(costs, [(0, [1, 1])], 1).drawn(0, 40_000)
    ahead = drawn[:, 0] - drawn[:, 1]
    assert np.abs(ahead).max() <= 500_000 + 200, "by half of it before it comes, and after"
    assert np.abs(ahead[-1_000:]).max() < 200


def test_a_source_is_opened_when_it_is_first_drawn() -> None:
    order = Order([np.full(300, 10)] * 2_000, [(0, [1.0] * 2_000)], 8)
    order.cursor(3).take(50)
    assert sum(table.num_taken for table in order.tables) <= 60


def test_weights_change_at_a_cost_of_the_job_and_a_source_of_weight_0_is_not_drawn() -> None:
    rng = np.random.default_rng(5)
    costs = [rng.integers(1, 200, 3_000) for _ in range(3)]
    order = Order(costs, [(0, [3, 1, 0]), (200_000, [1, 1, 0]), (400_000, [0, 1, 3])], 4)
    drawn = order.drawn(1, 3_000)
    total = drawn.sum(1)
    ends = np.searchsorted(total, [50_000, 100_000])
    spans = [np.zeros(3, np.int64), drawn[ends[0]], drawn[ends[1]], drawn[-1]]
    for (begin, end), weights in zip(itertools.pairwise(spans), ([3, 1, 0], [1, 1, 0], [0, 1, 3]), strict=True):
        span = end - begin
        assert span / span.sum() == pytest.approx(np.array(weights) / 4 * (1 if sum(weights) == 4 else 2), abs=0.01)
    cursor, other = order.cursor(1), order.cursor(1)
    for count in (400, 600, 500):
        cursor.take(count)
        other.seek(cursor.state())
        assert other.take(300) == [*itertools.islice(_ahead(order, cursor), 300)]


def _ahead(order: Order, cursor: Cursor) -> list[tuple[int, object]]:
    again = order.cursor(cursor.lane)
    return list(again.take(cursor.num_drawn + 300)[cursor.num_drawn :])


def test_other_weights_take_over_from_here_on_and_sources_keep_what_they_were_ahead() -> None:
    rng = np.random.default_rng(6)
    costs = [rng.integers(1, 200, 3_000) for _ in range(3)]
    before, after = Order(costs[:2], [(0, [3, 1])], 2), Order([costs[2], *costs[:2]], [(0, [2, 1, 1])], 2)
    drawn = {"0": 75_003, "1": 24_997}
    moved = before.blend.migrated(drawn, after.blend, [1, 2], 2)
    assert moved == {"0": 50_000, "1": 25_003, "2": 24_997}
    assert after.blend.migrated(moved, after.blend, [0, 1, 2], 2) == moved
    back = Order(costs[:2], [(0, [3, 1])], 2)
    assert before.blend.migrated(drawn, back.blend, [0, 1], 2) == drawn


@given(
    lanes=st.lists(st.dictionaries(st.sampled_from("0123"), st.integers(0, 10**12)), min_size=1, max_size=9),
    num_lanes=st.integers(1, 9),
)
def test_a_reshard_shares_out_exactly_what_was_drawn(lanes: list[dict[str, int]], num_lanes: int) -> None:
    blend = Order([np.full(10, 5)], [(0, [1])], 1).blend
    assigned = [blend.resharded(lanes, lane, num_lanes) for lane in range(num_lanes)]
    for source in "0123":
        shares = [one.get(source, 0) for one in assigned]
        assert sum(shares) == sum(one.get(source, 0) for one in lanes)
        assert max(shares) - min(shares) <= 1


def test_a_source_whose_samples_cost_nothing_is_named() -> None:
    costs = [np.full(10, 5), np.zeros(10, np.int64)]
    with pytest.raises(ConfigError, match=r"tokens: .* source 1 cost no tokens, .* weight 0"):
        Order(costs, [(0, [1, 1])], 1)
    assert {ref.source for _, ref in Order(costs, [(0, [1, 0])], 1).cursor(0).take(100)} == {0}
