"""Reports on the orders of runs: from which step the data of two runs differ, and why; the samples of steps as a file.

Input: one run or two, and some steps. Output: the settings that differ, and the first step whose samples differ; one
sample a row, as JSON lines or Parquet. Guarantee: the samples themselves are compared, in order: source by content,
epoch, index, part, and packs; rows are written step by step.
"""

import dataclasses
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from bridge_data.errors import ConfigError
from bridge_data.order.state import LoaderState
from bridge_data.tools.oracle.run_order import RunOrder, RunSample


@dataclasses.dataclass(frozen=True, slots=True)
class RunDifference:
    """`reasons` are differences of the settings, in words. `step` is the first compared step whose samples differ, or
    None; `first` and `second` are the samples of the two runs at the first position that differs, None if a run has no
    sample there."""

    reasons: list[str]
    step: int | None
    first: RunSample | None = None
    second: RunSample | None = None


def first_difference(one: RunOrder, other: RunOrder, *, steps: Sequence[int]) -> RunDifference:
    """The difference between two runs in these steps."""
    reasons = [
        text.replace("the state has", "the first has").replace("this run has", "the second")
        for _, text in LoaderState(one.dataset.fingerprint(), [], 0, {}).differences(other.dataset.fingerprint())
    ]
    settings = [
        ("num_lanes", one.num_lanes, other.num_lanes),
        ("global_batch_size", one.schedule.global_batch_size, other.schedule.global_batch_size),
        ("rampup_batch_size", one.schedule.rampup_batch_size, other.schedule.rampup_batch_size),
    ]
    reasons += [f"{name}: the first has {a}, the second {b}" for name, a, b in settings if a != b]
    for step in steps:
        samples = [run.at(step).samples for run in (one, other)]
        names = [[_identity(run, sample) for sample in found] for run, found in zip((one, other), samples, strict=True)]
        if names[0] == names[1]:
            continue
        same = next((at for at, pair in enumerate(zip(*names, strict=False)) if pair[0] != pair[1]), None)
        place = min(map(len, names)) if same is None else same
        first, second = (found[place] if place < len(found) else None for found in samples)
        return RunDifference(reasons, step, first, second)
    return RunDifference(reasons, None)


def _identity(run: RunOrder, sample: RunSample) -> tuple[Any, ...]:
    source = run.dataset.source_names[sample.source_number]
    return source, sample.epoch, sample.index, sample.part, sample.place, sample.place_in_pack


_ROWS = 1 << 16
"""Rows of a row group of Parquet, at least."""


def write_order(run: RunOrder, steps: Sequence[int], file: Path | None) -> None:
    """Write the samples of `steps` to `file`, `.jsonl` or `.parquet`; None: as JSON lines to standard output.

    Raises:
        ConfigError: for another file name, a file that cannot be written, or for Parquet without pyarrow.
    """
    if file is None:
        _write_lines(run, steps, sys.stdout)
        return
    if file.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"{file}: expected a file named .jsonl or .parquet")
    try:
        if file.suffix == ".parquet":
            _write_parquet(run, steps, file)
        else:
            with file.open("w", encoding="utf-8") as lines:
                _write_lines(run, steps, lines)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error}") from error


def _write_lines(run: RunOrder, steps: Sequence[int], lines: TextIO) -> None:
    for rows in _rows(run, steps):
        lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _rows(run: RunOrder, steps: Sequence[int]) -> Iterator[list[dict[str, Any]]]:
    """The rows of each step."""
    for step in steps:
        yield [sample.to_dict() for sample in run.at(step).samples]


def _write_parquet(run: RunOrder, steps: Sequence[int], file: Path) -> None:
    try:
        pyarrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        way_out = 'pip install "bridge-data[parquet]", or write .jsonl'
        raise ConfigError(f"{file}: Parquet needs pyarrow: {way_out}") from error
    numbers = ("source_number", "index", "epoch", "part", "step", "micro_batch", "lane", "rank", "place")
    fields = [("source", pyarrow.string()), *((name, pyarrow.int64()) for name in numbers)]
    texts = [("shard", pyarrow.string()), ("key", pyarrow.string())]
    schema = pyarrow.schema([*fields, ("place_in_pack", pyarrow.int64()), *texts])
    with parquet.ParquetWriter(file, schema) as writer:
        waiting: list[dict[str, Any]] = []
        for rows in _rows(run, steps):
            waiting += rows
            if len(waiting) >= _ROWS:
                writer.write_table(pyarrow.Table.from_pylist(waiting, schema))
                waiting = []
        if waiting:
            writer.write_table(pyarrow.Table.from_pylist(waiting, schema))
