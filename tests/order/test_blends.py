import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.errors import ConfigError
from bridge_data.order.blends import DRAWS_PER_BLOCK, Blend, BlendSchedule, Phase

PER_LANE = Fraction(34, 10)
"""The draws by which a source may be off its share at a multiple of 64 draws of a lane."""
PER_JOB = 30
"""The same for up to 1,000 lanes together, which run in step."""

FAMILIES = {
    "1 beside 200,000": [1, 200_000],
    "1e-9 beside 1": [1e-9, 1.0],
    "1/k of 1,000": [1 / k for k in range(1, 1_001)],
    "1/k^2 of 1,000": [1 / k**2 for k in range(1, 1_001)],
    "100 equal": [1.0] * 100,
    "one rare beside 99": [1.0, *[1e6] * 99],
    "golden ratio": [0.618**k for k in range(60)],
    "powers of 2, to 2^-1000": [2.0**-k for k in range(1_001)],
    "9 orders of magnitude": [10 ** (-9 * k / 299) for k in range(300)],
}

WEIGHTS = st.lists(st.just(0.0) | st.floats(1e-9, 1) | st.integers(1, 200_000), min_size=1, max_size=40).filter(any)


def exact_shares(weights: list[float]) -> list[Fraction]:
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    return [weight / total for weight in exact]


def worst(counts: np.ndarray, weights: list[float], draws: int) -> Fraction:
    """By how many draws the source that is farthest off its share is so."""
    shares = exact_shares(weights)
    return max(abs(count - draws * share) for count, share in zip(counts.tolist(), shares, strict=True))


