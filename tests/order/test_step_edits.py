"""Slots and numbers against a plain list of what is handed out."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.errors import ConfigError
from bridge_data.order.step_edits import NAME, LaneTurn, StepEdit, StepEdits, parse_steps

END = 200
"""The micro-batches that are listed: more than any slot that is asked for."""


@st.composite
def some_edits(draw: Any) -> StepEdits:
    cuts = sorted(draw(st.lists(st.integers(0, 40), min_size=2, max_size=8, unique=True)))
    pairs = zip(cuts[::2], cuts[1::2], strict=False)
    found = StepEdits.of([StepEdit(first, stop, draw(st.sampled_from([0, 2]))) for first, stop in pairs])
    assert found is not None
    return found


def handed_out(edits: StepEdits) -> list[int]:
    """The micro-batch of each slot."""
    numbers: list[int] = []
    begin = 0
    for first, stop, times in edits.edits:
        numbers += [*range(begin, first), *[*range(first, stop)] * times]
        begin = stop
    return [*numbers, *range(begin, END)]


@given(some_edits())
@settings(deadline=None, max_examples=50)
def test_slots_and_numbers_are_those_of_the_list(edits: StepEdits) -> None:
    numbers = handed_out(edits)
    assert [edits.number(slot) for slot in range(len(numbers))] == numbers
    for number in range(60):
        assert edits.slots(number) == [slot for slot, other in enumerate(numbers) if other == number]


@given(some_edits(), st.sampled_from([1, 2, 4, 8]), st.integers(0, 60), st.integers(0, 9))
@settings(deadline=None, max_examples=50)
def test_the_slots_of_a_lane_are_those_of_the_list(edits: StepEdits, num_lanes: int, begin: int, count: int) -> None:
    numbers = handed_out(edits)
    for lane in range(num_lanes):
        own = [slot for slot, number in enumerate(numbers) if number % num_lanes == lane]
        before, after = [slot for slot in own if slot < begin], [slot for slot in own if slot >= begin]
        assert [slot for _, slot in zip(after, edits.lane_slots(lane, num_lanes, begin), strict=False)] == after
        assert edits.lane_slot(lane, num_lanes, begin) == after[0]
        assert edits.num_slots(lane, num_lanes, begin) == len(before)
        assert edits.slots_before(lane, num_lanes, begin, count) == before[max(0, len(before) - count) :]


@given(some_edits(), st.sampled_from([1, 2, 4, 8]), st.integers(0, 40))
@settings(deadline=None, max_examples=50)
def test_a_lane_keeps_a_state_before_whatever_it_makes_again(edits: StepEdits, num_lanes: int, begin: int) -> None:
    for lane in range(num_lanes):
        place, kept = 0, None
        for _, turn in zip(range(30), edits.turns(lane, num_lanes, 0), strict=False):
            if turn.place < place:
                assert kept == turn.place
                kept = None
            if turn.is_kept:
                assert kept is None
                kept = turn.place
            place = turn.place + 1
        first = edits.lane_slot(lane, num_lanes, begin)
        assert next(edits.turns(lane, num_lanes, begin)).slot == first


def test_a_skip_and_a_repeat_move_what_follows() -> None:
    edits = StepEdits.of([StepEdit(8, 12, 2), StepEdit(2, 4, 0)])
    assert edits is not None
    assert [edits.number(slot) for slot in range(16)] == [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 8, 9, 10, 11, 12, 13]
    assert (edits.slots(3), edits.slots(9), edits.slots(12)) == ([], [7, 11], [14])
    assert next(edits.turns(0, 4, 6)) == LaneTurn(slot=6, place=2, is_kept=True)
    assert [edits.repeated_at(slot) is not None for slot in (6, 7, 13, 14)] == [False, True, True, False]
    assert str(edits) == "skip micro-batches 2 to 3, repeat micro-batches 8 to 11"
    assert StepEdits.of_extras(edits.in_extras({"other": 1})) == edits
    assert edits.in_extras({})[NAME]["data"] == [[2, 4, 0], [8, 12, 2]]


@given(some_edits(), st.integers(0, 60))
@settings(deadline=None, max_examples=50)
def test_only_what_begins_from_a_slot_on_may_be_added_there(edits: StepEdits, slot: int) -> None:
    numbers = handed_out(edits)
    edit = edits.edits[-1]
    before = StepEdits.of(edits.edits[:-1])
    begin = next(at for at, number in enumerate(numbers) if number == (edit.first if edit.times else edit.stop))
    assert edits.added_behind(before, slot) == (edit if begin < slot else None)
    assert edits.added_behind(edits, slot) is None


def test_skips_that_touch_or_overlap_are_joined() -> None:
    one, other = StepEdits.of([StepEdit(4, 8, 0)]), StepEdits.of([StepEdit(6, 12, 0), StepEdit(12, 14, 0)])
    assert one is not None
    assert other is not None
    assert one.joined(other).edits == (StepEdit(4, 14, 0),)
    repeated = StepEdits.of([StepEdit(0, 5, 2)])
    with pytest.raises(ConfigError, match=r"repeat micro-batches 0 to 4 and skip micro-batches 4 to 7: these overlap"):
        one.joined(repeated)


def test_steps_become_micro_batches() -> None:
    edits = StepEdits.of_steps(lambda step: 4 * step, ["5-7", 9], ["1"])
    assert edits is not None
    assert edits.edits == (StepEdit(4, 8, 2), StepEdit(20, 32, 0), StepEdit(36, 40, 0))
    assert edits.name(edits.edits[1]) == "skip_steps 5-7 (skip micro-batches 20 to 31)"
    assert StepEdits.of_steps(lambda step: step, [], []) is None


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
    with pytest.raises(ConfigError, match="skip_steps 5-7 and repeat_steps 7 overlap"):
        StepEdits.of_steps(lambda step: step, ["5-7"], ["7"])
    with pytest.raises(ConfigError, match="skip_steps 5-7 and skip_steps 6-8 overlap"):
        StepEdits.of_steps(lambda step: step, ["5-7", "6-8"], [])


def test_ranks_that_cannot_share_what_is_between_are_refused() -> None:
    edits = StepEdits.of_steps(lambda step: 2 * step, ["3"], [])
    assert edits is not None
    edits.check_shared(0, 2)
    edits.check_shared(7, 4)
    with pytest.raises(ConfigError, match="4 data-parallel ranks cannot share the 6 micro-batches up to there equally"):
        edits.check_shared(0, 4)
