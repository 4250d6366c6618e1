"""Slots and numbers against a plain list of what is handed out."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.errors import ConfigError
from bridge_data.order.step_skips import NAME, SkippedRange, StepSkips, parse_steps

END = 200
"""The micro-batches that are listed: more than any slot that is asked for."""


@st.composite
def some_skips(draw: Any) -> StepSkips:
    cuts = sorted(draw(st.lists(st.integers(0, 40), min_size=2, max_size=8, unique=True)))
    found = StepSkips.of([SkippedRange(*pair) for pair in zip(cuts[::2], cuts[1::2], strict=False)])
    assert found is not None
    return found


def handed_out(skips: StepSkips) -> list[int]:
    """The micro-batch of each slot."""
    return [n for n in range(END) if not any(first <= n < stop for first, stop in skips.ranges)]


@given(some_skips())
@settings(deadline=None, max_examples=50)
def test_slots_and_numbers_are_those_of_the_list(skips: StepSkips) -> None:
    numbers = handed_out(skips)
    assert [skips.number(slot) for slot in range(len(numbers))] == numbers
    for number in range(60):
        assert skips.slot(number) == (numbers.index(number) if number in numbers else None)
        assert (skips.range_with(number) is None) == (number in numbers)


@given(some_skips(), st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 30))
@settings(deadline=None, max_examples=50)
def test_the_slots_of_a_lane_are_those_of_the_list(skips: StepSkips, num_lanes: int, place: int) -> None:
    numbers = handed_out(skips)
    for lane in range(num_lanes):
        own = [slot for slot, number in enumerate(numbers) if number % num_lanes == lane]
        places = [numbers[slot] // num_lanes for slot in own]
        if place > places[-1]:
            continue
        made = [slot for slot, one in zip(own, places, strict=True) if one < place]
        assert skips.slot_of_lane(lane, num_lanes, place) == own[len(made)]
        assert skips.num_of_lane(lane, num_lanes, place) == len(made)


def test_a_skip_moves_what_follows() -> None:
    skips = StepSkips.of([SkippedRange(8, 12), SkippedRange(2, 4)])
    assert skips is not None
    assert [skips.number(slot) for slot in range(10)] == [0, 1, 4, 5, 6, 7, 12, 13, 14, 15]
    assert (skips.slot(3), skips.slot(4), skips.slot(12)) == (None, 2, 6)
    assert str(skips) == "skip micro-batches 2 to 3, skip micro-batches 8 to 11"
    assert StepSkips.of_extras(skips.in_extras({"other": 1})) == skips
    assert skips.in_extras({})[NAME]["data"] == [[2, 4, 0], [8, 12, 0]]
    assert StepSkips.of_extras({}) is None
    assert skips.ahead(2) == [*skips.ranges]
    assert skips.ahead(3) == [SkippedRange(8, 12)]


def test_skips_that_touch_or_overlap_are_joined() -> None:
    one, other = StepSkips.of([SkippedRange(4, 8)]), StepSkips.of([SkippedRange(6, 12), SkippedRange(12, 14)])
    assert one is not None
    assert other is not None
    assert one.joined(other).ranges == (SkippedRange(4, 14),)


@given(some_skips(), some_skips())
@settings(deadline=None, max_examples=50)
def test_what_another_run_does_not_skip_is_told_exactly(skips: StepSkips, other: StepSkips) -> None:
    left = {number for first, stop in skips.without(other) for number in range(first, stop)}
    numbers = set(range(END))
    assert left == (numbers - {*handed_out(skips)}) - (numbers - {*handed_out(other)})


def test_steps_become_micro_batches() -> None:
    skips = StepSkips.of_steps(lambda step: 4 * step, ["5-7", 9])
    assert skips is not None
    assert skips.ranges == (SkippedRange(20, 32), SkippedRange(36, 40))
    assert skips.name(skips.ranges[0]) == "skip_steps 5-7 (skip micro-batches 20 to 31)"
    assert StepSkips.of_steps(lambda step: step, []) is None


@pytest.mark.parametrize(
    ("given_steps", "message"),
    [
        ("5-7", r"skip_steps='5-7': expected a list of steps, such as skip_steps: \[\"1200-1260\", \"1300\"\]"),
        (["7-5"], "skip_steps: '7-5': the last step comes before the first; write 5-7"),
        (["-3"], "skip_steps: '-3': expected a list of steps, .*; steps are counted from 0"),
        ([True], "skip_steps: True: expected"),
        ([1.5], "skip_steps: 1.5: expected"),
        (["9" * 5000], r"skip_steps: '9+\.\.\.9+': expected .*, below 10\^15"),
        (["0-" + "9" * 30], "skip_steps: '0-9.*: expected .* below"),
        (7, "skip_steps=7: expected a list of steps"),
    ],
)
def test_other_texts_are_refused_by_the_name_of_the_option(given_steps: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_steps("skip_steps", given_steps)


def test_steps_that_overlap_are_refused_by_their_names() -> None:
    with pytest.raises(ConfigError, match="skip_steps 5-7 and 6-8 overlap"):
        StepSkips.of_steps(lambda step: step, ["5-7", "6-8"])


def test_ranks_that_cannot_share_what_is_between_are_refused() -> None:
    skips = StepSkips.of_steps(lambda step: 2 * step, ["3"])
    assert skips is not None
    skips.check_shared(0, 2)
    skips.check_shared(7, 4)
    with pytest.raises(ConfigError, match="4 data-parallel ranks cannot share the 6 micro-batches up to there equally"):
        skips.check_shared(0, 4)
