"""Where the metrics of a loader go: the log, a JSONL file, TensorBoard, Prometheus.

Reads a loader. Writes its metrics, every `every_steps` steps, to each sink. `MetricsReporter` is the hook of a training
loop: all data-parallel ranks call it with each step, and the first rank of the job writes the joint counts.
`MetricsServer` is for Prometheus, which polls: each process answers for its own loader, and Prometheus sums. A sink
that fails after the run has started is logged and counted, and the run continues.

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
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from bridge_data.errors import ConfigError, log_throttle
from bridge_data.extensions import importing
from bridge_data.loader.metrics import RATES, LoaderMetrics
from bridge_data.storage.locations import output_on_disk
from bridge_data.topology import rank_in

if TYPE_CHECKING:
    from prometheus_client import Metric

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
        """The same, as a callback of Megatron-Bridge for the event of this name, where steps are counted from 0."""
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


_APPENDED = "lines are added to it all the time: give a path on a disk, and copy it when the run has ended"
"""The fix for files of metrics."""


class JsonlSink:
    """Appends a line of JSON for each report to the file `path`, in one write, so that a killed run leaves whole lines:
    `step`, `time` (seconds since 1970), all values, `slowest_sample` and `slowest_shard`.

    Raises:
        ConfigError: if its folder cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = output_on_disk("JsonlSink: path", path, _APPENDED)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"JsonlSink({str(path)!r}): {error}; give a path that can be written to") from error

    def write(self, report: MetricsReport) -> None:
        """Append it."""
        line: dict[str, Any] = {"step": report.step, "time": time.time(), **report.values()}
        if report.total.slowest is not None:
            line |= {"slowest_sample": report.total.slowest.key, "slowest_shard": report.total.slowest.shard}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Does nothing: the file is closed after each line."""


class TensorBoardSink:
    """Writes each value as a scalar `data/NAME` of TensorBoard, to event files in `folder`.

    Raises:
        ConfigError: if TensorBoard is not installed, or the folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = output_on_disk("TensorBoardSink: folder", folder, _APPENDED)
        try:
            with importing("TensorBoardSink"):
                self._writer: Any = self._opened()
        except OSError as error:
            raise ConfigError(f"TensorBoardSink({folder!r}): {error}; give a folder that can be written to") from error

    def write(self, report: MetricsReport) -> None:
        """Write its values."""
        # A writer that has failed once always fails; the next report has a new one, with its own event file.
        writer, self._writer = self._writer or self._opened(), None
        for name, value in report.values().items():
            writer.add_scalar(f"data/{name}", value, report.step)
        writer.flush()
        self._writer = writer

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()

    def _opened(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(self._folder)


class MetricsServer:
    """Serves the metrics of the loader of this process to Prometheus, at `http://host:port/metrics`.

    They are read when Prometheus asks, and have the label `rank`. Counts end with `_total`: Prometheus makes rates of
    them, and sums over ranks. By default, only programs on this machine can connect. Port 0, or one already in use,
    becomes a free port; the latter is logged.

    Raises:
        ConfigError: if `prometheus_client` is not installed, or there is no port at `host`.
    """

    def __init__(self, loader: MeasuredLoader, *, rank: int = 0, port: int = 0, host: str = "127.0.0.1") -> None:
        with importing("MetricsServer"):
            from prometheus_client import CollectorRegistry, start_http_server
        registry = CollectorRegistry()
        registry.register(_Collector(loader, rank))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            asked = f"MetricsServer(host={host!r}, port={port}): {error}"
            try:
                self._server, self._thread = start_http_server(0, host, registry)
            except OSError:
                raise ConfigError(f"{asked}; set an address of this machine") from error
            logger.warning("%s. Metrics are at port %d; give each process its own", asked, self._server.server_port)
        self.port = int(self._server.server_port)
        """The port that it listens on."""

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_COUNTERS = {
    "elapsed_s": ("step_seconds", "Seconds of whole steps, waits included"),
    "wait_s": ("wait_seconds", "Seconds that the trainer waited for batches"),
    "batches": ("batches", "Micro-batches handed out"),
    "samples": ("samples", "Samples in the batches"),
    "tokens": ("tokens", "Tokens in the batches, without padding"),
    "token_slots": ("token_slots", "Tokens in the batches, with padding"),
    "images": ("images", "Images decoded"),
    "damaged_images": ("damaged_images", "Damaged JPEGs whose other pixels the decoder has guessed"),
    "first_frames": ("first_frames", "Images of several frames or pages of which only the first was taken"),
    "bytes_read": ("read_bytes", "Bytes read"),
    "retries": ("read_retries", "Reads retried after a transient fault"),
    "failed": ("failed_samples", "Samples lost by an error"),
    "truncated": ("truncated_samples", "Samples cut because they were too long"),
    "worker_restarts": ("worker_restarts", "Worker processes replaced"),
    "ready_batches": ("ready_batches", "Batches ready when one was asked for, added up"),
    "ready_slots": ("ready_slots", "Batches that could have been ready, added up"),
}


class _Collector:
    """Asks the loader whenever Prometheus does, so nothing is counted twice."""

    def __init__(self, loader: MeasuredLoader, rank: int) -> None:
        self._loader, self._rank = loader, str(rank)

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        now = self._loader.metrics()
        for field, (name, text) in _COUNTERS.items():
            yield self._family("Counter", name, text, {"": getattr(now, field)})
        for name, count in now.others.items():
            yield self._family("Counter", name, "Counted by a plug-in", {"": count})
        yield self._family("Counter", "skipped_samples", "Samples skipped, by hook", now.skipped, "hook")
        yield self._family("Gauge", "epochs", "Epochs drawn, by source", now.epochs, "source")
        slowest = {} if now.slowest is None else {now.slowest.key: now.slowest.seconds}
        yield self._family("Gauge", "slowest_sample_seconds", "The slowest sample so far", slowest, "key")
        memory = {"trainer": now.trainer_bytes, "workers": now.workers_bytes}
        yield self._family("Gauge", "resident_bytes", "Resident memory", memory, "process")

    def _family(self, kind: str, name: str, text: str, values: Mapping[str, float], label: str | None = None) -> Metric:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        family_class = CounterMetricFamily if kind == "Counter" else GaugeMetricFamily
        labels = ["rank"] if label is None else ["rank", label]
        family: Any = family_class(f"bridge_data_{name}", text, labels=labels)
        for value_label, value in values.items():
            family.add_metric([self._rank] if label is None else [self._rank, value_label], value)
        found: Metric = family
        return found
