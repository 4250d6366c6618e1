import contextlib
import logging
import os
import select
import signal
import threading

import psutil
import pytest

from bridge_data.errors import WorkerError
from bridge_data.loader import LoaderConfig, SavableDataLoader, get_loader
from tests.loader.conftest import in_turn
from tests.loader.faults import Faults
from tests.loader.streams import Streams, config
from tests.loader.test_loader import some
from tests.waiting import until


@pytest.mark.processes
@pytest.mark.parametrize(
    ("action", "cause"),
    [
        ("SIGKILL", "was killed by SIGKILL (often the kernel's out-of-memory killer)"),
        ("SIGSEGV", "was killed by SIGSEGV"),
        ("exit", "ended with exit code 3"),
    ],
)
def test_a_worker_that_dies_is_replaced_and_the_stream_is_the_same(
    action: str, cause: str, loader: SavableDataLoader, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    faults.plan(1, 2, action)
    faults.plan(4, 2, action, action)  # the same worker's next lane, twice in a row
    faults.plan(5, 0, action)
    with caplog.at_level(logging.WARNING, "bridge_data"):
        assert some(loader, 60) == in_turn(60)
    told = [record.getMessage() for record in caplog.records if cause in record.getMessage()]
    assert len(told) == 4
    assert any(f"worker 1 {cause} in lane 1, on sample (source=0, epoch=7, index=2)" in text for text in told)
    assert loader.skipped == {"encode_sample": 18}


def test_a_worker_killed_from_outside_at_any_moment_is_replaced(loader: SavableDataLoader) -> None:
    found = []
    for step in range(8):
        found += some(loader, 5)
        until(loader._pool.processes)  # else all have just been replaced
        workers = loader._pool.processes()
        with contextlib.suppress(ProcessLookupError):  # the one that was killed before
            os.kill(workers[step % len(workers)], signal.SIGKILL)
    assert found + some(loader, 40) == in_turn(80)


def test_signals_to_all_processes_of_a_job_are_those_of_the_trainer(loader: SavableDataLoader) -> None:
    """Slurm sends SIGUSR1 to them before a time limit, a terminal SIGHUP; the trainer saves, and goes on."""
    workers, server = loader._pool.processes(), loader._pool._launcher.server.process.pid
    found, restarts = some(loader, 8), loader._pool.num_restarts
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        for process in (server, *workers):
            os.kill(process, number)
    assert found + some(loader, 40) == in_turn(48)
    assert (loader._pool.processes(), loader._pool.num_restarts) == (workers, restarts)


@pytest.mark.processes
def test_a_server_that_dies_is_replaced_with_its_workers_even_one_that_hangs(
    loader: SavableDataLoader, faults: Faults
) -> None:
    hanging = faults.plan_hang(2, 1)
    assert some(loader, 8) == in_turn(8)
    assert hanging.read_text() == "now"
    server = psutil.Process(loader._pool._launcher.server.process.pid)
    workers = [os.pidfd_open(worker) for worker in loader._pool.processes()]
    assert len(workers) == 3
    server.send_signal(signal.SIGKILL)
    for worker in workers:
        assert select.select([worker], [], [], 10)[0], "a worker outlived its server"
        os.close(worker)
    assert some(loader, 20) == in_turn(20, start=8)
    assert loader.wait_for_workers()
    assert some(loader, 20) == in_turn(20, start=28)


def test_an_error_of_a_lane_comes_once_at_its_turn_as_what_it_was(loader: SavableDataLoader, faults: Faults) -> None:
    faults.plan(2, 1, "ValueError")
    assert some(loader, 8) == in_turn(8)
    with pytest.raises(ValueError, match="no such token") as caught:
        next(iter(loader))
    (note,) = caught.value.__notes__
    assert note.startswith("in a worker, lane 2:\nTraceback") and "faults.py" in note
    assert some(loader, 40) == in_turn(40, start=8)


def test_an_error_that_cannot_be_pickled_comes_as_its_text(loader: SavableDataLoader, faults: Faults) -> None:
    faults.plan(0, 1, "AwkwardError")
    assert some(loader, 6) == in_turn(6)
    with pytest.raises(WorkerError, match=r"(?s)lane 0:.*AwkwardError: shard_0/7: is damaged"):
        next(iter(loader))


def test_a_worker_that_hangs_is_replaced(
    loader: SavableDataLoader, faults: Faults, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loader._pool, "_config", LoaderConfig(sample_timeout_s=0.2))
    faults.plan(1, 3, "hang")
    with caplog.at_level(logging.WARNING, "bridge_data"):
        assert some(loader, 60) == in_turn(60)
    told = "worker 1 made no progress for 0.2 s in lane 1, on sample (source=0, epoch=7, index=3)"
    assert any(told in record.getMessage() for record in caplog.records)


def test_a_dataset_that_cannot_be_pickled_is_a_clear_error_at_once() -> None:
    dataset = Streams(config(1))
    dataset.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(WorkerError, match=r"cannot be sent to worker processes: TypeError: .*lock.*num_workers=0"):
        get_loader(dataset)


def test_workers_are_never_further_ahead_than_asked(loader: SavableDataLoader) -> None:
    for _ in range(30):
        some(loader, 1)
        for link in loader._pool._links:
            assert len(link._queue) <= 2
