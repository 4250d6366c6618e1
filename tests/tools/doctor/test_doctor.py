import dataclasses
import math
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.numbers_data import write_shards
from bridge_data.errors import ConfigError
from bridge_data.order import Schedule
from bridge_data.plan import Plan, load_plan
from bridge_data.storage.remote import CACHE_VARIABLE
from bridge_data.tools import doctor
from bridge_data.tools.doctor import (
    HIGH_INFLATION,
    Finding,
    Level,
    MachineLimits,
    ShardsSeen,
    SourceOrder,
    check_codecs,
    check_data,
    check_environment,
    check_epochs_of,
    check_order,
    check_plot,
    check_ranks,
    check_rate,
    draw_plan,
    draws_after,
    examine,
    needed_batches_per_s,
    orders_of,
    plan_lines,
    plan_sources,
    samples_of_lane,
    samples_per_unit,
)
from bridge_data.tools.runs import PlannedRun
from tests.prepared import CRUDE, write_blend, write_dataset, write_texts
from tests.tools.bench.test_bench import FIGURES
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


def changes(run: PlannedRun) -> dict[str, str]:
    return {finding.code: finding.change for finding in check_ranks(run)}


def test_ranks_that_share_lanes_and_batches_equally() -> None:
    assert changes(planned(num_ranks=8, later_ranks=(16, 32, 64), global_batch_size=1024)) == {}


def test_lanes_that_later_ranks_cannot_share() -> None:
    assert changes(planned(num_ranks=8, later_ranks=(16, 24, 40))) == {
        "lanes-of-later-ranks": "set num_lanes=960 from the beginning"
    }


def test_a_great_many_lanes_are_not_proposed() -> None:
    found = changes(planned(num_ranks=8, later_ranks=(7, 11, 13)))
    assert found["lanes-of-later-ranks"].startswith("choose numbers of ranks that divide 64; only num_lanes=64064 ")


def test_lanes_that_the_ranks_cannot_share() -> None:
    assert changes(planned(num_ranks=6, num_lanes=8)) == {"lanes-of-ranks": "set num_lanes=24"}


@pytest.mark.parametrize(
    ("num_lanes", "num_workers", "change", "busy"),
    [
        (4, 3, "set num_workers=2, or num_lanes=6 in a new run", 2),
        (16, 6, "set num_workers=4, or num_lanes=12 in a new run", 4),
    ],
)
def test_workers_that_wait_for_each_other(num_lanes: int, num_workers: int, change: str, busy: float) -> None:
    run = planned(num_ranks=2, num_lanes=num_lanes, num_workers=num_workers)
    assert changes(run) == {"idle-workers": change}
    assert not changes(planned(num_ranks=2, num_lanes=num_lanes, num_workers=2))
    (found,) = check_ranks(run)
    assert found.factor == num_workers / busy


def test_global_batches_that_ranks_cannot_share() -> None:
    run = planned(num_ranks=4, micro_batch_size=4, global_batch_size=24, later_ranks=(2, 5))
    found = changes(run)
    assert found["batch-of-ranks"] == "set global_batch_size=32"
    assert [*found] == ["batch-of-ranks", "batch-of-later-ranks", "lanes-of-later-ranks"]


def test_a_step_of_several_batches_of_a_lane_takes_more_samples_of_it() -> None:
    run = planned(micro_batch_size=4, global_batch_size=64)
    assert samples_of_lane(run, num_lanes=8, samples_per_unit=1.0, share=1.0) == 8
    assert samples_of_lane(run, num_lanes=32, samples_per_unit=1.0, share=0.5) == 2
    assert samples_of_lane(run, num_lanes=32, samples_per_unit=5.0, share=0.5) == 10
    assert samples_of_lane(run, num_lanes=32, samples_per_unit=1.0, share=0.001) == 1


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("order") / "texts", 4000, per_shard=500)


