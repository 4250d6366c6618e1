"""Counters of what this process has read and decoded.

Any thread adds bytes, retries and images where they happen. A lane takes the numbers with each batch, and sends them
from a worker to the trainer with it; each is taken once.

Add with `+=` a number that was computed before: CPython switches threads only at calls and loops, so no count is lost,
and it takes 30 ns.
"""

import collections
from collections.abc import Mapping, Sequence


class ProcessCounts:
    """Bytes of samples read by their offsets, or as auxiliary files; retries after a transient fault; images decoded,
    those of them that are damaged, and those of which only the first frame was taken; nanoseconds that reads of objects
    took; and `others`, which plug-ins count by names of their own.
    """

    __slots__ = (
        *("num_bytes", "num_damaged_images", "num_first_frames", "num_images", "num_retries", "others", "store_ns"),
    )

    def __init__(self) -> None:
        self.num_bytes = self.num_images = self.num_retries = self.store_ns = 0
        self.num_damaged_images = self.num_first_frames = 0
        self.others: collections.Counter[str] = collections.Counter()

    def saved(self) -> tuple[int, int, int, int, int, int]:
        """Bytes, images, retries, damaged images, first frames and nanoseconds, for `restore`."""
        images = self.num_damaged_images, self.num_first_frames
        return self.num_bytes, self.num_images, self.num_retries, *images, self.store_ns

    def restore(self, saved: tuple[int, int, int, int, int, int]) -> None:
        """Forget what was counted since."""
        self.num_bytes, self.num_images, self.num_retries = saved[:3]
        self.num_damaged_images, self.num_first_frames, self.store_ns = saved[3:]

    def add(self, counts: Sequence[int]) -> None:
        """Count what another process has read and decoded: as of `saved`, without the time."""
        num_bytes, num_images, num_retries, num_damaged_images, num_first_frames = counts
        self.num_bytes += num_bytes
        self.num_images += num_images
        self.num_retries += num_retries
        self.num_damaged_images += num_damaged_images
        self.num_first_frames += num_first_frames

    def take_image_notes(self) -> tuple[int, int]:
        """Damaged images and first frames that were not taken yet."""
        taken = damaged, first = self.num_damaged_images, self.num_first_frames
        self.num_damaged_images -= damaged
        self.num_first_frames -= first
        return taken

    def take_others(self) -> Mapping[str, int]:
        """Counts of plug-ins that were not taken yet."""
        taken, self.others = self.others, collections.Counter()
        return taken


COUNTS = ProcessCounts()
"""Counts of this process that no lane has taken yet."""
