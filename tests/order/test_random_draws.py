import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.order.random_draws import TABLE_LIMIT, Permutation

KEYS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("size", [10_000, 200_000])
def test_neighbours_do_not_stay_neighbours(size: int) -> None:
    """Steps between consecutive elements are spread as those of a uniform shuffle are (mean n / 3)."""
    steps = np.abs(np.diff(Permutation(size, 7)(np.arange(size))))
    assert abs(steps.mean() / size - 1 / 3) < 0.01
    assert (steps == 1).mean() < 5 / size * 10


@given(
    size=st.one_of(st.integers(1, 500), st.integers(TABLE_LIMIT - 2, TABLE_LIMIT + 2_000)),
    key=KEYS,
    positions=st.lists(st.integers(0, 99), min_size=1, max_size=20),
)
def test_every_size_and_key_gives_a_bijection_of_which_each_element_is_known(
    size: int, key: int, positions: list[int]
) -> None:
    permutation = Permutation(size, key)
    elements = permutation(np.arange(size))
    assert np.array_equal(np.sort(elements), np.arange(size))
    assert np.array_equal(permutation.inverse(elements), np.arange(size))
    for position in positions:
        assert permutation(np.array([position % size]))[0] == elements[position % size]


def test_a_permutation_of_more_than_a_table_holds_is_inverted() -> None:
    permutation = Permutation(10**9 + 7, 99)
    positions = np.unique(np.linspace(0, 10**9 + 6, 200).astype(np.int64))
    assert permutation.inverse(permutation(positions)).tolist() == positions.tolist()


@pytest.mark.parametrize(
    ("size", "expected"), [(65_536, [29838, 32618, 28545, 32998]), (65_537, [1258, 40180, 45730, 18616])]
)
def test_permutations_on_both_sides_of_the_limit_are_those_of_the_format(size: int, expected: list[int]) -> None:
    assert Permutation(size, 7)(np.array([0, 1, size // 2, size - 1])).tolist() == expected
