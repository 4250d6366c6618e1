"""Our loader compared with its peers: one command, one table.

    python -m benchmarks.speed [--only text,jpeg] [--rounds 1] [--ours] [--peers megatron-energon,litdata]

Each run is a process; runs are interleaved (ours, a peer, the next peer, and again), so that ratios are between runs
next to each other. A library that fails is a row that says why. A complete run is written to `benchmarks/results/` and
into the tables of the docs; a partial one is only printed, or merged into those results with `--merge`. `--ours` runs
ours alone, to look at a change or to profile.
"""

import argparse
import compileall
import datetime
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.speed import measurements, tables, targets
from benchmarks.speed.programs import LIBRARIES, PEERS, ROOT
from benchmarks.speed.rounds import Extent

RESULTS = ROOT / "benchmarks/results"
KEPT_IN = ROOT / ".bench"


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print, and, if everything was measured, write; returns the document."""
    chosen = _arguments(arguments)
    names = chosen.only.split(",") if chosen.only else list(measurements.NAMES)
    extent = Extent(
        folder=chosen.data,
        rounds=chosen.rounds,
        other_rounds=min(2, chosen.rounds),
        seconds=chosen.seconds,
        scale=chosen.scale,
        peers=() if chosen.ours else tuple(chosen.peers.split(",")),
    )
    compileall.compile_dir(ROOT / "bridge_data", quiet=1)  # as pip did with the peers when it installed them
    results: dict[str, Any] = {}
    begin = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run in progress is ended, too
    for name in names:
        try:
            results |= measurements.measure(name, extent)
        except Exception as error:
            print(f"{name}: not measured: {type(error).__name__}: {error}", file=sys.stderr)
            results[name] = {name: {"failed": f"not measured: {error}"[:200]}}
        document = make_document(results, extent, time.monotonic() - begin)
        if chosen.json:  # as soon as there is something: a run may be ended before its time
            chosen.json.write_text(as_json(document))
    if chosen.merge and (RESULTS / "bench.json").exists():
        before = json.loads((RESULTS / "bench.json").read_text())
        settings = before["settings"] | document["settings"]
        document = make_document(before["results"] | results, extent, before["took_s"]) | {"settings": settings}
    print(tables.terminal(document))
    if chosen.merge or not (chosen.only or chosen.ours or chosen.scale != 1):
        write(document)
    return document


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.speed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", help=f"some of {','.join(measurements.NAMES)}")
    parser.add_argument("--rounds", type=int, default=3, help="of ours and Energon; others at most 2")
    parser.add_argument("--seconds", type=float, default=2.5, help="of measuring in each run")
    parser.add_argument("--ours", action="store_true", help="without the peers")
    parser.add_argument("--peers", default=",".join(PEERS), help="these peers (default: %(default)s)")
    parser.add_argument("--merge", action="store_true", help="write, beside what was measured before")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--data", type=Path, default=KEPT_IN, help="where data is made and kept (default: .bench)")
    parser.add_argument("--scale", type=float, default=1.0, help="smaller data, for trying the benchmark itself")
    chosen = parser.parse_args(arguments)
    for given, known in ((chosen.only, measurements.NAMES), (chosen.peers, PEERS)):
        unknown = set(given.split(",")) - set(known) if given else ()
        if unknown:
            parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return chosen


def make_document(results: dict[str, Any], extent: Extent, took_s: float) -> dict[str, Any]:
    """All measurements, with settings and targets."""
    settings: dict[str, Any] = {}
    for summary in results.values():
        for name, one in summary.items():
            if "settings" in one and name in LIBRARIES and name not in settings:
                settings[name] = {key: value for key, value in one["settings"].items() if key != "batch_size"}
    results = {
        at: {name: {key: value for key, value in one.items() if key != "settings"} for name, one in summary.items()}
        for at, summary in results.items()
    }
    return {
        "machine": f"{os.cpu_count()} cores",
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "took_s": round(took_s),
        "rounds": extent.rounds,
        "seconds": extent.seconds,
        "settings": settings,
        "targets": targets.rows(results),
        "results": results,
    }


def as_json(document: dict[str, Any]) -> str:
    """The document as a file has it."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def write(document: dict[str, Any]) -> None:
    """JSON, picture, and the tables of the pages."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "bench.json").write_text(as_json(document))
    for name, text in tables.pages(document).items():
        (ROOT / name).write_text(tables.in_page((ROOT / name).read_text(), text))
    try:
        from benchmarks.speed import picture

        picture.draw(document, RESULTS / "bench.png")
    except ImportError as error:
        print(f'no picture: {error}; pip install -e ".[bench]"', file=sys.stderr)


if __name__ == "__main__":
    main()
