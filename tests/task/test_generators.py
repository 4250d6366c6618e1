"""Whatever the trainer drew before a hook, and hooks draw, the trainer goes on as if nothing had been drawn."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.task.generators import Generators, seed_generators

DRAWS: list[Callable[[], Any]] = [
    random.random,
    lambda: random.gauss(0, 1),
    np.random.rand,
    lambda: np.random.randn(1).tolist(),
    lambda: np.random.randn(2).tolist(),
    lambda: np.random.randint(0, 9, 700).tolist(),
    lambda: np.random.permutation(5).tolist(),
    lambda: torch.rand(3).tolist(),
    lambda: torch.randn(1).tolist(),
]
SOME = st.lists(st.integers(0, len(DRAWS) - 1), max_size=6)


def drawn(numbers: list[int]) -> list[Any]:
    return [DRAWS[number]() for number in numbers]


@given(st.lists(st.tuples(SOME, SOME, SOME), min_size=1, max_size=4), st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=40)
def test_the_callers_generators_go_on_where_they_were(rounds: list[tuple[list[int], ...]], seed: int) -> None:
    seed_generators(seed)
    expected = [drawn(before) + drawn(after) for before, _, after in rounds]
    seed_generators(seed)
    found = []
    for before, within, after in rounds:
        one = drawn(before)
        snapshot = Generators()
        seed_generators(7)
        first = drawn(within)
        seed_generators(7)
        assert drawn(within) == first
        snapshot.restore()
        found.append(one + drawn(after))
    assert found == expected


def test_a_rewound_generator_and_one_of_another_kind_are_given_back_too() -> None:
    np.random.seed(3)
    np.random.randn(1)
    rewound = np.random.get_state()
    expected = np.random.randn(3).tolist()
    Generators().restore()
    np.random.set_state(rewound)
    snapshot = Generators()
    seed_generators(1)
    snapshot.restore()
    assert np.random.randn(3).tolist() == expected
    if hasattr(np.random, "set_bit_generator"):
        mine = np.random.get_bit_generator()
        np.random.set_bit_generator(np.random.PCG64(5))
        try:
            snapshot = Generators()
            wanted = np.random.rand(4).tolist()
            snapshot.restore()
            assert np.random.rand(4).tolist() == wanted
        finally:
            np.random.set_bit_generator(mine)
        np.random.set_state(rewound)
