import threading
from typing import Any

import pytest

from bridge_data.datamodule.parallel.background import BATCH, ERROR, Arrival, Arrivals


def batch(number: int) -> Arrival:
    return Arrival(BATCH, number, {"at": number})


def test_after_a_restore_nothing_comes_that_was_read_before_it() -> None:
    arrivals = Arrivals(None)
    arrivals.put(0, batch(1))
    arrivals.begin({"at": 7})
    arrivals.put(0, batch(2))  # read before, arrives after
    arrivals.put(1, batch(8))
    assert (arrivals.start, arrivals.get()) == ({"at": 7}, batch(8))


def test_what_is_of_a_later_restore_waits_for_it() -> None:
    arrivals = Arrivals(None)
    arrivals.put(1, batch(8))  # from a rank that has restored already
    arrivals.begin({"at": 7})
    assert arrivals.get() == batch(8)


def test_a_thread_waits_for_a_free_slot_a_restore_or_the_end() -> None:
    for release in (Arrivals.get, lambda arrivals: arrivals.begin({}), Arrivals.close):
        arrivals = Arrivals(1)
        arrivals.put(0, batch(1))
        thread = threading.Thread(target=arrivals.put, args=(0, batch(2)))
        thread.start()
        release(arrivals)
        thread.join(10)
        assert not thread.is_alive()


def test_an_error_comes_again_until_a_restore() -> None:
    arrivals: Any = Arrivals(None)
    error = Arrival(ERROR, ValueError("bad"), None)
    arrivals.put(0, error)
    assert arrivals.get() is arrivals.get() is error
    arrivals.begin({})
    arrivals.put(1, batch(1))
    assert arrivals.get() == batch(1)


def test_where_nothing_will_come_any_more_the_reason_is_raised_after_the_rest() -> None:
    arrivals = Arrivals(None)
    arrivals.put(0, batch(1))
    arrivals.fail(ValueError("gone"))
    assert arrivals.get() == batch(1)
    with pytest.raises(ValueError, match="gone"):
        arrivals.get()
