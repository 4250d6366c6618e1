"""The result as Markdown: in README a row for each recipe, in the page about recipes all figures.

Reads the document that is written as JSON.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.figures import ROOT
from benchmarks.recipes.sides import BRIDGE, RECIPES, TRANSFORMERS
from benchmarks.speed.programs import BARE, OURS
from benchmarks.speed.tables import in_page, number

BEGIN, END = "<!-- recipes -->", "<!-- /recipes -->"


def write_pages(document: dict[str, Any]) -> None:
    """Put the tables between the marks of the pages."""
    for name, text in pages(document).items():
        (ROOT / name).write_text(in_page((ROOT / name).read_text(), text, BEGIN, END))


def pages(document: dict[str, Any]) -> dict[str, str]:
    """The text between the marks of each page, by its path."""
    return {"README.md": "\n".join(_short(document)), "docs/recipe_speed.md": "\n".join(rows(document))}


def rows(document: dict[str, Any]) -> Iterator[str]:
    """All that was measured: rates by CPU time, and how many times ours are, by CPU time and by the clock."""
    head = f"samples per CPU second, {document['machine']}"
    yield f"| {head} | | ours | Bridge on Energon | transformers, DataLoader | of the bare loop |"
    yield "|---|---|---|---|---|---|"
    for name, recipe in RECIPES.items():
        for workers in (0, 2):
            row = document["rates"].get(f"{name}/{workers}")
            if row is None:
                continue
            cells = [
                "" if workers else recipe.label,
                f"{workers} workers" if workers else "in-process",
                number(row[OURS].get("cpu_rate")),
                _side(row, BRIDGE),
                _side(row, TRANSFORMERS),
                _of_loop(document, name, workers),
            ]
            yield f"| {' | '.join(cells)} |"
    yield from _starts(document)
    yield from _pixels(document)


def _starts(document: dict[str, Any]) -> Iterator[str]:
    """Seconds from the start of a process to its first batch, without those that its trainer computed meanwhile."""
    found = {name: document["rates"].get(f"{name}/2", {}) for name in RECIPES}
    found = {name: row for name, row in found.items() if "start_s" in row.get(OURS, {})}
    if not found:
        return
    yield ""
    yield "| first batch of a new process, 2 workers, s | ours | Bridge on Energon | transformers, DataLoader |"
    yield "|---|---|---|---|"
    for name, row in found.items():
        cells = [RECIPES[name].label, number(row[OURS]["start_s"]), _start(row, BRIDGE), _start(row, TRANSFORMERS)]
        yield f"| {' | '.join(cells)} |"


def _pixels(document: dict[str, Any]) -> Iterator[str]:
    """Pixels as bytes, beside pixels as floats."""
    found = {name: one for name, one in document.get("pixels", {}).items() if "bytes" in one}
    if not found:
        return
    yield ""
    yield '| `pixels="uint8"`, 2 workers: times float32 | bytes of a batch | samples per CPU second | by the clock |'
    yield "|---|---|---|---|"
    for name, one in found.items():
        cells = [RECIPES[name].label, number(one["bytes"]), _spread(one["cpu"]), _spread(one["rate"])]
        yield f"| {' | '.join(cells)} |"


def _spread(ratio: Mapping[str, float]) -> str:
    return f"{number(ratio['ratio'])}, {number(ratio['low'])}–{number(ratio['high'])}"


def _start(row: Mapping[str, Mapping[str, Any]], name: str) -> str:
    one = row.get(name, {})
    if "start" not in one:
        return "–"
    return f"{number(one['start_s'])} (ours × {_spread(one['start'])})"


def _side(row: Mapping[str, Mapping[str, Any]], name: str) -> str:
    one = row.get(name, {})
    if "cpu" not in one:
        return "failed" if "failed" in one else "–"
    return f"{number(one['cpu_rate'])} (ours × {_spread(one['cpu'])}; by the clock × {number(one['ratio'])})"


def _of_loop(document: Mapping[str, Any], name: str, workers: int) -> str:
    """Ours by CPU time, as a share of the bare loop's."""
    loop = document["rates"].get(f"{name}/0", {}).get(BARE, {}).get("cpu_rate")
    ours = document["rates"][f"{name}/{workers}"][OURS].get("cpu_rate")
    return f"{ours / loop:.2f}" if loop and ours else "–"


def _short(document: dict[str, Any]) -> Iterator[str]:
    """In-process, where most sides do least beside the work itself."""
    yield f"| samples per CPU second, in-process, {document['machine']} | bridge_data | others |"
    yield "|---|---|---|"
    for name, recipe in RECIPES.items():
        row = document["rates"].get(f"{name}/0")
        if row is None:
            continue
        labels = ((BRIDGE, "Bridge on Energon"), (TRANSFORMERS, "transformers, DataLoader"))
        others = [
            f"{label} {number(row[side]['cpu_rate'])} (ours × {number(row[side]['cpu']['ratio'])})"
            for side, label in labels
            if "cpu" in row.get(side, {})
        ]
        yield f"| {recipe.label} | {number(row[OURS].get('cpu_rate'))} | {', '.join(others)} |"
