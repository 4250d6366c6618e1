import dataclasses
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bridge_data.configs import DataConfig
from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
from bridge_data.plugins.doctor import run_checks, shard_checks
from bridge_data.plugins.doctor.bench import BenchConfig
from bridge_data.plugins.doctor.findings import Finding, Level, in_order_of_gain
from bridge_data.plugins.doctor.planned_run import PlannedRun
from bridge_data.plugins.doctor.run_checks import (
    HIGH_INFLATION,
    MachineLimits,
    SourceOrder,
    check_codecs,
    check_environment,
    check_epochs_of,
    check_hooks,
    check_order,
    check_ranks,
    check_rate,
    examine,
    needed_batches_per_s,
    orders_of,
    samples_of,
    samples_of_lane,
    samples_per_unit,
)
from bridge_data.plugins.doctor.shard_checks import ShardsSeen, check_data
from bridge_data.plugins.doctor.source_draws import SourceDraws, draws_of_sources
from bridge_data.storage.copies import CACHE_VARIABLE
from bridge_data.task import DefaultTaskEncoder
from tests.plugins.doctor.profiles import FIGURES
from tests.prepared import CRUDE, write_blend, write_dataset, write_texts

MACHINE = MachineLimits(
    num_cores=16.0,
    memory_bytes=64 << 30,
    shm_bytes=2 << 30,
    libraries={"simplejpeg": "1.9.0", "av": "18.0.0"},
)
"""A machine that has all a run needs."""

FOUR = {"num_ranks": 4, "ranks_per_node": 4, "num_workers": 2}


OWN = ("num_ranks", "later_ranks", "ranks_per_node", "steps", "step_s")
DATA = {"micro_batch_size": 16, "max_samples_per_sequence": 100, "num_workers": 2}


def planned(path: Path | str = "photos", **options: Any) -> PlannedRun:
    """A run with these options."""
    own = {name: options.pop(name) for name in OWN if name in options}
    return PlannedRun(data=DataConfig(path=str(path), options=DATA | options), **own)


def by_code(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.code: finding for finding in findings}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_ranks": 0}, "num_ranks"),
        ({"later_ranks": (8, 0)}, "expected an integer of at least 1"),
        ({"step_s": 0.0}, "step_s"),
        ({"steps": 1.5}, "steps"),
    ],
)
def test_what_is_wrong_names_the_field(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(**options)


@pytest.mark.parametrize("options", [{}, {"num_workers": 4, "num_ranks": 4}, {"num_workers": 3, "later_ranks": (2,)}])
def test_advice_that_is_followed_comes_to_an_end(tmp_path: Path, options: dict[str, Any]) -> None:
    run, changes = planned(write_texts(tmp_path / "texts", 200), micro_batch_size=1, **options), []
    for _ in range(6):
        found = [number for one in examine(run).findings for number in re.findall(r"num_lanes=(\d+)", one.change)]
        if not found:
            break
        changes.append(int(found[0]))
        run = dataclasses.replace(run, data=run.data.with_options(num_lanes=changes[-1]))
    assert len(changes) == len(set(changes)) < 6, changes
    assert "idle-workers" not in by_code(examine(run).findings)


def test_what_stops_comes_first_and_then_what_gains_most() -> None:
    given = [("note", Level.NOTE, 9), ("little", Level.SLOWS, 1.1), ("much", Level.SLOWS, 3), ("stop", Level.STOPS, 1)]
    findings = [Finding(code=code, level=level, what="", change="", factor=factor) for code, level, factor in given]
    found = [finding.to_dict() for finding in in_order_of_gain(findings)]
    assert [each["code"] for each in found] == ["stop", "much", "little", "note"]
    assert [each["level"] for each in found] == ["stops", "slows", "slows", "note"]


def test_this_machine_can_be_read_and_the_memory_of_its_control_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = MachineLimits.read()
    assert here.num_cores > 0 and "simplejpeg" in here.libraries
    monkeypatch.setattr("bridge_data.plugins.doctor.run_checks._MEMORY_LIMIT", tmp_path / "memory.max")
    for limit, is_that in (("max", False), ("1073741824", True)):
        (tmp_path / "memory.max").write_text(limit + "\n")
        found = MachineLimits.read().memory_bytes
        assert found >= 1 << 30 and (found == 1 << 30) == is_that


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        ({}, FOUR, {}),
        ({"num_cores": 8.0}, {"ranks_per_node": 2, "num_workers": 8}, {"few-cores": "set num_workers=4"}),
        ({"num_cores": 1.0}, FOUR, {"few-cores": "set num_workers=1"}),
        ({"num_cores": 3.0}, FOUR, {"few-cores": "set num_workers=1"}),
        ({"num_cores": 3.0}, FOUR | {"num_workers": 1}, {"few-cores": "give the job more cores"}),
        ({"num_cores": 2.0}, {"num_workers": 2}, {}),
        ({"num_cores": 1.0}, {"num_workers": 0}, {}),
        ({"memory_bytes": 2 << 30}, FOUR, {"little-memory": "set WorkerConfig(max_open_bytes=64 << 20)"}),
    ],
)
def test_what_the_machine_lacks_has_a_way_out(
    changes: dict[str, Any], options: dict[str, Any], expected: dict[str, str]
) -> None:
    found = by_code(check_environment(dataclasses.replace(MACHINE, **changes), planned(**options)))
    assert found.keys() == expected.keys()
    assert all(change in found[code].change for code, change in expected.items())


