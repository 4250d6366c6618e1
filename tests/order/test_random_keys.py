import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.order.random_keys import TABLE_LIMIT, Permutation, key64, splitmix64, uniform64


def test_splitmix64_is_the_published_function() -> None:
    """First outputs of the reference generator with seed 0: the finaliser of multiples of the golden ratio."""
    state = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(int(x)) for x in splitmix64(state)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


def test_a_key_depends_on_every_part_and_their_sequence() -> None:
    keys = {key64(1, 2), key64(2, 1), key64(1), key64(1, 2, 0), key64(-1, 2), key64(0)}
    assert len(keys) == 6


def test_uniform64_is_uniform_and_keyed() -> None:
    items = np.arange(100_000)
    first, second = (uniform64(items, key) >> np.uint64(32) for key in (1, 2))
    assert abs(first.astype(float).mean() / 2**31 - 1) < 0.01
    assert abs(np.corrcoef(first.astype(float), second.astype(float))[0, 1]) < 0.02


KEYS = st.integers(0, 2**64 - 1)


@given(size=st.one_of(st.integers(1, 500), st.integers(TABLE_LIMIT - 2, TABLE_LIMIT + 2_000)), key=KEYS)
def test_every_size_and_key_gives_a_bijection(size: int, key: int) -> None:
    elements = Permutation(size, key)(np.arange(size))
    assert np.array_equal(np.sort(elements), np.arange(size))


@given(size=st.integers(100, 200_000), key=KEYS, positions=st.lists(st.integers(0, 99), min_size=1, max_size=20))
def test_one_element_is_the_same_alone_and_in_bulk(size: int, key: int, positions: list[int]) -> None:
    permutation = Permutation(size, key)
    whole = permutation(np.arange(100))
    assert [int(permutation(np.array([number]))[0]) for number in positions] == whole[positions].tolist()


@pytest.mark.parametrize("size", [10_000, 200_000])
def test_neighbours_do_not_stay_neighbours(size: int) -> None:
    """Steps between consecutive elements are spread as those of a uniform shuffle are (mean n / 3)."""
    steps = np.abs(np.diff(Permutation(size, 7)(np.arange(size))))
    assert abs(steps.mean() / size - 1 / 3) < 0.01
    assert (steps == 1).mean() < 5 / size * 10


def test_an_empty_permutation_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Permutation(0, 1)
