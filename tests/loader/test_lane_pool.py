"""Each kind of pool of the core keeps the contract of `LanePool`; that of Ray workers, in `tests/plugins/ray`."""

from typing import Any

import pytest

from tests.loader.lane_pools import LanePoolContract, WorkersContract


class TestThisProcess(LanePoolContract):
    pass


@pytest.mark.processes
class TestOneWorker(WorkersContract):
    num_workers = 1


@pytest.mark.processes
class TestThreeWorkers(WorkersContract):
    num_workers = 3


@pytest.mark.processes
class TestThreeWorkersWhoseBatchesAThreadPins(WorkersContract):
    num_workers = 3

    @staticmethod
    def pin(batch: Any) -> Any:
        batch.tokens = batch.tokens.clone()
        return batch
