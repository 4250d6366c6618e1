"""Blends that look at samples: the seam for weights that count something else than samples.

`Blend` and `Schedule` know the source of a draw from its number. A `SampleBlend` decides by the samples that come: each
lane asks its `LaneBlend`, which remembers what it needs, as plain JSON in the state of the lane. `BlendRule` makes the
blend of a plan; `PlanOrder` gets one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bridge_data.order.random_draws import Phase
from bridge_data.order.row import Ints


class LaneBlend(Protocol):
    """From which source a lane draws next."""

    def first(self) -> int | None:
        """The source that is drawn next, or that must be `put` first if its samples are not known; None at the end."""

    def put(self, source: int, indices: Ints, is_whole: NDArray[np.bool_]) -> None:
        """Note the next samples of the `first` source; none if it has ended. Those that are not whole are parts of
        samples that were drawn before."""

    def draw(self) -> None:
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

    def fingerprint(self, names: Sequence[str]) -> Mapping[str, Any]:
        """What must be equal for a state to mean the same draws, beside the weights; `names` are those of sources in
        states."""
