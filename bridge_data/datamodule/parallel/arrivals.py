"""What a thread has brought, until the consumer takes it.

Enters: batches, ends of passes and errors from a thread, each with the position after it. Leaves: the same, in their
order. Guarantee: after a restore nothing comes that was read before it.
"""

import collections
import threading
from typing import Any, NamedTuple

BATCH, END, ERROR, CLOSED = range(4)


class Arrival(NamedTuple):
    """A batch, the end of a pass, an error or the end of all; and the state after it (of an error: None)."""

    kind: int
    content: Any
    state: dict[str, Any] | None


class Arrivals:
    """What has come and is not handed out yet. A restore begins a new generation; what is of an older one is dropped,
    also what comes later.

    `size` bounds how far the thread reads ahead; None for a thread that must never wait for its consumer.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._ready: collections.deque[tuple[int, Arrival]] = collections.deque()
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self.generation = 0
        self.start: dict[str, Any] | None = None
        self.closed = False

    def begin(self, start: dict[str, Any]) -> None:
        """From now on only what was read from `start` on counts."""
        with self._changed:
            self.generation += 1
            self.start = start
            while self._ready and self._ready[0][0] < self.generation:
                self._ready.popleft()
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is wanted any more."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Nothing will come any more."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def put(self, generation: int, item: Arrival) -> None:
        """Add an item, once there is room for it; or not at all, if nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self.closed or generation < self.generation or self._size is None or len(self._ready) < self._size
                )
            )
            if not self.closed and generation >= self.generation:
                self._ready.append((generation, item))
                self._changed.notify_all()

    def get(self) -> Arrival:
        """The next item of this generation; an error again and again."""
        with self._changed:
            self._changed.wait_for(lambda: self._next_is_of_now() or self._failure is not None)
            if not self._next_is_of_now():
                assert self._failure is not None
                raise self._failure
            item = self._ready[0][1]
            if item.kind != ERROR:
                self._ready.popleft()
                self._changed.notify_all()
            return item

    def wait_for_restore(self, generation: int) -> None:
        """Until there is a newer generation, or no need of one."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self.generation > generation)

    def _next_is_of_now(self) -> bool:
        return bool(self._ready) and self._ready[0][0] == self.generation
