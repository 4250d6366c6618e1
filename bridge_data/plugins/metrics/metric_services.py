"""Metrics for services that show them: TensorBoard, and Prometheus, which polls.

Reads a loader, or the reports of a `MetricsReporter`. Of Prometheus each process answers for its own loader, and
Prometheus sums.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from bridge_data.errors import ConfigError
from bridge_data.extensions import importing
from bridge_data.plugins.metrics.metric_sinks import APPENDED, MeasuredLoader, MetricsReport
from bridge_data.storage.locations import output_on_disk

if TYPE_CHECKING:
    from prometheus_client import Metric

logger = logging.getLogger("bridge_data")


class TensorBoardSink:
    """Writes each value as a scalar `data/NAME` of TensorBoard, to event files in `folder`.

    Raises:
        ConfigError: if TensorBoard is not installed, or the folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = output_on_disk("TensorBoardSink: folder", folder, APPENDED)
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
