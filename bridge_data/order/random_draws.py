"""Keyed randomness: random numbers and permutations.

Reads integers that name a random event (seed, source, epoch, ...). Returns 64-bit keys, random numbers, and the
permutation of 0..n-1 that belongs to a key. Results are the same on every platform and in every release. That is why
the arithmetic is our own: numpy's generators may change their streams between versions, and a resumed run must continue
the order it left.

A permutation of up to `TABLE_LIMIT` elements is the argsort of keyed random numbers. A larger one is a generalised
Feistel network over a x a with a = ceil(sqrt n), with cycle walking until the result is below n. Six rounds: fewer
leave visible structure. For small n any number of rounds leaves some, hence the table.

Source: splitmix64 (Steele, Lea, Flood 2014) for the finaliser, with golden-ratio increments; Black and Rogaway,
"Ciphers with arbitrary finite domains" (2002), for cycle walking.
"""

import math

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15

TABLE_LIMIT = 65_536
_ROUNDS = 6

U64Array = NDArray[np.uint64]


def key64(*parts: int) -> int:
    """Hash a sequence of integers to one 64-bit key; their order matters."""
    x = GOLDEN
    for part in parts:
        x = ((x ^ (part & MASK)) * 0xBF58476D1CE4E5B9) & MASK
        x ^= x >> 29
        x = (x * 0x94D049BB133111EB) & MASK
        x ^= x >> 32
    return x


def splitmix64(x: U64Array) -> U64Array:
    """The splitmix64 finaliser, elementwise: a bijection of 64-bit integers that looks random."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform64(items: NDArray[np.int64], key: int) -> U64Array:
    """A uniform random 64-bit number per item, determined by the item and `key`."""
    return splitmix64((items.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN) ^ np.uint64(key))


class Permutation:
    """The permutation of 0..`size`-1 that belongs to `key`."""

    def __init__(self, size: int, key: int) -> None:
        if size < 1:
            raise ValueError(f"Permutation(size={size}): expected at least 1 element")
        self._size = size
        if size <= TABLE_LIMIT:
            order = uniform64(np.arange(size, dtype=np.int64), key)
            table = np.argsort(order, kind="stable")
            self._table: NDArray[np.uint16] | None = table.astype(np.uint16)  # each lane keeps one of each source
        else:
            self._table = None
            self._side = np.uint64(math.isqrt(size - 1) + 1)
            self._round_keys = [np.uint64(key64(key, number)) for number in range(_ROUNDS)]

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The elements at `positions`, int64, each in 0..size-1."""
        if self._table is not None:
            return self._table[positions].astype(np.int64)
        values = self._encrypt(positions.astype(np.uint64))
        outside = np.flatnonzero(values >= self._size)
        while len(outside):
            values[outside] = self._encrypt(values[outside])
            outside = outside[values[outside] >= self._size]
        return values.astype(np.int64)

    def inverse(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions at which `elements` are, int64: for reports on when a sample comes."""
        if self._table is not None:
            return np.argsort(self._table)[elements]
        values = self._decrypt(elements.astype(np.uint64))
        outside = np.flatnonzero(values >= self._size)
        while len(outside):
            values[outside] = self._decrypt(values[outside])
            outside = outside[values[outside] >= self._size]
        return values.astype(np.int64)

    def _encrypt(self, values: U64Array) -> U64Array:
        side = self._side
        left = values // side
        right = values - left * side
        for key in self._round_keys:
            mixed = splitmix64(right * np.uint64(GOLDEN) ^ key)
            mixed -= mixed // side * side  # numpy's % is much slower
            mixed += left
            left, right = right, mixed - mixed // side * side
        return left * side + right

    def _decrypt(self, values: U64Array) -> U64Array:
        side = self._side
        left = values // side
        right = values - left * side
        for key in reversed(self._round_keys):
            mixed = splitmix64(left * np.uint64(GOLDEN) ^ key)
            right += side - (mixed - mixed // side * side)
            left, right = right - right // side * side, left
        return left * side + right
