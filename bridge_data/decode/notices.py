"""What a user should know of an image that was decoded, though it is no failure: each kind is told once by a process.

Enters: a kind, and a text, from the code that decodes. Leaves: a line in the log, as soon as whoever decodes knows the
sample. `COUNTS` has how many images of each kind there were.
"""

import logging
from collections.abc import Callable

logger = logging.getLogger("bridge_data")

PENDING: list[str] = []
"""Texts that were not told yet."""

_told: set[str] = set()


def note(kind: str, text: Callable[[], str]) -> None:
    """Have `text()` told with the next sample, if no other text of this kind was."""
    if kind not in _told:
        _told.add(kind)
        PENDING.append(text())


def tell(key: str) -> None:
    """Log what is pending: it is of sample `key`."""
    while PENDING:
        logger.warning("sample %s: %s", key, PENDING.pop())
