import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from bridge_data.errors import ConfigError
from bridge_data.order import Schedule
from bridge_data.plan import Plan, load_plan
from bridge_data.storage.remote import CACHE_VARIABLE
from bridge_data.tools import doctor
from bridge_data.tools.doctor import (
    Finding,
    Level,
    ShardsSeen,
    check_data,
    check_epochs_of,
    check_plot,
    draw_plan,
    draws_after,
    plan_lines,
    plan_sources,
)
from tests.prepared import write_blend, write_texts
from tests.tools.doctor.machines import planned


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts", 60, per_shard=10)


def found(path: Path | str) -> tuple[dict[str, Finding], ShardsSeen]:
    seen = ShardsSeen()
    return {finding.code: finding for finding in check_data(load_plan(path).sources, seen)}, seen


def test_sound_data(texts: Path) -> None:
    assert found(texts) == ({}, ShardsSeen(6, 6))


def test_no_shard_is_opened(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = load_plan(texts).sources
    opened = []
    real = os.open

    def note(path: str, *arguments: object, **named: object) -> int:
        opened.append(str(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", note)
    list(check_data(sources, ShardsSeen()))
    assert not [path for path in opened if path.endswith(".tar")]


def test_a_shard_of_another_size_stops(texts: Path) -> None:
    with (texts / "data-0002.tar").open("ab") as shard:
        shard.write(bytes(512))
    findings, _ = found(texts)
    assert findings["index-outdated"].level is Level.STOPS
    assert "1 shard such as data-0002.tar are of another size" in findings["index-outdated"].what


def test_a_shard_that_is_gone_stops(texts: Path) -> None:
    (texts / "data-0003.tar").unlink()
    findings, _ = found(texts)
    assert findings["missing-shard"].level is Level.STOPS
    assert "data-0003.tar" in findings["missing-shard"].what


def test_shards_with_another_time_of_change_are_compared_when_they_are_read(texts: Path) -> None:
    os.utime(texts / "data-0001.tar", (1, 1))
    findings, _ = found(texts)
    assert [*findings] == ["index-times"]
    assert findings["index-times"].level is Level.SLOWS


def test_data_without_our_index(texts: Path) -> None:
    (texts / ".nv-meta" / "index.bridge").unlink()
    findings, _ = found(texts)
    assert findings["index-missing"].change == f"run `bridge-data prepare {texts} --tar-index-only`"


def test_faults_of_the_metadata_are_those_of_lint(texts: Path) -> None:
    shutil.copy(texts / "data-0000.tar", texts / "more.tar")
    findings, _ = found(texts)
    assert findings["unprepared-shard"].level is Level.NOTE
    assert "more.tar" in findings["unprepared-shard"].what


def test_of_tars_that_nobody_has_prepared_only_that_is_noted(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    shutil.rmtree(texts / ".nv-meta")
    for path in (texts, texts / "data-{0000..0005}.tar"):
        findings, seen = found(path)
        assert [*findings] == ["unprepared"] and seen == ShardsSeen(6, 6)
        assert findings["unprepared"].level is Level.NOTE
        assert findings["unprepared"].change == f"run `bridge-data prepare {texts}` once for all machines"


def test_of_many_shards_some_are_looked_at(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MAX_LOOKED_AT", 3)
    (texts / "data-0002.tar").unlink()
    findings, seen = found(texts)
    assert seen == ShardsSeen(6, 3)
    assert findings["missing-shard"].what.endswith("1 shard such as data-0002.tar are gone")


def test_many_small_shards(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MANY_SHARDS", 6)
    findings, _ = found(texts)
    assert [*findings] == ["small-shards"]
    assert "6 shards of 0.0" in findings["small-shards"].what


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


def test_a_source_that_is_never_drawn(tmp_path: Path) -> None:
    for name in ("often", "never"):
        write_texts(tmp_path / name, 10)
    plan = load_plan(write_blend(tmp_path / "blend.yaml", {"often": 1000, "never": 1}))
    (finding,) = check_epochs_of(plan_sources(plan, 20))
    assert (finding.code, finding.what) == ("never-drawn", "never/train: no sample of it is drawn in this run")


RUN = planned(steps=50, global_batch_size=64)


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
    monkeypatch.setattr(doctor, "MAX_LINES", 1)
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
        check_plot(Path("plan.png"), planned())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"--plot needs matplotlib: pip install \"bridge-data\[bench\]\""):
        check_plot(Path("plan.svg"), RUN)
