from pathlib import Path

from bridge_data.tools.doctor import Level, examine
from tests.prepared import write_texts
from tests.tools.doctor.machines import planned


def test_one_fault_hides_no_other(tmp_path: Path) -> None:
    run = planned(num_ranks=3, num_lanes=8, micro_batch_size=4, global_batch_size=8)
    found = examine(tmp_path / "nothing", run)
    assert found.stops
    stops = [finding.code for finding in found.findings if finding.level is Level.STOPS]
    assert stops == ["batch-of-ranks", "lanes-of-ranks", "data"]
    assert found.figures is None


def test_a_measurement_that_fails_is_a_finding(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "texts", 40)
    run = planned(num_workers=0, packing_buffer_size=10)  # without a task encoder that packs
    found = examine(path, run, measure_s=0.05)
    assert found.findings[0].code == "loader"
    assert found.stops
