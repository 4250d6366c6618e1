"""Indices against a plain list of what is handed out."""

import contextlib
import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.errors import ConfigError
from bridge_data.order.step_skips import SkippedRange, StepSkips, parse_steps

END = 200
"""The micro-batches that are listed: more than any that is asked for."""


@st.composite
def some_skips(draw: Any) -> StepSkips:
    cuts = sorted(draw(st.lists(st.integers(0, 40), min_size=2, max_size=8, unique=True)))
    found = StepSkips.of([SkippedRange(*pair) for pair in zip(cuts[::2], cuts[1::2], strict=False)])
    assert found is not None
    return found


def handed_out(skips: StepSkips) -> list[int]:
    """The micro-batches that are handed out."""
    return [n for n in range(END) if not any(first <= n < stop for first, stop in skips.ranges)]


def test_steps_become_micro_batches() -> None:
    skips = StepSkips.of_steps(lambda step: 4 * step, ["5-7", 9])
    assert skips is not None
    assert skips.ranges == (SkippedRange(20, 32), SkippedRange(36, 40))
    assert skips.name(skips.ranges[0]) == "skip_steps 5-7 (skip micro-batches 20 to 31)"
    assert skips.name(skips.ranges[1]) == "skip_steps 9 (skip micro-batches 36 to 39)"
    assert StepSkips.of_steps(lambda step: step, ["8", "5-7"]) == StepSkips((SkippedRange(5, 9),))
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


@given(some_skips())
@settings(deadline=None, max_examples=50)
def test_indices_are_those_of_the_list(skips: StepSkips) -> None:
    indices = handed_out(skips)
    assert [skips.index_after(number) for number in range(len(indices))] == indices
    for index in range(60):
        assert (index in skips) == (index not in indices)
        assert skips.num_handed_out(index) == sum(one < index for one in indices)


def skipped(skips: Iterable[tuple[int, int]]) -> set[int]:
    return {number for first, stop in skips for number in range(first, stop)}


@given(some_skips(), some_skips())
@settings(deadline=None, max_examples=50)
def test_ranges_are_joined_and_compared_as_sets_of_micro_batches(skips: StepSkips, other: StepSkips) -> None:
    assert skipped(skips.without(other)) == skipped(skips.ranges) - skipped(other.ranges)
    joined = skips.joined(other)
    assert skipped(joined.ranges) == skipped(skips.ranges) | skipped(other.ranges)
    assert all(one.stop < following.first for one, following in itertools.pairwise(joined.ranges))


def test_steps_that_overlap_or_that_ranks_cannot_share_are_refused() -> None:
    with pytest.raises(ConfigError, match="skip_steps 5-7 and 6-8 overlap"):
        StepSkips.of_steps(lambda step: step, ["5-7", "6-8"])
    skips = StepSkips((SkippedRange(6, 8),))
    skips.check_shared(0, 2)
    skips.check_shared(7, 4)
    skips.check_shared(9, 4)  # it is over
    with pytest.raises(ConfigError, match="4 data-parallel ranks cannot share the 6 micro-batches up to there equally"):
        skips.check_shared(0, 4)
    with pytest.raises(ConfigError, match="3 data-parallel ranks cannot share the 2 micro-batches"):
        StepSkips((SkippedRange(2, 4),)).check_shared(0, 3)


@given(st.integers(0, 12), st.integers(1, 6), st.integers(0, 20), st.integers(1, 4))
@settings(deadline=None, max_examples=200)
def test_ranks_share_a_range_if_each_gets_one_of_every_so_many_that_are_handed_out(
    first: int, size: int, begin: int, world_size: int
) -> None:
    skips = StepSkips((SkippedRange(first, first + size),))
    ahead = [number % world_size for number in handed_out(skips) if number >= begin]
    turns = zip(*[iter(ahead)] * world_size, strict=False)
    takes_turns = all(len({*ranks}) == world_size for ranks in turns)
    with contextlib.nullcontext() if takes_turns else pytest.raises(ConfigError):
        skips.check_shared(begin, world_size)
