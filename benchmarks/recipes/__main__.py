"""Whole recipes compared: from files to `pixel_values` and packed tokens, by ours and others, in one environment.

    python -m benchmarks.recipes [--only qwen,sft] [--rounds 1] [--sides bridge_data,transformers] [--workers 0]

All sides read the same JPEGs and chats, with the same tokenizer and image processor, in the environment of `make
test-bridge`, or in this one where that is missing. First each side shows its batches, with every number of workers,
and transformers' processor computes them anew from their keys: each field must be equal, bit by bit, or the row has no
figures. Then runs are in turn: ours, a side, the next side, and again; ratios are between runs of a round. A complete
run is written to `benchmarks/results/recipes.json`, and from that into the tables of the pages; a partial one is only
printed, or with `--merge` replaces its rows there.
"""

import argparse
import dataclasses
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.figures import RESULTS, ROOT
from benchmarks.recipes import data, pixels, tables
from benchmarks.recipes.sides import RECIPES, SIDES, TRANSFORMERS, Sides, available
from benchmarks.speed.data import warm
from benchmarks.speed.programs import OURS, Figures, run, started
from benchmarks.speed.rounds import report
from benchmarks.speed.summary import Summary, summarize

FILE, KEPT_IN = RESULTS / "recipes.json", ROOT / ".bench"
LIMIT_S, SHOWN = 300, 3
BUSY_S = 4.0
"""What a trainer computes, as if it built its model, before it takes its first batch."""
WORKERS = (0, 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extent:
    """How much is measured."""

    folder: Path
    rounds: int = 3
    seconds: float = 4.0
    scale: float = 1.0
    workers: tuple[int, ...] = WORKERS
    sides: tuple[str, ...] = tuple(SIDES)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Check, measure, print, and, if everything was measured, write; returns the document."""
    chosen = _arguments(arguments)
    names = chosen.only.split(",") if chosen.only else list(RECIPES)
    extent = Extent(
        folder=chosen.data,
        rounds=chosen.rounds,
        seconds=chosen.seconds,
        scale=chosen.scale,
        workers=WORKERS if chosen.workers is None else (chosen.workers,),
        sides=tuple(chosen.sides.split(",")) if chosen.sides else tuple(SIDES),
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run in progress is ended, too
    summaries: dict[str, Summary] = {}
    for name in names:
        for workers in extent.workers:
            summaries[f"{name}/{workers}"] = summarize(measured(name, workers, extent))
    document = make_document(summaries, extent)
    if OURS in extent.sides and pixels.WORKERS in extent.workers:
        document["pixels"] = {name: as_bytes(name, extent) for name in names if RECIPES[name].has_images}
    print("\n".join(tables.rows(document)))
    if chosen.merge and FILE.exists():
        before = json.loads(FILE.read_text())
        document["settings"] = before["settings"] | document["settings"]
        for part in ("rates", "pixels"):
            document[part] = before.get(part, {}) | document.get(part, {})
    if chosen.merge or not (chosen.only or chosen.sides or chosen.scale != 1 or chosen.workers is not None):
        write(document)
    return document


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.recipes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", help=f"some of {','.join(RECIPES)}")
    parser.add_argument("--sides", help=f"some of {','.join(SIDES)}")
    parser.add_argument("--workers", type=int, choices=WORKERS, help="default: all of these")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of measuring in each run")
    parser.add_argument("--merge", action="store_true", help="write, beside the rows that were measured before")
    parser.add_argument("--data", type=Path, default=KEPT_IN, help="where data is made and kept (default: .bench)")
    parser.add_argument("--scale", type=float, default=1.0, help="smaller data, for trying the benchmark itself")
    chosen = parser.parse_args(arguments)
    for given, known in ((chosen.only, RECIPES), (chosen.sides, SIDES)):
        unknown = set(given.split(",")) - set(known) if given else ()
        if unknown:
            parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return chosen


def measured(name: str, workers: int, extent: Extent) -> dict[str, list[Figures]]:
    """The figures of each round of a recipe, by side; of a side whose batches differ, why it has none."""
    recipe = RECIPES[name]
    folder = data.make(recipe.data, extent.folder, extent.scale)
    sides = {side: found for side, found in available(recipe, workers).items() if side in extent.sides}
    results: dict[str, list[Figures]] = {side: [] for side in sides}
    checks = {side: checked(side, sides, name, folder, workers) for side in sides}
    warm(folder)
    for number in range(extent.rounds):
        for side, program in sides.items():
            if checks[side] != "equal":
                found: Figures = {"failed": checks[side]}
            elif number and "failed" in results[side][-1]:
                continue
            else:
                found = run(program, name, folder, workers, extent.seconds, limit_s=LIMIT_S) | {"check": "equal"}
                if workers and "failed" not in found:
                    begun = run(program, name, folder, workers, 0, ["--busy", str(BUSY_S)], limit_s=LIMIT_S)
                    found["start_s"] = begun.get("start_s")
            report(name, workers, side, found)
            results[side].append(found)
    return results


def as_bytes(name: str, extent: Extent) -> dict[str, Any]:
    """See `pixels`."""
    folder = data.make(RECIPES[name].data, extent.folder, extent.scale)
    return pixels.measured(name, folder, extent.rounds, extent.seconds, LIMIT_S)


def checked(side: str, sides: Sides, name: str, folder: Path, workers: int) -> str:
    """`equal` if the first batches of a side are those that transformers' processor makes of the same samples; else
    what differs, or why there are none."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "batches.pt"
        where = ["--workload", name, "--data", str(folder)]
        shown = ["--workers", str(workers), "--batches", str(SHOWN), "--to", str(file)]
        for program, arguments in (
            (sides[side], ["show", *where, *shown]),
            (SIDES[TRANSFORMERS], ["check", *where, "--of", str(file)]),
        ):
            found = started(program, arguments, LIMIT_S)
            if "failed" in found:
                return str(found["failed"])
    return str(found["check"])


def make_document(summaries: dict[str, Summary], extent: Extent) -> dict[str, Any]:
    """What is kept of all measurements."""
    settings = {
        side: {key: value for key, value in one["settings"].items() if key != "batch_size"}
        for summary in summaries.values()
        for side, one in summary.items()
        if "settings" in one
    }
    return {
        "machine": f"{os.cpu_count()} cores",
        "load": round(os.getloadavg()[2], 2),
        "rounds": extent.rounds,
        "seconds": extent.seconds,
        "settings": settings,
        "rates": {at: {side: _kept(side, one) for side, one in summary.items()} for at, summary in summaries.items()},
    }


def _kept(side: str, one: dict[str, Any]) -> dict[str, Any]:
    """Samples a second by the clock and by CPU time, and how many times ours are, with the range of the rounds."""
    if "failed" in one:
        return {"failed": one["failed"]}
    kept = {"rate": one["samples_per_s"], "cpu_rate": float(f"{1e3 / one['cpu_s_per_1000']:.4g}")}
    if "start_s" in one:
        kept["start_s"] = one["start_s"]
    if side == OURS:
        return kept
    if "start_s" in one["ratio"]:
        kept["start"] = one["ratio"]["start_s"]
    by_cpu = one["ratio"].get("cpu_s_per_1000")
    inverse = {"ratio": "ratio", "low": "high", "high": "low"}
    if by_cpu:
        kept["cpu"] = {name: float(f"{1 / by_cpu[of]:.4g}") for name, of in inverse.items()}
    return kept | one["ratio"].get("samples_per_s", {})


def write(document: dict[str, Any]) -> None:
    """JSON, picture, and the tables of the pages."""
    figures.write(FILE, document)
    tables.write_pages(document)
    figures.draw("benchmarks.recipes.picture", document, RESULTS / "recipes.png")


if __name__ == "__main__":
    main()
