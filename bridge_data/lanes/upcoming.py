"""What a lane loads next, for whoever makes samples before the lane needs them.

Reads the position of a lane, from which a second cursor, the scout, runs ahead. Returns references in the order in
which the lane will ask for them. Where hooks skip samples, or packs are chosen from a buffer, it is a guess: what is
made by it may be needed later, or by nobody.
"""

import collections
import contextlib
import copy
import itertools
from collections.abc import Iterable
from typing import Any

from bridge_data.lanes.units import Batching
from bridge_data.order import ALL_PARTS, Cursor, SampleRef
from bridge_data.order.extras import LaneExtras
from bridge_data.order.pending import Pending
from bridge_data.plugins.planned.planned import LanePacks


class Upcoming:
    """The samples that come after those that `cursor` has drawn and the lane keeps in `pending`; with `planned`, packs
    come from there. Without those that `extras` leave out."""

    def __init__(
        self,
        cursor: Cursor,
        pending: Pending[Any, Any],
        batching: Batching,
        planned: LanePacks | None,
        extras: LaneExtras | None,
    ) -> None:
        self._cursor, self._pending = cursor, pending
        self._size, self._buffer_size = batching.batch_size or 1, batching.packing_buffer_size
        self._planned, self._extras = planned, extras
        self._scout: Cursor | LanePacks | None = None
        self._found: collections.deque[tuple[int, SampleRef]] = collections.deque()
        """By the scout, and not taken yet; each with the draw or the pack that it comes with."""

    def take(self, num_batches: int, most: int) -> list[SampleRef]:
        """Up to `most` of the samples that the next `num_batches` batches load, in order, without those that it has
        returned before."""
        self._look(num_batches * self._size, most)
        return self._whole([self._found.popleft() for _ in range(min(most, len(self._found)))])

    def peek(self, most: int) -> list[SampleRef]:
        """Up to `most` of the next samples, in order."""
        self._look(len(self._pending.queue) + most, most)
        return self._whole(itertools.islice(self._found, most))

    def _whole(self, found: Iterable[tuple[int, SampleRef]]) -> list[SampleRef]:
        """Without parts of samples, which are left after a re-deal: a part is nobody's but its lane's."""
        whole = [ref for _, ref in found if ref.part == ALL_PARTS]
        return whole if self._extras is None else [*self._extras.filter(whole)]

    def _look(self, num_units: int, most: int) -> None:
        """Find the samples of the next units, until `most` are found."""
        now = self._cursor.draws if self._planned is None else self._planned.num_taken
        while self._found and self._found[0][0] < now:
            self._found.popleft()
        with contextlib.suppress(StopIteration):  # the data end
            if self._planned is None:
                self._draw(num_units, most - len(self._found))
            else:
                self._plan(self._planned, num_units, most)

    def _draw(self, num_units: int, most: int) -> None:
        scout, cursor = self._scout, self._cursor
        if not isinstance(scout, Cursor) or scout.draws < cursor.draws:
            scout = self._scout = cursor.copy()
        num_drawn = num_units - len(self._pending.queue)
        if self._buffer_size is not None:
            num_drawn = self._buffer_size if num_units > len(self._pending.packs) else 0
        num_drawn -= scout.draws - cursor.draws
        if num_drawn > 0 < most:
            self._found += scout.take(min(num_drawn, most))

    def _plan(self, planned: LanePacks, num_packs: int, most: int) -> None:
        scout = self._scout
        if not isinstance(scout, LanePacks) or scout.num_taken < planned.num_taken:
            scout = self._scout = copy.copy(planned)
        last = planned.num_taken + num_packs - len(self._pending.packs)
        while scout.num_taken < last and len(self._found) < most:
            number = scout.num_taken
            self._found += ((number, ref._replace(part=ALL_PARTS)) for ref in scout.next().members)
