"""Rounds of runs in turn: ours, a peer, the next peer, and again.

Reads workloads, libraries, rounds. Returns the figures of every run, by workload, workers and library. The runs of one
round follow each other directly, so ratios are computed per round.
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed import data
from benchmarks.speed.programs import BARE, ENERGON, LIBRARIES, OURS, WORKLOADS, Figures, convert, run

Runs = dict[str, dict[str, list[Figures]]]
"""By `workload/workers` and library: the figures of each round."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much is measured."""

    folder: Path
    rounds: int = 3
    other_rounds: int = 2
    seconds: float = 2.5
    scale: float = 1.0
    peers: tuple[str, ...] = ()


def throughput(workload: str, workers: int, extent: Extent) -> dict[str, list[Figures]]:
    """The figures of one workload with `workers` workers, by library."""
    settings = WORKLOADS[workload]
    folder = data.make(settings.data or workload, extent.folder, extent.scale)
    names = [OURS, *(name for name in settings.peers if name in extent.peers)]
    names = [name for name in names if workers or not LIBRARIES[name].is_threaded]
    if settings.bare and not workers:
        names.append(BARE)
    for name in names:
        convert(name, workload, folder)
    data.warm(folder)
    results: dict[str, list[Figures]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as name:
        state = Path(name) / "state"
        for number in range(extent.rounds):
            for library in names:
                if number and _is_failed(results[library]):
                    continue
                if number >= extent.other_rounds and library not in (OURS, ENERGON):
                    continue
                restored = not number or (workers > 0 and library in (OURS, ENERGON))
                figures = _one(library, workload, folder, workers, extent, state if restored else None)
                report(workload, workers, library, figures)
                results[library].append(figures)
    return results


def _is_failed(runs: list[Figures]) -> bool:
    return bool(runs) and all("failed" in figures for figures in runs)


def _one(library: str, workload: str, folder: Path, workers: int, extent: Extent, state: Path | None) -> Figures:
    """A run; with `state`, the first batch from the state that it has left there, in a new process."""
    if state is not None:
        state.unlink(missing_ok=True)
    kept = [] if state is None else ["--state", str(state)]
    figures = run(library, workload, folder, workers, extent.seconds, kept)
    if "failed" in figures:
        return figures
    tolerance = max(LIBRARIES[library].tolerance, WORKLOADS[workload].tolerance)
    figures["check"] = checked(figures.get("check", []), folder, workload, tolerance)
    if state is not None and state.exists():
        restored = run(library, workload, folder, workers, 0, [*kept, "--restore"])
        figures["restore_s"] = restored.get("first_batch_s")
        if "failed" in restored:
            figures["restore_failed"] = restored["failed"]
    return figures


def checked(samples: list[Any], folder: Path, workload: str, tolerance: float = 1e-4) -> str:
    """`equal` if the samples of a run are what Pillow and Python read, else what differs first."""
    reference = json.loads((folder / "reference.json").read_text())
    for keys, found in samples:
        keys = [key.rpartition("/")[2] for key in keys.split(",")]
        if not all(key in reference for key in keys):
            return f"unknown sample {keys}"
        if workload == "chat":
            tokens = sum(reference[key][1] for key in keys)
            expected = [[2048], "int64", tokens / 2048]
        else:
            expected = reference[keys[0]]
        if not _is_close(found, expected, tolerance):
            return f"{keys[0]}: {found} for {expected}"[:300]
    return "equal" if samples else "not compared"


def _is_close(found: list[Any], expected: list[Any], tolerance: float) -> bool:
    if len(expected) == 1:
        return found == expected
    scale = max(1.0, abs(expected[2]))
    return found[:2] == expected[:2] and abs(found[2] - expected[2]) <= tolerance * scale


def report(workload: str, workers: int, library: str, figures: Figures) -> None:
    """One line of progress."""
    if "failed" in figures:
        text = f"failed: {figures['failed']}"
    else:
        parts = [f"{figures['samples_per_s']:,.0f}/s"] if "samples_per_s" in figures else []
        parts += [f"{figures['pss_mb']:,.0f} MB"] if "pss_mb" in figures else []
        parts += [figures["check"]] if isinstance(figures.get("check"), str) else []
        text = ", ".join([*parts, f"first batch {figures['first_batch_s']:.3f} s"])
    print(f"{workload:12s} {workers} workers  {library:20s} {text}", file=sys.stderr, flush=True)
