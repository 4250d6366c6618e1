import threading

import pytest

from bridge_data.task.stores.threads import BackgroundThreads


def test_work_is_done_by_a_few_threads() -> None:
    prefetcher = BackgroundThreads(2)
    both = threading.Barrier(2)
    names = [prefetcher.submit(lambda: (both.wait(60), threading.current_thread().name)[1]) for _ in range(2)]
    assert {future.result(60) for future in names} == {"bridge_data cache"}
    idents = {prefetcher.submit(threading.get_ident).result(60) for _ in range(50)}
    assert 1 <= len(idents) <= 2
    prefetcher.close()


def test_what_is_queued_can_be_cancelled_and_what_fails_fails_alone() -> None:
    prefetcher = BackgroundThreads(1)
    gate, begun = threading.Event(), threading.Event()
    first = prefetcher.submit(lambda: (begun.set(), gate.wait(60)))
    second, third = prefetcher.submit(lambda: 1 / 0), prefetcher.submit(lambda: 3)
    assert begun.wait(60)
    assert third.cancel() and not first.cancel()
    gate.set()
    with pytest.raises(ZeroDivisionError):
        second.result(60)
    assert prefetcher.submit(lambda: 4).result(60) == 4
    prefetcher.close()


def test_closing_waits_for_what_has_begun_and_drops_the_rest() -> None:
    prefetcher = BackgroundThreads(1)
    gate, begun = threading.Event(), threading.Event()
    first = prefetcher.submit(lambda: (begun.set(), gate.wait(60), "done")[2])
    rest = [prefetcher.submit(lambda: 1) for _ in range(5)]
    rest[-1].add_done_callback(lambda _: gate.set())
    assert begun.wait(60)
    prefetcher.close()
    assert first.result(0) == "done"
    assert all(future.cancelled() for future in rest)
    assert prefetcher.submit(lambda: "again").result(60) == "again"
    prefetcher.close()
