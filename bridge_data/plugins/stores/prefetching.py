"""Prefetching ranges of objects before they are read.

Reads ranges that will be read, in about their order. Returns the bytes of a read that was announced, once they have
arrived. At most `max_bytes` are held or in flight at any time; bytes are freed when they have been read; a range that
could not be fetched is read normally, and that read reports the error.

Ranges close to each other are fetched by one request. Requests beyond `max_bytes` wait, in order, until reads have
freed memory. A read whose range is still waiting shows that the ranges held were not read in the announced order: the
oldest of them are evicted.

How many requests are open at a time follows from what is measured (see `OpenRequests`): few suffice for a near store,
and a distant one needs as many as are asked for within the time of an answer. Nothing is to be set.
"""

import bisect
import collections
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from bridge_data.plugins.stores.store_requests import MAX_OPEN, Content, RequestError
from bridge_data.storage.store import MAX_AHEAD_BYTES, REQUEST_BYTES, ObjectRange

logger = logging.getLogger("bridge_data")

MAX_REQUEST_BYTES = 1 << 20
"""Ranges are joined up to this."""

MAX_RANGE_BYTES = 16 << 20
"""Longer ranges are not fetched ahead."""

MAX_GAP_BYTES = 1 << 17
"""Fetching up to this many unwanted bytes is cheaper than another request."""

MAX_WAITING = 1 << 14
"""Maximum requests waiting for memory; beyond it the oldest are dropped, as they seem unused."""

MAX_OVERLAPS = 32
"""Maximum overlapping requests that a look-up checks; a range behind more of them is not found."""

FIRST_OPEN = 16
"""Requests that may be open at a time, at first."""

GAIN = 1.4
"""Twice as many open requests are kept if they bring this many times the bytes a second: in a distant store it is twice
as many, through a link that is full as many as before."""

MIN_REST, MAX_REST = 8, 128
"""Rounds before more requests are tried again, if the store failed, or if they did not help: then twice as many each
time."""

Ranges: TypeAlias = Sequence[tuple[int, int]]
"""Offset and number of bytes of each."""

Fetch = Callable[[str, int, int], Content]
"""(URL, offset, number of bytes) to the bytes."""


class _Fetch:
    """Bytes `start` to `end` of the object at `url`: a request for `ranges`, or, with `content`, one of these."""

    __slots__ = ("content", "end", "is_started", "num_wanted", "ranges", "start", "url")

    def __init__(self, url: str, start: int, end: int, ranges: Ranges, content: bytes | None = None) -> None:
        self.url, self.start, self.end, self.ranges, self.content = url, start, end, ranges, content
        self.num_wanted = end - start
        """Bytes of the content that have not been read."""
        self.is_started = content is not None

    @property
    def num_bytes(self) -> int:
        return self.end - self.start


