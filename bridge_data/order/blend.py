"""The blend: which source each draw of a lane takes, with quotas that hold exactly.

Weights become integers that sum to 65,536; one fixed table spreads each source's draws evenly over one turn. Lanes
begin at different places of the table, so that they do not bunch; every block of 64 draws is shuffled by a key, so
that no source comes at regular steps. Counts of earlier draws are prefix sums, never a replay.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import ConfigError
from bridge_data.order.keys import key64
from bridge_data.order.permutation import Permutation

TURN = 65_536
BLOCK = 64
_NUM_BLOCKS = TURN // BLOCK
_BLOCK_STAGE = 3


def quotas(weights: Sequence[float]) -> NDArray[np.int64]:
    """Draws of each source in one turn: proportional to `weights`, by largest remainder, summing to 65,536.

    Raises:
        ConfigError: for a weight above 0 that would round to no draw at all.
    """
    shares = np.asarray(weights, dtype=np.float64)
    shares = shares / shares.sum() * TURN
    floors = np.floor(shares).astype(np.int64)
    largest_first = np.argsort(floors - shares, kind="stable")
    floors[largest_first[: TURN - int(floors.sum())]] += 1
    never = (floors <= 0) & (shares > 0)
    if never.any():
        number = int(np.argmax(never))
        raise ConfigError(
            f"blend: weight {weights[number]:g} of source number {number} is less than 1/{TURN} of the sum "
            f"{sum(weights):g} and would never be drawn; raise it or leave the source out"
        )
    return floors


class Blend:
    """The blend of sources with `weights` for a run with `seed`."""

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        self.quotas = quotas(weights)
        self._seed = seed
        source = np.repeat(np.arange(len(self.quotas)), self.quotas)
        moment = np.concatenate([(np.arange(q) + 0.5) / q for q in self.quotas])
        self._table = source[np.lexsort((source, moment))]
        per_block = np.zeros((_NUM_BLOCKS + 1, len(self.quotas)), dtype=np.int64)
        for number, block in enumerate(self._table.reshape(_NUM_BLOCKS, BLOCK)):
            per_block[number + 1] = np.bincount(block, minlength=len(self.quotas))
        self._before_block = np.cumsum(per_block, axis=0)

    def block(self, lane: int, num_lanes: int, number: int) -> NDArray[np.int64]:
        """The sources of draws `64 * number` to `64 * number + 63` of `lane`."""
        place = number + self._phase(lane, num_lanes)
        start = place % _NUM_BLOCKS * BLOCK
        shuffled = Permutation(BLOCK, key64(self._seed, _BLOCK_STAGE, lane, place))(np.arange(BLOCK))
        return self._table[start + shuffled]

    def counts(self, lane: int, num_lanes: int, draws: int) -> NDArray[np.int64]:
        """How often each source was drawn in the first `draws` draws of `lane`."""
        phase = self._phase(lane, num_lanes)
        number, rest = divmod(draws, BLOCK)
        turns, place = divmod(number + phase, _NUM_BLOCKS)
        whole = turns * self.quotas + self._before_block[place] - self._before_block[phase]
        return whole + np.bincount(self.block(lane, num_lanes, number)[:rest], minlength=len(self.quotas))

    def _phase(self, lane: int, num_lanes: int) -> int:
        return lane * _NUM_BLOCKS // num_lanes % _NUM_BLOCKS