def checked(path: Path, run: PlannedRun) -> tuple[SourceOrder, dict[str, Finding]]:
    (order,) = orders_of(load_plan(path), run, 1.0)
    return order, {finding.code: finding for finding in check_order(order, run)}


def test_a_proposed_setting_gives_the_figure_that_is_promised(texts: Path) -> None:
    run = planned(num_lanes=8, max_samples_per_sequence=250)
    order, findings = checked(texts, run)
    finding = findings["batches-of-few-chunks"]
    assert order.mixing.inflation > HIGH_INFLATION
    assert finding.change.startswith("set max_samples_per_sequence=")
    length = int(finding.change.split("=")[1].split()[0])
    better, _ = checked(texts, planned(num_lanes=8, max_samples_per_sequence=length))
    assert finding.gain == f"{better.mixing.inflation:.2f} times instead of {order.mixing.inflation:.2f}"
    assert better.mixing.inflation < order.mixing.inflation


def test_a_good_order_has_no_findings(texts: Path) -> None:
    assert checked(texts, planned(num_lanes=1))[1] == {}


def test_data_that_are_not_shuffled(texts: Path) -> None:
    _, findings = checked(texts, planned(num_lanes=1, shuffle_buffer_size=None, max_samples_per_sequence=None))
    assert [*findings] == ["not-shuffled"]
    assert findings["not-shuffled"].factor == pytest.approx(16, rel=0.2)


def test_few_samples_for_many_lanes(texts: Path) -> None:
    order, findings = checked(texts, planned(num_lanes=64))
    assert order.geometry.chunk_size == 3
    assert findings["few-samples"].change == "set num_lanes=1, unless the run is to be resized"


def test_epochs_that_overlap_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge_data.tools.doctor.MUCH_OVERLAP", 0.02)
    write_shards(tmp_path, [1] * 60 + [60])
    _, findings = checked(tmp_path, planned(num_lanes=2))
    finding = findings["epochs-overlap"]
    assert finding.what.endswith("as chunks have 1 to 3 samples")
    assert finding.change == "set max_samples_per_sequence=1"
    assert finding.gain.startswith("0.0% instead of 2.")


def test_of_a_blend_the_sources_with_the_greatest_shares_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge_data.tools.doctor.MAX_SOURCES", 2)
    for name in "abc":
        write_texts(tmp_path / name, 10)
    blend = write_blend(tmp_path / "blend.yaml", {"a": 1, "b": 5, "c": 3})
    found = orders_of(load_plan(blend), planned(), 1.0)
    assert [order.source.name for order in found] == ["b/train", "c/train"]
    assert [order.size for order in found] == [9, 5]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "shards", 60, per_shard=10)


def findings_of(path: Path | str) -> tuple[dict[str, Finding], ShardsSeen]:
    seen = ShardsSeen()
    return {finding.code: finding for finding in check_data(load_plan(path).sources, seen)}, seen


def test_sound_data(shards: Path) -> None:
    assert findings_of(shards) == ({}, ShardsSeen(6, 6))


