import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.storage import prefetching
from bridge_data.storage.prefetching import MAX_GAP_BYTES, MAX_REQUEST_BYTES, Prefetcher, joined

CONTENT = bytes(number % 251 for number in range(1 << 20))


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

    def ahead(self, max_bytes: int = 1 << 20, num_threads: int = 4) -> Prefetcher:
        return Prefetcher(self.fetch, max_bytes=max_bytes, num_threads=num_threads)


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
    ahead, (first, second) = source.ahead(max_bytes=150, num_threads=1), spread(2, 100)
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


def test_what_is_cleared_is_neither_held_nor_waited_for(source: Source) -> None:
    ahead = source.ahead()
    announce(ahead, (0, 100))
    check(ahead, (0, 50))
    source.gate.clear()
    announce(ahead, (500_000, 100))
    with ThreadPoolExecutor(1) as reader:
        waiting = reader.submit(ahead.take, "a", 500_000, 100)
        ahead.clear()
        assert waiting.result() is None
    assert (ahead.take("a", 50, 50), ahead.num_held_bytes) == (None, 0)


def test_what_is_released_is_neither_fetched_nor_held(source: Source) -> None:
    """Whether it is held, on its way, or waits for memory; what is announced again still comes."""
    ahead, (_, on_its_way, waiting, twice) = source.ahead(max_bytes=200, num_threads=1), spread(4, 100)
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
