"""Reading ahead: what a lane will read is announced to the storage.

`ReadAhead` announces it from a second cursor (the scout) that runs ahead of the lane's own. Only reads that the lane
will need are announced, at most its share of `AHEAD_BYTES` at a time.

The scout examines several samples at a time, so that neighbours come with one request; a block is requested with
the first of its samples. Requests wait until they fit the budget, and are announced evenly: a window starts with many
blocks and ends with none, so the scout runs far enough ahead that the blocks of the next window are fetched during this
one. Fetched all at once, they would saturate network and cores for a while, and then leave them idle.
"""

import collections
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from bridge_data import storage
from bridge_data.data import ByteRange
from bridge_data.decode import SourceReader
from bridge_data.errors import DatasetError
from bridge_data.order import Cursor, SampleRef

logger = logging.getLogger("bridge_data")

AHEAD_BYTES = storage.MAX_AHEAD_BYTES * 3 // 4
"""Maximum bytes announced and not yet read, of all lanes of a process, including gaps in requests."""

LOT_SAMPLES = 1024
"""Samples examined at a time; fewer if they fill the budget of bytes."""

MAX_SAMPLES_AHEAD = 1 << 14
"""Maximum number of draws that the scout is ahead."""

BURST_BYTES = 2 << 20
"""Bytes announced at once: they arrive soon."""

LEAD = LOT_SAMPLES // 4
"""Data needed within this many samples are announced at once, whatever their size; at the start, within as many as the
lane has taken: the first batches of all lanes come before the later ones of any."""

PACE = 1.25
"""Otherwise this many times the mean sample size is announced with each sample."""

MAX_SEEN = 1 << 17
"""Number of recent samples in the mean sample size, approximately."""

MAX_OPEN_BLOCKS = 1 << 18
"""Maximum number of blocks remembered as partly met; this drops those of windows that a lane started in the middle."""


