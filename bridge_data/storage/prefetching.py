"""Bytes of objects fetched ahead of being read.

Enters: ranges that will be read, in about their order, and later the reads. Leaves: the bytes of a read that was
announced, once they are there. Guarantee: no more than `max_bytes` are held or on their way at any time; bytes go when
they have been read; what could not be fetched is left to the read, which reports what is wrong.

Ranges that lie close together are fetched by one request. Those for which there is no room wait, in order, until reads
have made some. A read that finds its range still waiting shows that what is held was not read in its turn: the oldest
of it is thrown out.
"""

import bisect
import collections
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from bridge_data.storage.store import Content

logger = logging.getLogger("bridge_data")

MAX_BYTES = 64 << 20
"""Bytes that a process holds or has on their way."""

MAX_REQUEST_BYTES = 4 << 20
"""Ranges are joined up to this. A range four times as long is not fetched ahead."""

MAX_GAP_BYTES = 1 << 17
"""So many unwanted bytes are cheaper than a request."""

MAX_WAITING = 1 << 14
"""Requests for which there is no room yet; beyond them the oldest are forgotten, as nobody seems to read them."""

NUM_THREADS = 16

Fetch = Callable[[str, int, int], Content]
"""The bytes of a URL from an offset on, so many."""


class _Block:
    """Bytes `start` to `end` of the object at `url`, of which `num_wanted` have not been read yet."""

    __slots__ = ("content", "end", "is_done", "is_started", "num_wanted", "start", "url")

    def __init__(self, url: str, start: int, end: int, num_wanted: int) -> None:
        self.url, self.start, self.end, self.num_wanted = url, start, end, num_wanted
        self.content: Content | None = None
        self.is_started = self.is_done = False

    @property
    def num_bytes(self) -> int:
        return self.end - self.start


class Prefetcher:
    """Fetches ranges by `fetch` in threads of its own, which start with the first one."""

    def __init__(self, fetch: Fetch, *, max_bytes: int = MAX_BYTES, num_threads: int = NUM_THREADS) -> None:
        self._fetch, self._max_bytes, self._num_threads = fetch, max_bytes, num_threads
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._ready: queue.SimpleQueue[_Block] = queue.SimpleQueue()
        self._waiting: dict[_Block, None] = {}
        self._started: dict[_Block, None] = {}
        self._blocks: dict[str, list[_Block]] = collections.defaultdict(list)
        self.num_held_bytes = 0

    def prefetch(self, url: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch `ranges` (offset, number of bytes) of the object at `url`, but those that are known already."""
        longest = min(4 * MAX_REQUEST_BYTES, self._max_bytes)
        with self._changed:
            new = [
                (start, num_bytes)
                for start, num_bytes in ranges
                if 0 < num_bytes <= longest and self._find(url, start, num_bytes) is None
            ]
            for start, end, num_wanted in joined(new):
                block = _Block(url, start, end, num_wanted)
                self._waiting[block] = None
                bisect.insort(self._blocks[url], block, key=_start)
            self._start_what_fits()
            while len(self._waiting) > MAX_WAITING:
                self._drop(next(iter(self._waiting)))

    def take(self, url: str, start: int, num_bytes: int) -> bytes | None:
        """These bytes, waited for if they are on their way; None if they were not announced, or could not be had."""
        with self._changed:
            block = self._find(url, start, num_bytes)
            if block is None:
                return None
            if not block.is_started:
                self._make_room(block)
            while not block.is_done:
                self._changed.wait()
            content = block.content
            if content is None:
                return None
            block.num_wanted -= num_bytes
            if block.num_wanted <= 0:
                self._drop(block)
                self._start_what_fits()
        return bytes(content[start - block.start : start - block.start + num_bytes])

    def _find(self, url: str, start: int, num_bytes: int) -> _Block | None:
        blocks = self._blocks.get(url)
        if blocks:
            block = blocks[bisect.bisect_right(blocks, start, key=_start) - 1]
            if block.start <= start and start + num_bytes <= block.end:
                return block
        return None

    def _start_what_fits(self) -> None:
        while self._waiting:
            block = next(iter(self._waiting))
            if self.num_held_bytes + block.num_bytes > self._max_bytes:
                return
            self._start(block)

    def _make_room(self, block: _Block) -> None:
        """Start a block that waits, in the place of the oldest that were not read."""
        while not block.is_started:
            if self.num_held_bytes + block.num_bytes <= self._max_bytes:
                self._start(block)
                return
            oldest = next((other for other in self._started if other.is_done), None)
            if oldest is None:
                self._changed.wait()
            else:
                self._drop(oldest)

    def _start(self, block: _Block) -> None:
        del self._waiting[block]
        self._started[block] = None
        block.is_started = True
        self.num_held_bytes += block.num_bytes
        if len(self._threads) < min(self._num_threads, len(self._started)):
            thread = threading.Thread(target=self._run, name="bridge_data prefetch", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._ready.put(block)

    def _drop(self, block: _Block) -> None:
        """Forget a block, if that has not been done."""
        blocks = self._blocks.get(block.url, [])
        if block not in blocks:
            return
        blocks.remove(block)
        if not blocks:
            del self._blocks[block.url]
        if block.is_started:
            del self._started[block]
            self.num_held_bytes -= block.num_bytes
        else:
            del self._waiting[block]

    def _run(self) -> None:
        while True:
            block = self._ready.get()
            content: Content | None = None
            try:
                content = self._fetch(block.url, block.start, block.num_bytes)
            except Exception:
                logger.debug("%s: could not be fetched ahead", block.url, exc_info=True)  # the read says what is wrong
            with self._changed:
                block.is_done = True
                if content is not None and len(content) == block.num_bytes:
                    block.content = content
                else:
                    self._drop(block)
                    self._start_what_fits()
                self._changed.notify_all()


def joined(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(start, end, wanted bytes) of the requests for `ranges`, in the order in which they are wanted first."""
    requests: list[list[int]] = []
    for order, (start, num_bytes) in sorted(enumerate(ranges), key=lambda item: item[1]):
        last = requests[-1] if requests else None
        end = start + num_bytes
        if last is not None and start <= last[2] + MAX_GAP_BYTES and max(end, last[2]) <= last[1] + MAX_REQUEST_BYTES:
            last[0] = min(last[0], order)
            last[2] = max(last[2], end)
            last[3] += num_bytes
        else:
            requests.append([order, start, end, num_bytes])
    return ((start, end, num_wanted) for _, start, end, num_wanted in sorted(requests))


def _start(block: _Block) -> int:
    return block.start