@settings(deadline=None)
@given(
    weights=WEIGHTS,
    lanes=st.integers(1, 1_000),
    blocks=st.integers(0, 10**12 // DRAWS_PER_BLOCK),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_every_source_has_its_share_at_every_block_of_a_lane(
    weights: list[float], lanes: int, blocks: int, seed: int, data: st.DataObject
) -> None:
    lane = data.draw(st.integers(0, lanes - 1))
    counts = Blend(weights, seed).counts(lane, lanes, blocks * DRAWS_PER_BLOCK)
    assert counts.sum() == blocks * DRAWS_PER_BLOCK
    assert worst(counts, weights, blocks * DRAWS_PER_BLOCK) < PER_LANE


@pytest.mark.parametrize(
    ("weights", "lanes", "seed", "blocks"),
    [
        *((weights, 8, 2, blocks) for weights in FAMILIES.values() for blocks in (1, 17, 15_625_000_000)),
        # where offsets by the square roots of 2, 3, 5, ..., or random ones, are off by 35 to 41
        ([1 / k for k in range(1, 256)], 1_000, 274_509, 57_950),
        ([k**-0.5 for k in range(1, 192)], 1_000, 117_231, 437_272),
        (FAMILIES["9 orders of magnitude"], 1_000, 52_388, 10_853),
        (FAMILIES["golden ratio"], 1_000, 3, 1),
    ],
)
def test_shares_hold_for_weights_of_every_size(weights: list[float], lanes: int, seed: int, blocks: int) -> None:
    blend, draws = Blend(weights, seed), blocks * DRAWS_PER_BLOCK
    of_lanes = [blend.counts(lane, lanes, draws) for lane in range(lanes)]
    assert max(worst(counts, weights, draws) for counts in of_lanes[:8]) < PER_LANE
    assert worst(np.sum(of_lanes, axis=0), weights, lanes * draws) < PER_JOB


@settings(max_examples=15, deadline=None)
@given(weights=WEIGHTS, lanes=st.integers(1, 1_000) | st.just(1_000), blocks=st.integers(1, 10**6))
def test_lanes_in_step_have_the_shares_together(weights: list[float], lanes: int, blocks: int) -> None:
    blend, draws = Blend(weights, seed=7), blocks * DRAWS_PER_BLOCK
    together = sum(blend.counts(lane, lanes, draws) for lane in range(lanes))
    assert worst(np.asarray(together), weights, lanes * draws) < PER_JOB


@pytest.mark.seconds
def test_10000_sources_take_little_memory_and_hold_their_shares() -> None:
    weights = [1 / k for k in range(1, 10_001)]
    tracemalloc.start()
    blend = Blend(weights, seed=1)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 10_000 * 500
    shares = np.array(weights) / math.fsum(weights)
    draws, lanes = 500 * DRAWS_PER_BLOCK, 64
    together = np.zeros(len(weights), dtype=np.int64)
    for lane in range(lanes):
        counts = blend.counts(lane, lanes, draws)
        assert np.abs(counts - draws * shares).max() < PER_LANE
        together += counts
    assert np.abs(together - lanes * draws * shares).max() < PER_JOB


@given(weights=WEIGHTS, factor=st.sampled_from([2, 8, 0.25]))
def test_only_the_ratios_of_weights_count(weights: list[float], factor: float) -> None:
    blends = [Blend(weights, seed=5), Blend([weight * factor for weight in weights], seed=5)]
    first, second = ([blend.draw_block(2, 4, number).tolist() for number in range(5)] for blend in blends)
    assert first == second


def test_a_source_without_weight_is_not_drawn() -> None:
    assert Blend([1, 0, 3, 0.0], seed=1).counts(0, 4, 10**9).tolist() == [250_000_000, 0, 750_000_000, 0]
    assert set(Blend([0, 0, 5], seed=1).draw_block(3, 4, 9).tolist()) == {2}


def test_draws_within_a_block_are_shuffled() -> None:
    blend = Blend([1, 1], seed=1)
    blocks = {tuple(blend.draw_block(0, 1, number).tolist()) for number in range(100)}
    assert len(blocks) == 100
    drawn = np.concatenate([blend.draw_block(0, 1, number) for number in range(100)])
    assert {1, 2, 3, 4} <= set(np.diff(np.flatnonzero(drawn == 1)).tolist())


def test_lanes_do_not_bunch() -> None:
    """The rare source comes to different lanes at different times."""
    blend = Blend([0.999, 0.001], seed=1)
    first = []
    for lane in range(8):
        drawn = np.concatenate([blend.draw_block(lane, 8, number) for number in range(40)])
        first.append(int(np.argmax(drawn == 1)))
    assert len(set(first)) == 8


THREE_WEIGHTS = st.lists(st.just(0.0) | st.floats(0.01, 100), min_size=3, max_size=3).filter(any)
PHASES = st.lists(st.integers(1, 200_000), max_size=3, unique=True).flatmap(
    lambda starts: st.tuples(*[THREE_WEIGHTS.map(lambda weights, at=at: (at, weights)) for at in [0, *sorted(starts)]])
)


def drawn(schedule: BlendSchedule, lane: int, lanes: int, draws: int) -> list[int]:
    blocks = [schedule.draw_block(lane, lanes, number) for number in range(-(-draws // DRAWS_PER_BLOCK))]
    return np.concatenate(blocks)[:draws].tolist() if blocks else []


@given(phases=PHASES, lanes=st.integers(1, 9), before=st.integers(0, 250_000), draws=st.integers(0, 5_000))
def test_counts_of_a_schedule_are_those_of_a_replay(
    phases: tuple[Phase, ...], lanes: int, before: int, draws: int
) -> None:
    schedule = BlendSchedule(phases, seed=5).since(before)
    replayed = np.bincount(drawn(schedule, lanes - 1, lanes, draws), minlength=3)
    assert schedule.counts(lanes - 1, lanes, draws).tolist() == replayed.tolist()


@given(phases=PHASES, lanes=st.integers(1, 9), before=st.integers(0, 250_000))
def test_a_phase_begins_with_the_first_block_at_which_the_job_has_drawn_so_much(
    phases: tuple[Phase, ...], lanes: int, before: int
) -> None:
    schedule = BlendSchedule(phases, seed=5).since(before)
    for number, (start, _) in enumerate(phases):
        draw = schedule.first_draw(number, lanes)
        assert draw % DRAWS_PER_BLOCK == 0
        assert before + draw * lanes >= start
        assert draw == 0 or before + (draw - DRAWS_PER_BLOCK) * lanes < start


def test_phases_shorter_than_a_block_are_passed_over() -> None:
    schedule = BlendSchedule([(0, [1, 1]), (100, [1, 0]), (120, [0, 1])], seed=1)
    assert set(drawn(schedule, 0, 4, 200)[DRAWS_PER_BLOCK:]) == {1}


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_a_weight_that_is_no_weight_is_refused(wrong: float) -> None:
    with pytest.raises(ConfigError, match=r"the weight of source number 1 is -?\w+, expected a finite number"):
        Blend([1, wrong], seed=1)


def test_weights_that_are_all_0_are_refused() -> None:
    for weights in ([0.0, 0.0], [0], []):
        with pytest.raises(ConfigError, match="weights of all sources are 0"):
            Blend(weights, seed=1)
