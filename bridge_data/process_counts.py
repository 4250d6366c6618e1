"""What this process has read and decoded, counted where it happens.

Enters: bytes, repeated attempts and images, from any thread. Leaves: the numbers; a lane takes them with each batch, so
that they travel with it from a worker to the trainer. Guarantee: what is counted is taken once.

Count by `+=`, with a number that is computed before: CPython switches threads at calls and loops only, so no count is
lost, and it takes 30 ns.
"""


class ProcessCounts:
    """Bytes of samples that were read by their offsets, or as auxiliary files; attempts that were made again after a
    transient fault; images that were decoded."""

    __slots__ = ("num_bytes", "num_images", "num_retries")

    def __init__(self) -> None:
        self.num_bytes = self.num_images = self.num_retries = 0


COUNTS = ProcessCounts()
"""Those of this process that no lane has taken yet."""
