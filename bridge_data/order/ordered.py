"""Validation order: the samples of all sources, concatenated, in order.

Input: number of samples, number of lanes, micro-batch size. Output: the interface of a `Row`, with one epoch and one
window per lane. Guarantee: every sample exactly once; the micro-batches of the job are the data set from start to end.

A block is the samples of one micro-batch. Blocks go to the lanes round-robin. After a re-deal the new lanes take blocks
round-robin from the first block that no lane has touched; what is left before it is in their inboxes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class OrderedRow:
    """Samples 0..`num_samples`-1 in blocks of `block_size`; the row starts with block `first_block`."""

    def __init__(self, num_samples: int, num_lanes: int, block_size: int, first_block: int = 0) -> None:
        self.num_samples, self.num_lanes = num_samples, num_lanes
        self.block_size, self.first_block = block_size, first_block
        self._num_blocks = -(-num_samples // block_size)

    def window(self, lane: int, shuffle: int, number: int) -> "OrderedWindow | None":
        """The lane's only window; None if the lane has no samples."""
        size = self.num_samples_to(self._num_blocks, lane)
        return OrderedWindow(self, lane, size) if size else None

    def after(self, lane: int, shuffle: int, number: int) -> None:
        """None: there is only one window."""
        return

    def starts_at(self, shuffle: int) -> tuple[int, int]:
        """The smallest (epoch, index) of the row."""
        return 0, self.first_block * self.block_size

    def fault(self, lane: int, position: Sequence[int], draws: int | None) -> str | None:
        """Why a saved position of a lane after `draws` draws (None: unknown) is invalid; None if it is valid."""
        size = self.num_samples_to(self._num_blocks, lane)
        shuffle, number, offset, taken = position
        if shuffle or number or offset != taken:
            return "in validation a position is [0, 0, samples taken, samples taken]"
        if taken > size:
            return f"{taken} samples taken of the {size} that the lane has"
        return None if draws is None else too_few_draws(taken, draws)

    def seek(self, lane: int, shuffle: int, number: int, count: int, end: tuple[int, int]) -> tuple[int, int, int]:
        """(shuffle, window, offset) of the lane's sample number `count`; `ValueError` if there is none."""
        missing = count - self.num_samples_to(self._num_blocks, lane)
        if missing >= 0:
            raise ValueError(f"the lane ends {missing} samples before it")
        return shuffle, number, count

    def num_samples_to(self, block: int, lane: int) -> int:
        """The number of samples in the lane's blocks before `block`."""
        blocks = -((self.first_block_of(lane) - min(block, self._num_blocks)) // self.num_lanes)
        last = self.first_block_of(lane) + (blocks - 1) * self.num_lanes
        missing = self._num_blocks * self.block_size - self.num_samples if last == self._num_blocks - 1 else 0
        return blocks * self.block_size - missing if blocks > 0 else 0

    def untouched_block(self, lane: int, taken: int) -> int:
        """The block after the last one that a lane has touched, given how many samples it has taken."""
        blocks = -(-taken // self.block_size)
        return self.first_block_of(lane) + (blocks - 1) * self.num_lanes + 1 if blocks else self.first_block

    def first_block_of(self, lane: int) -> int:
        """The first block of a lane."""
        return self.first_block + (lane - self.first_block) % self.num_lanes


def too_few_draws(taken: int, draws: int) -> str | None:
    """The fault of a position before which more samples were taken than the lane has drawn; None if not more."""
    return f"{taken} samples or more were taken before it, in {draws} draws" if taken > draws else None


class OrderedWindow:
    """The `size` samples of a lane, in ascending order."""

    __slots__ = ("_lane", "_row", "_size")

    def __init__(self, row: OrderedRow, lane: int, size: int) -> None:
        self._row, self._lane, self._size = row, lane, size

    def __len__(self) -> int:
        return self._size

    def take(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """(epochs, indices) of samples number `start` to `stop` - 1."""
        row = self._row
        blocks, offsets = np.divmod(np.arange(start, min(stop, self._size), dtype=np.int64), row.block_size)
        indices = (row.first_block_of(self._lane) + blocks * row.num_lanes) * row.block_size + offsets
        return np.zeros_like(indices), indices
