"""Targets: met, short by so much, or without a figure."""

from typing import Any

from benchmarks.speed.programs import BARE, ENERGON, OURS
from benchmarks.speed.summary import summarize
from benchmarks.speed.targets import rows


def row(results: dict[str, Any], begin: str) -> dict[str, Any]:
    return next(one for one in rows(results) if one["label"].startswith(begin))


def rates(**values: float) -> dict[str, Any]:
    return summarize({name: [{"samples_per_s": value}] for name, value in values.items()})


def test_a_ratio_above_the_target_is_met() -> None:
    found = row({"text/2": rates(**{OURS: 120.0, ENERGON: 10.0})}, "text, 2 workers, times Energon")
    assert (found["value"], found["met"], found["shortfall"]) == (12, True, 0)


def test_a_ratio_below_it_is_short_by_a_share() -> None:
    found = row({"text/2": rates(**{OURS: 75.0, ENERGON: 10.0})}, "text, 2 workers, times Energon")
    assert (found["met"], found["shortfall"]) == (False, 0.25)


def test_a_cost_above_the_target_is_short() -> None:
    memory = summarize({OURS: [{"pss_mb": 77.0}], ENERGON: [{"pss_mb": 100.0}]})
    found = row({"text/4": memory}, "memory")
    assert (found["value"], found["met"], found["shortfall"]) == (0.77, False, 0.1)


def test_the_limit_with_workers_is_the_bare_loop_times_the_cores() -> None:
    results = {"jpeg/0": rates(**{OURS: 95.0, BARE: 100.0}), "jpeg/2": rates(**{OURS: 170.0})}
    assert row(results, "JPEG 55 KB, in-process, share of the bare loop")["met"]
    assert row(results, "JPEG 55 KB, 2 workers, share of the bare loop")["value"] == 0.85


def test_other_workloads_are_compared_with_the_best_of_all() -> None:
    found = row({"blend/2": rates(**{OURS: 30.0, ENERGON: 10.0, "litdata": 15.0})}, "blend")
    assert "litdata" in found["label"]
    assert found["value"] == 2


def test_a_peer_that_failed_leaves_no_figure() -> None:
    failed = summarize({OURS: [{"samples_per_s": 1.0}], ENERGON: [{"failed": "late"}]})
    found = row({"text/2": failed}, "text, 2 workers, times Energon")
    assert (found["value"], found["met"]) == (None, False)


def test_what_was_not_measured_has_no_row() -> None:
    assert rows({}) == []
