import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import ConfigError
from bridge_data.order.blend import BLOCK, Blend
from bridge_data.order.schedule import Phase, Schedule

WEIGHTS = st.lists(st.just(0.0) | st.floats(0.01, 100), min_size=3, max_size=3).filter(any)
PHASES = st.lists(st.integers(1, 200_000), max_size=3, unique=True).flatmap(
    lambda starts: st.tuples(*[WEIGHTS.map(lambda weights, at=at: (at, weights)) for at in [0, *sorted(starts)]])
)


def drawn(schedule: Schedule, lane: int, lanes: int, draws: int) -> list[int]:
    blocks = [schedule.block(lane, lanes, number) for number in range(-(-draws // BLOCK))]
    return np.concatenate(blocks)[:draws].tolist() if blocks else []


@given(phases=PHASES, lanes=st.integers(1, 9), before=st.integers(0, 250_000), draws=st.integers(0, 5_000))
def test_counts_are_those_of_a_replay(phases: tuple[Phase, ...], lanes: int, before: int, draws: int) -> None:
    schedule = Schedule(phases, seed=5).since(before)
    replayed = np.bincount(drawn(schedule, lanes - 1, lanes, draws), minlength=3)
    assert schedule.counts(lanes - 1, lanes, draws).tolist() == replayed.tolist()


@given(phases=PHASES, lanes=st.integers(1, 9), before=st.integers(0, 250_000))
def test_a_phase_begins_with_the_first_block_at_which_the_job_has_drawn_so_much(
    phases: tuple[Phase, ...], lanes: int, before: int
) -> None:
    schedule = Schedule(phases, seed=5).since(before)
    for number, (start, _) in enumerate(phases):
        draw = schedule.first_draw(number, lanes)
        assert draw % BLOCK == 0
        assert before + draw * lanes >= start
        assert draw == 0 or before + (draw - BLOCK) * lanes < start


def test_in_each_phase_sources_have_their_shares() -> None:
    schedule = Schedule([(0, [5, 1, 0]), (4 * 6_400, [0, 1, 3])], seed=1)
    first, both = schedule.counts(1, 4, 6_400), schedule.counts(1, 4, 12_800)
    assert np.bincount(drawn(schedule, 1, 4, 6_400), minlength=3).tolist() == first.tolist()
    assert np.abs(first - np.array([5, 1, 0]) * 6_400 / 6).max() < 3.4
    assert np.abs(both - first - np.array([0, 1, 3]) * 6_400 / 4).max() < 2 * 3.4
    assert (first[2], (both - first)[0]) == (0, 0)


def test_all_lanes_change_together_and_a_re_deal_does_not_move_the_change() -> None:
    schedule = Schedule([(0, [1, 0]), (10_000, [0, 1])], seed=1)
    for before, lanes in ((0, 8), (4_000, 5), (9_999, 16), (10_000, 3), (60_000, 3)):
        later = schedule.since(before)
        changes = {drawn(later, lane, lanes, 2_000).index(1) for lane in range(lanes)}
        assert len(changes) == 1
        assert abs(before + lanes * changes.pop() - max(before, 10_000)) <= lanes * BLOCK


def test_phases_shorter_than_a_block_are_passed_over() -> None:
    schedule = Schedule([(0, [1, 1]), (100, [1, 0]), (120, [0, 1])], seed=1)
    assert set(drawn(schedule, 0, 4, 200)[BLOCK:]) == {1}


def test_one_phase_is_the_plain_blend() -> None:
    schedule, blend = Schedule([(0, [3, 1])], seed=9), Blend([3, 1], seed=9)
    assert np.array_equal(schedule.block(2, 8, 77), blend.block(2, 8, 77))


def test_a_wrong_weight_in_a_later_phase_is_refused() -> None:
    with pytest.raises(ConfigError, match="source number 1"):
        Schedule([(0, [1, 1]), (10, [1e6, -1])], seed=1)
