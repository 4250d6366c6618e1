"""The contract of a `LanePool`, as tests that run over each kind of pool: a subclass says how it is opened."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import os
import signal
import threading
from collections.abc import Generator, Iterator
from typing import Any, ClassVar

import psutil
import pytest

from bridge_data.lanes.lane import Produced
from bridge_data.loader.lane_pool import InProcessPool, Interrupted, LanePool
from bridge_data.loader.loader import Position, open_pool
from bridge_data.order.step_skips import SkippedRange, StepSkips
from bridge_data.run_options import LoaderConfig
from tests.loader.faults import Faults
from tests.loader.streams import Streams, config, names, state_after

LENGTHS = [3, 0, 5, 1, 4, 2]
"""Batches of each lane."""


def taking(pool: LanePool, position: Position) -> Generator[tuple[int, str | None, dict[str, int]], None, None]:
    """The items of `pool` from `position` on, which moves along: lane, batch (None: it has ended), skips."""
    pool.begin(position.lanes(), position.state)
    while (lane := position.turn()) is not None:
        item = pool.take(lane)
        if isinstance(item, Produced):
            position.advance(item.state)
            yield lane, *names([item.batch]), item.skipped
        else:
            assert item.state == state_after(position.state.num_made(lane))
            position.end_lane(item.state)
            yield lane, None, item.skipped


class LanePoolContract:
    """What holds for all pools."""

    options: ClassVar[dict[str, Any]] = {}
    num_workers = 0
    pin: Any = None

    @pytest.fixture(scope="class")
    @classmethod
    def faults(cls, tmp_path_factory: pytest.TempPathFactory) -> Faults:
        return Faults(tmp_path_factory.mktemp("faults"))

    @pytest.fixture(scope="class")
    @classmethod
    def dataset(cls, faults: Faults) -> Streams:
        return Streams(config(cls.num_workers), lengths=LENGTHS, before_sample=faults)

    @pytest.fixture(scope="class")
    @classmethod
    def pool(cls, dataset: Streams) -> Iterator[LanePool]:
        with contextlib.closing(cls.opened(dataset)) as pool:
            yield pool

    @classmethod
    def opened(cls, dataset: Any) -> LanePool:
        return open_pool(dataset, LoaderConfig(max_worker_restarts=1_000, **cls.options), cls.pin)

    @pytest.fixture
    def no_collection(self) -> Iterator[None]:
        """Nothing is freed because the garbage collector happens to run."""
        gc.collect()
        gc.disable()
        yield
        gc.enable()

    def first(self, dataset: Streams) -> Position:
        return Position(dataset.worker_config, dataset.new_state())

    def expected(self, dataset: Streams) -> list[Any]:
        """All items, as this process makes them."""
        plain: Any = Streams(dataset.worker_config, lengths=LENGTHS)
        return [*taking(InProcessPool(plain), self.first(dataset))]

    def test_the_items_are_those_of_this_process_in_the_order_of_their_turns(
        self, pool: LanePool, dataset: Streams
    ) -> None:
        expected = self.expected(dataset)
        assert [name for _, name, _ in expected if name] == [
            f"{lane}/{number}" for number in range(5) for lane in range(6) if number < LENGTHS[lane]
        ]
        for _ in range(3):
            assert [*taking(pool, self.first(dataset))] == expected

    def test_it_begins_anew_at_any_position_after_any_item(self, pool: LanePool, dataset: Streams) -> None:
        expected = self.expected(dataset)
        for num in range(len(expected)):
            position = self.first(dataset)
            found = [*itertools.islice(taking(pool, position), num)]
            assert [*found, *taking(pool, position)] == expected

    def test_of_a_micro_batch_that_is_skipped_only_its_state_comes(self, pool: LanePool, dataset: Streams) -> None:
        skips = StepSkips((SkippedRange(3, 9), SkippedRange(16, 17)))
        state = dataclasses.replace(dataset.new_state(), skips=skips)
        position, found = Position(dataset.worker_config, state), {}
        pool.begin(position.lanes(), state)
        while (lane := position.turn()) is not None:
            item = pool.take(lane)
            if isinstance(item, Produced):
                found[position.index] = item.batch is None
                assert item.state == state_after(state.num_made(lane) + position.index // state.num_lanes + 1)
                position.discard(item.state)
            else:
                position.end_lane(item.state)
        assert len(found) == sum(LENGTHS) and found == {index: index in skips for index in found}

    def test_nothing_is_left_of_it_but_batches(self, dataset: Streams, no_collection: None) -> None:
        before = self.resources()
        pool = self.opened(dataset)
        items = taking(pool, self.first(dataset))
        assert [next(items) for _ in range(5)] == self.expected(dataset)[:5]
        pool.close()
        pool.close()
        items.close()  # it has a batch
        self.check_nothing_is_left(before)
        assert not pool.processes()

    def check_nothing_is_left(self, before: tuple[set[Any], int, set[str]]) -> None:
        children, num_descriptors, threads = self.resources()
        assert children <= before[0] and num_descriptors <= before[1] and threads <= before[2], "some of before may end"

    def resources(self) -> tuple[set[Any], int, set[str]]:
        """What a pool must give back."""
        threads = {thread.name for thread in threading.enumerate()}
        return {*psutil.Process().children(recursive=True)}, len(os.listdir("/proc/self/fd")), threads


class WorkersContract(LanePoolContract):
    """What holds for pools with workers besides."""

    def workers(self, pool: LanePool) -> list[int]:
        """The processes of the workers."""
        return pool.processes()

    def lose_server(self, pool: LanePool) -> None:
        """Take what starts the workers away, and all of them with it."""
        (server,) = {psutil.Process(worker).ppid() for worker in pool.processes()}
        os.kill(server, signal.SIGKILL)
        os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)

    @pytest.fixture(autouse=True)
    def _is_ready(self, pool: LanePool, faults: Faults) -> None:
        faults.clear()
        assert pool.wait_ready(120)

    @pytest.mark.parametrize("action", ["SIGKILL", "exit"])
    def test_a_worker_that_dies_is_replaced_and_no_item_is_lost_or_comes_twice(
        self, pool: LanePool, dataset: Streams, faults: Faults, action: str
    ) -> None:
        num_before = pool.num_restarts
        faults.plan(2, 1, action)
        faults.plan(4, 3, action, action)
        assert [*taking(pool, self.first(dataset))] == self.expected(dataset)
        assert pool.num_restarts >= num_before + 3

    def test_so_is_one_that_is_killed_after_any_item(self, pool: LanePool, dataset: Streams) -> None:
        expected = self.expected(dataset)
        for num in range(0, len(expected), 4):
            found = []
            for item in taking(pool, self.first(dataset)):
                found.append(item)
                if len(found) == num:
                    workers = self.workers(pool)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(workers[num % len(workers)], signal.SIGKILL)
            assert found == expected

    def test_so_are_all_if_what_starts_them_is_lost(self, pool: LanePool, dataset: Streams) -> None:
        num_before, found = pool.num_restarts, []
        for item in taking(pool, self.first(dataset)):
            found.append(item)
            if len(found) == 6:
                self.lose_server(pool)
        assert found == self.expected(dataset)
        assert pool.wait_ready(120)
        assert pool.num_restarts > num_before

    def test_what_a_lane_raises_comes_at_its_turn_and_once(
        self, pool: LanePool, dataset: Streams, faults: Faults
    ) -> None:
        faults.plan(0, 1, "ValueError")
        position, expected = self.first(dataset), self.expected(dataset)
        items = taking(pool, position)
        found = [next(items) for _ in range(6)]
        with pytest.raises(ValueError, match="no such token"):
            next(items)
        assert [*found, *taking(pool, position)] == expected

    def test_nor_is_anything_left_of_one_that_is_closed_while_it_waits_for_a_worker(
        self, pool: LanePool, dataset: Streams, faults: Faults, no_collection: None
    ) -> None:
        hanging, before = faults.plan_hang(2, 1), self.resources()
        with contextlib.closing(self.opened(dataset)) as other:
            items = taking(other, self.first(dataset))
            assert [next(items) for _ in range(7)] == self.expected(dataset)[:7]
            assert hanging.read_text() == "now"  # and whoever takes the items of `other` ahead of us waits for it
        items.close()
        self.check_nothing_is_left(before)

    def test_another_thread_ends_a_take_that_waits_and_what_is_next_comes_again(
        self, pool: LanePool, dataset: Streams, faults: Faults
    ) -> None:
        hanging, position, found, ended = faults.plan_hang(2, 1), self.first(dataset), [], []

        def take() -> None:
            try:
                found.extend(taking(pool, position))
            except Interrupted:
                ended.append(True)

        thread = threading.Thread(target=take)
        thread.start()
        assert hanging.read_text() == "now"
        pool.interrupt()
        thread.join(60)
        assert ended
        hanging.unlink()
        for worker in self.workers(pool):  # one of them hangs
            os.kill(worker, signal.SIGKILL)
        again = [*taking(pool, position)]
        assert again == self.expected(dataset)[-len(again) :]
