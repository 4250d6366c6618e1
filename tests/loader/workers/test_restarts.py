"""How often workers may be replaced, and what ends a run. Each case wears its own loader out; `three_workers`, which
stays open, keeps the server alive that all of them share."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from bridge_data.errors import WorkerError
from bridge_data.loader import get_loader
from tests.loader.conftest import in_turn
from tests.loader.faults import Faults
from tests.loader.streams import Streams, config
from tests.loader.test_loader import some

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("three_workers")]


def test_restarts_are_bounded_and_the_last_error_names_cause_lane_and_sample(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(tmp_path)
    faults.plan(1, 3, "exit", "SIGKILL")
    dataset = Streams(config(1, 2), before_sample=faults)
    with (
        caplog.at_level(logging.WARNING, "bridge_data"),
        get_loader(dataset, max_worker_restarts=1) as loader,
    ):
        assert loader.wait_for_workers()
        assert some(loader, 7) == in_turn(7, num_lanes=2)
        state = loader.save_state_rank()
        for _ in range(2):
            with pytest.raises(WorkerError) as caught:
                next(iter(loader))
            where = r"in lane 1, on sample \(source=0, epoch=7, index=3\)"
            assert re.match(
                rf"worker 0 was killed by SIGKILL .* {where}\. No restart is left \(max_worker_restarts=1 within "
                r"restart_window_batches=1000\):\n"
                rf"  20\d\d-\d\d-\d\d \d\d:\d\d:\d\d, after \d batches: worker 0 ended with exit code 3 {where}\n"
                rf"  20\d\d-\d\d-\d\d \d\d:\d\d:\d\d, after 7 batches: worker 0 was killed by SIGKILL .* {where}\n"
                r"num_workers=0 runs the same samples",
                str(caught.value),
            )
        assert loader.save_state_rank() == state
    assert ["restart 1 of 1 within 1000 batches" in record.getMessage() for record in caplog.records] == [True]
    other = get_loader(Streams(config(0, 2)))
    other.restore_state_rank(state)
    assert some(other, 5) == in_turn(5, num_lanes=2, start=7)


def test_restarts_come_back_with_progress(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults(tmp_path)
    for index in range(3, 63, 6):  # 12 batches from one to the next
        faults.plan(1, index, "SIGKILL")
    faults.plan(0, 70, "exit", "exit")
    options: dict[str, Any] = {"max_worker_restarts": 1, "restart_window_batches": 10}
    with (
        caplog.at_level(logging.WARNING, "bridge_data"),
        get_loader(Streams(config(1, 2), before_sample=faults), **options) as loader,
    ):
        assert loader.wait_for_workers()
        assert some(loader, 140) == in_turn(140, num_lanes=2)
        with pytest.raises(WorkerError, match=r"(?s)exit code 3.*\nBefore these, 10 restarts were followed by enough"):
            next(iter(loader))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 11 and "restart 1 of 1 within 10 batches, 10 in all" in told[9]


def test_a_timeout_can_end_the_run(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    faults.plan(0, 2, "hang")
    dataset = Streams(config(1, 2), before_sample=faults)
    with get_loader(dataset, watchdog_timeout_seconds=0.2, fail_on_timeout=True) as loader:
        assert loader.wait_for_workers()
        assert some(loader, 4) == in_turn(4, num_lanes=2)
        with pytest.raises(WorkerError, match=r"made no progress for 0.2 s in lane 0, on sample .*index=2\)"):
            next(iter(loader))


class Unloadable(Streams):
    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("no such mount here")


def test_a_dataset_that_workers_cannot_load_is_a_clear_error() -> None:
    with (
        get_loader(Unloadable(config(1))) as loader,
        pytest.raises(WorkerError, match=r"(?s)worker 0: while the dataset was loaded.*no such mount here"),
    ):
        loader.wait_for_workers()
