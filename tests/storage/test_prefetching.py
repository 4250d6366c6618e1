import threading
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.storage import prefetching
from bridge_data.storage.prefetching import MAX_GAP_BYTES, MAX_REQUEST_BYTES, Prefetcher, joined

CONTENT = bytes(number % 251 for number in range(1 << 20))


class Source:
    """Where bytes come from. With `gate` closed, requests wait; those for `broken` starts fail."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int]] = []
        self.broken: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self._lock = threading.Lock()

    def fetch(self, url: str, start: int, num_bytes: int) -> bytes:
        with self._lock:
            self.requests.append((start, num_bytes))
        self.gate.wait()
        if start in self.broken:
            raise OSError("broken")
        return CONTENT[start : start + num_bytes]


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    source.gate.set()


def as_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[str, int, int]]:
    return [("a", *one) for one in ranges]


def prefetcher(source: Source, max_bytes: int = 1 << 20) -> Prefetcher:
    return Prefetcher(source.fetch, max_bytes=max_bytes, num_threads=4)


def spread(count: int, num_bytes: int) -> list[tuple[int, int]]:
    """Ranges that are too far apart to be fetched together."""
    return [(number * (num_bytes + MAX_GAP_BYTES + 1), num_bytes) for number in range(count)]


def test_reads_are_served_and_bytes_dropped_once_they_have_been_read(source: Source) -> None:
    ahead = prefetcher(source)
    ranges = [(10, 20), (30, 5), (200_000, 7)]
    ahead.prefetch(as_ranges(ranges))
    assert ahead.take("a", 12, 3) == CONTENT[12:15]
    assert ahead.take("a", 10, 2) == CONTENT[10:12]
    assert ahead.take("a", 30, 5) == CONTENT[30:35]
    assert ahead.num_held_bytes > 0
    assert ahead.take("a", 15, 15) == CONTENT[15:30]
    assert ahead.take("a", 200_000, 7) == CONTENT[200_000:200_007]
    assert ahead.num_held_bytes == 0
    assert ahead.take("a", 10, 20) is None
    assert sorted(source.requests) == [(10, 25), (200_000, 7)]


def test_what_was_not_announced_is_left_to_the_read(source: Source) -> None:
    ahead = prefetcher(source)
    ahead.prefetch(as_ranges([(10, 20)]))
    assert ahead.take("b", 10, 20) is None
    assert ahead.take("a", 9, 2) is None
    assert ahead.take("a", 29, 2) is None
    assert ahead.take("a", 10, 20) == CONTENT[10:30]


def test_a_read_waits_for_what_is_on_its_way(source: Source) -> None:
    ahead = prefetcher(source)
    source.gate.clear()
    ahead.prefetch(as_ranges([(0, 100)]))
    threading.Timer(0.05, source.gate.set).start()
    assert ahead.take("a", 0, 100) == CONTENT[:100]
    assert source.requests == [(0, 100)]


def test_what_is_known_is_not_fetched_again(source: Source) -> None:
    ahead = prefetcher(source)
    ahead.prefetch(as_ranges([(0, 100), (100, 50)]))
    ahead.prefetch(as_ranges([(20, 10), (100, 50), (0, 0)]))
    assert ahead.take("a", 0, 100) == CONTENT[:100]
    assert source.requests == [(0, 150)]


def test_what_is_announced_twice_can_be_read_twice(source: Source) -> None:
    ahead = prefetcher(source)
    for _ in range(2):
        ahead.prefetch(as_ranges([(0, 100), (100, 50)]))
    for _ in range(2):
        assert ahead.take("a", 0, 100) == CONTENT[:100]
        assert ahead.take("a", 100, 50) == CONTENT[100:150]
    assert ahead.take("a", 0, 100) is None
    assert ahead.num_held_bytes == 0


def test_what_lies_in_the_gap_of_a_request_comes_with_it(source: Source) -> None:
    ahead = prefetcher(source)
    source.gate.clear()
    ahead.prefetch(as_ranges([(0, 100), (200, 100)]))
    ahead.prefetch(as_ranges([(100, 100)]))
    source.gate.set()
    for start in (200, 100, 0):
        assert ahead.take("a", start, 100) == CONTENT[start : start + 100]
    assert source.requests == [(0, 300)]
    assert ahead.num_held_bytes == 0


def test_a_request_may_reach_over_what_was_known(source: Source) -> None:
    ahead = prefetcher(source)
    ahead.prefetch(as_ranges([(100, 50)]))
    ahead.prefetch(as_ranges([(0, 50), (200, 50)]))
    for start in (200, 0, 100):
        assert ahead.take("a", start, 50) == CONTENT[start : start + 50]
    assert sorted(source.requests) == [(0, 250), (100, 50)]  # by several threads, in any order
    assert ahead.num_held_bytes == 0


def test_a_failure_is_left_to_the_read_and_frees_its_room(source: Source) -> None:
    ahead = prefetcher(source, max_bytes=150)
    source.broken = {0}
    first, second = spread(2, 100)
    ahead.prefetch(as_ranges([first, second]))
    assert ahead.take("a", *first) is None
    assert ahead.take("a", *second) == CONTENT[second[0] : second[0] + 100]
    assert ahead.num_held_bytes == 0


class Panic(BaseException):
    """As the clients that are written in Rust have them."""


def test_a_panic_ends_no_thread_and_leaves_no_reader_waiting(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(url: str, start: int, num_bytes: int) -> bytes:
        if start == 0:
            raise Panic
        return source.fetch(url, start, num_bytes)

    ahead = Prefetcher(panic, max_bytes=150, num_threads=1)
    first, second = spread(2, 100)
    ahead.prefetch(as_ranges([first, second]))
    assert ahead.take("a", *first) is None
    assert ahead.take("a", *second) == CONTENT[second[0] : second[0] + 100]


def test_what_is_forgotten_while_a_reader_waits_for_its_room_is_left_to_the_read(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetching, "MAX_WAITING", 2)
    ahead = prefetcher(source, max_bytes=100)
    source.gate.clear()
    ahead.prefetch([("a", 0, 100)])
    ahead.prefetch([("b", 0, 100)])
    found: list[bytes | None] = []
    reader = threading.Thread(target=lambda: found.append(ahead.take("b", 0, 100)), daemon=True)
    reader.start()
    while not ahead._changed._waiters:  # type: ignore[attr-defined]
        reader.join(0.01)
    for number in range(5):
        ahead.prefetch([(f"c{number}", 0, 100)])
    source.gate.set()
    reader.join(10)
    assert found == [None]


def test_no_more_is_held_than_allowed_and_reads_make_room(source: Source) -> None:
    ahead = prefetcher(source, max_bytes=250)
    ranges = spread(6, 100)
    ahead.prefetch(as_ranges(ranges))
    for start, num_bytes in ranges:
        assert ahead.num_held_bytes <= 250
        assert ahead.take("a", start, num_bytes) == CONTENT[start : start + num_bytes]
    assert ahead.num_held_bytes == 0
    assert len(source.requests) == 6


def test_what_is_never_read_gives_way_to_what_is(source: Source) -> None:
    ahead = prefetcher(source, max_bytes=250)
    ranges = spread(7, 100)
    ahead.prefetch(as_ranges(ranges))
    for start, num_bytes in ranges[4:]:  # the first four stay unread
        assert ahead.take("a", start, num_bytes) == CONTENT[start : start + num_bytes]
        assert ahead.num_held_bytes <= 250


def test_a_range_that_is_too_large_is_not_fetched_ahead(source: Source) -> None:
    ahead = prefetcher(source, max_bytes=100)
    ahead.prefetch(as_ranges([(0, 101)]))
    assert ahead.take("a", 0, 101) is None


def test_threads_read_what_others_announce(source: Source) -> None:
    ahead = prefetcher(source, max_bytes=3000)
    wrong: list[int] = []

    def work(first: int) -> None:
        for at in range(first, first + 40_000, 400):
            ahead.prefetch(as_ranges([(at + 400, 300), (at + 150_000, 10)]))
            content = ahead.take("a", at, 300)
            if content is not None and content != CONTENT[at : at + 300]:
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(number * 1000,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


@given(st.lists(st.tuples(st.integers(0, 20 << 20), st.integers(1, 1 << 20)), max_size=30))
def test_requests_cover_all_ranges_in_the_order_in_which_they_are_wanted(ranges: list[tuple[int, int]]) -> None:
    requests = joined([(f"{start % 2}", start, size) for start, size in ranges])
    assert sorted(one for request in requests for one in request.ranges) == sorted(ranges)
    firsts = [min(ranges.index(one) for one in request.ranges) for request in requests]
    assert firsts == sorted(firsts)
    assert all(request.num_bytes <= MAX_REQUEST_BYTES for request in requests)
