"""Draws by number, compared with the blend itself, block by block."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.order.random_draws import DRAWS_PER_BLOCK, Blend, Schedule
from bridge_data.tools.sample_numbers import DrawNumbers

WEIGHTS = st.lists(st.sampled_from([0.0, 1e-6, 0.01, 0.5, 1.0, 3.0]), min_size=1, max_size=7).filter(any)


@given(weights=WEIGHTS, lane=st.integers(0, 11), first=st.integers(0, 10**9), seed=st.integers(0, 99))
def test_counts_and_draws_are_those_of_the_blend(weights, lane, first, seed):
    blend = Blend(weights, seed)
    numbers = DrawNumbers(blend, lane, 12)
    counts = blend.counts(lane, 12, first)
    assert [numbers.count(source, first) for source in range(len(weights))] == counts.tolist()
    for draw in range(first, first + 2 * DRAWS_PER_BLOCK):
        source = int(blend.block(lane, 12, draw // DRAWS_PER_BLOCK)[draw % DRAWS_PER_BLOCK])
        assert numbers.source_of(draw) == source
        assert numbers.draw_of(source, int(counts[source])) == draw
        counts[source] += 1


@settings(max_examples=10)
@given(
    starts=st.lists(st.integers(1, 3_000), min_size=1, max_size=4, unique=True),
    lane=st.integers(0, 3),
    since=st.sampled_from([0, 700]),
    data=st.data(),
)
def test_of_scheduled_weights_too(starts, lane, since, data):
    of_three = st.lists(st.sampled_from([0.0, 0.2, 1.0]), min_size=3, max_size=3).filter(any)
    phases = [(start, data.draw(of_three)) for start in [0, *sorted(starts)]]
    schedule = Schedule(phases, 4).since(since)
    numbers = DrawNumbers(schedule, lane, 4)
    counts = np.zeros(3, dtype=np.int64)
    for draw in range(1_000):
        source = int(schedule.block(lane, 4, draw // DRAWS_PER_BLOCK)[draw % DRAWS_PER_BLOCK])
        if draw % 37 == 0:
            assert [numbers.count(each, draw) for each in range(3)] == schedule.counts(lane, 4, draw).tolist()
            assert numbers.draw_of(source, int(counts[source])) == draw
        counts[source] += 1
