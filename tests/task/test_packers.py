import functools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import ConfigError
from bridge_data.task.packers import (
    PACKERS,
    Packer,
    best_fit,
    first_fit_decreasing,
    greedy,
    lpt,
    lpt_balanced,
    packing_efficiency,
)

CAPACITY = 50
LENGTHS = st.lists(st.integers(0, CAPACITY), max_size=60)
NAMED = pytest.mark.parametrize("pack", PACKERS.values(), ids=list(PACKERS))


def loads(lengths: list[int], groups: list[list[int]]) -> list[int]:
    return [sum(lengths[position] for position in group) for group in groups]


def fewest_packs(lengths: list[int], capacity: int) -> int:
    """By trying everything."""

    @functools.cache
    def needed(left: tuple[int, ...], room: int) -> int:
        if not left:
            return 0
        fitting = [
            needed(left[:i] + left[i + 1 :], room - length)
            for i, length in enumerate(left)
            if length <= room and length not in left[:i]
        ]
        return min(fitting) if fitting else 1 + needed(left, capacity)

    return needed(tuple(sorted(lengths)), 0)


@NAMED
@given(lengths=LENGTHS)
def test_every_sequence_is_in_one_pack_and_no_pack_is_too_long(pack: Packer, lengths: list[int]) -> None:
    groups = pack(lengths, CAPACITY)
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))
    assert max(loads(lengths, groups), default=0) <= CAPACITY
    assert all(groups)
    assert pack(tuple(lengths), CAPACITY) == groups


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_decreasing_fits_need_few_packs_more_than_the_best(lengths: list[int]) -> None:
    fewest = fewest_packs(lengths, 20)
    for pack in (first_fit_decreasing, best_fit):
        assert fewest <= len(pack(lengths, 20)) <= 11 / 9 * fewest + 1
    assert len(greedy(lengths, 20)) <= 2 * fewest


@given(LENGTHS)
def test_the_heaps_choose_the_packs_that_trying_all_would(lengths: list[int]) -> None:
    order = sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))
    for pack, rank in ((first_fit_decreasing, lambda room, n: n), (best_fit, lambda room, n: (room, n))):
        groups: list[list[int]] = []
        rooms: list[int] = []
        for position in order:
            fitting = [n for n, room in enumerate(rooms) if room >= lengths[position]]
            number = min(fitting, key=lambda n: rank(rooms[n], n), default=len(rooms))
            if number == len(rooms):
                groups.append([])
                rooms.append(CAPACITY)
            groups[number].append(position)
            rooms[number] -= lengths[position]
        assert pack(lengths, CAPACITY) == groups


def test_packs_of_a_small_case_by_hand() -> None:
    lengths = [4, 8, 1, 4, 2, 1]
    assert greedy(lengths, 10) == [[0], [1, 2], [3, 4, 5]]
    assert first_fit_decreasing(lengths, 10) == [[1, 4], [0, 3, 2, 5]]
    assert best_fit([7, 6, 3, 4], 10) == [[0, 2], [1, 3]]
    assert best_fit([5, 6, 4, 3], 10) == [[1, 2], [0, 3]]
    assert lpt_balanced([9, 1, 1, 1], 10) == [[0], [1, 2, 3]]


@given(st.lists(st.integers(0, 40), max_size=9), st.integers(1, 4))
def test_balanced_groups_are_within_four_thirds_of_the_best(lengths: list[int], num_groups: int) -> None:
    groups = lpt(lengths, num_groups)
    assert len(groups) == num_groups
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))

    @functools.cache
    def best(position: int, sums: tuple[int, ...]) -> int:
        if position == len(lengths):
            return max(sums)
        return min(
            best(position + 1, tuple(sorted((*sums[:n], sums[n] + lengths[position], *sums[n + 1 :]))))
            for n in range(num_groups)
        )

    assert max(loads(lengths, groups)) <= 4 / 3 * best(0, (0,) * num_groups)


def test_efficiency_is_the_share_of_room_that_is_filled() -> None:
    assert packing_efficiency([5, 5, 4], [[0, 1], [2]], 10) == 0.7
    assert packing_efficiency([20], [[0]], 10) == 1, "a pack of one that fits nowhere is full"
    assert packing_efficiency([], [], 10) == 1


@pytest.mark.parametrize("capacity", [2_048, 4_096, 8_192])
def test_a_long_tailed_mix_fills_97_percent_from_a_buffer_of_1000(capacity: int) -> None:
    draw = random.Random(capacity)
    for _ in range(10):
        lengths = [min(capacity, 1 + int(draw.lognormvariate(5.5, 1.2))) for _ in range(1_000)]
        for pack in (first_fit_decreasing, best_fit, lpt_balanced):
            assert packing_efficiency(lengths, pack(lengths, capacity), capacity) >= 0.97


def test_a_hundred_thousand_sequences_are_packed_at_once() -> None:
    """Quadratic packers would take minutes."""
    draw = random.Random(0)
    lengths = [draw.randint(1, 1_000) for _ in range(100_000)]
    for pack in (first_fit_decreasing, best_fit):
        assert packing_efficiency(lengths, pack(lengths, 1_000), 1_000) > 0.99


@NAMED
def test_what_is_longer_than_a_pack_is_an_error_that_says_what_to_do(pack: Packer) -> None:
    with pytest.raises(ConfigError, match=r"sequence 1 has 11 tokens, a pack holds 10.*Packing\(overlong"):
        pack([1, 11], 10)
    with pytest.raises(ConfigError, match="sequence 0 has -1 tokens"):
        pack([-1], 10)
    with pytest.raises(ConfigError, match="capacity=0"):
        pack([], 0)


def test_no_groups_are_an_error() -> None:
    with pytest.raises(ConfigError, match="num_groups=0"):
        lpt([1], 0)
