"""Cases for `start_method="fork"`, which needs a process with one thread: `test_fork.py` runs this file in one.

Workers start in milliseconds here, so cases that wear a loader out are here too.
"""

import logging
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridge_data.errors import WorkerError
from bridge_data.loader import get_loader
from bridge_data.loader.workers.worker_pool import WorkerPool
from tests.loader.conftest import in_turn
from tests.loader.faults import Faults
from tests.loader.streams import Streams, config
from tests.loader.test_loader import some


def test_forked_workers_give_the_same_stream_and_are_replaced(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    faults.plan(2, 4, "SIGKILL")
    with get_loader(Streams(config(3), before_sample=faults), start_method="fork") as loader:
        assert loader.wait_for_workers()
        assert some(loader, 60) == in_turn(60)
        assert isinstance(loader._source, WorkerPool)
    assert psutil.Process().children(recursive=True) == []


def test_restarts_are_bounded_and_the_last_error_names_cause_lane_and_sample(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(tmp_path)
    faults.plan(1, 3, "exit", "SIGKILL")
    dataset = Streams(config(1, 2), before_sample=faults)
    with (
        caplog.at_level(logging.WARNING, "bridge_data"),
        get_loader(dataset, start_method="fork", max_worker_restarts=1) as loader,
    ):
        assert loader.wait_for_workers()
        assert some(loader, 7) == in_turn(7, num_lanes=2)
        state = loader.save_state_rank()
        for _ in range(2):
            with pytest.raises(WorkerError) as caught:
                next(iter(loader))
            text = str(caught.value)
            assert "worker 0 was killed by SIGKILL" in text and "max_worker_restarts=1" in text
            assert "in lane 1, on sample (source=0, epoch=7, index=3)" in text
        assert loader.save_state_rank() == state
    assert ["restart 1 of 1" in record.getMessage() for record in caplog.records] == [True]
    other = get_loader(Streams(config(0, 2)))
    other.restore_state_rank(state)
    assert some(other, 5) == in_turn(5, num_lanes=2, start=7)


def test_a_timeout_can_end_the_run(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    faults.plan(0, 2, "hang")
    dataset = Streams(config(1, 2), before_sample=faults)
    with get_loader(dataset, start_method="fork", watchdog_timeout_seconds=0.2, fail_on_timeout=True) as loader:
        assert loader.wait_for_workers()
        assert some(loader, 4) == in_turn(4, num_lanes=2)
        with pytest.raises(WorkerError, match=r"made no progress for 0.2 s in lane 0, on sample .*index=2\)"):
            next(iter(loader))


class Unloadable(Streams):
    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("no such mount here")


def test_a_dataset_that_workers_cannot_load_is_a_clear_error() -> None:
    with (
        get_loader(Unloadable(config(1)), start_method="fork") as loader,
        pytest.raises(WorkerError, match=r"(?s)worker 0: while the dataset was loaded.*no such mount here"),
    ):
        loader.wait_for_workers()