class ReadAhead:
    """Announces what a lane will read. `readers` are those of the sources; `num_lanes` run in this process; samples for
    which any of `unread` is true are not read, as far as is known."""

    def __init__(
        self, readers: Sequence[SourceReader], num_lanes: int = 1, unread: Sequence[Callable[[SampleRef], bool]] = ()
    ) -> None:
        self._readers, self._max_bytes, self._unread = readers, AHEAD_BYTES // num_lanes, unread
        self._scout: Cursor
        self._is_ended = False
        self._begin: int | None = None
        """The draw at which this began."""
        self._lead = 0
        self._next_look = 0
        """The draw at which the scout may examine another lot, although there is time."""
        self._waiting: collections.deque[_Request] = collections.deque()
        self._announced: collections.deque[_Request] = collections.deque()
        """Requests that the lane has not reached, by the draw that reaches them."""
        self._known_bytes = self._announced_bytes = 0
        self._credit = float(BURST_BYTES)
        self._cost, self._num_seen = 0, 0
        """Total cost of the requests, and number of samples they are for."""
        self._open: collections.OrderedDict[tuple[int, int, int], tuple[int, bool | None]] = collections.OrderedDict()
        """Blocks met, by source, epoch and first sample: how many of their samples are still to come, and whether
        these come with the block (None: none of them is read so far)."""

    def follow(self, cursor: Cursor, count: int = 1) -> None:
        """Announce what is due when the next `count` samples of `cursor`, the lane's own, are about to be taken."""
        if self._begin is None:
            self._scout = cursor.copy()
            self._begin = self._next_look = cursor.num_drawn
        last_draw = cursor.num_drawn + count - 1
        self._lead = min(LEAD, last_draw + 1 - self._begin)
        while self._announced and self._announced[0].draw < cursor.num_drawn:
            num_bytes = self._announced.popleft().num_bytes
            self._announced_bytes -= num_bytes
            self._known_bytes -= num_bytes
        while self._wants_to_look(last_draw):
            self._look(cursor.num_drawn)
        if self._num_seen:
            self._credit = min(float(BURST_BYTES), self._credit + PACE * count * self._cost / self._num_seen)
        while self._waiting and self._is_due(self._waiting[0], last_draw):
            request = self._waiting.popleft()
            self._credit -= request.num_bytes + storage.REQUEST_BYTES
            self._announced.append(request)
            self._announced_bytes += request.num_bytes
            storage.prefetch(request.ranges)

    def _wants_to_look(self, last_draw: int) -> bool:
        num_ahead = self._scout.num_drawn - last_draw - 1
        if self._is_ended or num_ahead < 0:
            return not self._is_ended
        if self._known_bytes >= self._max_bytes:
            return False
        return num_ahead < self._lead or (last_draw >= self._next_look and num_ahead < MAX_SAMPLES_AHEAD)

    def _look(self, draw: int) -> None:
        """Find the requests of the next lot; the lane is about to take `draw`."""
        begin = self._scout.num_drawn
        lot = self._lot(self._upcoming(), LOT_SAMPLES if self._lead == LEAD else 2 * self._lead)
        self._is_ended = not lot
        self._next_look = max(draw, self._next_look) + max(1, len(lot) // 4)  # gets ahead soon, but gradually
        wanted = {one: begin + number for number, ranges in reversed([*enumerate(lot)]) for one in ranges}
        for group in storage.by_request([one for ranges in lot for one in ranges]):
            request = _Request(min(map(wanted.__getitem__, group)), group, sum(size for *_, size in group))
            self._waiting.append(request)
            self._known_bytes += request.num_bytes
            self._cost += request.num_bytes + storage.REQUEST_BYTES
        self._num_seen += len(lot)
        if self._num_seen > MAX_SEEN:
            self._num_seen, self._cost = self._num_seen // 2, self._cost // 2

    def _is_due(self, request: "_Request", last_draw: int) -> bool:
        if request.draw <= last_draw:
            return True
        if self._announced_bytes + request.num_bytes > self._max_bytes:
            return False
        return self._credit > 0 or request.draw <= last_draw + self._lead

    def announce(self, refs: Iterable[SampleRef]) -> bool:
        """Announce a lot at once, the first of `refs`; return whether there were any."""
        lot = self._lot(refs)
        storage.prefetch([one for ranges in lot for one in ranges])
        return bool(lot)

    def _lot(self, refs: Iterable[SampleRef], most: int = LOT_SAMPLES) -> list[Sequence[ByteRange]]:
        """The byte ranges of each of the next samples, at most `most`; fewer if they fill the budget."""
        lot: list[Sequence[ByteRange]] = []
        num_bytes = 0
        for ref in refs:
            ranges: Sequence[ByteRange] = ()
            try:
                ranges = self._byte_ranges(ref)
            except DatasetError:
                logger.debug("%s cannot be announced", ref, exc_info=True)  # the read says what is wrong
            lot.append(ranges)
            num_bytes += sum(size for *_, size in ranges)
            if num_bytes >= self._max_bytes or len(lot) == most:
                break
        return lot

    def _byte_ranges(self, ref: SampleRef) -> Sequence[ByteRange]:
        """The reads of this sample, except what comes with a sample met before."""
        reader = self._readers[ref.source]
        block = reader.block(ref.index)
        if block is None:
            return () if any(is_unread(ref) for is_unread in self._unread) else reader.byte_ranges(ref.index)
        name = ref.source, ref.epoch, block.start
        num_left, comes_whole = self._open.pop(name, (len(block), None))
        is_read, whole = not any(is_unread(ref) for is_unread in self._unread), None
        if is_read and comes_whole is None:
            whole = reader.block_bytes(block)
            comes_whole = whole is not None
        if num_left > 1:
            self._open[name] = num_left - 1, comes_whole
            if len(self._open) > MAX_OPEN_BLOCKS:
                self._open.popitem(last=False)
        if is_read and not comes_whole:
            return reader.byte_ranges(ref.index)
        return () if whole is None else (whole,)

    def _upcoming(self) -> Iterable[SampleRef]:
        try:
            while True:
                yield self._scout.next()
        except StopIteration:
            return


class _Request(NamedTuple):
    """What comes with one request; the lane reaches it with `draw`."""

    draw: int
    ranges: list[ByteRange]
    num_bytes: int
