"""Medians and ratios round by round, and targets: met, short by so much, or without a figure."""

from typing import Any

import pytest

from benchmarks.speed.programs import BARE, ENERGON, OURS
from benchmarks.speed.summary import best_peer, median, ratio, summarize
from benchmarks.speed.targets import rows


def rates(**values: float) -> dict[str, Any]:
    return summarize({name: [{"samples_per_s": value}] for name, value in values.items()})


def test_ratios_are_of_runs_in_the_same_round_and_a_failed_one_leaves_the_others() -> None:
    ours = [{"samples_per_s": 100.0}, {"samples_per_s": 10.0}, {"samples_per_s": 60.0}]
    theirs: list[dict[str, Any]] = [{"samples_per_s": 10.0}, {"samples_per_s": 1.0}, {"samples_per_s": 12.0}]
    summary = summarize({OURS: ours, ENERGON: theirs})
    assert median(summary, OURS, "samples_per_s") == 60
    assert ratio(summary, ENERGON, "samples_per_s") == {"median": 10.0, "low": 5.0, "high": 10.0}
    summary = summarize({OURS: ours, "litdata": [{"failed": "late"}, *theirs[1:2]]})
    assert ratio(summary, "litdata", "samples_per_s") == {"median": 10.0, "low": 10.0, "high": 10.0}
    assert summary["litdata"]["failures"] == ["late"]
    summary = summarize({OURS: ours, "litdata": [{"failed": "late"}]})
    assert (ratio(summary, "litdata", "samples_per_s"), best_peer(summary)) == (None, None)


def test_the_best_peer_is_none_of_ours() -> None:
    summary = rates(**{OURS: 9.0, "bare loop": 8.0, ENERGON: 3.0, "litdata": 2.0})
    assert (best_peer(summary), best_peer(summary, (ENERGON,))) == (ENERGON, "litdata")


AGAINST_ENERGON = "text, 2 workers, times Energon"
FAILED = {OURS: [{"samples_per_s": 1.0}], ENERGON: [{"failed": "late"}]}
MEMORY = {OURS: [{"pss_mb": 77.0}], ENERGON: [{"pss_mb": 100.0}]}
JPEG = {"jpeg/0": rates(**{OURS: 95.0, BARE: 100.0}), "jpeg/2": rates(**{OURS: 170.0})}


@pytest.mark.parametrize(
    ("results", "begin", "value", "shortfall"),
    [
        ({"text/2": rates(**{OURS: 120.0, ENERGON: 10.0})}, AGAINST_ENERGON, 12, 0),
        ({"text/2": rates(**{OURS: 75.0, ENERGON: 10.0})}, AGAINST_ENERGON, 7.5, 0.25),
        ({"text/4": summarize(MEMORY)}, "memory", 0.77, 0.1),
        (JPEG, "JPEG 55 KB, in-process, share of the bare loop", 0.95, 0),
        (JPEG, "JPEG 55 KB, 2 workers, share of the bare loop", 0.85, None),
        ({"blend/2": rates(**{OURS: 30.0, ENERGON: 10.0, "litdata": 15.0})}, "blend", 2, None),
        ({"text/2": summarize(FAILED)}, AGAINST_ENERGON, None, None),
    ],
)
def test_a_target_is_met_or_short_by_a_share(
    results: dict[str, Any], begin: str, value: float | None, shortfall: float | None
) -> None:
    found = next(one for one in rows(results) if one["label"].startswith(begin))
    assert found["value"] == value
    if shortfall is not None:
        assert (found["met"], found["shortfall"]) == (not shortfall, shortfall)
    if value is None:
        assert not found["met"]
    assert rows({}) == []
