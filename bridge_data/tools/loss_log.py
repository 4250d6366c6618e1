"""The losses of a run, from its log: JSON lines, a CSV of Lightning, events of TensorBoard, or the lines that Megatron
and our recipes print.

Reads a file, or a folder of `*.jsonl` or of events, which may grow. Returns the loss of each step; if a step was
logged several times (by all ranks, after a resume), the last one. Raises a ConfigError if there is no loss.
"""

import contextlib
import csv
import dataclasses
import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from bridge_data.errors import ConfigError

logger = logging.getLogger("bridge_data")

EVENTS = "tfevents"
"""Part of the names of TensorBoard's files."""

MAX_BYTES = 1 << 30
"""Larger logs are not read."""

_BLOCK_BYTES = 1 << 20

_EDGE_BYTES = 4096
"""Bytes at the beginning and the end of a log, compared to detect rewriting in place."""

_STEPS = ("step", "iteration", "global_step", "trainer/global_step")
_LOSSES = ("loss", "lm loss", "lm_loss", "train_loss", "train/loss", "train_loss_step", "loss_step")
_LINE = re.compile(
    r"(?P<name>step|iteration)[ =:]+(?P<step>\d+)\b.*?\bloss[ =:]+"
    r"(?P<loss>[-+]?(?:(?:nan|inf(?:inity)?)\b|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))",
    re.IGNORECASE,
)
_LINE_END = re.compile(r"\r\n?|\n")

_Found: TypeAlias = tuple[str, int, float]
"""(the log's name for a step, its number, loss)."""


@dataclasses.dataclass(frozen=True, slots=True)
class LossLog:
    """(step, loss) ordered by step, with the log's numbers; `first` is the number of the first step: 1 if the log
    counts iterations, as Megatron's does, else 0. `not_finite` are steps whose loss is NaN or infinite."""

    losses: tuple[tuple[int, float], ...]
    first: int
    not_finite: tuple[int, ...] = ()


