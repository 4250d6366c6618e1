import dataclasses

import pytest

from bridge_data.tools.doctor.findings import Finding
from bridge_data.tools.doctor.planned_run import PlannedRun
from bridge_data.tools.doctor.rates import check_rate, needed_batches_per_s, samples_per_unit
from tests.tools.bench.test_figures import FIGURES
from tests.tools.doctor.machines import machine

MEASURED = dataclasses.replace(FIGURES, num_samples=1600, num_batches=50, seconds=5.0, cpu_s=10.0)
"""10 batches of 32 samples a second, for 0.2 s of CPU time each."""


def found(run: PlannedRun, **changes: object) -> list[Finding]:
    return list(check_rate(MEASURED, run, machine(**changes)))


def test_the_data_keep_up() -> None:
    run = PlannedRun(micro_batch_size=16, global_batch_size=64, num_ranks=2, step_s=0.4)
    assert needed_batches_per_s(run) == pytest.approx(5)
    assert found(run) == []


def test_nothing_is_said_if_the_time_of_a_step_is_not_known() -> None:
    assert needed_batches_per_s(PlannedRun()) is None
    assert found(PlannedRun()) == []


def test_slow_data_need_more_workers() -> None:
    (finding,) = found(PlannedRun(global_batch_size=64, num_ranks=2, step_s=0.1, num_workers=2))
    assert (finding.code, finding.factor) == ("slow-data", pytest.approx(2))
    assert finding.what == "a rank makes 320 samples/s with num_workers=2, and needs 640"
    assert finding.change == "set num_workers=5, and measure again"
    assert finding.gain == "steps of 0.1 s instead of 0.2 s, if the rate grows with them"


def test_more_workers_do_not_help_where_the_cores_are_too_few() -> None:
    run = PlannedRun(global_batch_size=64, num_ranks=2, ranks_per_node=2, step_s=0.1)
    (finding,) = found(run, num_cores=4.0)
    assert (finding.code, finding.factor) == ("slow-cores", pytest.approx(2))
    assert "need 8.0 cores for the data of 2 ranks; there are 4" in finding.what


def test_samples_of_a_pack() -> None:
    assert samples_per_unit(MEASURED, PlannedRun(micro_batch_size=4)) == 8
    assert samples_per_unit(None, PlannedRun()) == 1
