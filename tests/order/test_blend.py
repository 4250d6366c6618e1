import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import ConfigError
from bridge_data.order.blend import BLOCK, TURN, Blend, quotas

WEIGHTS = st.lists(st.floats(0.01, 100), min_size=2, max_size=8)


@given(WEIGHTS)
def test_quotas_sum_to_a_turn_and_are_proportional(weights: list[float]) -> None:
    shares = quotas(weights)
    assert shares.sum() == TURN
    assert np.abs(shares - np.array(weights) / sum(weights) * TURN).max() <= 1


@given(weights=WEIGHTS, lanes=st.integers(1, 9), draws=st.integers(0, 200_000), data=st.data())
def test_counts_are_those_of_a_replay(weights: list[float], lanes: int, draws: int, data: st.DataObject) -> None:
    lane = data.draw(st.integers(0, lanes - 1))
    blend = Blend(weights, seed=5)
    blocks = [blend.block(lane, lanes, number) for number in range(draws // BLOCK + 1)]
    replayed = np.bincount(np.concatenate(blocks)[:draws], minlength=len(weights))
    assert np.array_equal(blend.counts(lane, lanes, draws), replayed)


def test_any_stretch_of_draws_holds_the_weights() -> None:
    blend = Blend([0.7, 0.2, 0.1], seed=1)
    drawn = np.concatenate([blend.block(2, 8, number) for number in range(200)])
    for start in range(0, len(drawn) - 1_000, 500):
        shares = np.bincount(drawn[start : start + 1_000], minlength=3) / 1_000
        assert np.abs(shares - [0.7, 0.2, 0.1]).max() < 0.06


def test_lanes_do_not_bunch() -> None:
    """The rare source comes to different lanes at different times."""
    blend = Blend([0.999, 0.001], seed=1)
    first = []
    for lane in range(8):
        drawn = np.concatenate([blend.block(lane, 8, number) for number in range(40)])
        first.append(int(np.argmax(drawn == 1)))
    assert len(set(first)) == 8


def test_a_weight_too_small_to_be_drawn_is_refused() -> None:
    with pytest.raises(ConfigError, match="source number 1"):
        quotas([1e6, 1.0])