def test_clips_need_pyav_and_texts_do_not(tmp_path: Path) -> None:
    clips = write_dataset(tmp_path / "clips", [{"__key__": "0", "mp4": b"", "txt": ""}], definition=CRUDE)
    sources = load_plan(clips).sources
    assert list(check_codecs(MACHINE, sources)) == []
    bare = dataclasses.replace(MACHINE, libraries={})
    (finding,) = check_codecs(bare, sources)
    assert (finding.code, finding.level) == ("no-av", Level.STOPS) and "clips/train has mp4" in finding.what
    assert list(check_codecs(bare, load_plan(write_texts(tmp_path / "texts", 4)).sources)) == []


MEASURED = dataclasses.replace(FIGURES, num_samples=1600, num_batches=50, seconds=5.0, cpu_s=10.0)
"""10 batches of 32 samples a second, for 0.2 s of CPU time each."""

TWO = {"global_batch_size": 64, "num_ranks": 2}


@pytest.mark.parametrize(
    ("options", "num_cores", "needed", "expected"),
    [
        (TWO | {"micro_batch_size": 16, "step_s": 0.4}, 16.0, 5, ()),
        ({}, 16.0, None, ()),  # nothing is known of the time of a step
        (
            TWO | {"step_s": 0.1, "num_workers": 2},
            16.0,
            20,
            (
                "slow-data",
                "a rank makes 320 samples/s with num_workers=2, and needs 640",
                "set num_workers=8, and measure again",
            ),
        ),
        (
            TWO | {"step_s": 0.1, "ranks_per_node": 2},
            4.0,
            20,
            ("slow-cores", "need 8.0 cores for the data of 2 ranks; there are 4", "with 9 CPUs for each"),
        ),
    ],
)
def test_data_that_are_slower_than_steps_need_workers_or_cores(
    options: dict[str, Any], num_cores: float, needed: float | None, expected: tuple[str, ...]
) -> None:
    run = planned(**options)
    assert needed_batches_per_s(run) == (needed if needed is None else pytest.approx(needed))
    found = list(check_rate(MEASURED, run, dataclasses.replace(MACHINE, num_cores=num_cores)))
    assert len(found) == bool(expected)
    for finding in found:
        code, what, change = expected
        assert (finding.code, finding.factor) == (code, pytest.approx(2))
        assert what in finding.what and change in finding.change


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"num_ranks": 8, "later_ranks": (16, 32, 64), "global_batch_size": 1024}, {}),
        (
            {"num_ranks": 8, "later_ranks": (16, 24, 40)},
            {"lanes-of-later-ranks": "set num_lanes=960 from the beginning"},
        ),
        (
            {"num_ranks": 8, "later_ranks": (7, 11, 13)},
            {"lanes-of-later-ranks": "choose numbers of ranks that divide 64; only num_lanes=64064 "},
        ),
        ({"num_ranks": 6, "num_lanes": 8}, {"lanes-of-ranks": "set num_lanes=24"}),
        ({"num_ranks": 2, "num_lanes": 4, "num_workers": 2}, {}),
        (
            {"num_ranks": 2, "num_lanes": 4, "num_workers": 3},
            {"idle-workers": "set num_workers=2, or num_lanes=6 in a new run"},
        ),
        (
            {"num_ranks": 2, "num_lanes": 16, "num_workers": 6},
            {"idle-workers": "set num_workers=4, or num_lanes=12 in a new run"},
        ),
        (
            {"num_ranks": 4, "micro_batch_size": 4, "global_batch_size": 24, "later_ranks": (2, 5)},
            {"batch-of-ranks": "set global_batch_size=32", "batch-of-later-ranks": "", "lanes-of-later-ranks": ""},
        ),
    ],
)
def test_lanes_and_batches_that_ranks_cannot_share(options: dict[str, Any], expected: dict[str, str]) -> None:
    found = by_code(check_ranks(planned(**options)))
    assert [*found] == [*expected]
    assert all(found[code].change.startswith(change) for code, change in expected.items())
    if "idle-workers" in found:
        assert found["idle-workers"].factor == 1.5


