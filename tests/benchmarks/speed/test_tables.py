"""The tables of pages are those that the JSON gives."""

import json

from benchmarks.speed import tables
from benchmarks.speed.__main__ import RESULTS, ROOT


def test_the_tables_of_pages_are_made_of_the_results() -> None:
    document = json.loads((RESULTS / "bench.json").read_text())
    for page, text in tables.pages(document).items():
        assert tables.between_marks((ROOT / page).read_text()) == text


def test_a_library_that_failed_is_a_row_that_says_why() -> None:
    results = {"text/2": {"bridge_data": {"samples_per_s": {"median": 5.0}}, "litdata": {"failed": "no such thing"}}}
    document = {"results": results, "targets": [], "settings": {}, "machine": "2 cores"}
    assert all("no such thing" not in text for text in tables.pages(document).values())
    assert "litdata" in tables.terminal(document)
