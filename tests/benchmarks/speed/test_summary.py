"""Medians, and ratios round by round."""

from benchmarks.speed.costs import COSTS
from benchmarks.speed.programs import ENERGON, OURS
from benchmarks.speed.summary import costs_of, rates_of, summarize


def test_ratios_are_of_runs_in_the_same_round() -> None:
    ours = [{"samples_per_s": 100.0}, {"samples_per_s": 10.0}, {"samples_per_s": 60.0}]
    theirs = [{"samples_per_s": 10.0}, {"samples_per_s": 1.0}, {"samples_per_s": 12.0}]
    rates = rates_of({"text/2": summarize({OURS: ours, ENERGON: theirs})})["text/2"]
    assert rates == {OURS: {"rate": 60.0}, ENERGON: {"rate": 10.0, "ratio": 10.0, "low": 5.0, "high": 10.0}}


def test_a_failed_round_leaves_the_pairs_of_the_others_and_what_never_ran_says_why() -> None:
    ours = [{"samples_per_s": 100.0}, {"samples_per_s": 30.0}]
    runs = {OURS: ours, "litdata": [{"failed": "late"}, {"samples_per_s": 10.0}], "grain": [{"failed": "gone"}]}
    summary = summarize(runs)
    rates = rates_of({"text/2": summary})["text/2"]
    assert rates["litdata"] == {"rate": 10.0, "ratio": 3.0, "low": 3.0, "high": 3.0}
    assert summary["litdata"]["failures"] == ["late"]
    assert rates["grain"] == {"failed": "gone"}


def test_a_cost_is_a_row_once_both_were_measured() -> None:
    memory = {at: summarize({OURS: [{"pss_mb": 77.0}], ENERGON: [{"pss_mb": 100.0}]}) for at in ("text/4", "jpeg/4")}
    memory["jpeg/4"][ENERGON] = {"failed": "late"}
    label = next(cost.label for cost in COSTS if cost.at == "text/4")
    pair = {"ours": 77.0, "other": "Energon", "theirs": 100.0}
    assert costs_of(memory) == {label: pair | {"ratio": 0.77, "low": 0.77, "high": 0.77}}
