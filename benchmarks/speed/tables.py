"""The result as text: on the terminal every library and figure, in Markdown pages the rates and the costs.

Reads summaries, or the document that is written as JSON. Returns text; `in_page` puts it between the marks of a page.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.speed.programs import BARE, ENERGON, OURS, WORKLOADS
from benchmarks.speed.summary import FIGURES, Summary

BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
NO_PEERS = (OURS, ENERGON, BARE)


def terminal(summaries: Mapping[str, Summary]) -> str:
    """Everything, measurement by measurement: a library a line."""
    lines: list[str] = []
    for at, summary in summaries.items():
        name, _, workers = at.partition("/")
        label = WORKLOADS[name].label if name in WORKLOADS else name
        lines += ["", f"{label} · {_mode(workers)}" if workers else label]
        for library, one in summary.items():
            by = one.get("ratio", {}).get("samples_per_s")
            cells = [f"{figure} {number(one[figure])}" for figure in FIGURES if figure in one]
            cells += [f"ours × {_spread(by)}"] if by else []
            cells += [str(one["check"])] if "check" in one else []
            lines.append(
                f"  {library:>20s}  {', '.join([*cells, one.get('failed', ''), *one.get('failures', [])[:1]])}"
            )
    return "\n".join(lines).strip()


def pages(document: dict[str, Any]) -> dict[str, str]:
    """The text between the marks of each page, by its path: in README three rates; in the docs all, and the costs."""
    return {
        "README.md": "\n".join(_three_rates(document)),
        "docs/benchmarks.md": "\n".join([*_rates(document, (0, 2)), "", *_costs(document)]),
    }


def _three_rates(document: dict[str, Any]) -> Iterator[str]:
    """Pictures, packs and small texts, with two workers."""
    yield f"| samples a second, 2 workers on {document['machine']} | bridge_data | Energon | the best other |"
    yield "|---|---|---|---|"
    for name in ("jpeg", "chat", "text"):
        row, workload = document["rates"][f"{name}/2"], WORKLOADS[name]
        other = best_peer(row)
        found = [
            f"{number(row[peer]['rate'])} (ours × {number(row[peer]['ratio'])})" for peer in (ENERGON, other) if peer
        ]
        yield f"| {workload.label} | {number(row[OURS]['rate'])}{workload.unit} | {found[0]} | {other} {found[1]} |"


def _rates(document: dict[str, Any], modes: Sequence[int]) -> Iterator[str]:
    yield f"| samples a second, {document['machine']} | | ours | Energon | best other peer | of the bare loop |"
    yield "|---|---|---|---|---|---|"
    for name, workload in WORKLOADS.items():
        limit = document["rates"].get(f"{name}/0", {}).get(BARE, {}).get("rate")
        for workers in modes:
            row = document["rates"].get(f"{name}/{workers}")
            if row is None:
                continue
            ours, other = row[OURS].get("rate"), best_peer(row)
            cells = [
                workload.label if workers == modes[0] else "",
                _mode(str(workers)),
                f"{number(ours)}{workload.unit}",
                _peer(row, ENERGON),
                f"{other} {_peer(row, other)}" if other else "–",
                f"{ours / limit / max(workers, 1):.2f}" if ours and limit else "–",
            ]
            yield f"| {' | '.join(cells)} |"


def best_peer(row: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The fastest beside Energon: whose runs were the fastest beside ours of the same round."""
    found = {name: one["ratio"] for name, one in row.items() if "ratio" in one and name not in NO_PEERS}
    return min(found, key=found.__getitem__) if found else None


def _costs(document: dict[str, Any]) -> Iterator[str]:
    yield "| | ours | the other's | ours ÷ the other's |"
    yield "|---|---|---|---|"
    for label, row in document["costs"].items():
        share = _spread(row) if "ratio" in row else "–"
        yield f"| {label} | {number(row['ours'])} | {row['other']} {number(row['theirs'])} | {share} |"


def in_page(page: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """The page with the text between its marks.

    Raises:
        ValueError: if the page lacks them.
    """
    if begin not in page or end not in page:
        raise ValueError(f"the page has no {begin} ... {end}: put the two marks where the table belongs")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def _peer(row: Mapping[str, Mapping[str, Any]], name: str) -> str:
    if "ratio" not in row.get(name, {}):
        return "failed" if name in row else "–"
    return f"{number(row[name]['rate'])} (ours × {_spread(row[name])})"


def _mode(workers: str) -> str:
    return f"{workers} workers" if int(workers) else "in-process"


def _spread(values: Mapping[str, Any]) -> str:
    text = number(values["ratio"])
    return f"{text}, {number(values['low'])}–{number(values['high'])}" if "low" in values else text


def number(value: float | None) -> str:
    """A figure as tables have it: three digits, or whole."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
