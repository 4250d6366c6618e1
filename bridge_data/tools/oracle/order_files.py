"""The order of a run as a file: one sample a row, as JSON lines or Parquet.

Input: a run and some steps. Output: rows of `RunSample.to_dict`. The rows are written step by step.
"""

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from bridge_data.errors import ConfigError
from bridge_data.tools.oracle.run_order import RunOrder

_ROWS = 1 << 16
"""Rows of a row group of Parquet, at least."""


def write_order(run: RunOrder, steps: Sequence[int], file: Path | None) -> None:
    """Write the samples of `steps` to `file`, `.jsonl` or `.parquet`; None: as JSON lines to standard output.

    Raises:
        ConfigError: for another name, a file that cannot be written, or for Parquet without pyarrow.
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
