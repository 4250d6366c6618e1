"""Compare what runs have logged with an uninterrupted run: `python -m recipes.demo.compare REFERENCE --run FOLDER A B`.

The folder of a run holds `steps_dprank000.jsonl` and so on, a line a step: its number, that of the start of the run,
the number of data-parallel ranks, the loss, and the keys of the samples in each micro-batch of that rank. Of steps that
a resumed run has repeated, the last ones count. `A` and `B` are the first and the last step that the run must have
logged, whole. Keys of every global batch must be equal; losses must be bit-equal where as many ranks made them, and
within 1e-4 where other sums were rounded otherwise. Exits with 1 if anything differs or is missing.
"""

import argparse
import dataclasses
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bridge_data.cli.terminal import table
from bridge_data.errors import DatasetError

TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GlobalBatch:
    """One step of the whole job: its loss, and the keys of each of its micro-batches, in their order."""

    step: int
    loss: float
    num_ranks: int
    keys: tuple[tuple[str, ...], ...]


def log_file(folder: Path, dp_rank: int) -> Path:
    """The log of a data-parallel rank in the folder of a run."""
    return folder / f"steps_dprank{dp_rank:03d}.jsonl"


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The lines that a rank has logged so far, except one being written."""
    content = file.read_bytes() if file.exists() else b""
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]


def read_run(folder: Path) -> dict[int, GlobalBatch]:
    """The global batches of a run by step; a step that not all ranks have logged is left out, and so is what was after
    the checkpoint from which a later start went on.

    Raises:
        DatasetError: if there is no log, or its ranks contradict each other.
    """
    files = sorted(folder.glob("steps_dprank*.jsonl"))
    if not files:
        raise DatasetError(f"{folder} holds no steps_dprank*.jsonl: nothing was logged there")
    by_start: dict[int, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for file in files:
        for line in read_lines(file):
            by_start[line.get("start", 0)][line["step"]].append(line)
    by_step: dict[int, list[dict[str, Any]]] = {}
    for _, steps in sorted(by_start.items()):
        by_step = {step: lines for step, lines in by_step.items() if step < min(steps)} | steps
    batches = {}
    for step, lines in sorted(by_step.items()):
        num_ranks = lines[0].get("ranks", len(files))
        if len(lines) > num_ranks or any(line["loss"] != lines[0]["loss"] for line in lines):
            raise DatasetError(f"{folder}: the ranks contradict each other about step {step}: {lines}")
        if len(lines) == num_ranks:
            dealt = zip(*(line["keys"] for line in lines), strict=True)  # micro-batches alternate between the ranks
            keys = tuple(tuple(key for row in names for key in row.split(",")) for part in dealt for names in part)
            batches[step] = GlobalBatch(step=step, loss=lines[0]["loss"], num_ranks=num_ranks, keys=keys)
    return batches


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One run against the reference, `keys` and `losses` in words; `complaints` is empty if all is equal."""

    name: str
    num_ranks: int
    steps: str
    num_keys: int
    keys: str
    losses: str
    complaints: tuple[str, ...]


def compare(name: str, run: dict[int, GlobalBatch], reference: dict[int, GlobalBatch], steps: range) -> Comparison:
    """Compare all steps that `run` has whole; those of `steps` it must have."""
    missing = [step for step in steps if step not in run]
    strange = [step for step in run if step not in reference]
    common = [step for step in sorted(run) if step in reference]
    complaints = [f"step {step} is missing" for step in missing[:1]]
    complaints += [f"step {step} is not in the reference" for step in strange[:1]]
    other_keys = [step for step in common if run[step].keys != reference[step].keys]
    complaints += [_first_difference(run[step], reference[step]) for step in other_keys[:1]]
    is_same_size = all(run[step].num_ranks == reference[step].num_ranks for step in common)
    gaps = {step: abs(run[step].loss - reference[step].loss) for step in common}
    allowed = 0.0 if is_same_size else TOLERANCE
    apart = [step for step in common if not gaps[step] <= allowed]
    complaints += [
        f"step {step}: loss {run[step].loss!r}, in the reference {reference[step].loss!r}" for step in apart[:1]
    ]
    num_keys = sum(len(names) for step in common for names in run[step].keys)
    complaints += ["no keys were logged"] if not num_keys else []
    whole = bool(num_keys) and not missing and not strange
    largest = max(gaps.values(), default=float("nan"))
    losses = "bit-equal" if is_same_size else f"within {largest:.0e}"
    return Comparison(
        name=name,
        num_ranks=run[common[0]].num_ranks if common else 0,
        steps=f"{min(run)}-{max(run)}" if run else "none",
        num_keys=num_keys,
        keys="equal" if whole and not other_keys else "DIFFERENT",
        losses=losses if whole and not apart else f"DIFFERENT by {largest:.0e}",
        complaints=tuple(complaints),
    )


def as_reference(name: str, run: dict[int, GlobalBatch]) -> Comparison:
    """The row of the run that the others are compared with."""
    return Comparison(
        name=name,
        num_ranks=next(iter(run.values())).num_ranks if run else 0,
        steps=f"{min(run)}-{max(run)}" if run else "none",
        num_keys=sum(len(names) for batch in run.values() for names in batch.keys),
        keys="the reference",
        losses="the reference",
        complaints=(),
    )


def _first_difference(got: GlobalBatch, expected: GlobalBatch) -> str:
    for number, (ours, theirs) in enumerate(zip(got.keys, expected.keys, strict=False)):
        if ours != theirs:
            return f"step {got.step}, micro-batch {number}: keys {list(ours)}, in the reference {list(theirs)}"
    return f"step {got.step}: {len(got.keys)} micro-batches, in the reference {len(expected.keys)}"


def shown(comparisons: Sequence[Comparison]) -> str:
    """The comparisons as a table, a row each."""
    head = ("run", "DP ranks", "steps", "samples", "keys of every global batch", "loss of every step")
    return table(head, [(c.name, str(c.num_ranks), c.steps, str(c.num_keys), c.keys, c.losses) for c in comparisons])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 if every run equals the reference, else 1."""
    parser = argparse.ArgumentParser(prog="python -m recipes.demo.compare", description=__doc__.partition("\n")[0])
    parser.add_argument("reference", type=Path, help="folder of the uninterrupted run")
    parser.add_argument("--run", nargs=3, action="append", required=True, metavar=("FOLDER", "FIRST", "LAST"))
    chosen = parser.parse_args(arguments)
    try:
        reference = read_run(chosen.reference)
        comparisons = [
            compare(Path(folder).name, read_run(Path(folder)), reference, range(int(first), int(last) + 1))
            for folder, first, last in chosen.run
        ]
    except (DatasetError, ValueError) as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return 1
    click.echo(shown([as_reference(chosen.reference.name, reference), *comparisons]))
    complaints = [f"{c.name}: {complaint}" for c in comparisons for complaint in c.complaints]
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
