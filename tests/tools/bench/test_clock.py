import time

import pytest

from bridge_data.tools.bench.clock import BETWEEN, CPU_EVERY, LANE, Clock, Key, Tally
from tests.tools.bench.encoders import work_hard


def test_what_is_inside_is_not_counted_outside() -> None:
    clock = Clock()
    clock.begin_batch()
    clock.enter(Key("decode", 1))
    clock.enter(Key("read", 1))
    work_hard()
    clock.leave()
    clock.leave()
    clock.end_batch()
    tallies = clock.take()
    assert {key: tally.calls for key, tally in tallies.items()} == {
        BETWEEN: 0,
        LANE: 1,
        Key("decode", 1): 1,
        Key("read", 1): 1,
    }
    assert tallies[Key("read", 1)].cpu_ns > 10 * tallies[Key("decode", 1)].cpu_ns


def test_every_moment_is_charged_once() -> None:
    before = time.perf_counter_ns()
    clock = Clock()
    begun = time.perf_counter_ns()
    taken: list[Tally] = []
    for _ in range(2 * CPU_EVERY):
        clock.begin_batch()
        for source in range(3):
            clock.enter(Key("read", source))
            clock.leave()
        done = time.perf_counter_ns()
        clock.end_batch()
        taken += clock.take().values()
    after = time.perf_counter_ns()
    assert done - begun <= sum(tally.wall_ns for tally in taken) <= after - before


def test_waiting_is_told_from_computing() -> None:
    clock = Clock()
    clock.begin_batch()
    clock.enter(Key("wait"))
    time.sleep(0.02)
    clock.leave()
    clock.enter(Key("work"))
    work_hard()
    clock.leave()
    clock.end_batch()
    tallies = clock.take()
    assert tallies[Key("wait")].waited > tallies[Key("work")].waited
    assert Tally().waited == 0


def test_cpu_time_is_read_of_some_batches() -> None:
    clock = Clock()
    sampled = []
    for _ in range(CPU_EVERY + 1):
        clock.begin_batch()
        clock.end_batch()
        sampled.append(clock.take()[LANE].sampled_ns > 0)
    assert sampled == [True] + [False] * (CPU_EVERY - 1) + [True]


def test_a_failure_leaves_it_in_order() -> None:
    clock = Clock()
    for _ in range(2):
        clock.begin_batch()
        with pytest.raises(ValueError, match="no"):
            fail(clock)
        clock.end_batch()
    assert clock.take()[Key("read")].calls == 2
    assert clock.take_delay_ns() >= 0


def fail(clock: Clock) -> None:
    clock.enter(Key("read"))
    try:
        raise ValueError("no")
    finally:
        clock.leave()
