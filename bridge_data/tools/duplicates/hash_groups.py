"""Groups of samples with equal digests, or with perceptual hashes that differ in few bits.

Enters: arrays of digests and hashes, one of each a sample. Leaves: `Groups`: the samples in groups, and the first of
each group. Guarantee: all pairs are found, as if each sample were compared with each; a group is all samples connected
by such pairs. Memory: besides the arrays about 16 bytes for each sample in a group, and about 32 for each different
hash while hashes are compared.

Hashes that differ in at most d bits are found by the pigeonhole principle. The 64 bits are cut into b > d blocks: at
most d of these differ, so in one of the choices of b - d blocks all are equal. For each choice the hashes are sorted by
these blocks, and only neighbours with the same ones are compared.

Source: G. S. Manku et al., Detecting near-duplicates for web crawling, WWW 2007, for tables of permuted hashes.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bridge_data.prepare.executors import Progress, no_progress

Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]

MAX_DISTANCE = 10
"""Bits in which near duplicates may differ: beyond this, different pictures are as close by chance."""

NUM_BITS = 64

SLICE_ROWS = 1 << 23
"""Rows sorted at once."""

MAX_LINKS = 1 << 22
"""Links kept before they are reduced to the fewest with the same connections."""

_SORT_COST, _PAIR_COST = 60, 10
"""Rough cost of a table in nanoseconds for each hash, and for each compared pair."""


@dataclasses.dataclass(frozen=True, slots=True)
class Groups:
    """`members` are the numbers of all samples in groups of at least two, ascending; `firsts` has for each member the
    smallest number of its group."""

    members: Numbers
    firsts: Numbers

    @property
    def num_groups(self) -> int:
        return int(np.count_nonzero(self.members == self.firsts))

    @property
    def copies(self) -> Numbers:
        """All but the first of each group."""
        copies: Numbers = self.members[self.members != self.firsts]
        return copies

    def numbered(self) -> tuple[Numbers, Numbers]:
        """For each of `members` the number of its group, in the order of `firsts`, and its number there, from 0."""
        heads = self.members[self.members == self.firsts]
        group = np.searchsorted(heads, self.firsts)
        order = np.argsort(group, kind="stable")
        starts = np.searchsorted(group[order], np.arange(len(heads)))
        copy = np.empty_like(order)
        copy[order] = np.arange(len(order)) - starts[group[order]]
        return group, copy


class Links:
    """Pairs of linked numbers. Memory is bounded by the different numbers, not by the pairs."""

    def __init__(self) -> None:
        self._pairs: list[NDArray[np.uint64]] = []
        self._num_pairs, self._most = 0, MAX_LINKS

    def add(self, some: NDArray[np.generic], others: NDArray[np.generic]) -> None:
        """Link `some[i]` with `others[i]`."""
        if len(some):
            self._pairs.append(np.stack((some, others)).astype(np.uint64))
            self._num_pairs += len(some)
        if self._num_pairs > self._most:
            numbers, roots = self.connected()
            self._pairs = [np.stack((roots, numbers))]
            self._num_pairs = len(numbers)
            self._most = max(MAX_LINKS, 2 * self._num_pairs)

    def connected(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """All added numbers, ascending, and for each the smallest number that it is connected with."""
        if not self._pairs:
            return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        numbers, ends = np.unique(np.concatenate(self._pairs, axis=1), return_inverse=True)
        some, others = ends.reshape(2, -1)
        roots = np.arange(len(numbers))
        while True:
            low, high = np.minimum(roots[some], roots[others]), np.maximum(roots[some], roots[others])
            apart = low != high
            if not apart.any():
                return numbers, numbers[roots]
            some, others = some[apart], others[apart]
            np.minimum.at(roots, high[apart], low[apart])
            while not np.array_equal(further := roots[roots], roots):
                roots = further


def link_equal(links: Links, high: Hashes, low: NDArray[np.uint32] | None = None) -> None:
    """Link all rows with the same (high, low) to the first of them; skip those whose `high` is 0."""
    num_slices = -(-len(high) // SLICE_ROWS)
    for number in range(num_slices):
        first, end = ((at << NUM_BITS) // num_slices for at in (number, number + 1))
        inside = high >= np.uint64(max(1, first))
        inside &= high <= np.uint64(end - 1)
        rows = np.flatnonzero(inside)
        columns = (high[rows],) if low is None else (low[rows], high[rows])
        order = np.lexsort(columns)
        rows = rows[order]
        is_equal = np.zeros(len(rows), bool)
        is_equal[1:] = np.logical_and.reduce([column[order][1:] == column[order][:-1] for column in columns])
        first_at = np.maximum.accumulate(np.where(is_equal, 0, np.arange(len(rows))))
        links.add(rows[first_at[is_equal]], rows[is_equal])


def link_near(links: Links, hashes: Hashes, distance: int, on_progress: Progress = no_progress) -> None:
    """Link all rows whose hashes differ in at most `distance` bits, perhaps via others; skip hashes of 0."""
    link_equal(links, hashes)
    values = _distinct(hashes[hashes != 0])
    near = Links()
    for some, others in close_pairs(values, distance, on_progress):
        near.add(some, others)
    numbers, roots = near.connected()
    rows = np.full(len(numbers), len(hashes))
    for start in range(0, len(hashes) if len(numbers) else 0, SLICE_ROWS):
        part = hashes[start : start + SLICE_ROWS]
        at = np.minimum(np.searchsorted(numbers, part), len(numbers) - 1)
        found = numbers[at] == part
        np.minimum.at(rows, at[found], start + np.flatnonzero(found))
    links.add(rows[np.searchsorted(numbers, roots)], rows)


def _distinct(hashes: Hashes) -> Hashes:
    """Each value once, ascending; `hashes` is sorted. (`np.unique` would take twice the memory.)"""
    hashes.sort()
    is_new = np.ones(len(hashes), bool)
    np.not_equal(hashes[1:], hashes[:-1], out=is_new[1:])
    return hashes[is_new]


def close_pairs(values: Hashes, distance: int, on_progress: Progress = no_progress) -> Iterator[tuple[Hashes, Hashes]]:
    """All pairs of different `values` that differ in at most `distance` bits; some more than once."""
    if not distance:
        return
    num_blocks = _num_blocks(len(values), distance)
    bounds = [NUM_BITS * number // num_blocks for number in range(num_blocks + 1)]
    blocks = [(start, end - start) for start, end in itertools.pairwise(bounds)]
    num_tables = math.comb(num_blocks, distance)
    for done, left_out in enumerate(itertools.combinations(blocks, distance), 1):
        chosen = [block for block in blocks if block not in left_out]
        layout = [*left_out, *chosen]
        moved = _moved(values, layout)
        moved.sort()
        num_free_bits = sum(width for _, width in left_out)
        for some, others in _close_neighbours(moved, num_free_bits, distance):
            yield _moved_back(some, layout), _moved_back(others, layout)
        on_progress(done, num_tables)


def _num_blocks(num_values: int, distance: int) -> int:
    """The fastest number of blocks: with more blocks there are fewer pairs to compare, but more tables."""

    def cost(num_blocks: int) -> float:
        num_equal_bits = NUM_BITS * (num_blocks - distance) // num_blocks
        num_pairs = num_values**2 / (2 << num_equal_bits)
        return math.comb(num_blocks, distance) * (num_values * _SORT_COST + num_pairs * _PAIR_COST)

    return min(range(distance + 1, distance + 9), key=cost)


def _moved(values: Hashes, layout: list[tuple[int, int]]) -> Hashes:
    """`values` with their blocks (lowest bit, number of bits) in another order, from the lowest bits on."""
    moved, at = np.zeros_like(values), 0
    for start, width in layout:
        block = values >> np.uint64(start)
        block &= np.uint64((1 << width) - 1)
        block <<= np.uint64(at)
        moved |= block
        at += width
    return moved


def _moved_back(moved: Hashes, layout: list[tuple[int, int]]) -> Hashes:
    values, at = np.zeros_like(moved), 0
    for start, width in layout:
        values |= ((moved >> np.uint64(at)) & np.uint64((1 << width) - 1)) << np.uint64(start)
        at += width
    return values


def _close_neighbours(values: Hashes, num_free_bits: int, distance: int) -> Iterator[tuple[Hashes, Hashes]]:
    """The close pairs of sorted `values` that are equal except for their lowest bits."""
    free = np.uint64(num_free_bits)
    for start in range(0, len(values), SLICE_ROWS):
        part = values[start : start + SLICE_ROWS + 1]
        rows = start + np.flatnonzero((part[1:] ^ part[:-1]) >> free == 0)
        step = 1
        while len(rows):
            some, others = values[rows], values[rows + step]
            is_close = num_bits_set(some ^ others) <= distance
            if is_close.any():
                yield some[is_close], others[is_close]
            step += 1
            rows = rows[: np.searchsorted(rows, len(values) - step)]
            rows = rows[(values[rows] ^ values[rows + step]) >> free == 0]


def num_bits_set(values: Hashes) -> Hashes:
    """How many bits are 1 in each value. (NumPy 1.26, which is supported, has no `bitwise_count`.)"""
    values = values - ((values >> np.uint64(1)) & np.uint64(0x5555555555555555))
    values = (values & np.uint64(0x3333333333333333)) + ((values >> np.uint64(2)) & np.uint64(0x3333333333333333))
    values = (values + (values >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (values * np.uint64(0x0101010101010101)) >> np.uint64(56)


def grouped(links: Links) -> Groups:
    """The groups formed by the links between samples."""
    numbers, firsts = links.connected()
    return Groups(numbers.astype(np.int64), firsts.astype(np.int64))
