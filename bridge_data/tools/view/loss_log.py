"""The losses of a run, from its log: JSON lines, or the lines that Megatron and our recipes print.

Enters: a file, or a folder of `*.jsonl`. Leaves: the loss of each step; of a step that was logged several times, as by
all ranks or after a resume, the last one.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

from bridge_data.errors import ConfigError

MAX_BYTES = 1 << 30
"""Of larger logs nothing is read."""

_STEPS = ("step", "iteration", "global_step", "trainer/global_step")
_LOSSES = ("loss", "lm loss", "lm_loss", "train_loss", "train/loss")
_LINE = re.compile(
    r"(?P<name>step|iteration)[ =:]+(?P<step>\d+)\b.*?\bloss[ =:]+(?P<loss>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True, slots=True)
class LossLog:
    """(step, loss) in the sequence of steps, under the numbers of the log; `first` is the number of the first step: 1
    if the log counts iterations, as Megatron's does, else 0."""

    losses: tuple[tuple[int, float], ...]
    first: int


def read_losses(path: Path) -> LossLog:
    """The losses of a log; those that are not finite are left out.

    Raises:
        ConfigError: if there is no log, or no step with a loss in it.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    found: dict[int, float] = {}
    first = 0
    for file in files:
        try:
            if file.stat().st_size > MAX_BYTES:
                raise ConfigError(f"{file}: has over {MAX_BYTES >> 30} GiB; give a shorter log")
            for name, step, loss in _losses(file):
                found[step] = loss
                first = int(name == "iteration")
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    if not found:
        raise ConfigError(
            f"{path}: no step with a loss in it: expected JSON lines with `step` and `loss`, or lines such as "
            "`iteration 10/ 500 | lm loss: 2.3` or `step 10: loss 2.3`"
        )
    return LossLog(tuple(sorted(found.items())), first)


def _losses(file: Path) -> Iterator[tuple[str, int, float]]:
    """(what the log calls a step, its number, loss)."""
    with file.open(errors="replace") as lines:
        for line in lines:
            found = _of_json(line) if line.lstrip().startswith("{") else _of_text(line)
            if found is not None and math.isfinite(found[2]):
                yield found


def _of_json(line: str) -> tuple[str, int, float] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):  # the last line may be cut
        return None
    name = next((name for name in _STEPS if name in content), "")
    step = content.get(name)
    loss = next((content[name] for name in _LOSSES if name in content), None)
    is_number = isinstance(loss, (int, float)) and not isinstance(loss, bool)
    return (name, step, float(loss)) if type(step) is int and step >= 0 and is_number and loss is not None else None


def _of_text(line: str) -> tuple[str, int, float] | None:
    match = _LINE.search(line[:10_000])
    return None if match is None else (match["name"].lower(), int(match["step"]), float(match["loss"]))
