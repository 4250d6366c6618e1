"""The result as text: on the terminal every library and figure, in Markdown pages the rates and the targets.

Input: the document that `__main__` writes as JSON. Output: text; `in_page` puts it between the marks of a
Markdown page.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.speed.programs import BARE, ENERGON, OURS
from benchmarks.speed.summary import Summary, best_peer, median, ratio
from benchmarks.speed.workloads import WORKLOADS

BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
HEADINGS = (
    "",
    "samples/s",
    "ours by it",
    "CPU s/1,000",
    "by it",
    "first batch s",
    "save ms",
    "restore s",
    "state B",
    "",
)
WIDTHS = (20, 11, 22, 13, 8, 15, 10, 11, 10, 14)


def terminal(document: dict[str, Any]) -> str:
    """Everything, measurement by measurement."""
    lines: list[str] = []
    for at, summary in document["results"].items():
        name, _, workers = at.partition("/")
        label = WORKLOADS[name].label if name in WORKLOADS else name
        lines += ["", f"{label} · {_mode(workers)}" if workers else label]
        throughput = any("cpu_s_per_1000" in one for one in summary.values())
        lines += list(_figures(summary) if throughput else _plain(summary))
        if name in WORKLOADS and WORKLOADS[name].without:
            lines.append(f"  ({WORKLOADS[name].without})")
    lines += [
        "",
        *(f"{row['label']:84s} {_wanted(row):>8s} {_value(row):>22s}  {_met(row)}" for row in document["targets"]),
    ]
    lines += ["", *(f"{name}: {_settings(values)}" for name, values in document["settings"].items())]
    return "\n".join(lines).strip()


def _figures(summary: Summary) -> Iterator[str]:
    yield "  " + "".join(f"{text:>{width}s}" for text, width in zip(HEADINGS, WIDTHS, strict=True))
    for name, one in summary.items():
        if "failed" in one:
            yield f"  {name:>22s}  {one['failed']}"
            continue
        by = ratio(summary, name, "samples_per_s")
        cells = [
            _number(median(summary, name, "samples_per_s")),
            _spread(by) if by else "",
            _number(median(summary, name, "cpu_s_per_1000")),
            _number((ratio(summary, name, "cpu_s_per_1000") or {}).get("median")),
            _number(median(summary, name, "first_batch_s")),
            _number(median(summary, name, "save_s"), 1e3),
            _number(median(summary, name, "restore_s")),
            _number(median(summary, name, "state_bytes")),
            str(one.get("check", "")),
        ]
        yield "  " + "".join(f"{cell:>{width}s}" for cell, width in zip((name, *cells), WIDTHS, strict=True))
        notes = [f"{one['stalled_share']['median']:.1%} of the time stalled"] if "stalled_share" in one else []
        yield from (f"  {'':20s}   {note}" for note in [*notes, *one.get("failures", [])[:1]])


def _plain(summary: Summary) -> Iterator[str]:
    for name, one in summary.items():
        if "failed" in one:
            yield f"  {name:>22s}  {one['failed']}"
            continue
        cells = [f"{key} {_number(one[key]['median'])}" for key in ("first_batch_s", "from_start_s") if key in one]
        cells += [f"{key} {_number(one[key]['median'])}" for key in ("wall_s", "pss_mb", "samples_per_s") if key in one]
        yield f"  {name:>22s}  " + ", ".join(cells)


def pages(document: dict[str, Any]) -> dict[str, str]:
    """The text between the marks of each page, by its path: in README a row of each kind of work, with two workers
    and peers; in the docs all rates, and the targets."""
    targets = ["| target | | measured | |", "|---|---|---|---|"]
    targets += [f"| {row['label']} | {_wanted(row)} | {_value(row)} | {_met(row)} |" for row in document["targets"]]
    return {
        "README.md": "\n".join(_rates(document, (2,))),
        "docs/benchmarks.md": "\n".join([*_rates(document, (0, 2)), "", *targets]),
    }


def _rates(document: dict[str, Any], modes: Sequence[int]) -> Iterator[str]:
    yield f"| samples a second, {document['machine']} | | ours | Energon | best other peer | of the bare loop |"
    yield "|---|---|---|---|---|---|"
    for name, workload in WORKLOADS.items():
        limit = median(document["results"].get(f"{name}/0", {}), BARE, "samples_per_s")
        for workers in modes:
            summary = document["results"].get(f"{name}/{workers}")
            if summary is None or (len(modes) == 1 and ENERGON not in summary):
                continue
            ours = median(summary, OURS, "samples_per_s")
            other = best_peer(summary, (ENERGON,))
            cells = [
                workload.label if workers == modes[0] else "",
                _mode(str(workers)),
                f"{_number(ours)}{' packs' if workload.unit == 'packs/s' else ''}",
                _peer(summary, ENERGON),
                f"{other} {_peer(summary, other)}" if other else "–",
                f"{ours / limit / max(workers, 1):.2f}" if ours and limit else "–",
            ]
            yield f"| {' | '.join(cells)} |"


def in_page(page: str, text: str) -> str:
    """The page with the text between its marks.

    Raises:
        ValueError: if the page lacks them.
    """
    if BEGIN not in page or END not in page:
        raise ValueError(f"the page has no {BEGIN} ... {END}: put the two marks where the table belongs")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


def between_marks(page: str) -> str:
    """The text between the marks of a page."""
    return page.partition(BEGIN)[2].partition(END)[0].strip()


def _peer(summary: Summary, name: str) -> str:
    rate, by = median(summary, name, "samples_per_s"), ratio(summary, name, "samples_per_s")
    if rate is None or by is None:
        return "failed" if name in summary else "–"
    return f"{_number(rate)} (ours × {_number(by['median'])})"


def _mode(workers: str) -> str:
    return f"{workers} workers" if int(workers) else "in-process"


def _wanted(row: dict[str, Any]) -> str:
    return f"{row['wanted']} {row['target']:g}"


def _value(row: dict[str, Any]) -> str:
    if row["value"] is None:
        return "no figure"
    return _spread({"median": row["value"], **row}) if "low" in row else _number(row["value"])


def _met(row: dict[str, Any]) -> str:
    return "met" if row["met"] else "short" if row["shortfall"] is None else f"short by {row['shortfall']:.0%}"


def _spread(values: dict[str, float]) -> str:
    return f"{_number(values['median'])} ({_number(values['low'])}–{_number(values['high'])})"


def _number(value: float | None, factor: float = 1.0) -> str:
    if value is None:
        return ""
    value *= factor
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())
