"""Pictures whose perceptual hashes differ in few bits, and what is connected by such pairs.

Reads a table of hashes in DuckDB, or pairs of numbers. Returns the pairs of close hashes; what pairs connect. All pairs
are found, as if each hash were compared with each; a group is all numbers connected by such pairs. Memory: about 50
bytes for each number in a pair.

Hashes that differ in at most d bits are found by the pigeonhole principle. The 64 bits are cut into b > d blocks: at
most d of these differ, so in one of the choices of b - d blocks all are equal. For each choice the table is joined with
itself on these blocks.

Source: G. S. Manku et al., Detecting near-duplicates for web crawling, WWW 2007, for tables of permuted hashes.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridge_data.prepare.executors import Progress, no_progress

Numbers = NDArray[np.int64]

MAX_DISTANCE = 10
"""Bits in which near duplicates may differ: beyond this, different pictures are as close by chance."""

NUM_BITS = 64

ROWS_AT_ONCE = 1 << 16

MAX_PAIRS = 1 << 22
"""Pairs kept before they are reduced to the fewest with the same connections."""

_ROW_COST, _PAIR_COST = 60, 10
"""Rough cost of a join in nanoseconds for each hash, and for each compared pair."""


def close_pairs(engine: Any, distance: int, on_progress: Progress = no_progress) -> Iterator[Numbers]:
    """The pairs of rows of the table `pictures`, whose `picture` is different in at most `distance` bits, by their
    `number`: arrays (2, n). Some come more than once."""
    ((num_rows,),) = engine.execute("SELECT count(*) FROM pictures").fetchall()
    masks = _masks(num_rows, distance)
    for done, mask in enumerate(masks, 1):
        yield from pairs_of(
            engine,
            "SELECT one.number, other.number FROM pictures AS one JOIN pictures AS other "
            f"ON one.picture & ({mask}) = other.picture & ({mask}) "
            f"AND bit_count(xor(one.picture, other.picture)) <= {distance} WHERE one.number < other.number",
        )
        on_progress(done, len(masks))


def pairs_of(engine: Any, query: str) -> Iterator[Numbers]:
    """The rows of a query with two columns of numbers, as arrays (2, n)."""
    for batch in engine.sql(query).to_arrow_reader(ROWS_AT_ONCE):
        yield np.stack([column.to_numpy() for column in batch.columns])


def _masks(num_rows: int, distance: int) -> list[int]:
    """The bits that are compared in each join, as signed numbers; close hashes are equal in those of one at least. With
    more blocks there are fewer pairs to compare, but more joins."""

    def cost(num_blocks: int) -> float:
        num_equal_bits = NUM_BITS * (num_blocks - distance) // num_blocks
        num_pairs = num_rows**2 / (2 << num_equal_bits)
        return math.comb(num_blocks, distance) * (num_rows * _ROW_COST + num_pairs * _PAIR_COST)

    return block_masks(min(range(distance + 1, distance + 9), key=cost), distance)


def block_masks(num_blocks: int, distance: int) -> list[int]:
    """All choices of all but `distance` of `num_blocks` blocks of bits, as masks."""
    bounds = [NUM_BITS * number // num_blocks for number in range(num_blocks + 1)]
    blocks = [(1 << end) - (1 << start) for start, end in itertools.pairwise(bounds)]
    blocks[-1] -= 1 << NUM_BITS  # as a signed number
    return [~sum(left_out) for left_out in itertools.combinations(blocks, distance)]


def connected(pairs: Iterable[Numbers]) -> tuple[Numbers, Numbers]:
    """All numbers in `pairs`, ascending, and for each the smallest number that it is connected with."""
    kept, num_kept, most = [np.zeros((2, 0), np.int64)], 0, MAX_PAIRS
    for some in pairs:
        kept.append(some)
        num_kept += some.shape[1]
        if num_kept > most:
            kept = [np.stack(_connected(np.concatenate(kept, axis=1)))]
            num_kept = kept[0].shape[1]
            most = max(MAX_PAIRS, 2 * num_kept)
    return _connected(np.concatenate(kept, axis=1))


def _connected(pairs: Numbers) -> tuple[Numbers, Numbers]:
    numbers, ends = np.unique(pairs, return_inverse=True)
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
