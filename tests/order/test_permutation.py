import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.order.permutation import TABLE_LIMIT, Permutation

KEYS = st.integers(0, 2**64 - 1)


@given(size=st.one_of(st.integers(1, 500), st.integers(TABLE_LIMIT - 2, TABLE_LIMIT + 2_000)), key=KEYS)
def test_every_size_and_key_gives_a_bijection(size: int, key: int) -> None:
    elements = Permutation(size, key)(np.arange(size))
    assert np.array_equal(np.sort(elements), np.arange(size))


@given(size=st.integers(100, 200_000), key=KEYS, places=st.lists(st.integers(0, 99), min_size=1, max_size=20))
def test_one_element_is_the_same_alone_and_in_bulk(size: int, key: int, places: list[int]) -> None:
    permutation = Permutation(size, key)
    whole = permutation(np.arange(100))
    assert [int(permutation(np.array([place]))[0]) for place in places] == whole[places].tolist()


@pytest.mark.parametrize("size", [10_000, 200_000])
def test_neighbours_do_not_stay_neighbours(size: int) -> None:
    """Steps between consecutive elements are spread as those of a uniform shuffle are (mean n / 3)."""
    steps = np.abs(np.diff(Permutation(size, 7)(np.arange(size))))
    assert abs(steps.mean() / size - 1 / 3) < 0.01
    assert (steps == 1).mean() < 5 / size * 10


def test_an_empty_permutation_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Permutation(0, 1)