class OpenRequests:
    """How many requests may be open at a time: `limit`. Not thread-safe.

    It is doubled after a round in which a reader waited although so many were open all the time, and halved again if
    that does not help; it is halved if the store fails, as by "slow down", once for all requests that are open then,
    but not below what it was at first. A round measures twice as many answers as may be open, after as many of requests
    that were open before.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit, self._fewest, self.clock = limit, limit, clock
        self.has_waited = False
        """Set when a reader waits for an answer."""
        self._num_answers, self._num_bytes, self._begin = 0, 0, 0.0
        self._s_per_byte_before: float | None = None
        """Of half the limit, while it is tried out."""
        self._rest, self._next_rest, self._halved_s = 0, MIN_REST, float("-inf")

    def note_answer(self, num_bytes: int, num_unanswered: int) -> None:
        """Record an answer; `num_unanswered` other requests are open, or wait to be."""
        self._num_answers += 1
        if num_unanswered < self.limit:
            self._num_answers, self.has_waited = 0, False
        elif self._num_answers <= self.limit:
            self._begin, self._num_bytes = self.clock(), 0
        else:
            self._num_bytes += num_bytes + REQUEST_BYTES
            if self._num_answers == 3 * self.limit:
                self._end_round((self.clock() - self._begin) / self._num_bytes)

    def _end_round(self, s_per_byte: float) -> None:
        has_waited, self.has_waited, self._num_answers = self.has_waited, False, 0
        if self._s_per_byte_before is not None:
            if self._s_per_byte_before < GAIN * s_per_byte:
                self._halve()
                return
            self._s_per_byte_before, self._next_rest = None, MIN_REST
        if self._rest:
            self._rest -= 1
        elif has_waited and self.limit < MAX_OPEN:
            self.limit, self._s_per_byte_before = min(MAX_OPEN, 2 * self.limit), s_per_byte

    def note_failure(self, begin_s: float) -> None:
        """Record that the store failed to answer a request of this time, of `clock`."""
        if begin_s >= self._halved_s:
            self._halve()

    def note_most(self, num_open: int) -> None:
        """Record that this machine has no more threads."""
        self.limit = self._fewest = num_open

    def _halve(self) -> None:
        self.limit, self._halved_s = max(self._fewest, self.limit // 2), self.clock()
        self._rest = MIN_REST
        if self._s_per_byte_before is not None:
            self._rest, self._next_rest = self._next_rest, min(MAX_REST, 2 * self._next_rest)
        self._num_answers, self._s_per_byte_before = 0, None


class Prefetcher:
    """Fetches ranges by `fetch` in its own threads, one for each open request; `num_open` requests at a time, until it
    is known how many it takes."""

    def __init__(
        self,
        fetch: Fetch,
        *,
        max_bytes: int = MAX_AHEAD_BYTES,
        num_open: int = FIRST_OPEN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch, self._max_bytes = fetch, max_bytes
        self.open, self._num_threads, self._num_unanswered = OpenRequests(num_open, clock), 0, 0
        self._changed = threading.Condition()
        self._ready: queue.SimpleQueue[_Fetch] = queue.SimpleQueue()
        self._waiting: dict[_Fetch, None] = {}
        self._started: dict[_Fetch, None] = {}
        self._blocks: dict[str, list[_Fetch]] = collections.defaultdict(list)
        self._again: collections.Counter[ObjectRange] = collections.Counter()
        self.num_held_bytes = 0

    def by_request(self, ranges: Sequence[ObjectRange]) -> list[list[ObjectRange]]:
        """The ranges of each request that would fetch them, in order of first use."""
        return [[(request.url, *one) for one in request.ranges] for request in joined(ranges)]

    def prefetch(self, ranges: Sequence[ObjectRange]) -> None:
        """Fetch these ranges. A range already announced and not yet read is fetched again after it has been read."""
        longest = min(MAX_RANGE_BYTES, self._max_bytes)
        with self._changed:
            new = []
            for one in ranges:
                if 0 < one[2] <= longest:
                    known = self._find(*one)
                    if known is None:
                        new.append(one)
                    elif known.content is None and one[1:] not in known.ranges:
                        known.ranges = [*known.ranges, one[1:]]  # it is part of that request anyway
                    else:
                        self._again[one] += 1
            self._enqueue(joined(new))
            while len(self._waiting) > MAX_WAITING:
                self._drop(next(iter(self._waiting)))
            if len(self._again) > MAX_WAITING:
                self._again.clear()

    def release(self, ranges: Sequence[ObjectRange]) -> None:
        """Forget these announced ranges: they will not be read."""
        with self._changed:
            for url, start, num_bytes in ranges:
                if (block := self._find(url, start, num_bytes)) is None:
                    continue
                if block.content is not None:
                    self._note_read(block, num_bytes)
                elif self._again[url, start, num_bytes]:
                    self._again[url, start, num_bytes] -= 1
                else:
                    block.ranges = [one for one in block.ranges if one != (start, num_bytes)]
                    if not block.ranges and not block.is_started:
                        self._drop(block)
            self._start_waiting()

    def _enqueue(self, requests: Sequence[_Fetch]) -> None:
        for request in requests:
            self._waiting[request] = None
            bisect.insort(self._blocks[request.url], request, key=_start)
        self._start_waiting()

    def take(self, url: str, start: int, num_bytes: int) -> bytes | None:
        """These bytes, after waiting if they are in flight; None if they were not announced or could not be fetched."""
        with self._changed:
            while True:
                block = self._find(url, start, num_bytes)
                if block is None:
                    return None
                if block.content is not None:
                    break
                if not block.is_started:
                    self._evict_for(block)
                else:
                    self.open.has_waited = True
                    self._changed.wait()
            content = block.content
            self._note_read(block, num_bytes)
        if num_bytes == len(content):
            return content
        return content[start - block.start : start - block.start + num_bytes]

    def _note_read(self, block: _Fetch, num_bytes: int) -> None:
        """Free a held block once all of it has been read, and fetch it again if it was announced again."""
        block.num_wanted -= num_bytes
        if block.num_wanted <= 0:
            self._drop(block)
            self._enqueue(self._wanted_again(block))

    def _wanted_again(self, read: _Fetch) -> list[_Fetch]:
        again = read.url, read.start, read.num_bytes
        if not self._again[again]:
            del self._again[again]
            return []
        self._again[again] -= 1
        return joined([again])

    def _find(self, url: str, start: int, num_bytes: int) -> _Fetch | None:
        blocks = self._blocks.get(url, ())
        last = bisect.bisect_right(blocks, start, key=_start)
        for block in reversed(blocks[max(0, last - MAX_OVERLAPS) : last]):
            if start + num_bytes <= block.end:
                return block
        return None

    def _start_waiting(self) -> None:
        while self._waiting:
            block = next(iter(self._waiting))
            if self.num_held_bytes + block.num_bytes > self._max_bytes:
                return
            self._start(block)

    def _evict_for(self, block: _Fetch) -> None:
        """Start a waiting request, after evicting the oldest ranges that were not read, unless it is dropped
        meanwhile."""
        while block in self._waiting:
            if self.num_held_bytes + block.num_bytes <= self._max_bytes:
                self._start(block)
                return
            oldest = next((other for other in self._started if other.content is not None), None)
            if oldest is None:
                self._changed.wait()
            else:
                self._drop(oldest)

    def _start(self, block: _Fetch) -> None:
        del self._waiting[block]
        self._started[block] = None
        block.is_started = True
        self.num_held_bytes += block.num_bytes
        self._num_unanswered += 1
        self._ready.put(block)
        self._start_threads()

    def _start_threads(self) -> None:
        while self._num_threads < min(self.open.limit, self._num_unanswered):
            try:
                threading.Thread(target=self._run, name="bridge_data prefetch", daemon=True).start()
            except RuntimeError:  # the machine allows no more threads
                if not self._num_threads:
                    raise
                self.open.note_most(self._num_threads)
                return
            self._num_threads += 1

    def _drop(self, block: _Fetch) -> None:
        """Forget a block, if it is known."""
        if block not in (self._started if block.is_started else self._waiting):
            return
        if block.is_started:
            del self._started[block]
            self.num_held_bytes -= block.num_bytes
        else:
            del self._waiting[block]
        blocks = self._blocks[block.url]
        del blocks[blocks.index(block, bisect.bisect_left(blocks, block.start, key=_start))]
        if not blocks:
            del self._blocks[block.url]

    def _run(self) -> None:
        while True:
            block = self._ready.get()
            begin_s = self.open.clock()
            content: Content | None = None
            is_overloaded = False
            try:
                content = self._fetch(block.url, block.start, block.num_bytes)
            except BaseException as error:  # also panics of a library: the reader must not wait forever
                logger.debug("%s: could not be fetched ahead", block.url, exc_info=True)  # the read reports the error
                is_overloaded = isinstance(error, RequestError) and error.is_transient
            with self._changed:
                self._num_unanswered -= 1
                try:
                    if is_overloaded:
                        self.open.note_failure(begin_s)
                    elif content is not None:
                        self.open.note_answer(block.num_bytes, self._num_unanswered)
                    is_wanted = block in self._started
                    self._drop(block)
                    if is_wanted and content is not None and len(content) == block.num_bytes:
                        self._keep(block, content)
                    self._start_waiting()
                    self._start_threads()
                    if self._num_threads > self.open.limit:
                        self._num_threads -= 1
                        return
                finally:
                    self._changed.notify_all()

    def _keep(self, request: _Fetch, content: Content) -> None:
        """Hold each range of a request separately, so that it is freed when it is read."""
        for start, num_bytes in request.ranges:
            at = start - request.start
            part = _Fetch(request.url, start, start + num_bytes, (), bytes(content[at : at + num_bytes]))
            self._started[part] = None
            self.num_held_bytes += num_bytes
            bisect.insort(self._blocks[part.url], part, key=_start)


def joined(wanted: Sequence[ObjectRange]) -> list[_Fetch]:
    """The requests for these ranges, in the order in which they are wanted first."""
    requests: list[tuple[int, _Fetch]] = []
    for order, (url, start, num_bytes) in sorted(enumerate(wanted), key=lambda item: item[1]):
        end = start + num_bytes
        if requests:
            first, last = requests[-1]
            is_near = last.url == url and start <= last.end + MAX_GAP_BYTES
            if is_near and max(end, last.end) <= last.start + MAX_REQUEST_BYTES:
                ranges = [*last.ranges, (start, num_bytes)]
                requests[-1] = min(first, order), _Fetch(url, last.start, max(end, last.end), ranges)
                continue
        requests.append((order, _Fetch(url, start, end, [(start, num_bytes)])))
    return [request for _, request in sorted(requests, key=lambda item: item[0])]


def _start(block: _Fetch) -> int:
    return block.start