def test_one_fault_of_the_data_hides_no_other_of_the_data(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts", 40, per_shard=10)
    (tmp_path / "texts" / "data-0001.tar").unlink()
    blend = tmp_path / "blend.yaml"
    blend.write_text(
        "__module__: bridge_data\n__class__: MetadatasetV2\nsplits:\n  train:\n    weight_unit: tokens\n"
        "    blend:\n      - {weight: 1, path: texts}\n"
    )
    sizes = {"global_batch_size": 7, "micro_batch_size": 2, "steps": 10}
    found = by_code(examine(planned(blend, **sizes)).findings)
    assert {"missing-shard", "data", "batch-of-ranks"} <= {*found}
    assert "not measured" in found["data"].what and found["batch-of-ranks"].change == "set global_batch_size=8"
    ramp = by_code(examine(planned(tmp_path / "texts", rampup_batch_size=[3, 2, 100], **sizes)).findings)
    assert "batch-of-ranks" in ramp


def test_a_step_of_several_batches_of_a_lane_takes_more_samples_of_it() -> None:
    run = planned(micro_batch_size=4, global_batch_size=64)
    given = [(8, 1.0, 1.0), (32, 1.0, 0.5), (32, 5.0, 0.5), (32, 1.0, 0.001)]
    assert [samples_of_lane(run, lanes, per_unit, share) for lanes, per_unit, share in given] == [8, 2, 10, 1]
    assert (samples_per_unit(MEASURED, planned(micro_batch_size=4)), samples_per_unit(None, planned())) == (8, 1)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("order") / "texts", 4000, per_shard=500)


def checked(path: Path, **options: Any) -> tuple[SourceOrder, dict[str, Finding]]:
    run = planned(path, **options)
    (order,) = orders_of(samples_of(run), run, 1.0, [1.0])
    return order, by_code(check_order(order, planned(**options)))


def test_a_proposed_setting_gives_the_figure_that_is_promised(texts: Path) -> None:
    order, findings = checked(texts, num_lanes=8, max_samples_per_sequence=250)
    finding = findings["batches-of-few-chunks"]
    assert order.mixing.inflation > HIGH_INFLATION
    setting, value = finding.change.removeprefix("set ").split()[0].split("=")
    better, _ = checked(texts, num_lanes=8, **{setting: int(value)})
    assert setting == "max_samples_per_sequence" and better.mixing.inflation < order.mixing.inflation
    assert finding.gain == f"{better.mixing.inflation:.2f} times instead of {order.mixing.inflation:.2f}"


def test_orders_that_mix_well_and_badly(texts: Path) -> None:
    assert checked(texts, num_lanes=1)[1] == {}
    _, findings = checked(texts, num_lanes=1, shuffle_buffer_size=None, max_samples_per_sequence=None)
    assert [*findings] == ["not-shuffled"] and findings["not-shuffled"].factor == pytest.approx(16, rel=0.2)


def test_of_a_blend_the_sources_with_the_greatest_shares_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_checks, "MAX_SOURCES", 2)
    for name in "abc":
        write_texts(tmp_path / name, 10)
    run = planned(write_blend(tmp_path / "blend.yaml", {"a": 1, "b": 5, "c": 3}))
    found = orders_of(samples_of(run), run, 1.0, [1 / 9, 5 / 9, 3 / 9])
    assert [(order.source.name, order.size) for order in found] == [("b/train", 9), ("c/train", 5)]


