from pathlib import Path

import numpy as np
import pytest

from bridge_data.order import Schedule
from bridge_data.plan import load_plan
from bridge_data.tools.doctor.source_plan import check_epochs_of, draws_after, plan_sources, shares_at
from tests.prepared import write_blend, write_texts


@pytest.fixture
def blend(tmp_path: Path) -> Path:
    """Two data sets of 100 and 10 samples, in equal parts at first, and then in parts of 1 to 3."""
    write_texts(tmp_path / "large", 100)
    write_texts(tmp_path / "small", 10)
    file = write_blend(tmp_path / "blend.yaml", {"large": 1, "small": 1})
    schedule = "[{from_sample: 0, weight: 1}, {from_sample: 2048, weight: 3}]"
    before, after = file.read_text().rsplit("weight: 1", 1)
    file.write_text(f"{before}weight: {schedule}{after}")
    return file


def test_draws_and_shares_follow_the_schedule(blend: Path) -> None:
    plan = load_plan(blend)
    assert shares_at(plan, [0, 2047, 2048, 9999]).tolist() == [[0.5, 0.5], [0.5, 0.5], [0.25, 0.75], [0.25, 0.75]]
    assert draws_after(plan, [0, 1024, 2048, 4096]).tolist() == [[0, 0], [512, 512], [1024, 1024], [1536, 2560]]


def test_draws_are_those_of_the_order(blend: Path) -> None:
    plan = load_plan(blend)
    schedule = Schedule([(0, plan.weights or ()), *plan.later_weights], seed=0)
    drawn = np.sum([schedule.counts(lane, 8, 512) for lane in range(8)], axis=0)
    assert drawn == pytest.approx(draws_after(plan, 8 * 512)[0], abs=8 * 3.4)


def test_epochs_of_a_run(blend: Path) -> None:
    large, small = plan_sources(load_plan(blend), 200)
    assert (large.share, large.draws, large.epochs) == (0.5, 100, 1)
    assert (small.draws, small.epochs) == (100, 10)
    (finding,) = check_epochs_of([large, small])
    assert finding.code == "many-epochs"
    assert finding.what == "small/train: each sample comes 10.0 times in this run"
    assert finding.change == "lower its weight to 20.00% of the draws or less, or add data"


def test_where_all_sources_together_are_too_few_no_weight_helps(blend: Path) -> None:
    findings = list(check_epochs_of(plan_sources(load_plan(blend), 4096)))
    assert {finding.change for finding in findings} == {"train fewer steps, or add data"}


def test_the_length_of_the_run_is_not_known(blend: Path) -> None:
    sources = plan_sources(load_plan(blend), None)
    assert [source.epochs for source in sources] == [None, None]
    assert list(check_epochs_of(sources)) == []


def test_a_source_that_is_never_drawn(tmp_path: Path) -> None:
    for name in ("often", "never"):
        write_texts(tmp_path / name, 10)
    plan = load_plan(write_blend(tmp_path / "blend.yaml", {"often": 1000, "never": 1}))
    (finding,) = check_epochs_of(plan_sources(plan, 20))
    assert (finding.code, finding.what) == ("never-drawn", "never/train: no sample of it is drawn in this run")
