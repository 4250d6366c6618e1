import json

from bridge_data.tools.lint import KINDS, Fault, LintReport
from bridge_data.tools.lint.faults import FaultTally


def tally(*codes: str, max_kept: int = 2) -> FaultTally:
    made = FaultTally(max_kept)
    made.add_all(Fault(code, f"cause {number}", key=str(number)) for number, code in enumerate(codes))
    return made


def test_counts_are_exact_and_places_bounded() -> None:
    merged = tally("config", "config")
    merged.merge(tally("config", "not-utf8", "not-utf8", "not-utf8"))
    assert merged.counts == {"config": 3, "not-utf8": 3}
    assert [fault.key for fault in merged.kept["config"]] == ["0", "1"]
    assert [fault.key for fault in merged.kept["not-utf8"]] == ["1", "2"]


def test_a_report_is_one_plain_document() -> None:
    found = tally("not-utf8", "config", "not-utf8", "not-utf8")
    report = LintReport(
        path="p",
        num_datasets=1,
        num_shards=2,
        num_samples=3,
        is_complete=True,
        counts=dict(found.counts),
        kept=dict(found.kept),
    )
    document = json.loads(json.dumps(report.to_dict()))
    assert (document["num_faults"], [fault["code"] for fault in document["faults"]]) == (4, ["config", "not-utf8"])
    assert document["faults"][1]["count"] == 3
    assert document["faults"][1]["shown"][1]["key"] == "2"
    assert document["faults"][0]["way_out"] == KINDS["config"].way_out


def test_places_are_short() -> None:
    assert Fault("config", "c", "d", "s.tar", "a/k", "png").where() == "s.tar/a/k.png"
    assert Fault("config", "c", "d", "s.tar").where() == "s.tar"
    assert Fault("config", "c", "d").where() == ""