def test_few_samples_are_examined_in_the_lanes_that_the_run_has(tmp_path: Path) -> None:
    run = planned(write_texts(tmp_path, 2))
    (order,) = orders_of(samples_of(run), run, 1.0, [1.0])
    assert order.geometry.num_lanes == run.num_ranks


def test_buffers_that_hold_more_than_the_data_are_told(tmp_path: Path) -> None:
    path = write_texts(tmp_path, 60)
    for size, is_told in ((15, False), (16, True)):
        found = by_code(examine(planned(path, packing_buffer_size=size, num_lanes=4)).findings)
        assert ("buffers-beyond-data" in found) == is_told
    assert found["buffers-beyond-data"].what.startswith("the packing buffers of 4 lanes hold 64 samples, and the data ")
    assert found["buffers-beyond-data"].change.startswith("set packing_buffer_size=15")


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "shards", 60, per_shard=10)


def findings_of(path: Path | str) -> tuple[dict[str, Finding], ShardsSeen]:
    seen = ShardsSeen()
    return by_code(check_data(load_plan(path).sources, seen)), seen


def grow(folder: Path) -> None:
    with (folder / "data-0002.tar").open("ab") as shard:
        shard.write(bytes(512))


@pytest.mark.parametrize(
    ("damage", "code", "level", "told"),
    [
        (lambda folder: None, None, None, ""),
        (grow, "index-outdated", Level.STOPS, "1 shard such as data-0002.tar are of another size"),
        (lambda folder: (folder / "data-0003.tar").unlink(), "missing-shard", Level.STOPS, "data-0003.tar"),
        (lambda folder: os.utime(folder / "data-0001.tar", (1, 1)), "index-times", Level.SLOWS, "data-0001.tar"),
        (
            lambda folder: (folder / ".nv-meta" / "index.bridge").unlink(),
            "index-missing",
            Level.SLOWS,
            "run `bridge-data prepare {} --tar-index-only`",
        ),
        (
            lambda folder: shutil.copy(folder / "data-0000.tar", folder / "more.tar"),
            "unprepared-shard",
            Level.NOTE,
            "more.tar",
        ),
    ],
)
def test_shards_that_are_not_as_they_were_prepared(
    shards: Path, damage: Callable[[Path], object], code: str | None, level: Level | None, told: str
) -> None:
    damage(shards)
    findings, seen = findings_of(shards)
    assert seen == ShardsSeen(6, 6)
    assert [*findings] == ([] if code is None else [code])
    for finding in findings.values():
        assert finding.level is level and told.format(shards) in f"{finding.what} {finding.change}"


def test_no_shard_is_opened(shards: Path) -> None:
    for shard in shards.glob("*.tar"):
        stat = shard.stat()
        shard.write_bytes(bytes(stat.st_size))
        os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert findings_of(shards) == ({}, ShardsSeen(6, 6))


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


def test_of_many_shards_some_are_looked_at_and_small_ones_are_told(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_checks, "MANY_SHARDS", 6)
    findings, _ = findings_of(shards)
    assert [*findings] == ["small-shards"] and "6 shards of 0.0" in findings["small-shards"].what
    monkeypatch.setattr(shard_checks, "MAX_LOOKED_AT", 3)
    (shards / "data-0002.tar").unlink()
    findings, seen = findings_of(shards)
    assert seen == ShardsSeen(6, 3)
    assert findings["missing-shard"].what.endswith("1 shard such as data-0002.tar are gone")


@pytest.fixture
def blend(tmp_path: Path) -> Path:
    """Two data sets of 100 and 10 samples, in equal parts at first, and then in parts of 1 to 3."""
    write_texts(tmp_path / "large", 100)
    write_texts(tmp_path / "small", 10)
    file = write_blend(tmp_path / "blend.yaml", {"large": 1, "small": 1})
    before, after = file.read_text().rsplit("weight: 1", 1)
    file.write_text(f"{before}weight: [{{from_sample: 0, weight: 1}}, {{from_sample: 2048, weight: 3}}]{after}")
    return file


def draws(path: Path, num_drawn: int) -> list[SourceDraws]:
    return draws_of_sources(samples_of(planned(path)), num_drawn)


def test_draws_are_those_of_the_order(blend: Path) -> None:
    found = draws(blend, 8 * 512)
    assert [one.draws for one in found] == pytest.approx([1024 + 512, 1024 + 1536], abs=4)


