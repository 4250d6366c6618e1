"""The validation order: every sample of every source once, in the order of the plan.

Reads the number of samples of each source, of lanes, and of samples in a micro-batch. Returns a row, which a cursor
reads like those of training, and the cursor of a lane. The micro-batches of the job are the data from start to end.
"""

from collections.abc import Sequence

import numpy as np

from bridge_data.order.cursor import Cursor, SampleRef
from bridge_data.order.row import Ints


class OrderedRow:
    """The validation order: samples 0..`num_samples`-1 of all sources, front to back, as a row of one epoch.

    Every `batch_size` of them are a micro-batch. Micro-batches go to the lanes round-robin, so those of the job are the
    data set from start to end. The row starts with number `first_batch`: after a reshard, the first that no lane has
    touched; the lanes' inboxes have what is left before it.
    """

    def __init__(self, num_samples: int, num_lanes: int, batch_size: int, first_batch: int = 0) -> None:
        self.num_samples, self.num_lanes = num_samples, num_lanes
        self.batch_size, self.first_batch = batch_size, first_batch
        self.num_batches = -(-num_samples // batch_size)

    def window(self, lane: int, shuffle: int, number: int) -> "OrderedWindow | None":
        """The lane's only window; None if the lane has no samples."""
        size = self.num_samples_to(self.num_batches, lane)
        return OrderedWindow(self, lane, size) if size else None

    def after(self, lane: int, shuffle: int, number: int) -> None:
        """None: there is only one window."""
        return

    def starts_at(self, shuffle: int) -> tuple[int, int]:
        """The smallest (epoch, index) of the row."""
        return 0, self.first_batch * self.batch_size

    def seek(self, lane: int, shuffle: int, number: int, count: int, end: tuple[int, int]) -> tuple[int, int, int]:
        """(shuffle, window, offset) of the lane's sample number `count`; `ValueError` if there is none."""
        missing = count - self.num_samples_to(self.num_batches, lane)
        if missing >= 0:
            raise ValueError(f"the lane ends {missing} samples before it")
        return shuffle, number, count

    def num_samples_to(self, batch: int, lane: int) -> int:
        """The number of samples in the lane's micro-batches before number `batch`."""
        batches = -((self.first_batch_of(lane) - min(batch, self.num_batches)) // self.num_lanes)
        last = self.first_batch_of(lane) + (batches - 1) * self.num_lanes
        missing = self.num_batches * self.batch_size - self.num_samples if last == self.num_batches - 1 else 0
        return batches * self.batch_size - missing if batches > 0 else 0

    def untouched_batch(self, lane: int, taken: int) -> int:
        """The micro-batch after the last one that a lane has touched, given how many samples it has taken."""
        batches = -(-taken // self.batch_size)
        return self.first_batch_of(lane) + (batches - 1) * self.num_lanes + 1 if batches else self.first_batch

    def first_batch_of(self, lane: int) -> int:
        """The first micro-batch of a lane."""
        return self.first_batch + (lane - self.first_batch) % self.num_lanes


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
        batches, offsets = np.divmod(np.arange(start, min(stop, self._size), dtype=np.int64), row.batch_size)
        indices = (row.first_batch_of(self._lane) + batches * row.num_lanes) * row.batch_size + offsets
        return np.zeros_like(indices), indices


class OrderedCursor(Cursor):
    """The validation order of one lane: every sample of every source once, in the order of the plan.

    The sources, of `num_samples` samples each, are treated as one. `rows` are by generation, the current one last.
    """

    def __init__(self, num_samples: Sequence[int], rows: Sequence[OrderedRow], lane: int) -> None:
        super().__init__([[row] for row in rows], None, lane)
        self._num_samples = num_samples
        self._first = np.concatenate(([0], np.cumsum(num_samples)))

    @property
    def num_samples(self) -> Sequence[int]:
        return self._num_samples

    def _next_run(self, source: int) -> list[SampleRef]:
        run = super()._next_run(source)
        sources = np.searchsorted(self._first, [ref.index for ref in run], side="right") - 1
        firsts = self._first[sources].tolist()
        run[:] = [
            SampleRef(number, epoch, index - first, output)
            for number, first, (_, epoch, index, output) in zip(sources.tolist(), firsts, run, strict=True)
        ]
        return run
