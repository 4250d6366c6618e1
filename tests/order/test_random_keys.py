import numpy as np

from bridge_data.order.random_keys import key64, splitmix64, uniform64


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