def test_epochs_of_a_run(blend: Path) -> None:
    large, small = draws(blend, 200)
    assert (large.share, large.draws, large.epochs, small.draws, small.epochs) == (0.5, 99, 0.99, 101, 10.1)
    (finding,) = check_epochs_of([large, small])
    assert (finding.code, finding.what) == ("many-epochs", "small/train: each sample comes 10.1 times in this run")
    assert finding.change == "lower its weight to 20.00% of the draws or less, or add data"
    too_few = check_epochs_of(draws(blend, 4096))  # all together: no weight helps
    assert {finding.change for finding in too_few} == {"train fewer steps, or add data"}
    (finding,) = check_epochs_of(draws(write_blend(blend, {"large": 1000, "small": 1}), 20))
    assert (finding.code, finding.what) == ("never-drawn", "small/train: no sample of it is drawn in this run")


class Drawing(DefaultTaskEncoder):
    """Draws from the generator that is seeded for the sample, or from one of its own; of these samples."""

    def __init__(self, *, own: bool, of: Collection[str] | None = None) -> None:
        super().__init__()
        self.own, self.of = np.random.default_rng(0) if own else None, of

    def encode_sample(self, sample: Any) -> Any:
        is_own = self.own is not None and (self.of is None or sample.__key__ in self.of)
        return {"key": sample.__key__, "number": self.own.random() if is_own else np.random.rand()}


def test_hooks_whose_results_depend_on_what_they_made_before_are_told(tmp_path: Path) -> None:
    run = planned(write_texts(tmp_path / "texts", 40), num_workers=0)
    for own, expected in ((False, []), (True, [".*batch\\['number'\\].*of Drawing"])):
        found = examine(run, measure_s=0.05, task_encoder=Drawing(own=own)).findings
        told = [finding.what for finding in found if finding.code == "hooks-differ"]
        assert len(told) == len(expected) and all(map(re.match, expected, told))


@pytest.mark.parametrize(("lane", "is_told"), [(1, True), (3, True), (4, False)])
def test_the_first_batches_of_four_lanes_are_looked_at(lane: int, is_told: bool, tmp_path: Path) -> None:
    run = planned(write_texts(tmp_path / "texts", 400), num_workers=0, num_lanes=8)
    dataset = BenchConfig.of(run, Drawing(own=False), 1.0).dataset()
    keys = dataset.lane(lane, dataset.new_state()).next().batch["key"]
    found = [*check_hooks(BenchConfig.of(run, Drawing(own=True, of=keys), 1.0).dataset())]
    assert [finding.code for finding in found] == ["hooks-differ"] * is_told
    assert all(f"the first batch of lane {lane} was made twice" in finding.what for finding in found)


class Slow(DefaultTaskEncoder):
    """Takes 10 ms a sample."""

    num_made = 0

    def encode_sample(self, sample: Any) -> Any:
        type(self).num_made += 1
        time.sleep(0.01)
        return {"key": sample.__key__}


def test_hooks_for_which_there_is_no_time_are_told_as_not_checked(tmp_path: Path) -> None:
    run = planned(write_texts(tmp_path / "texts", 400), num_workers=0, micro_batch_size=200)
    dataset = BenchConfig.of(run, Slow(), 1.0).dataset()
    (told,) = check_hooks(dataset, 0.1)
    assert told.code == "hooks-not-checked" and told.level is Level.NOTE
    assert f"{Slow.num_made} samples were made" in told.what and Slow.num_made <= 11
    assert not [*check_hooks(BenchConfig.of(run, Drawing(own=False), 1.0).dataset(), 60.0)]


def test_one_fault_hides_no_other_and_a_measurement_that_fails_is_one(tmp_path: Path) -> None:
    found = examine(planned(tmp_path / "nothing", num_ranks=3, num_lanes=8, micro_batch_size=4, global_batch_size=8))
    stops = [finding.code for finding in found.findings if finding.level is Level.STOPS]
    assert found.stops and found.figures is None and stops == ["batch-of-ranks", "lanes-of-ranks", "data"]
    texts = write_texts(tmp_path / "texts", 40)
    run = planned(texts, num_workers=0, packing_buffer_size=10)  # without a task encoder that packs
    found = examine(run, measure_s=0.05)
    assert found.stops and found.findings[0].code == "loader"
