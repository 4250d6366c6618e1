from pathlib import Path

import pytest

from benchmarks.numbers_data import write_shards
from bridge_data.plan import load_plan
from bridge_data.tools.doctor import (
    HIGH_INFLATION,
    Finding,
    SourceOrder,
    check_order,
    check_ranks,
    orders_of,
    samples_of_lane,
)
from bridge_data.tools.runs import PlannedRun
from tests.prepared import write_blend, write_texts
from tests.tools.doctor.machines import planned


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
