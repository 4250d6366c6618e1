import itertools
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.plugins.stores import prefetching
from bridge_data.plugins.stores.prefetching import (
    FIRST_OPEN,
    MAX_GAP_BYTES,
    MAX_REQUEST_BYTES,
    OpenRequests,
    Prefetcher,
    joined,
)
from bridge_data.plugins.stores.store_requests import MAX_OPEN, RequestError

CONTENT = (bytes(range(251)) * (1 << 13))[: 1 << 20]


class Source:
    """Where bytes come from. With `gate` closed, requests wait; one for `broken` fails, as those of clients in Rust may
    with what is no `Exception`."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int]] = []
        self.broken: dict[int, type[BaseException]] = {}
        self.gate = threading.Event()
        self.gate.set()

    def fetch(self, url: str, start: int, num_bytes: int) -> bytes:
        self.requests.append((start, num_bytes))
        self.gate.wait()
        if start in self.broken:
            raise self.broken[start]
        return CONTENT[start : start + num_bytes]

    def ahead(self, max_bytes: int = 1 << 20, num_open: int = 4) -> Prefetcher:
        return Prefetcher(self.fetch, max_bytes=max_bytes, num_open=num_open)


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    source.gate.set()


def announce(ahead: Prefetcher, *ranges: tuple[int, int]) -> None:
    ahead.prefetch([("a", *one) for one in ranges])


def check(ahead: Prefetcher, *ranges: tuple[int, int]) -> None:
    """See that these are served."""
    for start, num_bytes in ranges:
        assert ahead.take("a", start, num_bytes) == CONTENT[start : start + num_bytes]


def spread(count: int, num_bytes: int) -> list[tuple[int, int]]:
    """Ranges that are too far apart to be fetched together."""
    return [(number * (num_bytes + MAX_GAP_BYTES + 1), num_bytes) for number in range(count)]


def test_reads_are_served_and_bytes_dropped_once_they_have_been_read(source: Source) -> None:
    ahead = source.ahead(max_bytes=500)
    announce(ahead, (10, 20), (30, 5), (200_000, 7), (300_000, 501))
    check(ahead, (12, 3), (10, 2), (30, 5))
    assert ahead.num_held_bytes > 0
    for url, start, num_bytes in (("b", 15, 15), ("a", 9, 2), ("a", 34, 2), ("a", 300_000, 501)):
        assert ahead.take(url, start, num_bytes) is None  # not announced, or too large
    check(ahead, (15, 15), (200_000, 7))
    assert ahead.num_held_bytes == 0
    assert ahead.take("a", 10, 20) is None
    assert sorted(source.requests) == [(10, 25), (200_000, 7)]


def test_a_read_waits_for_what_is_on_its_way(source: Source) -> None:
    ahead = source.ahead()
    source.gate.clear()
    announce(ahead, (0, 100), (200, 100))
    announce(ahead, (100, 100))  # lies in the gap of the request
    threading.Timer(0.05, source.gate.set).start()
    check(ahead, (200, 100), (100, 100), (0, 100))
    assert (source.requests, ahead.num_held_bytes) == ([(0, 300)], 0)


def test_what_is_announced_twice_can_be_read_twice(source: Source) -> None:
    ahead = source.ahead()
    announce(ahead, (0, 100), (100, 50))
    announce(ahead, (0, 100), (100, 50))
    check(ahead, *[(0, 100), (100, 50)] * 2)
    assert ahead.take("a", 0, 100) is None
    assert ahead.num_held_bytes == 0
    announce(ahead, (100, 50))
    announce(ahead, (0, 50), (200, 50))  # a request may reach over what is known
    check(ahead, (200, 50), (0, 50), (100, 50))
    assert ahead.num_held_bytes == 0


@pytest.mark.parametrize("failure", [OSError, BaseException])
def test_a_failure_is_left_to_the_read_and_ends_no_thread(source: Source, failure: type[BaseException]) -> None:
    ahead, (first, second) = source.ahead(max_bytes=150, num_open=1), spread(2, 100)
    source.broken[0] = failure
    announce(ahead, first, second)
    assert ahead.take("a", *first) is None
    check(ahead, second)
    assert ahead.num_held_bytes == 0


def test_what_is_forgotten_while_a_reader_waits_for_its_room_is_left_to_the_read(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetching, "MAX_WAITING", 2)
    ahead = source.ahead(max_bytes=100)
    source.gate.clear()
    ahead.prefetch([("a", 0, 100)])
    ahead.prefetch([("b", 0, 100)])
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(ahead.take, "b", 0, 100)
        while not ahead._changed._waiters:  # type: ignore[attr-defined]
            time.sleep(0.001)
        for number in range(5):
            ahead.prefetch([(f"c{number}", 0, 100)])
        source.gate.set()
        assert reader.result(10) is None


@pytest.mark.parametrize("num_unread", [0, 4])
def test_no_more_is_held_than_allowed_and_what_is_never_read_gives_way(source: Source, num_unread: int) -> None:
    ahead, ranges = source.ahead(max_bytes=250), spread(7, 100)
    announce(ahead, *ranges)
    for one in ranges[num_unread:]:
        check(ahead, one)
        assert ahead.num_held_bytes <= 250
    assert num_unread or (ahead.num_held_bytes, len(source.requests)) == (0, 7)


def test_what_is_released_is_neither_fetched_nor_held(source: Source) -> None:
    """Whether it is held, on its way, or waits for memory; what is announced again still comes."""
    ahead, (_, on_its_way, waiting, twice) = source.ahead(max_bytes=200, num_open=1), spread(4, 100)
    announce(ahead, (0, 50), (50, 50))
    check(ahead, (0, 50))
    source.gate.clear()
    announce(ahead, on_its_way, waiting, twice)
    announce(ahead, twice)
    ahead.release([("a", *one) for one in (on_its_way, waiting, twice, (50, 50), (700_000, 10))])
    source.gate.set()
    check(ahead, twice)
    assert ahead.num_held_bytes == 0
    assert [ahead.take("a", *one) for one in ((50, 50), on_its_way, waiting)] == [None, None, None]
    assert waiting not in source.requests


def test_a_read_costs_about_as_much_however_many_ranges_are_held() -> None:

    def cost_s(num_ranges: int) -> float:
        """Of a read, in time of this thread: what other threads and processes take does not count."""
        ahead = Prefetcher(lambda url, start, num_bytes: bytes(num_bytes))
        ranges = [("a", number * 64, 64) for number in range(num_ranges)]
        for first in range(0, num_ranges, 1024):
            ahead.prefetch(ranges[first : first + 1024])
        assert ahead.take(*ranges[-1]) == bytes(64)
        del ranges[-1]
        random.Random(0).shuffle(ranges)
        began_s = time.thread_time()
        for one in ranges[:1_000]:
            assert ahead.take(*one) == bytes(64)
        return (time.thread_time() - began_s) / 1_000

    assert min(cost_s(40_000) for _ in range(2)) < 6 * max(cost_s(2_000) for _ in range(2))


def test_threads_read_what_others_announce(source: Source) -> None:
    ahead = source.ahead(max_bytes=3000)

    def is_right(at: int) -> bool:
        announce(ahead, (at + 400, 300), (at + 150_000, 10))
        return ahead.take("a", at, 300) in (None, CONTENT[at : at + 300])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(is_right, sorted(range(0, 40_000, 100), key=lambda at: at % 400)))


@given(st.lists(st.tuples(st.integers(0, 20 << 20), st.integers(1, 1 << 20)), max_size=30))
def test_requests_cover_all_ranges_in_the_order_in_which_they_are_wanted(ranges: list[tuple[int, int]]) -> None:
    requests = joined([(f"{start % 2}", start, size) for start, size in ranges])
    assert sorted(one for request in requests for one in request.ranges) == sorted(ranges)
    firsts = [min(ranges.index(one) for one in request.ranges) for request in requests]
    assert firsts == sorted(firsts)
    assert all(request.num_bytes <= MAX_REQUEST_BYTES for request in requests)


class Store:
    """A simulated store, from which a reader wants `per_s` answers of 256 KiB a second. It answers all open requests
    after `latency_s`, through a link of `bytes_per_s`, and refuses what is beyond `most`."""

    def __init__(self, latency_s: float, bytes_per_s: float = 1e9, most: int = 1000, per_s: float = 500) -> None:
        self.latency_s, self.bytes_per_s, self.most, self.per_s = latency_s, bytes_per_s, most, per_s
        self.now_s = 0.0
        self.requests = OpenRequests(FIRST_OPEN, lambda: self.now_s)

    def limits(self, count: int) -> list[int]:
        """How many requests were open each of so many times."""
        return [self._answer() for _ in range(count)]

    def _answer(self) -> int:
        begin_s, num_open = self.now_s, self.requests.limit
        self.now_s += self.latency_s + min(num_open, self.most) * (1 << 18) / self.bytes_per_s
        self.requests.has_waited |= num_open < self.per_s * (self.now_s - begin_s)
        for number in range(num_open):
            if number < self.most:
                self.requests.note_answer(1 << 18, self.requests.limit)
            else:
                self.requests.note_failure(begin_s)
        return num_open


@pytest.mark.parametrize(("latency_s", "most"), [(0.02, FIRST_OPEN), (0.05, 32), (0.1, 64), (0.15, 128), (1, MAX_OPEN)])
def test_more_requests_are_open_the_farther_the_store_and_no_more_than_it_takes(latency_s: float, most: int) -> None:
    store = Store(latency_s)
    assert [*dict.fromkeys(store.limits(100))] == [limit for limit in (16, 32, 64, 128) if limit <= most]
    store.latency_s = 0.09
    assert store.limits(300)[-1] >= 64, "also if it moves away"


def test_more_requests_are_tried_ever_less_often_where_they_do_not_help() -> None:
    full_link, refusing = Store(0.02, bytes_per_s=1e7), Store(0.1, most=24)
    for store in (full_link, refusing):
        limits = store.limits(4000)
        assert {*limits} == {16, 32}
        assert 0 < limits[-1000:].count(32) < 20


def test_a_store_that_refuses_is_asked_for_as_little_as_at_first_until_it_answers() -> None:
    store = Store(0.1)
    assert store.limits(50)[-1] == 64
    store.most = 0
    assert store.limits(4) == [64, 32, 16, 16]
    store.most = 1000
    assert store.limits(50)[-1] == 64


def test_threads_open_as_many_requests_as_help_and_fewer_after_a_refusal() -> None:
    """Virtual time passes when all that may be open is open, and a reader waits."""
    together, now_s, most_open, num_open = threading.Condition(), 0.0, 0, 0
    is_refusing = is_over = False

    def fetch(url: str, start: int, num_bytes: int) -> bytes:
        nonlocal now_s, num_open, most_open
        with together:
            num_open, arrived_s = num_open + 1, now_s
            most_open = max(most_open, num_open)
            while now_s == arrived_s and not is_over:
                if num_open >= ahead.open.limit and ahead.open.has_waited:
                    now_s, num_open = now_s + 0.1, 0
                    together.notify_all()
                else:
                    together.wait(0.001)
        if is_refusing:
            raise RequestError("slow down", is_transient=True)
        return CONTENT[:num_bytes]

    ahead = Prefetcher(fetch, num_open=2, clock=lambda: now_s)
    ranges = [("a", *one) for one in spread(500, 10)]
    ahead.prefetch(ranges)
    for one in ranges[:100]:
        assert ahead.take(*one) == CONTENT[:10]
    assert most_open >= 16
    is_refusing = True
    for one in ranges[100:300]:
        assert ahead.take(*one) in (None, CONTENT[:10])
    assert ahead.open.limit == 2
    is_over = True


def test_where_no_more_threads_can_be_started_fewer_requests_are_open(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, num_started = threading.Thread.start, itertools.count()

    def start_three(thread: threading.Thread) -> None:
        if next(num_started) >= 3:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_three)
    ahead, ranges = source.ahead(num_open=16), spread(7, 100)
    announce(ahead, *ranges)
    check(ahead, *ranges)
    assert ahead.open.limit <= 3
