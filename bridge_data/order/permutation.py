"""A keyed bijection of 0..n-1, in O(1) memory for large n.

Enters: n, a key, positions. Leaves: the element at each position. Guarantee: a bijection for every n and key.

Up to `TABLE_LIMIT` elements it is the argsort of keyed random numbers; above, a generalised Feistel network over
a x a with a = ceil(sqrt n), walking the cycle until the result is below n. Six rounds: fewer leave visible structure,
and so does any number of them at small n, for which the table is there.

Source: Black and Rogaway, "Ciphers with arbitrary finite domains" (2002), for cycle walking.
"""

import math

import numpy as np
from numpy.typing import NDArray

from bridge_data.order.random_keys import GOLDEN, U64Array, key64, splitmix64, uniform64

TABLE_LIMIT = 65_536
ROUNDS = 6


class Permutation:
    """The permutation of `size` elements that belongs to `key`."""

    def __init__(self, size: int, key: int) -> None:
        if size < 1:
            raise ValueError(f"Permutation(size={size}): expected at least 1 element")
        self._size = size
        if size <= TABLE_LIMIT:
            order = uniform64(np.arange(size, dtype=np.int64), key)
            self._table: NDArray[np.int64] | None = np.argsort(order, kind="stable")
        else:
            self._table = None
            self._side = np.uint64(math.isqrt(size - 1) + 1)
            self._round_keys = [np.uint64(key64(key, number)) for number in range(ROUNDS)]

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The elements at `positions`, int64, each in 0..size-1."""
        if self._table is not None:
            return self._table[positions]
        values = self._encrypt(positions.astype(np.uint64))
        outside = np.flatnonzero(values >= self._size)
        while len(outside):
            values[outside] = self._encrypt(values[outside])
            outside = outside[values[outside] >= self._size]
        return values.astype(np.int64)

    def _encrypt(self, values: U64Array) -> U64Array:
        side = self._side
        left = values // side
        right = values - left * side
        for key in self._round_keys:
            mixed = splitmix64(right * np.uint64(GOLDEN) ^ key)
            mixed -= mixed // side * side  # numpy takes much longer for %
            mixed += left
            left, right = right, mixed - mixed // side * side
        return left * side + right
