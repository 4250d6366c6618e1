"""What was used last, up to a number of bytes: tables and open files that are slow to make again.

A value that was not used for the longest time goes first, so that whoever uses a few values again and again between
many others keeps them. The last one stays, however large it is. Any thread may call; two that miss the same value may
both make it.
"""

import collections
import threading
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentlyUsed(Generic[K, V]):
    """Values by key, of at most `max_bytes` together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._values: collections.OrderedDict[K, tuple[V, int]] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value, which is now the one used last; None if it is not there."""
        with self._lock:
            if (found := self._values.get(key)) is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, num_bytes: int) -> None:
        """Keep a value of this size; drop those that were not used for the longest time, while there are too many
        bytes."""
        self.drop(key)
        with self._lock:
            self._values[key] = value, num_bytes
            self._num_bytes += num_bytes
            while self._num_bytes > self._max_bytes and len(self._values) > 1:
                _, (_, freed) = self._values.popitem(last=False)
                self._num_bytes -= freed

    def drop(self, key: K) -> None:
        """Forget a value, if it is there."""
        with self._lock:
            if (found := self._values.pop(key, None)) is not None:
                self._num_bytes -= found[1]
