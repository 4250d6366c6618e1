import threading
from typing import Any

import pytest

from bridge_data.datamodule.parallel.background import BATCH, ERROR, Arrival, Arrivals


def batch(number: int) -> Arrival:
    return Arrival(BATCH, number, {"at": number})


def test_after_a_restore_nothing_comes_that_was_read_before_it() -> None:
    inbox = Arrivals(None)
    inbox.put(0, batch(1))
    inbox.begin({"at": 7})
    inbox.put(0, batch(2))  # read before, arrives after
    inbox.put(1, batch(8))
    assert (inbox.start, inbox.get()) == ({"at": 7}, batch(8))


def test_what_is_of_a_later_restore_waits_for_it() -> None:
    inbox = Arrivals(None)
    inbox.put(1, batch(8))  # from a rank that has restored already
    inbox.begin({"at": 7})
    assert inbox.get() == batch(8)


def test_a_thread_waits_for_room_until_it_is_wanted_no_more() -> None:
    for release in (lambda inbox: inbox.get(), lambda inbox: inbox.begin({}), lambda inbox: inbox.close()):
        inbox = Arrivals(1)
        inbox.put(0, batch(1))
        thread = threading.Thread(target=inbox.put, args=(0, batch(2)))
        thread.start()
        release(inbox)
        thread.join(10)
        assert not thread.is_alive()


def test_an_error_comes_again_until_a_restore() -> None:
    inbox: Any = Arrivals(None)
    error = Arrival(ERROR, ValueError("bad"), None)
    inbox.put(0, error)
    assert inbox.get() is inbox.get() is error
    inbox.begin({})
    inbox.put(1, batch(1))
    assert inbox.get() == batch(1)


def test_where_nothing_will_come_any_more_the_reason_is_raised_after_the_rest() -> None:
    inbox = Arrivals(None)
    inbox.put(0, batch(1))
    inbox.fail(ValueError("gone"))
    assert inbox.get() == batch(1)
    with pytest.raises(ValueError, match="gone"):
        inbox.get()
