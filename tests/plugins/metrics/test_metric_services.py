"""TensorBoard and Prometheus show what a loader reports."""

import json
import re
import shutil
import sys
import urllib.request
from pathlib import Path

import pytest

from bridge_data import (
    ConfigError,
    MetricsReporter,
    MetricsServer,
    TensorBoardSink,
)
from bridge_data.counts import COUNTS
from bridge_data.loader.loader import SavableDataLoader
from tests.plugins.metrics.test_metric_sinks import loader as loader
from tests.plugins.metrics.test_metric_sinks import train


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tensorboard_reads_the_values_back(loader: SavableDataLoader, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reports = train(loader, [TensorBoardSink(tmp_path)], 6, every_steps=3)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {f"data/{name}" for name in reports[0].values()} == set(events.Tags()["scalars"])
    for name in ("samples", "samples_per_s", "wait_share"):
        found = [(event.step, event.value) for event in events.Scalars(f"data/{name}")]
        assert found == [(report.step, pytest.approx(report.values()[name])) for report in reports]
    with MetricsReporter(loader, [TensorBoardSink(tmp_path / "gone")], every_steps=1) as reporter:
        shutil.rmtree(tmp_path / "gone")
        next(iter(loader))
        for step in range(1, 4):
            reporter.step(step)
    assert reporter.num_failures == 1
    (file,) = (tmp_path / "gone").iterdir()
    assert file.stat().st_size > 500, "another file was begun"


def scrape(server: MetricsServer) -> dict[tuple[str, ...], float]:
    """What Prometheus reads: values by name and labels."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        families = [*text_string_to_metric_families(answer.read().decode())]
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_prometheus_scrapes_what_the_loader_says_now(
    loader: SavableDataLoader, caplog: pytest.LogCaptureFixture
) -> None:
    iterator = iter(loader)
    with MetricsServer(loader, rank=3) as server:
        for num_batches in (2, 5):
            while loader.metrics().batches < num_batches:
                next(iterator)
            for _ in range(2):  # to ask twice counts nothing twice
                found, now = scrape(server), loader.metrics()
                assert found["bridge_data_samples_total", "3"] == now.samples == 4 * num_batches
                assert found["bridge_data_wait_seconds_total", "3"] == now.wait_s
                ((source, epochs),) = now.epochs.items()
                assert found["bridge_data_epochs", "3", source] == epochs
                assert found["bridge_data_resident_bytes", "trainer", "3"] > 10_000_000
        with MetricsServer(loader, rank=4, port=server.port) as other:
            assert other.port != server.port and scrape(other)["bridge_data_samples_total", "4"] == 20
    assert f"Metrics are at port {other.port}" in caplog.text
    with pytest.raises(ConfigError, match="an address of this machine"):
        MetricsServer(loader, host="192.0.2.1")


def test_the_dashboard_shows_every_metric_that_is_served(loader: SavableDataLoader) -> None:
    """`docs/grafana.json` names all families, those of a plug-in that has counted included, and no other."""
    COUNTS.others.update(memo_hits=1, memo_misses=1, memo_bytes=1)
    next(iter(loader))
    with (
        MetricsServer(loader) as server,
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer,
    ):
        served = set(re.findall(r"^# TYPE (\w+)", answer.read().decode(), re.MULTILINE))
    dashboard = json.loads((Path(__file__).parents[3] / "docs" / "grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert {name for expression in asked for name in re.findall(r"bridge_data_\w+", expression)} == served
    assert all(expression.count("(") == expression.count(")") for expression in asked)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.parametrize(("module", "package"), [("prometheus_client", "prometheus-client"), ("tensorboard",) * 2])
def test_a_missing_package_is_an_error_that_names_it(
    module: str, package: str, loader: SavableDataLoader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(ConfigError, match=f"pip install {package}$"):
        if module == "prometheus_client":
            MetricsServer(loader)
        else:
            TensorBoardSink(tmp_path)


def test_a_place_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="that can be written to"):
        TensorBoardSink(str(tmp_path / "file/below/data"))
