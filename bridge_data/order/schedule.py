"""Scheduled weights: blends that follow each other as the job goes on.

Enters: phases, each with the number of samples of the whole job from which its weights hold. Leaves: the blend of any
draw of any lane. Guarantee: which phase a draw belongs to is arithmetic over its number; all lanes change together, at
the first block of draws with which the job has reached the phase. Within a phase the guarantees of its blend hold.
"""

import bisect
import copy
from collections.abc import Sequence
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bridge_data.order.blend import BLOCK, Blend, check_weights

Phase: TypeAlias = tuple[int, Sequence[float]]
"""(samples of the job from which the weights hold, the weight of each source)."""


class Schedule:
    """The phases of a run with `seed`, the first from sample 0 on, in ascending sequence.

    Lanes count their draws from the last re-deal on, before which the job had drawn `num_drawn` samples (see `since`).

    Raises:
        ConfigError: for weights of any phase that `check_weights` refuses.
    """

    def __init__(self, phases: Sequence[Phase], seed: int) -> None:
        for _, weights in phases:
            check_weights(weights)
        self._starts = [sample for sample, _ in phases]
        self._phases, self._seed = phases, seed
        self._blends: dict[int, Blend] = {}
        self._num_drawn = 0

    def since(self, num_drawn: int) -> Self:
        """This schedule, with which it shares its blends, for lanes that began when the job had drawn `num_drawn`."""
        begun = copy.copy(self)
        begun._num_drawn = num_drawn
        return begun

    def block(self, lane: int, num_lanes: int, number: int) -> NDArray[np.int64]:
        """The sources of draws `64 * number` to `64 * number + 63` of `lane`."""
        drawn = self._num_drawn + number * BLOCK * num_lanes
        return self._blend(bisect.bisect_right(self._starts, drawn) - 1).block(lane, num_lanes, number)

    def counts(self, lane: int, num_lanes: int, draws: int) -> NDArray[np.int64]:
        """How often each source was drawn in the first `draws` draws of `lane`."""
        counts = np.zeros(len(self._phases[0][1]), dtype=np.int64)
        begins = [min(draws, self.first_draw(phase, num_lanes)) for phase in range(len(self._starts))]
        for phase, (begin, end) in enumerate(zip(begins, [*begins[1:], draws], strict=True)):
            if begin < end:
                blend = self._blend(phase)
                counts += blend.counts(lane, num_lanes, end) - blend.counts(lane, num_lanes, begin)
        return counts

    def first_draw(self, phase: int, num_lanes: int) -> int:
        """The draw of every lane with which a phase begins: the first one of a block."""
        left = self._starts[phase] - self._num_drawn
        return max(0, -(-left // (num_lanes * BLOCK))) * BLOCK

    def _blend(self, phase: int) -> Blend:
        if phase not in self._blends:
            self._blends[phase] = Blend(self._phases[phase][1], self._seed)
        return self._blends[phase]
