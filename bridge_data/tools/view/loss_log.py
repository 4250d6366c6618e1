"""The losses of a run, from its log: JSON lines, a CSV of Lightning, events of TensorBoard, or the lines that Megatron
and our recipes print.

Enters: a file, or a folder of `*.jsonl` or of events. Leaves: the loss of each step; of a step that was logged several
times, as by all ranks or after a resume, the last one.
"""

import contextlib
import csv
import dataclasses
import json
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridge_data.errors import ConfigError

logger = logging.getLogger("bridge_data")

MAX_BYTES = 1 << 30
"""Of larger logs nothing is read."""

_STEPS = ("step", "iteration", "global_step", "trainer/global_step")
_LOSSES = ("loss", "lm loss", "lm_loss", "train_loss", "train/loss", "train_loss_step", "loss_step")
EVENTS = "tfevents"
"""In the names of the files that TensorBoard reads."""
_LINE = re.compile(
    r"(?P<name>step|iteration)[ =:]+(?P<step>\d+)\b.*?\bloss[ =:]+"
    r"(?P<loss>[-+]?(?:(?:nan|inf(?:inity)?)\b|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True, slots=True)
class LossLog:
    """(step, loss) in the sequence of steps, under the numbers of the log; `first` is the number of the first step: 1
    if the log counts iterations, as Megatron's does, else 0. `not_finite` are steps whose loss is NaN or infinite."""

    losses: tuple[tuple[int, float], ...]
    first: int
    not_finite: tuple[int, ...] = ()


def read_losses(path: Path) -> LossLog:
    """The losses of a log, a file or a folder of `*.jsonl` or of TensorBoard's events.

    Raises:
        ConfigError: if there is no log, or no step with a finite loss in it, or a package to read it is missing.
    """
    found: dict[int, float] = {}
    first = 0
    for file in _files(path):
        try:
            if file.stat().st_size > MAX_BYTES:
                raise ConfigError(f"{file}: has over {MAX_BYTES >> 30} GiB; give a shorter log")
            for name, step, loss in _losses(file):
                found[step] = loss
                first = int(name == "iteration")
        except (OSError, csv.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"{file}: cannot be read: {reason}") from error
    losses = tuple(sorted((step, loss) for step, loss in found.items() if math.isfinite(loss)))
    if not losses:
        raise ConfigError(
            f"{path}: no step with a loss in it: expected JSON lines with `step` and `loss`, a CSV with such columns, "
            "TensorBoard's events with a scalar `loss`, or lines such as `iteration 10/ 500 | lm loss: 2.3` or "
            "`step 10: loss 2.3`"
        )
    return LossLog(losses, first, tuple(sorted(found.keys() - dict(losses).keys())))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(filter(Path.is_file, path.glob("*.jsonl"))) or sorted(filter(Path.is_file, path.glob(f"*{EVENTS}*")))


def _losses(file: Path) -> Iterator[tuple[str, int, float]]:
    """(what the log calls a step, its number, loss)."""
    if EVENTS in file.name:
        yield from _of_events(file)
        return
    with file.open(errors="replace", newline="" if file.suffix == ".csv" else None) as lines:
        rows = map(_of_row, csv.DictReader(lines)) if file.suffix == ".csv" else map(_of_line, lines)
        yield from (one for one in rows if one is not None)


def _of_events(file: Path) -> Iterator[tuple[str, int, float]]:
    """Of the scalars in a file of events. Megatron, and no other, calls its loss `lm loss`, and counts iterations."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError as error:
        raise ConfigError(
            f'{file}: reading it needs a package ({error}): pip install "bridge-data[metrics]"'
        ) from error
    try:
        for event in LegacyEventFileLoader(str(file)).Load():
            scalars = {value.tag: value.simple_value for value in event.summary.value if value.HasField("simple_value")}
            one = _of_content({"iteration" if "lm loss" in scalars else "step": event.step, **scalars})
            if one is not None:
                yield one
    except Exception as error:  # TensorBoard raises all sorts for a damaged file
        logger.warning("%s: is damaged, and only the losses before that are shown: %r", file, error)


def _of_line(line: str) -> tuple[str, int, float] | None:
    return _of_json(line) if line.lstrip().startswith("{") else _of_text(line)


def _of_json(line: str) -> tuple[str, int, float] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):  # the last line may be cut
        return None
    return _of_content(content)


def _of_row(row: dict[str, str]) -> tuple[str, int, float] | None:
    """Of a row of a CSV, in which what was not logged at the step is empty."""
    content: dict[str, Any] = {}
    for name, text in row.items():
        with contextlib.suppress(TypeError, ValueError):
            content[name] = int(text) if name in _STEPS else float(text)
    return _of_content(content)


def _of_content(content: dict[str, Any]) -> tuple[str, int, float] | None:
    name = next((name for name in _STEPS if name in content), "")
    step = content.get(name)
    loss = next((content[name] for name in _LOSSES if name in content), None)
    if type(step) is not int or step < 0 or isinstance(loss, bool) or not isinstance(loss, (int, float)):
        return None
    try:
        return name, step, float(loss)
    except OverflowError:  # an integer of hundreds of digits
        return name, step, math.inf


def _of_text(line: str) -> tuple[str, int, float] | None:
    match = _LINE.search(line[:10_000])
    return None if match is None else (match["name"].lower(), int(match["step"]), float(match["loss"]))
