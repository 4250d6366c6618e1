import sys
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from bridge_data.plan import Plan, load_plan
from bridge_data.tools.doctor import plan_picture
from bridge_data.tools.doctor.plan_picture import check_plot, draw_plan, plan_lines
from bridge_data.tools.doctor.planned_run import PlannedRun
from tests.prepared import write_blend, write_texts

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
    monkeypatch.setattr(plan_picture, "MAX_LINES", 1)
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
