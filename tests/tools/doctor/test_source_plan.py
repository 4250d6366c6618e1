import sys
from pathlib import Path

import numpy as np
import pytest

from bridge_data.errors import ConfigError
from bridge_data.order import Schedule
from bridge_data.plan import Plan, load_plan
from bridge_data.tools.doctor import source_plan
from bridge_data.tools.doctor.planned_run import PlannedRun
from bridge_data.tools.doctor.source_plan import (
    check_epochs_of,
    check_plot,
    draw_plan,
    draws_after,
    plan_lines,
    plan_sources,
    shares_at,
)
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


RUN = PlannedRun(steps=50, global_batch_size=64)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    sizes = {"a": 10, "b": 20, "c": 40}
    for name, size in sizes.items():
        write_texts(tmp_path / name, size)
    return load_plan(write_blend(tmp_path / "blend.yaml", {"a": 1, "b": 2, "c": 5}))


def test_lines_are_shares_and_epochs_by_step(plan: Plan) -> None:
    steps, shares, epochs, names = plan_lines(plan, RUN, samples_per_unit=2.0)
    assert (steps[0], steps[-1], len(steps)) == (0, 50, 51)
    assert names == ["c/train", "b/train", "a/train"]
    assert shares[0].tolist() == [0.625, 0.25, 0.125]
    assert epochs[-1].tolist() == pytest.approx([6400 * 0.625 / 40, 6400 * 0.25 / 20, 6400 * 0.125 / 10])


def test_the_least_drawn_sources_have_one_line_together(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_plan, "MAX_LINES", 1)
    _, shares, epochs, names = plan_lines(plan, RUN, 1.0)
    assert names == ["c/train", "2 others"]
    assert shares[0].tolist() == [0.625, 0.375]
    assert epochs.shape == (51, 1)


def test_pictures_are_png_or_svg(plan: Plan, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: the extra bench has it")
    for name, begin in (("plan.png", b"\x89PNG"), ("plan.svg", b"<?xml")):
        check_plot(tmp_path / name, RUN)
        draw_plan(plan, RUN, 1.0, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begin)
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        draw_plan(plan, RUN, 1.0, tmp_path / "nowhere" / "plan.png")


def test_what_a_picture_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--plot plan.gif: expected a name that ends in .png or .svg"):
        check_plot(Path("plan.gif"), RUN)
    with pytest.raises(ConfigError, match="how long is the run"):
        check_plot(Path("plan.png"), PlannedRun())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"--plot needs matplotlib: pip install \"bridge-data\[bench\]\""):
        check_plot(Path("plan.svg"), RUN)
