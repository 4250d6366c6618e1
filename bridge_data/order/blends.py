"""Blends: from which source each draw of a lane comes, by the weights of the sources.

Reads weights, a seed, a lane and numbers of draws. `Blend` and `BlendSchedule` (weights that change during the run)
know the source of a draw from its number: they return the sources of any 64 draws of any lane that begin at a multiple
of 64, and how often each source was drawn before any draw, by arithmetic, without a table or a replay. At every
multiple of 64 draws of a lane, each source is within 3.4 draws of its exact share; with scheduled weights, within each
phase. The results are the same on every platform and in every release, as those of `random_draws`.

A `SampleBlend`, which `PlanOrder` gets by a `BlendRule`, is for weights that count something else than samples: it
decides by the samples that come. Each lane asks its `LaneBlend`, which remembers what it needs, as plain JSON in the
state of the lane.

The sources of a blend are the leaves of a Huffman tree, so frequent sources are near the root. Every node splits its
draws by Bresenham's rule in 64-bit fixed point: of its first n draws, floor((n * share + offset) / 2^64) go to the
lighter child. Each block of 64 draws is then shuffled by a key, so that no source comes at regular intervals.

Why 3.4: a node is off by less than 1 draw, and in a Huffman tree an inner node inherits at most 2/3 of its parent's
error and 2/5 of its grandparent's. The offsets of the lanes are spread evenly, at each depth by the square root of
another prime, so that the errors of lanes in lockstep cancel: 1,000 lanes together were within 30 draws in all trials.

Source: Bresenham (1965) for the split, Huffman (1952) for the tree, Kronecker sequences for the offsets.
"""

import bisect
import copy
import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import ConfigError
from bridge_data.order.random_draws import GOLDEN, MASK, key64, splitmix64

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


class BlendSchedule:
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


class LaneBlend(Protocol):
    """From which source a lane draws next."""

    def first(self) -> int | None:
        """The source that is drawn next, or that must be `put` first if its samples are not known; None at the end."""

    def put(self, source: int, indices: NDArray[np.int64], is_whole: NDArray[np.bool_]) -> None:
        """Note the next samples of the `first` source; none if it has ended. Those that are not whole are outputs of
        samples that were drawn before."""

    def note_drawn(self) -> None:
        """Note that the next sample of the `first` source was drawn."""

    def state(self) -> Any:
        """What a lane of the same blend continues from, as plain JSON."""


class SampleBlend(Protocol):
    """The blend of all lanes."""

    def lane(self, lane: int, num_lanes: int, state: Any) -> LaneBlend:
        """That of one lane, from a `LaneBlend.state` on; None: from the start."""

    def resharded(self, states: Sequence[Any], lane: int, num_lanes: int) -> Any:
        """The state of `lane`, of `num_lanes` new ones, which go on together where lanes with these states were."""

    def migrated(self, state: Any, after: Any, numbers: Sequence[int], num_lanes: int) -> Any:
        """The state of a lane, one of `num_lanes`, in the blend `after` of the same rule, in which the sources have
        these `numbers`."""


class BlendRule(Protocol):
    """Makes the blend of sources from their weights."""

    def blend(self, phases: Sequence[Phase], numbers: Sequence[int], keys: Sequence[int]) -> SampleBlend:
        """The blend of the sources of these `numbers` in the plan, whose `phases` of weights and `keys` for random
        numbers are given."""

    def fingerprint(self, source_ids: Sequence[str]) -> Mapping[str, Any]:
        """What must be equal for a state to mean the same draws, beside the weights."""
