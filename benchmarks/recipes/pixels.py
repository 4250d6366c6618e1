"""Pixels as bytes beside pixels as floats: the same recipe by ours, with `FamilyConfig(pixels=...)`, and 2 workers.

Both first show their batches, which must be equal once the bytes are looked up. Then they run in turn. Returns for each
recipe how many of the bytes a batch has, and how many times the samples come, with the range of the rounds.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.recipes.sides import HOME
from benchmarks.speed.programs import Figures, Library, run, started
from benchmarks.speed.rounds import report
from benchmarks.speed.summary import spread

PROGRAM, WORKERS, SHOWN = Library(HOME, "recipe_pixels.py"), 2, 3
FORMS = ("float32", "uint8")


def measured(name: str, folder: Path, rounds: int, seconds: float, limit_s: float) -> dict[str, Any]:
    """The figures of a recipe; `{"failed": why}` if there are none."""
    if failed := _difference(name, folder, limit_s):
        return {"failed": failed}
    found: dict[str, list[Figures]] = {form: [] for form in FORMS}
    for _ in range(rounds):
        for form, runs in found.items():
            figures = run(PROGRAM, name, folder, WORKERS, seconds, variables={"BENCH_PIXELS": form}, limit_s=limit_s)
            report(name, WORKERS, form, figures | {"check": "equal"})
            if "failed" in figures:
                return {"failed": figures["failed"]}
            runs.append(figures)
    pairs = list(zip(*found.values(), strict=True))
    return {
        "bytes": float(f"{pairs[0][1]['batch_bytes'] / pairs[0][0]['batch_bytes']:.4g}"),
        "cpu": spread([floats["cpu_s_per_1000"] / as_bytes["cpu_s_per_1000"] for floats, as_bytes in pairs]),
        "rate": spread([as_bytes["samples_per_s"] / floats["samples_per_s"] for floats, as_bytes in pairs]),
    }


def _difference(name: str, folder: Path, limit_s: float) -> str:
    """In what the first batches of both differ, or why there are none; "" if they are equal."""
    shown = []
    with tempfile.TemporaryDirectory() as temporary:
        for form in FORMS:
            file = Path(temporary) / form
            arguments = ["--workload", name, "--data", str(folder), "--batches", str(SHOWN), "--to", str(file)]
            made = started(PROGRAM, ["show", *arguments], limit_s, {"BENCH_PIXELS": form})
            if "failed" in made:
                return str(made["failed"])
            shown.append(torch.load(file))
    for (keys, floats), (same, as_bytes) in zip(*shown, strict=True):
        if keys != same or floats.keys() != as_bytes.keys():
            return f"other samples or fields: {keys[:1]} and {same[:1]}"
        for field, value in floats.items():
            if value.dtype != as_bytes[field].dtype or not torch.equal(value, as_bytes[field]):
                return f"{field} of {keys[0]} differs"
    return ""
