"""Keyed randomness: random numbers, permutations, and the blend, which says from which source a draw comes.

Reads integers that name a random event (seed, source, epoch, ...), and the weights of sources. Returns 64-bit keys,
random numbers, the permutation of 0..n-1 that belongs to a key; the sources of any 64 draws of any lane that begin at a
multiple of 64, and how often each source was drawn before any draw. All of it is arithmetic, without a table or a
replay. Results are the same on every platform and in every release. That is why the arithmetic is our own: numpy's
generators may change their streams between versions, and a resumed run must continue the order it left. At every
multiple of 64 draws of a lane, each source is within 3.4 draws of its exact share; with scheduled weights, within each
phase.

A permutation of up to `TABLE_LIMIT` elements is the argsort of keyed random numbers. A larger one is a generalised
Feistel network over a x a with a = ceil(sqrt n), with cycle walking until the result is below n. Six rounds: fewer
leave visible structure. For small n any number of rounds leaves some, hence the table.

The sources of a blend are the leaves of a Huffman tree, so frequent sources are near the root. Every node splits its
draws by Bresenham's rule in 64-bit fixed point: of its first n draws, floor((n * share + offset) / 2^64) go to the
lighter child. Each block of 64 draws is then shuffled by a key, so that no source comes at regular intervals.

Why 3.4: a node is off by less than 1 draw, and in a Huffman tree an inner node inherits at most 2/3 of its parent's
error and 2/5 of its grandparent's. The offsets of the lanes are spread evenly, at each depth by the square root of
another prime, so that the errors of lanes in lockstep cancel: 1,000 lanes together were within 30 draws in all trials.

Source: splitmix64 (Steele, Lea, Flood 2014) for the finaliser, with golden-ratio increments; Black and Rogaway,
"Ciphers with arbitrary finite domains" (2002), for cycle walking; Bresenham (1965) for the split, Huffman (1952) for
the tree, Kronecker sequences for the offsets.
"""

import bisect
import copy
import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import ConfigError

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15

TABLE_LIMIT = 65_536
_ROUNDS = 6

U64Array = NDArray[np.uint64]

DRAWS_PER_BLOCK = 64
"""Sources are drawn in blocks of so many draws; "block" alone means samples that are read together."""

_FRACTION_BITS = 64
_UNKEYED = np.arange(1, DRAWS_PER_BLOCK + 1, dtype=np.uint64) * np.uint64(GOLDEN)
"""Combined with a key and splitmix64: one random number per draw of a block, to shuffle it."""

_PRIMES = (593, 109, 433, 83, 367, 569, 613, 307, 673, 11, 283, 487, 271, 499, 347, 199)
"""For the offsets at depths 1, 2, ..., cyclically. Found by search: no sum of small multiples of neighbouring square
roots is nearly an integer. Such a sum (sqrt(19) + 2 sqrt(17) - sqrt(13) = 8.9996) would give many lanes the same error.
"""

_DRAW_BLOCK_STAGE, _NODE_STAGE = 3, 4


Phase: TypeAlias = tuple[int, Sequence[float]]
"""(samples drawn by the whole job before the weights take effect, weight of each source)."""


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


class BlendNode(NamedTuple):
    """A node: how it splits its draws between two children. A child is the index of a node, or ~source for a leaf."""

    share: int
    """The lighter child's fraction of the draws, at least 2^-64. This and the next two are 64-bit fixed point."""
    key: int
    step: int
    """A lane's offset is key + lane * step. The root has step 0, and offset (lane + 1/2) / num_lanes."""
    lighter: int
    heavier: int


def check_weights(weights: Sequence[float], names: Sequence[str] | None = None) -> None:
    """Check that the weights are finite, not negative and not all 0; `names` of the sources are for the message.

    Raises:
        ConfigError: naming the source.
    """
    for number, weight in enumerate(weights):
        if not 0 <= weight < math.inf:
            name = f"source number {number}" if names is None else names[number]
            raise ConfigError(f"blend: the weight of {name} is {weight:g}, expected a finite number of 0 or more")
    if not any(weights):
        raise ConfigError("blend: the weights of all sources are 0, so nothing could be drawn; raise one of them")


