import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.multimodal import first_fit_decreasing

CAPACITY = 50


@given(st.lists(st.integers(1, CAPACITY), max_size=60))
def test_everything_has_a_place_and_no_pack_is_too_long(lengths: list[int]) -> None:
    packs = first_fit_decreasing(lengths, CAPACITY)
    assert sorted(position for pack in packs for position in pack) == list(range(len(lengths)))
    assert all(sum(lengths[position] for position in pack) <= CAPACITY for pack in packs)
    half_empty = [pack for pack in packs if sum(lengths[p] for p in pack) <= CAPACITY // 2]
    assert len(half_empty) <= 1, "two packs that would fit into one"


def test_the_longest_come_first_each_into_the_first_pack_with_room() -> None:
    assert first_fit_decreasing([3, 7, 5, 2, 3], 10) == [[1, 0], [2, 4, 3]]
    assert first_fit_decreasing([4, 4, 4], 8) == [[0, 1], [2]]


def test_what_is_longer_than_a_pack_is_an_error() -> None:
    with pytest.raises(ValueError, match="sequence 1 has 11 tokens, a pack holds 10"):
        first_fit_decreasing([1, 11], 10)
