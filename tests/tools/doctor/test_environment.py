import dataclasses
import math
from pathlib import Path

import pytest

from bridge_data.plan import load_plan
from bridge_data.tools.doctor import (
    Finding,
    Level,
    MachineLimits,
    check_codecs,
    check_environment,
    check_rate,
    needed_batches_per_s,
    samples_per_unit,
)
from bridge_data.tools.runs import PlannedRun
from tests.prepared import CRUDE, write_dataset, write_texts
from tests.tools.bench.test_figures import FIGURES
from tests.tools.doctor.machines import machine, planned

RUN = planned(num_ranks=4, ranks_per_node=4, num_workers=2)


def codes(environment: MachineLimits, run: PlannedRun = RUN) -> dict[str, str]:
    return {finding.code: finding.change for finding in check_environment(environment, run)}


def test_a_machine_that_has_everything() -> None:
    assert codes(machine()) == {}


def test_this_machine_can_be_read() -> None:
    here = MachineLimits.read()
    assert here.num_cores > 0
    assert here.memory_bytes > 1 << 20
    assert here.num_files > 0
    assert "simplejpeg" in here.libraries


def test_workers_that_have_no_core_are_too_many() -> None:
    run = planned(ranks_per_node=2, num_workers=8)
    assert codes(machine(num_cores=8.0), run) == {"few-cores": "set num_workers=4"}
    assert codes(machine(num_cores=1.0)) == {"few-cores": "set num_workers=1"}
    assert codes(machine(num_cores=3.0)) == {"few-cores": "set num_workers=1"}
    assert codes(machine(num_cores=3.0), planned(num_ranks=4, ranks_per_node=4, num_workers=1)) == {
        "few-cores": "give the job more cores"
    }
    assert codes(machine(num_cores=2.0), planned(num_workers=2)) == {}
    assert codes(machine(num_cores=1.0), planned(num_workers=0)) == {}


def test_limits_of_files_and_memory() -> None:
    found = codes(machine(num_files=256, max_files=256, memory_bytes=2 << 30))
    assert found["few-open-files"].endswith("the hard limit is 256, so an administrator has to")
    assert found["little-memory"] == "set WorkerConfig(max_open_bytes=64 << 20)"
    assert codes(machine(num_files=math.inf)) == {}


def test_what_nccl_needs_is_a_note() -> None:
    found = list(check_environment(machine(shm_bytes=64 << 20, locked_bytes=65536), RUN))
    assert {finding.code: finding.level for finding in found} == {
        "small-dev-shm": Level.NOTE,
        "locked-memory": Level.NOTE,
    }
    assert codes(machine(shm_bytes=None, locked_bytes=65536), planned()) == {}


def test_clips_need_pyav(tmp_path: Path) -> None:
    clips = write_dataset(tmp_path / "clips", [{"__key__": "0", "mp4": b"", "txt": ""}], definition=CRUDE)
    sources = load_plan(clips).sources
    assert list(check_codecs(machine(), sources)) == []
    (finding,) = check_codecs(machine(libraries={"simplejpeg": "1"}), sources)
    assert (finding.code, finding.level) == ("no-av", Level.STOPS)
    assert "clips/train has mp4" in finding.what


def test_texts_need_no_pyav(tmp_path: Path) -> None:
    sources = load_plan(write_texts(tmp_path / "texts", 4)).sources
    assert list(check_codecs(machine(libraries={}), sources)) == []


@pytest.mark.parametrize("limit", ["max", "1073741824"])
def test_the_memory_of_a_control_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str) -> None:
    (tmp_path / "memory.max").write_text(limit + "\n")
    monkeypatch.setattr("bridge_data.tools.doctor._MEMORY_LIMIT", tmp_path / "memory.max")
    found = MachineLimits.read().memory_bytes
    assert found == 1 << 30 if limit != "max" else found > 1 << 30


MEASURED = dataclasses.replace(FIGURES, num_samples=1600, num_batches=50, seconds=5.0, cpu_s=10.0)
"""10 batches of 32 samples a second, for 0.2 s of CPU time each."""


def found(run: PlannedRun, **changes: object) -> list[Finding]:
    return list(check_rate(MEASURED, run, machine(**changes)))


def test_the_data_keep_up() -> None:
    run = planned(micro_batch_size=16, global_batch_size=64, num_ranks=2, step_s=0.4)
    assert needed_batches_per_s(run) == pytest.approx(5)
    assert found(run) == []


def test_nothing_is_said_if_the_time_of_a_step_is_not_known() -> None:
    assert needed_batches_per_s(planned()) is None
    assert found(planned()) == []


def test_slow_data_need_more_workers() -> None:
    (finding,) = found(planned(global_batch_size=64, num_ranks=2, step_s=0.1, num_workers=2))
    assert (finding.code, finding.factor) == ("slow-data", pytest.approx(2))
    assert finding.what == "a rank makes 320 samples/s with num_workers=2, and needs 640"
    assert finding.change == "set num_workers=8, and measure again"
    assert finding.gain == "steps of 0.1 s instead of 0.2 s, if the rate grows with them"


def test_more_workers_do_not_help_where_the_cores_are_too_few() -> None:
    run = planned(global_batch_size=64, num_ranks=2, ranks_per_node=2, step_s=0.1)
    (finding,) = found(run, num_cores=4.0)
    assert (finding.code, finding.factor) == ("slow-cores", pytest.approx(2))
    assert "need 8.0 cores for the data of 2 ranks; there are 4" in finding.what


def test_samples_of_a_pack() -> None:
    assert samples_per_unit(MEASURED, planned(micro_batch_size=4)) == 8
    assert samples_per_unit(None, planned()) == 1
