"""The draws of a blend by number: which source a draw takes, and which draw takes a source's n-th sample.

Input: a blend or a schedule of blends, a lane. Output: how often a source was drawn before any draw, and the inverse.
Guarantee: exact arithmetic along one path of the blend's tree, without a replay, for any draw and any source. (Of
scheduled weights, the phases are passed one by one.)
"""

from collections.abc import Iterator

import numpy as np

from bridge_data.order.random_draws import BLOCK, MASK, Blend, Schedule

_FRACTION_BITS = 64
_ONE = 1 << _FRACTION_BITS


class DrawNumbers:
    """The draws of `lane`, one of `num_lanes`; `blend` None means that there is only one source."""

    def __init__(self, blend: Blend | Schedule | None, lane: int, num_lanes: int) -> None:
        self._lane, self._num_lanes = lane, num_lanes
        self._blocks: Blend | Schedule | None = blend
        self._block: tuple[int, list[int]] = (-1, [])
        self._phases: list[tuple[int, _Paths]] = []
        """First draw of each phase, and its paths."""
        if isinstance(blend, Schedule):
            for phase in range(blend.num_phases):
                paths = _Paths(blend.blend_of(phase), lane, num_lanes)
                self._phases.append((blend.first_draw(phase, num_lanes), paths))
        elif blend is not None:
            self._phases = [(0, _Paths(blend, lane, num_lanes))]

    def source_of(self, draw: int) -> int:
        """The source from which a draw takes its sample."""
        if self._blocks is None:
            return 0
        number, offset = divmod(draw, BLOCK)
        if self._block[0] != number:
            self._block = number, self._blocks.block(self._lane, self._num_lanes, number).tolist()
        return self._block[1][offset]

    def count(self, source: int, draws: int) -> int:
        """How often `source` was drawn in the first `draws` draws."""
        if self._blocks is None:
            return draws
        return sum(
            paths.count(source, min(draws, end)) - paths.count(source, begin)
            for begin, end, paths in self._spans()
            if begin < draws
        )

    def draw_of(self, source: int, number: int) -> int | None:
        """The draw that takes sample `number` (from 0) of `source`; None if the source is not drawn so often."""
        if self._blocks is None:
            return number
        for begin, end, paths in self._spans():
            before = paths.count(source, begin)
            here = None if end == _ONE else paths.count(source, end) - before
            if here is None or number < here:
                return paths.draw_of(source, number + before)
            number -= here
        return None

    def _spans(self) -> Iterator[tuple[int, int, "_Paths"]]:
        """(first draw, end, paths) of the phases that have draws."""
        ends = [begin for begin, _ in self._phases[1:]] + [_ONE]
        for (begin, paths), end in zip(self._phases, ends, strict=True):
            if begin < end:
                yield begin, end, paths


class _Paths:
    """The ways from the root of a blend's tree to its sources, for one lane."""

    def __init__(self, blend: Blend, lane: int, num_lanes: int) -> None:
        self._blend, self._lane, self._num_lanes = blend, lane, num_lanes
        root_phase = ((2 * lane + 1) << (_FRACTION_BITS - 1)) // num_lanes
        self._paths: dict[int, list[tuple[int, int, bool]]] = {}
        """(share of the lighter child, phase, whether the way leads to the lighter child) of each node, by source."""
        todo: list[tuple[int, list[tuple[int, int, bool]]]] = [(blend.root, [])]
        while todo:
            number, path = todo.pop()
            if number < 0:
                self._paths[~number] = path
                continue
            node = blend.nodes[number]
            phase = (node.key + lane * node.step) & MASK if node.step else root_phase
            todo.append((node.lighter, [*path, (node.share, phase, True)]))
            todo.append((node.heavier, [*path, (node.share, phase, False)]))

    def count(self, source: int, draws: int) -> int:
        """How often `source` was drawn in the first `draws` draws."""
        if source not in self._paths:
            return 0
        number, rest = divmod(draws, BLOCK)
        count = number * BLOCK
        for share, phase, is_lighter in self._paths[source]:
            lighter = (count * share + phase) >> _FRACTION_BITS
            count = lighter if is_lighter else count - lighter
        return count + (self._in_block(source, number, rest) if rest else 0)

    def draw_of(self, source: int, number: int) -> int | None:
        """The draw of sample `number` of `source`; None if it is never drawn."""
        if source not in self._paths:
            return None
        draw = number
        for share, phase, is_lighter in reversed(self._paths[source]):
            if is_lighter:
                draw = -((phase - ((draw + 1) << _FRACTION_BITS)) // share) - 1
            else:
                draw = ((draw << _FRACTION_BITS) + phase) // (_ONE - share)
        block = draw // BLOCK
        places = np.flatnonzero(self._blend.block(self._lane, self._num_lanes, block) == source)
        return block * BLOCK + int(places[number - self.count(source, block * BLOCK)])

    def _in_block(self, source: int, number: int, rest: int) -> int:
        sources = self._blend.block(self._lane, self._num_lanes, number)
        return int(np.count_nonzero(sources[:rest] == source))
