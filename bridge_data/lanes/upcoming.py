"""What a lane loads next, for whoever makes samples before the lane needs them.

Reads what a lane, or its pack source, tells of what comes next. Returns references in the order in which the lane will
ask for them. Where hooks skip samples, or packs are chosen from a buffer, it is a guess: what is made by it may be
needed later, or by nobody.
"""

import itertools
from collections.abc import Callable, Sequence

from bridge_data.order import ALL_PARTS, SampleRef
from bridge_data.order.extras import LaneExtras


class Upcoming:
    """A view of the samples that a lane loads next: `look(num_units, most)` returns up to `most` of those of its next
    units, of which a batch has `batch_size`. Without those that `extras` leave out."""

    def __init__(
        self,
        look: Callable[[int, int], Sequence[SampleRef]],
        batch_size: int,
        extras: LaneExtras | None = None,
    ) -> None:
        self._look, self._size, self._extras = look, batch_size, extras
        self._taken: set[SampleRef] = set()
        """What `take` has returned and the lane has not come to."""

    def take(self, num_batches: int, most: int) -> list[SampleRef]:
        """Up to `most` of the samples that the next `num_batches` batches load, in order, without those that it has
        returned before."""
        found = self._look(num_batches * self._size, most + len(self._taken))
        self._taken.intersection_update(found)
        new = [*itertools.islice((ref for ref in self._whole(found) if ref not in self._taken), most)]
        self._taken.update(new)
        return new

    def peek(self, most: int) -> list[SampleRef]:
        """Up to `most` of the next samples, in order."""
        return [*self._whole(self._look(most, most))]

    def _whole(self, found: Sequence[SampleRef]) -> Sequence[SampleRef]:
        """Without parts of samples, which are left after a reshard: only its own lane makes a part."""
        whole = [ref for ref in found if ref.part == ALL_PARTS]
        return whole if self._extras is None else self._extras.filter(whole)