class LossReader:
    """The losses of a log at `path`, a file or a folder of `*.jsonl` or of TensorBoard's events, at the time of `read`.
    If a file has grown, only the new part is read; if it was replaced, rewritten or cut, it is read from its
    beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[Path, _LogFile] = {}
        self._log: LossLog | None = None

    def read(self) -> LossLog:
        """The current losses; the same object as before if nothing changed.

        Raises:
            ConfigError: if there is no log, or no step with a finite loss in it, or a package to read it is missing.
        """
        files = {file: self._files.get(file) or _LogFile(file) for file in _files(self._path)}
        has_changed = files.keys() != self._files.keys()
        for file in files.values():
            try:
                has_changed |= file.read()
            except (OSError, csv.Error) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise ConfigError(f"{file.path}: cannot be read: {reason}") from error
        self._files = files
        if has_changed:
            self._log = _merged(files.values())
        if self._log is None:
            raise ConfigError(
                f"{self._path}: no step with a loss in it: expected JSON lines with `step` and `loss`, a CSV with such "
                "columns, TensorBoard's events with a scalar `loss`, or lines such as `iteration 10/ 500 | lm loss: "
                "2.3` or `step 10: loss 2.3`"
            )
        return self._log


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(filter(Path.is_file, path.glob("*.jsonl"))) or sorted(filter(Path.is_file, path.glob(f"*{EVENTS}*")))


def _merged(files: Iterable["_LogFile"]) -> LossLog | None:
    """The merged losses of files; None if there are none."""
    found: dict[int, float] = {}
    first = 0
    for file in files:
        found |= file.losses | file.unfinished
        first = file.first if file.first is not None else first
    losses = tuple(sorted((step, loss) for step, loss in found.items() if math.isfinite(loss)))
    return LossLog(losses, first, tuple(sorted(found.keys() - dict(losses).keys()))) if losses else None


class _LogFile:
    """A file of a log, and its losses so far: `unfinished` are those in an incomplete last line. `first` is as in
    `LossLog`, None if there is no loss."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, ...] | None = None
        self._begin()

    def _begin(self) -> None:
        self.losses: dict[int, float] = {}
        self.unfinished: dict[int, float] = {}
        self.first: int | None = None
        self._read_to = 0
        self._edges: list[tuple[int, bytes]] = []
        self._columns: Sequence[str] | None = None
        self._events: Any = None

    def read(self) -> bool:
        """Read what is new; return whether anything changed."""
        found = os.stat(self.path)
        stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if stamp == self._stamp:
            return False
        if found.st_size > MAX_BYTES:
            raise ConfigError(f"{self.path}: has over {MAX_BYTES >> 30} GiB; give a shorter log")
        with self.path.open("rb") as file:
            has_same_size = self._stamp is not None and stamp[2] == self._stamp[2]
            if has_same_size or not all(_has_at(file, at, edge) for at, edge in self._edges):
                self._begin()
            if EVENTS in self.path.name:
                self._read_events()
            else:
                self._read_lines(file)
            self._edges = [(at, _read_at(file, at)) for at in (0, max(0, found.st_size - _EDGE_BYTES))]
        self._stamp = stamp
        return True

    def _read_lines(self, file: BinaryIO) -> None:
        file.seek(self._read_to)
        rest = b""
        while data := file.read(max(_BLOCK_BYTES, len(rest))):
            rest += data
            end = 1 + max(rest.rfind(b"\n"), rest.rfind(b"\r"))
            lines = _LINE_END.split(rest[:end].decode(errors="replace"))
            found = self._of_rows(lines) if self.path.suffix == ".csv" else map(_of_line, lines)
            self._add(self.losses, found)
            self._read_to, rest = self._read_to + end, rest[end:]
        self.unfinished = {}
        if rest.lstrip()[:1] == b"{":  # a number at the end of other lines may be cut
            self._add(self.unfinished, [_of_json(rest.decode(errors="replace"))])

    def _of_rows(self, lines: list[str]) -> Iterator[_Found | None]:
        rows = csv.DictReader(filter(None, lines), fieldnames=self._columns)
        self._columns = rows.fieldnames
        return map(_of_row, rows)

    def _read_events(self) -> None:
        """Only Megatron calls its loss `lm loss`, and counts iterations."""
        try:
            from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
        except ImportError as error:
            raise ConfigError(f"{self.path}: reading it needs a package ({error}): pip install tensorboard") from error
        self._events = self._events or LegacyEventFileLoader(str(self.path))
        try:
            for event in self._events.Load():
                given = (
                    (value.tag, value.simple_value) for value in event.summary.value if value.HasField("simple_value")
                )
                scalars = dict(given)
                name = "iteration" if "lm loss" in scalars else "step"
                self._add(self.losses, [_of_content({name: event.step, **scalars})])
        except Exception as error:  # TensorBoard raises various errors for a damaged file
            logger.warning("%s: is damaged, and only the losses before that are shown: %r", self.path, error)

    def _add(self, losses: dict[int, float], found: Iterable[_Found | None]) -> None:
        for one in found:
            if one is not None:
                name, step, losses[step] = one
                self.first = int(name == "iteration")


def _read_at(file: BinaryIO, at: int) -> bytes:
    file.seek(at)
    return file.read(_EDGE_BYTES)


def _has_at(file: BinaryIO, at: int, expected: bytes) -> bool:
    """Whether a file has these bytes at this offset."""
    return _read_at(file, at)[: len(expected)] == expected


def _of_line(line: str) -> _Found | None:
    return _of_json(line) if line.lstrip().startswith("{") else _of_text(line)


def _of_json(line: str) -> _Found | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):  # the last line may be cut
        return None
    return _of_content(content)


def _of_row(row: Mapping[str, Any]) -> _Found | None:
    """The loss in a row of a CSV; values not logged at the step are empty."""
    content: dict[str, Any] = {}
    for name, text in row.items():
        with contextlib.suppress(TypeError, ValueError):
            content[name] = int(text) if name in _STEPS else float(text)
    return _of_content(content)


def _of_content(content: dict[str, Any]) -> _Found | None:
    name = next((name for name in _STEPS if name in content), "")
    step = content.get(name)
    loss = next((content[name] for name in _LOSSES if name in content), None)
    if type(step) is not int or step < 0 or isinstance(loss, bool) or not isinstance(loss, (int, float)):
        return None
    try:
        return name, step, float(loss)
    except OverflowError:  # an integer of hundreds of digits
        return name, step, math.inf


def _of_text(line: str) -> _Found | None:
    match = _LINE.search(line[:10_000])
    return None if match is None else (match["name"].lower(), int(match["step"]), float(match["loss"]))
