"""The tables of pages are those that the JSON gives."""

import json

import pytest

from benchmarks.figures import ROOT
from benchmarks.speed import tables
from benchmarks.speed.__main__ import FILE, merged


def test_the_tables_of_pages_are_made_of_the_results() -> None:
    for page, text in tables.pages(json.loads(FILE.read_text())).items():
        content = (ROOT / page).read_text()
        assert tables.in_page(content, text) == content


def test_a_page_without_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="put the two marks"):
        tables.in_page("no marks", "| new |")


def test_the_best_peer_is_the_fastest_beside_ours_in_the_same_rounds() -> None:
    row = {
        "bridge_data": {"rate": 9.0},
        "bare loop": {"rate": 99.0, "ratio": 0.1},
    }
    row |= {"megatron-energon": {"rate": 50.0, "ratio": 0.3}, "spdl": {"failed": "no such thing"}}
    assert tables.best_peer(row) is None
    assert (
        tables.best_peer(row | {"litdata": {"rate": 8.0, "ratio": 1.1}, "grain": {"rate": 9.0, "ratio": 1.2}})
        == "litdata"
    )


def test_a_peer_measured_later_joins_a_row_that_stays() -> None:
    before = {"settings": {}, "rates": {"text/2": {"bridge_data": {"rate": 5.0}}}, "costs": {"import": {"ours": 1.0}}}
    rates = {"text/2": {"bridge_data": {"rate": 7.0}, "grain": {"rate": 1.0, "ratio": 7.0}}}
    new = {"settings": {"grain": {}}, "rates": rates, "costs": {"import": {"ours": 2.0}}}
    joined = merged(before, new, ("grain",))
    assert joined["rates"]["text/2"] == {"bridge_data": {"rate": 5.0}, "grain": {"rate": 0.7143, "ratio": 7.0}}
    assert joined["costs"] == before["costs"]
    assert merged(before, new, ())["rates"] == rates
