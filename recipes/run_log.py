"""The log of a run: for each step and rank the loss, and the keys in the batches that produced it.

A run's folder holds `steps_dprank000.jsonl` and so on, one line per step; `read_run` merges the ranks' lines into
the global batches. A line is written in one call, so a killed run leaves whole lines only.
"""

import dataclasses
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bridge_data.errors import DatasetError


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GlobalBatch:
    """One step of the whole job: the keys of each of its micro-batches, in order, and its loss."""

    step: int
    loss: float
    num_ranks: int
    keys: tuple[tuple[str, ...], ...]


def log_file(folder: Path, dp_rank: int) -> Path:
    """The file of a data-parallel rank in the folder of a run."""
    return folder / f"steps_dprank{dp_rank:03d}.jsonl"


class StepLog:
    """Appends this rank's steps to its file; `keys` of a micro-batch are under its number in the whole job."""

    def __init__(self, folder: Path, dp_rank: int, dp_size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = log_file(folder, dp_rank)
        self._dp_size = dp_size

    def append(self, step: int, loss: float, keys: Sequence[tuple[int, Sequence[str]]], **more: Any) -> None:
        """Log one step; `more` is for people to read."""
        line = {
            "step": step,
            "loss": loss,
            "num_ranks": self._dp_size,
            "pid": os.getpid(),
            "keys": {str(number): list(names) for number, names in keys},
            **more,
        }
        with self._file.open("ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The lines that a rank has logged so far, except one being written."""
    if not file.exists():
        return []
    content = file.read_bytes()
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]


def read_run(folder: Path) -> dict[int, GlobalBatch]:
    """The global batches of a run by step; a step that not all ranks have logged is skipped.

    Raises:
        DatasetError: if there is no log, or its ranks contradict each other.
    """
    files = sorted(folder.glob("steps_dprank*.jsonl"))
    if not files:
        raise DatasetError(f"{folder} holds no steps_dprank*.jsonl: nothing was logged there")
    by_step: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for file in files:
        for line in read_lines(file):
            by_step[line["step"]].append(line)
    batches = {}
    for step, lines in sorted(by_step.items()):
        num_ranks, loss = lines[0]["num_ranks"], lines[0]["loss"]
        if any(line["num_ranks"] != num_ranks or line["loss"] != loss for line in lines):
            raise DatasetError(f"{folder}: the ranks contradict each other about step {step}: {lines}")
        if len(lines) > num_ranks:
            raise DatasetError(f"{folder}: step {step} was logged {len(lines)} times by {num_ranks} ranks")
        if len(lines) == num_ranks:
            numbered = sorted((int(number), tuple(names)) for line in lines for number, names in line["keys"].items())
            numbers = [number for number, _ in numbered]
            if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
                raise DatasetError(f"{folder}: step {step} has micro-batches {numbers}, expected consecutive ones")
            keys = tuple(names for _, names in numbered)
            batches[step] = GlobalBatch(step=step, loss=loss, num_ranks=num_ranks, keys=keys)
    return batches


def sample_keys(batch: Any) -> list[str]:
    """The keys of all samples of a batch, in order; a pack names its samples with commas between them."""
    return [key for row in batch.__key__ for key in row.split(",")]
