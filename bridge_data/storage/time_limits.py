"""How long a request to a store may take before it is given up and made anew.

Enters: how long the last requests took that succeeded. Leaves: the time limits of the attempts at the next one: 4, 8,
16, 64 ... times their median, up to `full_limit_s`. Guarantee: a read ends in bounded time, whether the store is
silent or sends a byte now and then; an answer that never comes costs a few times what an answer takes; and two requests
for the same bytes are never open at the same time, so that a slow store gets no double load.

Limits are rounded, as a client of obstore has one limit for all its requests: few clients are needed.
"""

import collections
import math

LATE = 4.0
"""How many medians a request may take, before rounding (then 3.4 to 4.8). The second and the third attempt may take
twice as long as the one before, and from then on each so many times as long: of a thousand reads, where one request of
ten gets no answer, ten wait for a third attempt, and one for a fourth."""

UNKNOWN_S = 0.5
"""How long the first attempt may take while no median is known, as at the start of each worker."""

UNKNOWN_BYTES_PER_S = 1_000_000
"""The rate at which the content of a larger one must come then."""

SHORTEST_S = 1 / 32
"""No limit is shorter: below, it would be the machine that is late."""

FULL_S = 8.0
"""Within how many seconds a request for up to 4 MB must be answered."""

LONGEST_S = 32.0

SLOWEST_BYTES_PER_S = 500_000
"""The rate at which the content of a larger one must come."""

FEWEST = 4
"""Successes of about one size from which a median is known; it is taken anew after so many more. Until then the limits
are those of the other sizes."""

_REMEMBERED = 64


class TimeLimits:
    """The time limits of one store, by the size of what is asked for. It may be used by several threads."""

    def __init__(self) -> None:
        self._sizes: dict[int, _OfSize] = {}

    def of(self, num_bytes: int) -> tuple[float, ...]:
        """The limits of one attempt after the other, in seconds."""
        own = self._of_size(num_bytes)
        first_s = own.first_s
        if first_s is None:
            known = [other.first_s for other in list(self._sizes.values()) if other.first_s is not None]
            first_s = max(known, default=own.unknown_s)
        return _rising(first_s, own.full_s)

    def note(self, num_bytes: int, took_s: float) -> None:
        """Note how long a request took that succeeded."""
        self._of_size(num_bytes).note(took_s)

    def _of_size(self, num_bytes: int) -> "_OfSize":
        size = max(num_bytes, 1 << 14).bit_length() + 1 >> 1  # to a factor of four; below 16 KiB all are alike
        found = self._sizes.get(size)
        if found is None:
            found = self._sizes.setdefault(size, _OfSize(1 << 2 * size))
        return found


class _OfSize:
    def __init__(self, num_bytes: int) -> None:
        self.full_s = full_limit_s(num_bytes)
        self.unknown_s = min(self.full_s / LATE, max(UNKNOWN_S, _rounded(num_bytes / UNKNOWN_BYTES_PER_S)))
        """The limit of the first attempt if no size has a median."""
        self.first_s: float | None = None
        """The limit of the first attempt; None if too few have succeeded."""
        self._took_s: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)
        self._num_noted = 0

    def note(self, took_s: float) -> None:
        self._took_s.append(took_s)
        self._num_noted += 1
        if self._num_noted % FEWEST == 0:
            median = sorted(self._took_s)[len(self._took_s) // 2]
            self.first_s = max(SHORTEST_S, _rounded(LATE * median))


def full_limit_s(num_bytes: int) -> float:
    """Within how many seconds a request for so many bytes must be answered, however slow the others are."""
    return min(LONGEST_S, max(FULL_S, _rounded(num_bytes / SLOWEST_BYTES_PER_S)))


def _rising(first_s: float, last_s: float) -> tuple[float, ...]:
    limits: list[float] = []
    while first_s < last_s / 2:  # so all of them together take less than twice as long as the last
        limits.append(first_s)
        first_s *= 2 if len(limits) < 3 else LATE
    return (*limits, last_s)


def _rounded(seconds: float) -> float:
    """To the nearest power of the square root of two."""
    return float(2.0 ** (round(2 * math.log2(max(seconds, 1e-6))) / 2))
