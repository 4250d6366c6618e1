"""Reading ahead: what a lane will read of object stores is fetched while it works on what comes before.

Enters: a second cursor of the lane, which runs in front of the first. Leaves: ranges, announced to the storage.
Guarantee: a lot of samples has been announced when the lane's cursor comes to it, and nothing beyond the next one;
nothing is read that the lane will not want, and no sample depends on whether it was announced.

A lot is looked through at once, so that neighbours in a chunk come with one request. Its requests are announced evenly
while the lot before it is read: begun together, they would take link and processors from all else for a while, and
then leave them idle.
"""

import collections
import logging
import operator
from collections.abc import Iterable, Iterator, Sequence

from bridge_data import storage
from bridge_data.decode import Loader
from bridge_data.errors import DatasetError
from bridge_data.index import Place
from bridge_data.order import Cursor, SampleRef

logger = logging.getLogger("bridge_data")

LOT_BYTES = storage.MAX_AHEAD_BYTES * 3 // 4
"""Of all lanes of a process. About a lot is held or on its way at any time, and there are gaps in requests."""

LOT_SAMPLES = 1024
"""A lot ends with whichever comes first."""

BURST_BYTES = 2 << 20
"""So much of a lot is announced at once: it is soon there, and of small samples the time before would not be enough."""

REQUEST_BYTES = 1 << 19
"""A request by itself costs store, link and processor about as much as so many bytes."""

FIRST_LEAD = LOT_SAMPLES // 4
"""So many samples before it is wanted a request of the first lot is announced."""


class ReadAhead:
    """Announces what a lane will read. `scout` is a cursor of the same lane; `loaders` are those of the sources;
    `num_lanes` run in this process."""

    def __init__(self, scout: Cursor, loaders: Sequence[Loader], num_lanes: int = 1) -> None:
        self._scout, self._loaders, self._lot_bytes = scout, loaders, LOT_BYTES // num_lanes
        self._last_lot: int | None = None
        """The draw with which the last lot began; None before the first."""
        self._due: collections.deque[tuple[int, list[Place]]] = collections.deque()
        """Requests that are not announced yet, each with the draw from which on it is due."""

    def follow(self, cursor: Cursor, count: int = 1) -> None:
        """Announce what is due when the next `count` samples of `cursor`, the lane's own, are about to be taken."""
        if self._last_lot is None:
            self._scout.seek(cursor.state())
            self._last_lot = cursor.draws
        last_draw = cursor.draws + count - 1
        self._announce_due(last_draw)
        while last_draw >= self._last_lot:
            lot_before, self._last_lot = self._last_lot, self._scout.draws
            lot = self._lot(self._upcoming())
            if not lot:
                return
            due = [*self._due, *_due(lot, lot_before, self._last_lot)]
            self._due = collections.deque(sorted(due, key=operator.itemgetter(0)))
            self._announce_due(last_draw)

    def _announce_due(self, draw: int) -> None:
        while self._due and self._due[0][0] <= draw:
            storage.prefetch(self._due.popleft()[1])

    def announce(self, refs: Iterable[SampleRef]) -> bool:
        """Announce a lot at once: the first of `refs`; whether there were any."""
        lot = self._lot(refs)
        storage.prefetch([place for places in lot for place in places])
        return bool(lot)

    def _lot(self, refs: Iterable[SampleRef]) -> list[Sequence[Place]]:
        """Where the bytes of each of the first of `refs` lie, those that are a lot."""
        lot: list[Sequence[Place]] = []
        num_bytes = 0
        for ref in refs:
            places: Sequence[Place] = ()
            try:
                places = self._loaders[ref.source].places(ref.index)
            except DatasetError:
                logger.debug("%s cannot be announced", ref, exc_info=True)  # the read says what is wrong
            lot.append(places)
            num_bytes += sum(size for *_, size in places)
            if num_bytes >= self._lot_bytes or len(lot) == LOT_SAMPLES:
                break
        return lot

    def _upcoming(self) -> Iterable[SampleRef]:
        try:
            while True:
                yield self._scout.next()
        except StopIteration:
            return


def _due(lot: Sequence[Sequence[Place]], begin: int, end: int) -> Iterator[tuple[int, list[Place]]]:
    """The requests of the lot that begins with draw `end`, each with the draw from which on it is due.

    Some bytes are due at once, the others evenly from draw `begin` on, with which the lot before begins; of the first
    lot, before which there is none, each some time before it is wanted.
    """
    requests = storage.by_request([place for places in lot for place in places])
    wanted = {place: number for number, places in reversed([*enumerate(lot)]) for place in places}
    sizes = [sum(size for *_, size in request) for request in requests]
    num_bytes, cost, costs = 0, 0, sum(sizes) + len(sizes) * REQUEST_BYTES
    for request, size in zip(requests, sizes, strict=True):
        if num_bytes < BURST_BYTES:
            yield begin, request
        elif begin < end:
            yield begin + (end - begin) * cost // costs, request
        else:
            yield begin + min(wanted[place] for place in request) - FIRST_LEAD, request
        num_bytes += size
        cost += size + REQUEST_BYTES
