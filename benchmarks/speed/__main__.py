"""Our loader compared with its peers: one command, one table.

    python -m benchmarks.speed [--only text,jpeg] [--rounds 1] [--ours] [--peers megatron-energon,litdata]

Each run is a process; runs are interleaved (ours, a peer, the next peer, and again), so that ratios are between runs
next to each other. A library that fails is a row that says why. A complete run is written to `benchmarks/results/` and
into the tables of the docs; a partial one is only printed, or merged into those results with `--merge`: rows that were
measured replace those before, and with `--peers` only these peers do. `--ours` runs ours alone, to look at a change or
to profile.
"""

import argparse
import compileall
import datetime
import json
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.figures import RESULTS, ROOT
from benchmarks.speed import costs, tables
from benchmarks.speed.programs import LIBRARIES, OURS, PEERS, WORKLOADS
from benchmarks.speed.rounds import Extent, throughput
from benchmarks.speed.summary import Summary, costs_of, four_digits, rates_of, summarize

FILE, KEPT_IN = RESULTS / "bench.json", ROOT / ".bench"
NAMES = (*WORKLOADS, *costs.MEASURED)
ROWS = [f"{name}/{workers}" for name in WORKLOADS for workers in (0, 2)]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print, and, if everything was measured, write; returns the document."""
    chosen = _arguments(arguments)
    names = chosen.only.split(",") if chosen.only else list(NAMES)
    peers = chosen.peers.split(",") if chosen.peers else PEERS
    extent = Extent(
        folder=chosen.data,
        rounds=chosen.rounds,
        other_rounds=chosen.rounds if chosen.peers else min(2, chosen.rounds),
        seconds=chosen.seconds,
        scale=chosen.scale,
        peers=() if chosen.ours else tuple(peers),
    )
    compileall.compile_dir(ROOT / "bridge_data", quiet=1)  # as pip did with the peers when it installed them
    summaries: dict[str, Summary] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run in progress is ended, too
    for name in names:
        summaries |= _measured(name, extent)
    document = make_document(summaries, extent)
    if chosen.merge and FILE.exists():
        document = merged(json.loads(FILE.read_text()), document, extent.peers if chosen.peers else ())
    print(tables.terminal(summaries))
    if chosen.merge or not (chosen.only or chosen.ours or chosen.peers or chosen.scale != 1):
        write(document)
    return document


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.speed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", help=f"some of {','.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=3, help="of ours and Energon; others at most 2")
    parser.add_argument("--seconds", type=float, default=2.5, help="of measuring in each run")
    parser.add_argument("--ours", action="store_true", help="without the peers")
    parser.add_argument("--peers", help=f"some of {','.join(PEERS)}")
    parser.add_argument("--merge", action="store_true", help="write, beside what was measured before")
    parser.add_argument("--data", type=Path, default=KEPT_IN, help="where data is made and kept (default: .bench)")
    parser.add_argument("--scale", type=float, default=1.0, help="smaller data, for trying the benchmark itself")
    chosen = parser.parse_args(arguments)
    for given, known in ((chosen.only, NAMES), (chosen.peers, PEERS)):
        unknown = set(given.split(",")) - set(known) if given else ()
        if unknown:
            parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return chosen


def _measured(name: str, extent: Extent) -> dict[str, Summary]:
    try:
        if name in WORKLOADS:
            runs = {f"{name}/{workers}": throughput(name, workers, extent) for workers in (0, 2)}
        else:
            runs = costs.MEASURED[name](extent)
    except Exception as error:
        print(f"{name}: not measured: {type(error).__name__}: {error}", file=sys.stderr)
        return {}
    return {at: summarize(found) for at, found in runs.items()}


def make_document(summaries: dict[str, Summary], extent: Extent) -> dict[str, Any]:
    """What is kept of all measurements."""
    settings: dict[str, Any] = {}
    for summary in summaries.values():
        for name, one in summary.items():
            if "settings" in one and name in LIBRARIES and name not in settings:
                settings[name] = {key: value for key, value in one["settings"].items() if key != "batch_size"}
    return {
        "machine": f"{os.cpu_count()} cores",
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "rounds": extent.rounds,
        "seconds": extent.seconds,
        "settings": settings,
        "rates": rates_of({at: found for at, found in summaries.items() if at in ROWS}),
        "costs": costs_of(summaries),
    }


def merged(before: dict[str, Any], new: dict[str, Any], only: tuple[str, ...]) -> dict[str, Any]:
    """The document before with what is new; if `only` names libraries, rows that were there take those alone, with the
    rates that they have beside ours of that row."""
    rates = dict(before["rates"])
    for at, row in new["rates"].items():
        if only and at in rates:
            ours = rates[at][OURS]["rate"]
            joined = {name: row[name] for name in only if name in row}
            joined |= {
                name: one | {"rate": four_digits(ours / one["ratio"])} for name, one in joined.items() if "ratio" in one
            }
            rates[at] = rates[at] | joined
        else:
            rates[at] = row
    found = before["costs"]
    if not only:
        known = found | new["costs"]
        found = {cost.label: known[cost.label] for cost in costs.COSTS if cost.label in known}
    return before | {"settings": before["settings"] | new["settings"], "rates": rates, "costs": found}


def write(document: dict[str, Any]) -> None:
    """JSON, picture, and the tables of the pages."""
    figures.write(FILE, document)
    for name, text in tables.pages(document).items():
        (ROOT / name).write_text(tables.in_page((ROOT / name).read_text(), text))
    figures.draw("benchmarks.speed.picture", document, RESULTS / "bench.png")


if __name__ == "__main__":
    main()
