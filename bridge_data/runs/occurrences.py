"""When a sample comes: the inverse of the order, by arithmetic.

Reads the order of a plan, a state, and the number of a sample in its source. Returns in which lane it comes, after how
many draws. A sample is in one chunk, so the inverse of the permutation of chunks says the lane and the chunk's number
in its share of a shuffle; block, slot, visit and time follow as `row` describes them; in the window of that time the
sample is looked for. The draws of the source before it are counted over the chunks of the lane, and which draw of the
lane has so many is found by bisection. Only for rows without end, and blends that do not look at samples: see
`can_tell`.
"""

import bisect
import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bridge_data.order.blends import BlendSchedule
from bridge_data.order.cursor import BEGINNING
from bridge_data.order.plan_order import PlanOrder
from bridge_data.order.random_draws import Permutation
from bridge_data.order.row import Row, piece_of
from bridge_data.order.state import LoaderState

_MAX_TOGETHER = 64
"""Epochs that are shuffled together, at most."""

_MANY_CHUNKS = 1 << 16
"""Of so many chunks of an epoch, those of the lanes that are asked for are counted; of fewer, those of all at once."""


def can_tell(order: PlanOrder, state: LoaderState) -> bool:
    """Whether `draws_of` can be asked from `state` on."""
    if order.shuffle is None or any(lane.get("inbox") for lane in state.lanes.values()):
        return False
    rows, blend = order.rows(state.generations[-1]), order.blend(state)
    return (blend is None or isinstance(blend, BlendSchedule)) and all(
        row.num_whole is None and row.epochs_per_shuffle <= _MAX_TOGETHER for row in rows
    )


def draws_of(order: PlanOrder, state: LoaderState, source: int, index: int, draws: range) -> Iterator[tuple[int, int]]:
    """(lane, draws of the lane before it) of each time that sample `index` of a source comes within these `draws` of
    some lane, counted from `state` on."""
    row, blend, num_lanes = order.rows(state.generations[-1])[source], order.blend(state), state.num_lanes
    positions = {lane: own.get("cursors", {}).get(str(source), BEGINNING) for lane, own in state.lanes.items()}

    def drawn(lane: int, number: int) -> int:
        """How often the lane draws the source in so many draws."""
        if blend is None:
            return number
        assert isinstance(blend, BlendSchedule)
        begin = state.lanes[lane].get("draws", 0)
        counts = blend.counts(lane, num_lanes, begin + number)
        return int((counts - blend.counts(lane, num_lanes, begin))[source])

    def drawn_with(lane: int, number: int) -> int:
        """`drawn`, with the draw of this number."""
        return drawn(lane, number + 1)

    least, most = (edge(drawn(lane, at) for lane in positions) for edge, at in ((min, draws.start), (max, draws.stop)))
    shuffles = np.array([positions[lane][0] for lane in range(num_lanes)], dtype=np.int64)
    passed = _Passed(row, shuffles)
    for shuffle in _shuffles(row, int(shuffles.min()), int(shuffles.max()), least, most):
        for lane, before in _in_shuffle(row, index, shuffle):
            first, _, _, taken = positions[lane]
            if shuffle < first:
                continue
            number = before - taken + passed.count(lane, shuffle)
            if 0 <= number < drawn(lane, draws.stop):
                draw = bisect.bisect_right(draws, number, key=functools.partial(drawn_with, lane))
                if draw < len(draws) and drawn(lane, draws[draw]) == number:
                    yield lane, draws[draw]


class _Passed:
    """The samples of each lane from shuffle `begins[lane]` on, up to a later one."""

    def __init__(self, row: Row, begins: NDArray[np.int64]) -> None:
        self._row, self._is_together = row, row.chunks.equal_length is not None or row.chunks.num_chunks < _MANY_CHUNKS
        self._counts, self._counted_to = np.zeros(len(begins), dtype=np.int64), begins.copy()

    def count(self, lane: int, shuffle: int) -> int:
        """The samples of a lane before a shuffle. Shuffles are asked for in ascending order."""
        if self._is_together:
            self._counts += self._row.num_samples_to(shuffle, self._counted_to)
            np.maximum(self._counted_to, shuffle, out=self._counted_to)
        else:
            passed = range(self._counted_to[lane], shuffle)
            self._counts[lane] += sum(self._row.num_samples_of(lane, one) for one in passed)
            self._counted_to[lane] = shuffle
        return int(self._counts[lane])


def _shuffles(row: Row, first: int, last: int, least: int, most: int) -> Iterator[int]:
    """The shuffles in which some lane may draw its sample number `least` to `most` - 1, if lanes are in shuffle `first`
    to `last` now."""
    chunks, num_lanes, together = row.chunks, row.num_lanes, row.epochs_per_shuffle

    def can_have_begun(shuffle: int) -> bool:
        whole = shuffle - last - 1
        fewest = max(0, whole) * row.per_shuffle // num_lanes
        return not fewest or int(chunks.least_samples(np.array([fewest]), whole * together)[0]) < most

    def may_go_on(shuffle: int) -> bool:
        whole = shuffle + 1 - first
        others = max(0, whole * row.per_shuffle - whole * row.per_shuffle // num_lanes - 1)
        rest = int(chunks.least_samples(np.array([others]), whole * together)[0])
        return whole * together * row.num_samples - rest > least

    step = 1
    while not may_go_on(first + step):
        step *= 2
    begin = bisect.bisect_left(range(first, first + step), True, key=may_go_on) + first
    return itertools.takewhile(can_have_begun, itertools.count(begin)) if most else iter(())


def _in_shuffle(row: Row, index: int, shuffle: int) -> Iterator[tuple[int, int]]:
    """(lane, samples of its share of a shuffle before it) of each time that a sample comes in the shuffle."""
    chunks, offsets = row.chunks.chunk_of(np.array([index]))
    elements = chunks + np.arange(row.epochs_per_shuffle, dtype=np.int64) * row.chunks.num_chunks
    permutation = row.permutation(shuffle)
    positions = permutation.inverse(elements) if isinstance(permutation, Permutation) else elements
    length = int(row.chunks.spans(chunks)[1][0])
    for epoch, position in enumerate(positions.tolist()):
        number, lane = divmod(shuffle * row.per_shuffle + position, row.num_lanes)
        share = row.share(lane, shuffle)
        window = _time(row, shuffle, number - share.first, share.num_chunks, int(offsets[0]), length)
        window = window * share.num_windows // (share.num_chunks * row.num_slots)
        found = row.window(lane, shuffle, window)
        assert found is not None
        epochs, indices = found.take(0, len(found))
        (place,) = np.flatnonzero((indices == index) & (epochs == row.first_epoch_of(shuffle) + epoch)).tolist()
        yield lane, row.num_samples_before(lane, shuffle, window) + place


def _time(row: Row, shuffle: int, chunk: int, num_chunks: int, offset: int, length: int) -> int:
    """When a lane visits the block with a sample at `offset` of its chunk number `chunk` of a shuffle."""
    visit = 0
    if row.num_slots > 1:
        num_blocks = -(-length // row.geometry.block_size)
        block = piece_of(offset, length, num_blocks)
        slot = -(-block * row.num_slots // num_blocks)
        visit = slot * pow(row.stride(shuffle), -1, row.num_slots) % row.num_slots
    divisor = math.gcd(num_chunks, row.num_slots)
    start = (chunk * row.num_slots + visit * num_chunks) % (num_chunks * row.num_slots)
    return start + chunk // (num_chunks // divisor)
