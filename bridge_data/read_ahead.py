"""Reading ahead: what a lane will read of object stores is fetched while it works on what comes before.

Enters: a second cursor of the lane, which runs in front of the first. Leaves: ranges, announced to the storage in lots,
so that neighbours in a chunk come with one request. Guarantee: between one lot and two are announced beyond the lane's
cursor; nothing is read that the lane will not want, and no sample depends on whether it was announced.
"""

import logging
from collections.abc import Iterable, Sequence

from bridge_data import storage
from bridge_data.decode import Loader
from bridge_data.errors import DatasetError
from bridge_data.index import Place
from bridge_data.order import Cursor, SampleRef

logger = logging.getLogger("bridge_data")

LOT_BYTES = 128 << 20
LOT_SAMPLES = 1024
"""A lot ends with whichever comes first."""


class ReadAhead:
    """Announces what a lane will read. `scout` is a cursor of the same lane; `loaders` are those of the sources."""

    def __init__(self, scout: Cursor, loaders: Sequence[Loader]) -> None:
        self._scout, self._loaders = scout, loaders
        self._last_lot: int | None = None
        """The draw with which the last lot began; None before the first."""

    def follow(self, cursor: Cursor) -> None:
        """See that a whole lot is announced beyond `cursor`, the lane's own."""
        if self._last_lot is None:
            self._scout.seek(cursor.state())
            self._last_lot = cursor.draws
        while cursor.draws >= self._last_lot:
            self._last_lot = self._scout.draws
            if not self.announce(self._upcoming()):
                return

    def announce(self, refs: Iterable[SampleRef]) -> bool:
        """Announce a lot: the first of `refs`; whether there were any."""
        places: list[Place] = []
        num_bytes = num_samples = 0
        for ref in refs:
            num_samples += 1
            try:
                for place in self._loaders[ref.source].places(ref.index):
                    places.append(place)
                    num_bytes += place[2]
            except DatasetError:
                logger.debug("%s cannot be announced", ref, exc_info=True)  # the read says what is wrong
            if num_bytes >= LOT_BYTES or num_samples == LOT_SAMPLES:
                break
        storage.prefetch(places)
        return num_samples > 0

    def _upcoming(self) -> Iterable[SampleRef]:
        try:
            while True:
                yield self._scout.next()
        except StopIteration:
            return
