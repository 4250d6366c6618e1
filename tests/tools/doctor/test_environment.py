import math
from pathlib import Path

import pytest

from bridge_data.plan import load_plan
from bridge_data.tools.doctor.environment import MachineLimits, check_codecs, check_environment
from bridge_data.tools.doctor.findings import Level
from bridge_data.tools.doctor.planned_run import PlannedRun
from tests.prepared import CRUDE, write_dataset, write_texts
from tests.tools.doctor.machines import machine

RUN = PlannedRun(num_ranks=4, ranks_per_node=4, num_workers=2)


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
    run = PlannedRun(ranks_per_node=2, num_workers=8)
    assert codes(machine(num_cores=8.0), run) == {"few-cores": "set num_workers=4"}
    assert codes(machine(num_cores=1.0)) == {"few-cores": "set num_workers=1"}
    assert codes(machine(num_cores=3.0)) == {"few-cores": "set num_workers=1"}
    assert codes(machine(num_cores=3.0), PlannedRun(num_ranks=4, ranks_per_node=4, num_workers=1)) == {
        "few-cores": "give the job more cores"
    }
    assert codes(machine(num_cores=2.0), PlannedRun(num_workers=2)) == {}
    assert codes(machine(num_cores=1.0), PlannedRun(num_workers=0)) == {}


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
    assert codes(machine(shm_bytes=None, locked_bytes=65536), PlannedRun()) == {}


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
    monkeypatch.setattr("bridge_data.tools.doctor.environment._MEMORY_LIMIT", tmp_path / "memory.max")
    found = MachineLimits.read().memory_bytes
    assert found == 1 << 30 if limit != "max" else found > 1 << 30