def test_no_shard_is_opened(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = load_plan(shards).sources
    opened = []
    real = os.open

    def note(path: str, *arguments: object, **named: object) -> int:
        opened.append(str(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", note)
    list(check_data(sources, ShardsSeen()))
    assert not [path for path in opened if path.endswith(".tar")]


def test_a_shard_of_another_size_stops(shards: Path) -> None:
    with (shards / "data-0002.tar").open("ab") as shard:
        shard.write(bytes(512))
    findings, _ = findings_of(shards)
    assert findings["index-outdated"].level is Level.STOPS
    assert "1 shard such as data-0002.tar are of another size" in findings["index-outdated"].what


def test_a_shard_that_is_gone_stops(shards: Path) -> None:
    (shards / "data-0003.tar").unlink()
    findings, _ = findings_of(shards)
    assert findings["missing-shard"].level is Level.STOPS
    assert "data-0003.tar" in findings["missing-shard"].what


def test_shards_with_another_time_of_change_are_compared_when_they_are_read(shards: Path) -> None:
    os.utime(shards / "data-0001.tar", (1, 1))
    findings, _ = findings_of(shards)
    assert [*findings] == ["index-times"]
    assert findings["index-times"].level is Level.SLOWS


def test_data_without_our_index(shards: Path) -> None:
    (shards / ".nv-meta" / "index.bridge").unlink()
    findings, _ = findings_of(shards)
    assert findings["index-missing"].change == f"run `bridge-data prepare {shards} --tar-index-only`"


def test_faults_of_the_metadata_are_those_of_lint(shards: Path) -> None:
    shutil.copy(shards / "data-0000.tar", shards / "more.tar")
    findings, _ = findings_of(shards)
    assert findings["unprepared-shard"].level is Level.NOTE
    assert "more.tar" in findings["unprepared-shard"].what


def test_of_tars_that_nobody_has_prepared_only_that_is_noted(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    shutil.rmtree(shards / ".nv-meta")
    for path in (shards, shards / "data-{0000..0005}.tar"):
        findings, seen = findings_of(path)
        assert [*findings] == ["unprepared"] and seen == ShardsSeen(6, 6)
        assert findings["unprepared"].level is Level.NOTE
        assert findings["unprepared"].change == f"run `bridge-data prepare {shards}` once for all machines"


def test_of_many_shards_some_are_looked_at(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MAX_LOOKED_AT", 3)
    (shards / "data-0002.tar").unlink()
    findings, seen = findings_of(shards)
    assert seen == ShardsSeen(6, 3)
    assert findings["missing-shard"].what.endswith("1 shard such as data-0002.tar are gone")


def test_many_small_shards(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MANY_SHARDS", 6)
    findings, _ = findings_of(shards)
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


SHORT = planned(steps=50, global_batch_size=64)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    sizes = {"a": 10, "b": 20, "c": 40}
    for name, size in sizes.items():
        write_texts(tmp_path / name, size)
    return load_plan(write_blend(tmp_path / "blend.yaml", {"a": 1, "b": 2, "c": 5}))


def test_lines_are_shares_and_epochs_by_step(plan: Plan) -> None:
    steps, shares, epochs, names = plan_lines(plan, SHORT, samples_per_unit=2.0)
    assert (steps[0], steps[-1], len(steps)) == (0, 50, 51)
    assert names == ["c/train", "b/train", "a/train"]
    assert shares[0].tolist() == [0.625, 0.25, 0.125]
    assert epochs[-1].tolist() == pytest.approx([6400 * 0.625 / 40, 6400 * 0.25 / 20, 6400 * 0.125 / 10])


def test_the_least_drawn_sources_have_one_line_together(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MAX_LINES", 1)
    _, shares, epochs, names = plan_lines(plan, SHORT, 1.0)
    assert names == ["c/train", "2 others"]
    assert shares[0].tolist() == [0.625, 0.375]
    assert epochs.shape == (51, 1)


def test_pictures_are_png_or_svg(plan: Plan, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: the extra bench has it")
    for name, begin in (("plan.png", b"\x89PNG"), ("plan.svg", b"<?xml")):
        check_plot(tmp_path / name, SHORT)
        draw_plan(plan, SHORT, 1.0, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begin)
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        draw_plan(plan, SHORT, 1.0, tmp_path / "nowhere" / "plan.png")


def test_what_a_picture_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--plot plan.gif: expected a name that ends in .png or .svg"):
        check_plot(Path("plan.gif"), SHORT)
    with pytest.raises(ConfigError, match="how long is the run"):
        check_plot(Path("plan.png"), planned())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"--plot needs matplotlib: pip install \"bridge-data\[bench\]\""):
        check_plot(Path("plan.svg"), SHORT)


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
