"""What a lane loads next, for whoever makes samples before the lane needs them.

Reads the position of a lane, from which a second cursor, the scout, runs ahead. Returns references in the order in
which the lane will ask for them. Where hooks skip samples, or packs are chosen from a buffer, it is a guess: what is
made by it may be needed later, or by nobody.
"""

import collections
import contextlib
import copy
from collections.abc import Container
from typing import Any

from bridge_data.lanes.planned import LanePacks
from bridge_data.lanes.units import Batching
from bridge_data.order import ALL_PARTS, Cursor, SampleRef
from bridge_data.order.pending import Pending


class Upcoming:
    """The samples that come after those that `cursor` has drawn and the lane keeps in `pending`; with `planned`, packs
    come from there. Without `forgotten` samples."""

    def __init__(
        self,
        cursor: Cursor,
        pending: Pending[Any, Any],
        batching: Batching,
        planned: LanePacks | None,
        forgotten: Container[SampleRef] | None,
    ) -> None:
        self._cursor, self._pending = cursor, pending
        self._size, self._buffer_size = batching.batch_size or 1, batching.packing_buffer_size
        self._planned, self._forgotten = planned, () if forgotten is None else forgotten
        self._scout: Cursor | LanePacks | None = None
        self._found: collections.deque[SampleRef] = collections.deque()  # by the scout, and not returned yet

    def take(self, num_batches: int, most: int) -> list[SampleRef]:
        """Up to `most` of the samples that the next `num_batches` batches load, in order, without those that it has
        returned before."""
        with contextlib.suppress(StopIteration):  # the data end
            if self._planned is None:
                self._look(num_batches * self._size, most)
            else:
                self._look_at(self._planned, num_batches * self._size, most)
        taken = [self._found.popleft() for _ in range(min(most, len(self._found)))]
        return [ref for ref in taken if ref not in self._forgotten]

    def _look(self, num_units: int, most: int) -> None:
        scout, cursor = self._scout, self._cursor
        if not isinstance(scout, Cursor) or scout.draws < cursor.draws:
            scout = self._scout = cursor.copy()
            self._found.clear()
        num_drawn = num_units - len(self._pending.queue)
        if self._buffer_size is not None:
            num_drawn = self._buffer_size if num_units > len(self._pending.packs) else 0
        num_drawn -= scout.draws - cursor.draws
        if num_drawn > 0 < most:
            self._found.extend(ref for _, ref in scout.take(min(num_drawn, most)))

    def _look_at(self, planned: LanePacks, num_packs: int, most: int) -> None:
        scout = self._scout
        if not isinstance(scout, LanePacks) or scout.num_taken < planned.num_taken:
            scout = self._scout = copy.copy(planned)
            self._found.clear()
        last = planned.num_taken + num_packs - len(self._pending.packs)
        while scout.num_taken < last and len(self._found) < most:
            self._found.extend(ref._replace(part=ALL_PARTS) for ref in scout.next().members)