class Blend:
    """The blend of sources with constant `weights`; a source with weight 0 is never drawn."""

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        check_weights(weights)
        self._num_sources, self._seed = len(weights), seed
        self.root, self.nodes = _tree(_integers(weights), seed)

    def draw_block(self, lane: int, num_lanes: int, number: int) -> NDArray[np.int64]:
        """The sources of draws `64 * number` to `64 * number + 63` of `lane`."""
        sources: list[int] = []
        for source, count in self._split(lane, num_lanes, number * DRAWS_PER_BLOCK, DRAWS_PER_BLOCK):
            sources += [source] * count
        key = np.uint64(key64(self._seed, _DRAW_BLOCK_STAGE, lane, number))
        return np.array(sources, dtype=np.int64)[np.argsort(splitmix64(_UNKEYED ^ key))]

    def counts(self, lane: int, num_lanes: int, draws: int) -> NDArray[np.int64]:
        """How often each source was drawn in the first `draws` draws of `lane`."""
        number, rest = divmod(draws, DRAWS_PER_BLOCK)
        counts = np.zeros(self._num_sources, dtype=np.int64)
        for source, count in self._split(lane, num_lanes, 0, number * DRAWS_PER_BLOCK):
            counts[source] = count
        if rest:
            counts += np.bincount(self.draw_block(lane, num_lanes, number)[:rest], minlength=self._num_sources)
        return counts

    def _split(self, lane: int, num_lanes: int, first: int, count: int) -> list[tuple[int, int]]:
        """(source, number of draws) for the draws `first` to `first + count - 1` of `lane`."""
        if self.root < 0:
            return [(~self.root, count)]
        nodes, root_offset = self.nodes, ((2 * lane + 1) << (_FRACTION_BITS - 1)) // num_lanes
        drawn, todo = [], [(self.root, first, count)]
        while todo:
            number, first, count = todo.pop()
            share, key, step, lighter, heavier = nodes[number]
            end = first * share + ((key + lane * step) & MASK if step else root_offset)
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


class Schedule:
    """Blends that replace each other during the run. `phases` are in ascending order and start with sample 0.

    Which phase a draw belongs to is computed from its number; all lanes change together, at the first block of draws
    at which the job has reached the phase.
    """

    def __init__(self, phases: Sequence[Phase], seed: int) -> None:
        self._starts = [sample for sample, _ in phases]
        self._phases, self._seed = phases, seed
        self._blends: dict[int, Blend] = {}
        self._num_drawn = 0

    def since(self, num_drawn: int) -> Self:
        """This schedule for lanes whose draw 0 came after `num_drawn` samples of the job (before the last reshard)."""
        shifted = copy.copy(self)
        shifted._num_drawn = num_drawn
        return shifted

    def draw_block(self, lane: int, num_lanes: int, number: int) -> NDArray[np.int64]:
        """The sources of draws `64 * number` to `64 * number + 63` of `lane`."""
        drawn = self._num_drawn + number * DRAWS_PER_BLOCK * num_lanes
        return self.blend_of(bisect.bisect_right(self._starts, drawn) - 1).draw_block(lane, num_lanes, number)

    def counts(self, lane: int, num_lanes: int, draws: int) -> NDArray[np.int64]:
        """How often each source was drawn in the first `draws` draws of `lane`."""
        counts = np.zeros(len(self._phases[0][1]), dtype=np.int64)
        begins = [min(draws, self.first_draw(phase, num_lanes)) for phase in range(len(self._starts))]
        for phase, (begin, end) in enumerate(zip(begins, [*begins[1:], draws], strict=True)):
            if begin < end:
                blend = self.blend_of(phase)
                counts += blend.counts(lane, num_lanes, end) - blend.counts(lane, num_lanes, begin)
        return counts

    def first_draw(self, phase: int, num_lanes: int) -> int:
        """The first draw of a phase, in every lane: the first of a block."""
        left = self._starts[phase] - self._num_drawn
        return max(0, -(-left // (num_lanes * DRAWS_PER_BLOCK))) * DRAWS_PER_BLOCK

    def blend_of(self, phase: int) -> Blend:
        """The blend of a phase."""
        if phase not in self._blends:
            self._blends[phase] = Blend(self._phases[phase][1], self._seed)
        return self._blends[phase]


def _integers(weights: Sequence[float]) -> list[int]:
    """Integers in exactly the same ratios as `weights`."""
    ratios = [weight.as_integer_ratio() for weight in weights]
    common = math.lcm(*(denominator for _, denominator in ratios))
    return [numerator * (common // denominator) for numerator, denominator in ratios]


def _tree(weights: Sequence[int], seed: int) -> tuple[int, list[BlendNode]]:
    """(root, nodes) of the Huffman tree over the sources with a weight above 0; children precede their parents.

    Ties: leaves before nodes, later sources first, older nodes before newer ones.
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
        BlendNode(share, key64(seed, _NODE_STAGE, number), _step(depths[number]), lighter, heavier)
        for number, (share, lighter, heavier) in enumerate(splits)
    ]
    return heap[0][1], nodes


def _step(depth: int) -> int:
    """How much the offsets of neighbouring lanes differ at a depth: the fractional part of a square root."""
    return math.isqrt(_PRIMES[depth % len(_PRIMES) - 1] << (2 * _FRACTION_BITS)) & MASK if depth else 0
