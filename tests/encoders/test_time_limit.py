import os
import threading
import time

import pytest

from bridge_data.encoders import time_limit
from bridge_data.encoders.time_limit import within_time


def endless() -> None:
    while True:
        pass


def test_an_endless_loop_is_left_and_the_thread_goes_on() -> None:
    for _ in range(3):
        begin = time.monotonic()
        with pytest.raises(TimeoutError, match=r"not done after 0\.2 s"):
            within_time(endless, 0.2)
        assert time.monotonic() - begin < 2
        assert within_time(lambda: 7, 0.2) == 7


def test_a_shorter_limit_than_that_of_the_call_before_holds() -> None:
    within_time(lambda: None, 60)
    with pytest.raises(TimeoutError):
        within_time(endless, 0.2)


def test_errors_and_results_pass() -> None:
    with pytest.raises(KeyError):
        within_time(lambda: {}["a"], 1)
    assert within_time(lambda: [1], 1) == [1]


def test_calls_that_end_at_the_limit_leave_no_exception_behind() -> None:
    late = 0
    for _ in range(200):
        try:
            within_time(lambda: time.sleep(0.002), 0.002)
        except TimeoutError:
            late += 1
        sum(range(1000))  # a leftover exception would be raised here
    assert late > 0


def test_an_exception_that_comes_while_a_call_ends_leaves_the_limits_working() -> None:
    watch, begun, go_on, outcome = time_limit._watch, threading.Event(), threading.Event(), []

    def act() -> None:
        begun.set()
        go_on.wait()

    def run() -> None:
        try:
            within_time(act, 60)
        except TimeoutError:
            outcome.append("late")

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(10)
    (call,) = watch._calls
    with watch._changed:  # as the watching thread holds it when it finds a call late
        go_on.set()
        time.sleep(0.2)  # for the call to end, and wait for the watch
        call.is_told = True
        time_limit._raise_in(call.thread, time_limit._OutOfTimeError)
    thread.join(10)
    assert outcome == ["late"]
    assert watch._changed.acquire(timeout=5), "the watch is locked for good"
    watch._changed.release()
    with pytest.raises(TimeoutError):
        within_time(endless, 0.2)


def test_each_thread_has_its_own_limit() -> None:
    outcomes: dict[int, str] = {}

    def run(number: int) -> None:
        try:
            act, limit_s = (endless, 0.3) if number % 2 else (lambda: time.sleep(0.05), 60)
            within_time(act, limit_s)
            outcomes[number] = "done"
        except TimeoutError:
            outcomes[number] = "late"

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert outcomes == {number: "late" if number % 2 else "done" for number in range(6)}


@pytest.mark.processes
def test_a_forked_child_has_a_limit_too() -> None:
    within_time(lambda: None, 1)
    child = os.fork()
    if child == 0:
        try:
            within_time(endless, 0.2)
        except TimeoutError:
            os._exit(5)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 5
