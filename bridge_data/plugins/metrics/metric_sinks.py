"""Where the metrics of a loader go: the log, a JSONL file, or any other sink.

Reads a loader. Writes its metrics, every `every_steps` steps, to each sink. `MetricsReporter` is the hook of a training
loop: all data-parallel ranks call it with each step, and the first rank of the job writes the joint counts. A sink that
fails after the run has started is logged and counted, and the run continues.

Values are written under the names of `LoaderMetrics.values`. Rates and shares are since the last report, counts since
the loader was made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from bridge_data.errors import ConfigError, log_throttle
from bridge_data.loader.metrics import RATES, LoaderMetrics
from bridge_data.storage.locations import output_on_disk
from bridge_data.topology import rank_in

logger = logging.getLogger("bridge_data")


class MeasuredLoader(Protocol):
    """A loader, of any kind that this package makes; or an `EnergonDatasetConfig`, once Bridge has built its loader."""

    def metrics(self, *, of_job: bool = False) -> LoaderMetrics: ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MetricsReport:
    """The metrics after a step: `total` since the loader was made, `interval` since the report before."""

    step: int
    total: LoaderMetrics
    interval: LoaderMetrics

    def values(self) -> dict[str, float]:
        """Numbers by name: rates and shares of the interval, all else of the total."""
        return self.total.values() | {name: getattr(self.interval, name) for name in RATES}


class MetricsSink(Protocol):
    """Takes reports. Its exceptions are logged, and do not reach the training loop."""

    def write(self, report: MetricsReport) -> None:
        """Write one."""

    def close(self) -> None:
        """Called after the last report."""


class MetricsReporter:
    """Reports the metrics of `loader` to `sinks` after every `every_steps` steps of a training loop.

    With `of_job`, those of all data-parallel ranks together: then all ranks must call `step` with the same steps. The
    first rank of the job writes; without `of_job`, each rank writes its own. A sink that fails, as on a full disk, does
    not end the training: it is a counted warning, and the sink gets the next report.

    Raises:
        ConfigError: if `every_steps` is less than 1.
    """

    def __init__(
        self, loader: MeasuredLoader, sinks: Sequence[MetricsSink], *, every_steps: int = 100, of_job: bool = True
    ) -> None:
        if every_steps < 1:
            raise ConfigError(f"MetricsReporter(every_steps={every_steps}): expected at least 1")
        self._loader, self._sinks, self._every_steps, self._of_job = loader, sinks, every_steps, of_job
        self._before: LoaderMetrics | None = None
        self.num_failures = 0
        """Reports that a sink could not write, and sinks that could not be closed."""

    def step(self, step: int) -> MetricsReport | None:
        """Call after a step of the trainer, counted from 1; returns the report, if one is due."""
        if step % self._every_steps:
            return None
        total = self._loader.metrics(of_job=self._of_job)
        interval = total if self._before is None else total.since(self._before)
        self._before = total
        report = MetricsReport(step=step, total=total, interval=interval)
        if not self._of_job or rank_in(None)[0] == 0:
            for sink in self._sinks:
                with self._failures_of(sink):
                    sink.write(report)
        return report

    def on_train_step_end(self, context: Any) -> None:
        """`step`, as a callback of Megatron-Bridge for the event of this name, where steps are counted from 0."""
        self.step(int(context.state.train_state.step) + 1)

    def close(self) -> None:
        """Close the sinks."""
        for sink in self._sinks:
            with self._failures_of(sink):
                sink.close()

    @contextlib.contextmanager
    def _failures_of(self, sink: MetricsSink) -> Iterator[None]:
        """Log and count an error; repeats are logged less and less often."""
        try:
            yield
        except Exception as error:
            self.num_failures += 1
            name = type(sink).__name__
            if number := log_throttle.count((name, type(error))):
                logger.warning("metrics: %s failed (time %d), the run continues: %r", name, number, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LogSink:
    """Writes a line for each report to the log `bridge_data`, at level INFO."""

    def write(self, report: MetricsReport) -> None:
        """Log it."""
        logger.info("%s", line_of(report))

    def close(self) -> None:
        """Does nothing."""


def line_of(report: MetricsReport) -> str:
    """A report in one line, for people."""
    last, total = report.interval, report.total
    parts = [f"{last.samples_per_s:,.1f} samples/s"]
    if last.tokens:
        parts.append(f"{last.tokens_per_s:,.0f} tokens/s ({last.pack_fill:.1%} of the slots)")
    if last.images:
        parts.append(f"{last.images_per_s:,.1f} images/s")
    parts.append(f"{last.bytes_per_s / 1e6:,.1f} MB/s")
    parts.append(f"trainer waited {last.wait_share:.1%}")
    if last.ready_slots:
        parts.append(f"prefetch {last.prefetch_fill:.0%} full")
    rare = {
        name: getattr(total, name)
        for name in ("truncated", "failed", "damaged_images", "first_frames", "retries", "worker_restarts")
    }
    parts += [f"{count:,} {name.replace('_', ' ')}" for name, count in rare.items() if count]
    if total.skipped:
        parts.append("skipped " + ", ".join(f"{count:,} in {hook}" for hook, count in sorted(total.skipped.items())))
    if total.epochs:
        parts.append("epochs " + ", ".join(f"{source} {epochs:.3f}" for source, epochs in total.epochs.items()))
    if total.slowest is not None:
        parts.append(f"slowest sample {total.slowest.key} of {total.slowest.source}, {total.slowest.seconds:.3f} s")
    return f"data of step {report.step}: {'; '.join(parts)}"


APPENDED = "lines are added to it all the time: give a path on a disk, and copy it when the run has ended"
"""The fix for files of metrics."""


def _last_line(file: Path) -> bytes:
    """The last line of a file that ends in a newline."""
    with file.open("rb") as opened:
        size, length = opened.seek(0, os.SEEK_END), 1 << 12
        while True:
            opened.seek(max(0, size - length))
            _, newline, line = opened.read().rpartition(b"\n")[0].rpartition(b"\n")
            if newline or length >= size:
                return line
            length *= 8


class JsonlSink:
    """Appends a line of JSON for each report to the file `path`, in one write, so that a killed run leaves whole lines:
    `step`, `start`, `time` (seconds since 1970), all values, `slowest_sample` and `slowest_shard`.

    `start` is the number of the start of the run, as a run that is resumed repeats steps: a later start undoes the
    lines of earlier ones from its first step on. None: `next_start(path)`.

    Raises:
        ConfigError: if its folder cannot be made, or `path` is a file of something else.
    """

    def __init__(self, path: str | os.PathLike[str], *, start: int | None = None) -> None:
        self._path = output_on_disk("JsonlSink: path", path, APPENDED)
        self._start = self.next_start(self._path) if start is None else start
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"JsonlSink({str(path)!r}): {error}; give a path that can be written to") from error

    @staticmethod
    def next_start(path: str | os.PathLike[str]) -> int:
        """The number of this start of a run, whose starts append lines of JSON to the file `path`, with their number as
        `start`: 0 if there is none yet, else one more than in the last whole line.

        Raises:
            ConfigError: if that line is something else.
        """
        file = Path(path)
        line = _last_line(file) if file.exists() else b""
        if not line:
            return 0
        try:
            return int(json.loads(line).get("start", 0)) + 1
        except (ValueError, AttributeError, TypeError) as error:
            raise ConfigError(f"{file}: expected lines of JSON that a run has logged; give another file") from error

    def write(self, report: MetricsReport) -> None:
        """Append it."""
        line: dict[str, Any] = {"step": report.step, "start": self._start, "time": time.time(), **report.values()}
        if report.total.slowest is not None:
            line |= {"slowest_sample": report.total.slowest.key, "slowest_shard": report.total.slowest.shard}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Does nothing: the file is closed after each line."""
