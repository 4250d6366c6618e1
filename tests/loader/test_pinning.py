import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data.lanes.produced import Produced
from bridge_data.loader import LoaderConfig, SavableDataLoader, get_loader, pinning
from bridge_data.loader.lane_runner import Ended, OutOfStep
from bridge_data.loader.lane_source import LaneSource
from bridge_data.loader.pinning import PinningThread, pinned
from bridge_data.loader.position import Position, Turns
from bridge_data.loader.workers.worker_pool import Interrupted
from bridge_data.order.state import LoaderState
from tests.loader.conftest import in_turn
from tests.loader.faults import Faults
from tests.loader.streams import Streams, config, names
from tests.waiting import until

LENGTHS = [3, 0, 5, 1, 4, 2]
FINITE = [f"{lane}/{number}" for number in range(5) for lane in range(6) if number < LENGTHS[lane]]


class Pool:
    """A pool of lanes of these lengths, which gives items as they are allowed."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.taken = lengths, [0] * len(lengths)
        self.allowed = threading.Semaphore(0)
        self.begun: list[int] = []
        self.is_interrupted = threading.Event()

    def take(self, lane: int) -> Any:
        self.begun.append(lane)
        self.allowed.acquire()
        if self.is_interrupted.is_set():
            raise Interrupted
        if self.taken[lane] == self.lengths[lane]:
            return Ended(lane, {})
        self.taken[lane] += 1
        return Produced(lane, f"{lane}/{self.taken[lane] - 1}", {"micro_batches": self.taken[lane]}, {}, b"")

    def interrupt(self) -> None:
        self.is_interrupted.set()
        self.allowed.release()


def thread_over(pool: Pool, pin: Any = str.upper) -> PinningThread:
    lanes: dict[int, Any] = {lane: {} for lane in range(len(pool.lengths))}
    turns = Turns(LoaderState({}, [(len(lanes), [])], 0, lanes), lanes)
    thread = PinningThread(pool, turns, pin)  # type: ignore[arg-type]
    thread.begin()
    return thread


def test_one_batch_is_pinned_ahead_and_no_more() -> None:
    pool, seen = Pool([3, 3]), []
    pool.allowed.release(100)
    thread = thread_over(pool, lambda batch: seen.append(threading.current_thread().name) or batch)
    for number in range(3):
        until(lambda number=number: len(seen) == number + 1)
        assert len(pool.begun) == number + 1
        item = thread.take(number % 2)
        assert isinstance(item, Produced) and item.batch == f"{number % 2}/{number // 2}"
    assert set(seen) == {"bridge_data pinning"}
    thread.stop()


def test_a_start_that_is_interrupted_leaves_no_thread_at_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, started, start = Pool([3]), [], threading.Thread.start
    pool.allowed.release(100)

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread_over(pool)
    started[0].join(10)
    assert not started[0].is_alive()
    assert pool.begun == []


def test_lanes_end_in_their_turns_and_then_the_thread_does() -> None:
    pool = Pool([1, 0, 2])
    pool.allowed.release(100)
    thread = thread_over(pool)
    items = [thread.take(lane) for lane in (0, 1, 2, 0, 2, 2)]
    assert [item.batch if isinstance(item, Produced) else "end" for item in items] == [
        *("0/0", "end", "2/0"),
        *("end", "2/1", "end"),
    ]
    until(lambda: not thread._thread.is_alive())
    thread.stop()


def test_a_lane_out_of_turn_is_out_of_step() -> None:
    pool = Pool([3, 3])
    pool.allowed.release(100)
    thread = thread_over(pool)
    with pytest.raises(OutOfStep):
        thread.take(1)
    thread.stop()


def test_what_pinning_raises_comes_where_the_batch_would_have_come() -> None:
    def pin(batch: str) -> str:
        if batch == "0/1":
            raise MemoryError("no page can be locked")
        return batch

    pool = Pool([3, 3])
    pool.allowed.release(100)
    thread = thread_over(pool, pin)
    thread.take(0), thread.take(1)
    with pytest.raises(MemoryError, match="no page can be locked"):
        thread.take(0)
    thread.stop()


def test_a_thread_that_waits_for_the_pool_or_for_the_trainer_can_be_stopped() -> None:
    waiting = Pool([3])
    thread = thread_over(waiting)
    until(lambda: waiting.begun)
    thread.stop()
    assert not thread._thread.is_alive()
    ahead = Pool([3])
    ahead.allowed.release(100)
    thread = thread_over(ahead)
    until(lambda: thread._next is not None)
    thread.stop()
    assert not thread._thread.is_alive()


STATE = LoaderState({}, [(1, [[0]])], 0, {0: {}})


def test_a_pool_begins_again_only_when_the_thread_has_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, begun = Pool([3]), []
    running = pool.take

    def take(lane: int) -> Any:
        try:
            return running(lane)
        finally:
            if pool.is_interrupted.is_set():
                time.sleep(0.2)  # the thread is slow to leave
            begun.append("left")

    monkeypatch.setattr(pool, "take", take)

    def begin(lanes: list[int], state: LoaderState) -> None:
        pool.is_interrupted.clear()
        begun.append("begun")

    monkeypatch.setattr(pool, "begin", begin, raising=False)
    monkeypatch.setattr(pool, "ready", lambda: True, raising=False)
    source, position = LaneSource(Streams(config(0)), LoaderConfig(), str.upper), Position(config(0), STATE)
    source.pool = pool  # type: ignore[assignment]
    pool.allowed.release()
    source.take(0, position)
    until(lambda: len(pool.begun) == 2)
    begun.remove("left")
    assert source.pinning_thread is not None
    thread = source.pinning_thread._thread
    join = thread.join

    def interrupted() -> None:
        monkeypatch.setattr(thread, "join", join)
        raise KeyboardInterrupt

    monkeypatch.setattr(thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        source.take(0, position)
    pool.allowed.release()
    source.take(0, position)
    assert begun[:3] == ["begun", "left", "begun"]
    monkeypatch.setattr(pool, "close", lambda: None, raising=False)
    source.close()


def test_without_a_gpu_nothing_is_pinned() -> None:
    if not torch.cuda.is_available():
        assert get_loader(Streams(config(0)), pin_memory=True)._pin is None


def test_a_batch_that_knows_how_is_asked_to_pin_itself() -> None:
    class Own:
        def pin_memory(self) -> str:
            return "pinned"

    assert pinned(Own()) == "pinned"
    assert pinned(["text", {"n": 1}]) == ["text", {"n": 1}]


class Pin:
    """Copies a batch, as pinning does; fails on request."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.failing: str | None = None

    def __call__(self, batch: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        if batch.name == self.failing:
            self.failing = None
            raise RuntimeError("no page can be locked")
        batch.tokens = batch.tokens.clone()
        return batch


@pytest.fixture(scope="module")
def pin() -> Pin:
    return Pin()


@pytest.fixture(scope="module")
def pinning_loader(pin: Pin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SavableDataLoader]:
    """Six endless lanes on two workers, pinned by `pin`."""
    faults = Faults(tmp_path_factory.mktemp("faults"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pinning, "can_pin", lambda: True)
        patch.setattr(pinning, "pinned", pin)
        loader = get_loader(Streams(config(2), before_sample=faults), pin_memory=True, max_worker_restarts=100)
    with loader:
        yield loader


@pytest.fixture
def loader(pinning_loader: SavableDataLoader, pin: Pin) -> SavableDataLoader:
    """`pinning_loader` at the first batch, which will come from a worker."""
    pinning_loader.dataset.before_sample.clear()
    pin.failing = None
    pinning_loader.restore_state_rank(pinning_loader.dataset.new_state().to_dict())
    assert pinning_loader.wait_for_workers()
    pin.threads.clear()
    return pinning_loader


def some(loader: SavableDataLoader, num: int) -> list[str]:
    return names(itertools.islice(loader, num))


def test_the_stream_and_its_states_are_those_without_pinning(loader: SavableDataLoader, pin: Pin) -> None:
    assert some(loader, 30) == in_turn(30)
    assert set(pin.threads) == {"bridge_data pinning"}
    plain = get_loader(Streams(config(0)))
    for step in range(5):
        thread = loader._lanes.pinning_thread
        until(lambda thread=thread: thread._next is not None)  # one is ahead, and does not count
        state = loader.save_state_rank()
        plain.restore_state_rank(state)
        assert some(plain, 8) == in_turn(8, start=30 + step)
        loader.restore_state_rank(state)
        assert some(loader, 1) == in_turn(1, start=30 + step)
        assert loader.wait_for_workers()


def test_a_worker_that_dies_is_replaced_behind_the_thread(loader: SavableDataLoader) -> None:
    loader.dataset.before_sample.plan(1, 3, "SIGKILL")
    assert some(loader, 60) == in_turn(60)


def test_an_error_of_a_hook_or_of_pinning_comes_in_its_turn_and_the_batch_again(
    loader: SavableDataLoader, pin: Pin
) -> None:
    loader.dataset.before_sample.plan(2, 1, "ValueError")
    assert some(loader, 8) == in_turn(8)
    state = loader.save_state_rank()
    with pytest.raises(ValueError, match="no such token"):
        some(loader, 1)
    assert loader.save_state_rank() == state
    pin.failing = "3/1"
    assert some(loader, 1) == ["2/1"]
    with pytest.raises(RuntimeError, match="no page can be locked"):
        some(loader, 1)
    assert some(loader, 20) == in_turn(20, start=9)


def test_a_hanging_worker_does_not_delay_a_restore(loader: SavableDataLoader) -> None:
    hanging = loader.dataset.before_sample.plan_hang(0, 2)
    assert some(loader, 10) == in_turn(10)
    assert hanging.read_text() == "now"
    begin = time.monotonic()
    loader.restore_state_rank(loader.dataset.new_state().to_dict())
    loader._lanes._stop_pinning()
    assert time.monotonic() - begin < 5
    hanging.unlink()
    link = loader._lanes.pool._links[0]  # type: ignore[union-attr]
    loader._lanes.pool._launcher.kill_worker(link.uid)  # type: ignore[union-attr]
    assert some(loader, 30) == in_turn(30)


@pytest.mark.processes
def test_finite_lanes_end_and_nothing_is_left_of_a_closed_loader(pin: Pin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "can_pin", lambda: True)
    monkeypatch.setattr(pinning, "pinned", pin)
    threads = set(threading.enumerate())
    loader = get_loader(Streams(config(2), lengths=LENGTHS), pin_memory=True)
    assert names(itertools.islice(loader, 2)) == FINITE[:2]  # in this process, as no worker is ready
    assert loader.wait_for_workers()
    assert names(loader) == FINITE[2:]
    for _ in range(2):
        assert names(loader) == FINITE
    assert some(loader, 3) == FINITE[:3]
    state = loader.save_state_rank()
    loader.close()
    assert not [thread for thread in set(threading.enumerate()) - threads if "pinning" in thread.name]
    assert loader.save_state_rank() == state


@pytest.mark.gpu
def test_batches_are_in_page_locked_memory_before_they_are_asked_for(tmp_path: Path) -> None:
    with get_loader(Streams(config(2)), pin_memory=True) as loader:
        assert loader.wait_for_workers()
        kept = []
        for batch in itertools.islice(loader, 30):
            assert batch.tokens.is_pinned() and batch.lengths is not None
            kept.append(batch)
            thread = loader._lanes.pinning_thread
            until(lambda thread=thread: thread._next is not None)
            (_, ahead) = thread._next  # type: ignore[misc]
            assert isinstance(ahead, Produced) and ahead.batch.tokens.is_pinned()
        assert names(kept) == in_turn(30)
