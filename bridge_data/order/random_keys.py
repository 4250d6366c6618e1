"""Keyed 64-bit arithmetic: the only source of chance in the order.

Our own rather than numpy's generators, which promise no equal streams across versions: a resumed run must find the
order that it left.

Source: splitmix64 (Steele, Lea, Flood 2014) for the finaliser; golden-ratio increments.
"""

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15

U64Array = NDArray[np.uint64]


def key64(*parts: int) -> int:
    """One 64-bit key out of a sequence of integers; the sequence matters, not only the set."""
    x = GOLDEN
    for part in parts:
        x = ((x ^ (part & MASK)) * 0xBF58476D1CE4E5B9) & MASK
        x ^= x >> 29
        x = (x * 0x94D049BB133111EB) & MASK
        x ^= x >> 32
    return x


def splitmix64(x: U64Array) -> U64Array:
    """The splitmix64 finaliser, element by element: a bijection of 64-bit numbers that passes for random."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform64(items: NDArray[np.int64], key: int) -> U64Array:
    """A keyed random 64-bit number for each of `items`, the same for the same item and key."""
    return splitmix64((items.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN) ^ np.uint64(key))
