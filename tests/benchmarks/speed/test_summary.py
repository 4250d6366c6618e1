"""Medians, and ratios round by round."""

from benchmarks.speed.programs import ENERGON, OURS
from benchmarks.speed.summary import best_peer, median, ratio, summarize


def test_ratios_are_of_runs_in_the_same_round() -> None:
    ours = [{"samples_per_s": 100.0}, {"samples_per_s": 10.0}, {"samples_per_s": 60.0}]
    theirs = [{"samples_per_s": 10.0}, {"samples_per_s": 1.0}, {"samples_per_s": 12.0}]
    summary = summarize({OURS: ours, ENERGON: theirs})
    assert median(summary, OURS, "samples_per_s") == 60
    assert ratio(summary, ENERGON, "samples_per_s") == {"median": 10.0, "low": 5.0, "high": 10.0}


def test_a_failed_round_leaves_the_pairs_of_the_others() -> None:
    ours = [{"samples_per_s": 100.0}, {"samples_per_s": 30.0}]
    theirs = [{"failed": "late"}, {"samples_per_s": 10.0}]
    summary = summarize({OURS: ours, "litdata": theirs})
    assert ratio(summary, "litdata", "samples_per_s") == {"median": 3.0, "low": 3.0, "high": 3.0}
    assert summary["litdata"]["failures"] == ["late"]


def test_what_never_ran_says_why() -> None:
    summary = summarize({OURS: [{"samples_per_s": 1.0}], "litdata": [{"failed": "late"}]})
    assert summary["litdata"] == {"failed": "late"}
    assert ratio(summary, "litdata", "samples_per_s") is None
    assert best_peer(summary) is None


def test_the_best_peer_is_none_of_ours() -> None:
    rates = {OURS: 9.0, "bare loop": 8.0, ENERGON: 3.0, "litdata": 2.0}
    summary = summarize({name: [{"samples_per_s": rate}] for name, rate in rates.items()})
    assert best_peer(summary) == ENERGON
    assert best_peer(summary, (ENERGON,)) == "litdata"
