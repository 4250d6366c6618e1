import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data.lanes.lane import Produced
from bridge_data.loader import SavableDataLoader, get_loader, pinning
from bridge_data.loader.pinning import pinned
from tests.loader.conftest import in_turn
from tests.loader.faults import Faults
from tests.loader.streams import Streams, config, names
from tests.waiting import until

LENGTHS = [3, 0, 5, 1, 4, 2]
FINITE = [f"{lane}/{number}" for number in range(5) for lane in range(6) if number < LENGTHS[lane]]


PINNING = "bridge_data pinning"


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


def is_ahead(loader: SavableDataLoader) -> bool:
    """Whether the thread has a batch for the trainer."""
    return loader._pool._thread._next is not None  # type: ignore[attr-defined]


def test_the_stream_and_its_states_are_those_without_pinning(loader: SavableDataLoader, pin: Pin) -> None:
    assert some(loader, 30) == in_turn(30)
    assert set(pin.threads) == {PINNING}
    until(lambda: is_ahead(loader))
    assert len(pin.threads) == 31, "one is ahead, and no more"
    plain = get_loader(Streams(config(0)))
    for step in range(5):
        until(lambda: is_ahead(loader))  # which does not count
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
    loader._pool.begin([], loader.snapshot())
    assert time.monotonic() - begin < 30
    hanging.unlink()
    os.kill(loader._pool.processes()[0], signal.SIGKILL)
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
            until(lambda: is_ahead(loader))
            (_, ahead) = loader._pool._thread._next  # type: ignore[attr-defined]
            assert isinstance(ahead, Produced) and ahead.batch.tokens.is_pinned()
        assert names(kept) == in_turn(30)


@pytest.mark.parametrize("method", ["start", "join"])
def test_an_interrupt_while_the_thread_starts_or_ends_loses_nothing(
    loader: SavableDataLoader, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    assert some(loader, 5) == in_turn(5)
    loader.restore_state_rank(loader.save_state_rank())  # the next batch needs another thread
    run = getattr(threading.Thread, method)

    def interrupted(thread: threading.Thread, *arguments: Any) -> None:
        if thread.name != PINNING:
            return run(thread, *arguments)
        monkeypatch.setattr(threading.Thread, method, run)
        if method == "start":
            run(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        some(loader, 1)
    assert some(loader, 40) == in_turn(40, start=5)
    names_of_threads = [thread.name for thread in threading.enumerate()]
    assert names_of_threads.count(PINNING) == 1


def test_a_batch_that_knows_how_is_asked_to_pin_itself() -> None:
    class Own:
        def pin_memory(self) -> str:
            return "pinned"

    assert pinned(Own()) == "pinned"
    assert pinned(["text", {"n": 1}]) == ["text", {"n": 1}]
