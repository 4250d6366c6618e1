"""The blend: which source each draw of a lane takes, by weights of any size, with no table.

The sources are the leaves of a binary tree, built as Huffman's code is: what is drawn often sits high. Every node
splits its draws by Bresenham's rule in 64-bit fixed point: of its first n draws, floor((n * share + phase) / 2^64) go
to the lighter child. So how often a source was drawn before is arithmetic, never a replay. Every block of 64 draws of
a lane is shuffled by a key, so that no source comes at regular steps.

Enters: weights, a seed. Leaves: the sources of any block of any lane. Guarantee: at every multiple of 64 draws of a
lane, each source is within 3.4 draws of its share. (A node errs by less than 1 draw; by Huffman's rule an inner node
inherits at most 2/3 of its parent's error and 2/5 of its grandparent's.) The phases of the lanes are spread evenly, at
every depth by the square root of another prime, so that errors of lanes that run in step cancel: 1,000 lanes together
are within 30 draws, by trial.

Source: Bresenham (1965) for the split, Huffman (1952) for the tree, Kronecker sequences for the phases.
"""

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import ConfigError
from bridge_data.order.random_keys import GOLDEN, MASK, key64, splitmix64

BLOCK = 64
_FRACTION_BITS = 64
_UNKEYED = np.arange(1, BLOCK + 1, dtype=np.uint64) * np.uint64(GOLDEN)
"""What a key and splitmix64 make random numbers of, one for each draw of a block, to shuffle it."""
_PRIMES = (593, 109, 433, 83, 367, 569, 613, 307, 673, 11, 283, 487, 271, 499, 347, 199)
"""For the phases at depth 1, 2, ..., over and over. Found by a search: no sum of small multiples of neighbouring roots
is almost whole. Such a sum (sqrt(19) + 2 sqrt(17) - sqrt(13) = 8.9996) makes many lanes err in the same direction."""
_BLOCK_STAGE, _NODE_STAGE = 3, 4


class _Split(NamedTuple):
    """A split of draws between two children: the number of a node, or ~source for a leaf."""

    share: int
    """The lighter child's part of the draws, at least 2^-64, in 64-bit fixed point; as are the next two."""
    key: int
    step: int
    """The phase of a lane is key + lane * step, but for the root: its step is 0, its phase (lane + 1/2) / num_lanes."""
    lighter: int
    heavier: int


def check_weights(weights: Sequence[float], names: Sequence[str] | None = None) -> None:
    """See that sources can be drawn by `weights`; messages call the sources by `names`, else by their numbers.

    Raises:
        ConfigError: for a weight that is negative or not finite, or if all are 0.
    """
    for number, weight in enumerate(weights):
        if not 0 <= weight < math.inf:
            name = f"source number {number}" if names is None else names[number]
            raise ConfigError(f"blend: the weight of {name} is {weight:g}, expected a finite number of 0 or more")
    if not any(weights):
        raise ConfigError("blend: the weights of all sources are 0, so nothing could be drawn; raise one of them")


class Blend:
    """The blend of sources with `weights` for a run with `seed`; a source with weight 0 is never drawn.

    Raises:
        ConfigError: see `check_weights`.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        check_weights(weights)
        self._num_sources, self._seed = len(weights), seed
        self._root, self._nodes = _tree(_integers(weights), seed)

    def block(self, lane: int, num_lanes: int, number: int) -> NDArray[np.int64]:
        """The sources of draws `64 * number` to `64 * number + 63` of `lane`."""
        sources: list[int] = []
        for source, count in self._split(lane, num_lanes, number * BLOCK, BLOCK):
            sources += [source] * count
        key = np.uint64(key64(self._seed, _BLOCK_STAGE, lane, number))
        return np.array(sources, dtype=np.int64)[np.argsort(splitmix64(_UNKEYED ^ key))]

    def counts(self, lane: int, num_lanes: int, draws: int) -> NDArray[np.int64]:
        """How often each source was drawn in the first `draws` draws of `lane`."""
        number, rest = divmod(draws, BLOCK)
        counts = np.zeros(self._num_sources, dtype=np.int64)
        for source, count in self._split(lane, num_lanes, 0, number * BLOCK):
            counts[source] = count
        if rest:
            counts += np.bincount(self.block(lane, num_lanes, number)[:rest], minlength=self._num_sources)
        return counts

    def _split(self, lane: int, num_lanes: int, first: int, count: int) -> list[tuple[int, int]]:
        """(source, how often) for each source that draws `first` to `first + count - 1` of `lane` take, unshuffled."""
        if self._root < 0:
            return [(~self._root, count)]
        nodes, root_phase = self._nodes, ((2 * lane + 1) << (_FRACTION_BITS - 1)) // num_lanes
        drawn, todo = [], [(self._root, first, count)]
        while todo:
            number, first, count = todo.pop()
            share, key, step, lighter, heavier = nodes[number]
            end = first * share + ((key + lane * step) & MASK if step else root_phase)
            begin = end >> _FRACTION_BITS
            taken = ((end + count * share) >> _FRACTION_BITS) - begin
            if taken:
                if lighter < 0:
                    drawn.append((~lighter, taken))
                else:
                    todo.append((lighter, begin, taken))
            if taken < count:
                if heavier < 0:
                    drawn.append((~heavier, count - taken))
                else:
                    todo.append((heavier, first - begin, count - taken))
        return drawn


def _integers(weights: Sequence[float]) -> list[int]:
    """Integers in exactly the ratios of `weights`."""
    ratios = [weight.as_integer_ratio() for weight in weights]
    common = math.lcm(*(denominator for _, denominator in ratios))
    return [numerator * (common // denominator) for numerator, denominator in ratios]


def _tree(weights: Sequence[int], seed: int) -> tuple[int, list[_Split]]:
    """(root, nodes) of the tree over the sources with a weight above 0; a node comes after its children.

    Of equal weights, leaves come before nodes, those of the last sources first, and older nodes before newer ones.
    """
    heap = [(weight, ~source) for source, weight in enumerate(weights) if weight]
    heapq.heapify(heap)
    splits: list[tuple[int, int, int]] = []
    while len(heap) > 1:
        (light, lighter), (heavy, heavier) = heapq.heappop(heap), heap[0]
        splits.append((max(1, (light << _FRACTION_BITS) // (light + heavy)), lighter, heavier))
        heapq.heapreplace(heap, (light + heavy, len(splits) - 1))
    depths = [0] * len(splits)
    for number in reversed(range(len(splits))):
        for child in splits[number][1:]:
            if child >= 0:
                depths[child] = depths[number] + 1
    nodes = [
        _Split(share, key64(seed, _NODE_STAGE, number), _step(depths[number]), lighter, heavier)
        for number, (share, lighter, heavier) in enumerate(splits)
    ]
    return heap[0][1], nodes


def _step(depth: int) -> int:
    """By how much the phases of neighbouring lanes differ at a depth: the fraction of a square root."""
    return math.isqrt(_PRIMES[depth % len(_PRIMES) - 1] << (2 * _FRACTION_BITS)) & MASK if depth else 0
