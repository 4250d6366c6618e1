"""Reports of a loader's metrics, and the sinks of the core."""

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridge_data import (
    ConfigError,
    JsonlSink,
    LogSink,
    MetricsReporter,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from bridge_data.loader.loader import SavableDataLoader
from bridge_data.loader.metrics import LoaderMetrics, SlowestSample
from bridge_data.plugins.metrics.metric_sinks import MetricsReport, line_of
from tests.datamodule.conftest import path as path
from tests.datamodule.parts import make_module


@pytest.fixture
def loader(path: Path) -> SavableDataLoader:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    settings: dict[str, Any] = {"shuffle_buffer_size": 8, "max_samples_per_sequence": 8}
    return get_savable_loader(get_train_dataset(path, worker_config=config, batch_size=4, **settings))


def train(loader: Any, sinks: Sequence[Any], num_steps: int, *, every_steps: int) -> list[MetricsReport]:
    """What is reported in so many steps of one batch."""
    iterator, reports = iter(loader), []
    with MetricsReporter(loader, sinks, every_steps=every_steps) as reporter:
        for step in range(1, num_steps + 1):
            next(iterator)
            reports.append(reporter.step(step))
    assert [bool(report) for report in reports] == [step % every_steps == 0 for step in range(1, num_steps + 1)]
    return [report for report in reports if report is not None]


def test_a_report_has_the_rates_since_the_last_one_and_the_counts_since_the_beginning(
    loader: SavableDataLoader, tmp_path: Path
) -> None:
    file = tmp_path / "folder" / "data.jsonl"
    first, second = train(loader, [JsonlSink(file)], 10, every_steps=5)
    assert (first.step, second.step) == (5, 10)
    assert (first.interval.samples, second.interval.samples, second.total.samples) == (20, 20, 40)
    values = second.values()
    assert values["samples"] == 40
    assert values["samples_per_s"] == second.interval.samples / second.interval.elapsed_s
    assert second.total.elapsed_s == pytest.approx(first.interval.elapsed_s + second.interval.elapsed_s)
    *_, line = map(json.loads, file.read_text().splitlines())
    assert {name: line[name] for name in values} == values
    assert second.total.slowest is not None
    assert (line["slowest_sample"], line["slowest_shard"]) == (second.total.slowest.key, second.total.slowest.shard)


def test_a_reporter_takes_the_loader_of_the_data_module_and_is_a_callback_of_bridge(path: Path, tmp_path: Path) -> None:
    data = make_module(path, micro_batch_size=2).train_dataloader()
    reporter = MetricsReporter(data, [JsonlSink(tmp_path / "data.jsonl")], every_steps=2)
    for step in range(4):
        next(data)
        reporter.on_train_step_end(SimpleNamespace(state=SimpleNamespace(train_state=SimpleNamespace(step=step))))
    lines = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    assert [(line["step"], line["samples"], line["batches"]) for line in lines] == [(2, 4, 2), (4, 8, 4)]
    with pytest.raises(ConfigError, match="at least 1"):
        MetricsReporter(data, [], every_steps=0)


def test_the_log_line_says_what_matters(loader: SavableDataLoader, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "bridge_data"):
        (report,) = train(loader, [LogSink()], 3, every_steps=3)
    assert caplog.records[-1].getMessage() == line_of(report)
    total = LoaderMetrics(
        elapsed_s=2,
        wait_s=0.5,
        samples=1000,
        tokens=3000,
        token_slots=4000,
        images=500,
        bytes_read=3_000_000,
        retries=2,
        skipped={"encode_sample": 7},
        failed=3,
        ready_batches=3,
        ready_slots=4,
        epochs={"photos/train": 1.25},
        slowest=SlowestSample(key="a.tar/0007", source="photos/train", seconds=0.25),
    )
    assert line_of(MetricsReport(step=20, total=total, interval=total)) == (
        "data of step 20: 500.0 samples/s; 1,500 tokens/s (75.0% of the slots); 250.0 images/s; 1.5 MB/s; "
        "trainer waited 25.0%; prefetch 75% full; 3 failed; 2 retries; skipped 7 in encode_sample; "
        "epochs photos/train 1.250; slowest sample a.tar/0007 of photos/train, 0.250 s"
    )


class Broken:
    """A sink that always fails."""

    def write(self, report: MetricsReport) -> None:
        raise OSError("no route to the server")

    def close(self) -> None:
        raise OSError("no route to the server")


def test_sinks_that_fail_are_logged_now_and_then_and_stop_neither_the_run_nor_each_other(
    loader: SavableDataLoader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    iterator, lines = iter(loader), JsonlSink(tmp_path / "run/data.jsonl")
    with MetricsReporter(loader, [Broken(), lines], every_steps=1) as reporter:
        for step in range(1, 13):
            next(iterator)
            assert reporter.step(step) is not None
            if step == 4:
                shutil.rmtree(tmp_path / "run")
            if step == 6:
                (tmp_path / "run").mkdir()
    assert reporter.num_failures == 12 + 1 + 2  # at each step, at the end, and without the folder
    told = [record.message for record in caplog.records]
    assert [(message.split()[1], message[message.index("time") : message.index(",")]) for message in told] == [
        ("Broken", "time 1)"),
        ("JsonlSink", "time 1)"),
        ("Broken", "time 10)"),
    ]
    written = [json.loads(line)["step"] for line in (tmp_path / "run/data.jsonl").read_text().splitlines()]
    assert written == [7, 8, 9, 10, 11, 12]


def test_lines_have_the_number_of_the_start_so_that_repeated_steps_of_a_resume_are_known(
    loader: SavableDataLoader, tmp_path: Path
) -> None:
    file = tmp_path / "data.jsonl"
    for _ in range(3):
        train(loader, [JsonlSink(file)], 4, every_steps=2)
    with file.open("a") as opened:
        opened.write('{"step": 6, "start": 3, "ti')  # killed
    train(loader, [JsonlSink(file, start=7)], 2, every_steps=2)
    whole = [json.loads(line) for line in file.read_text().splitlines() if line.count("{") == 1]
    assert [(line["step"], line["start"]) for line in whole] == [(step, start) for start in range(3) for step in (2, 4)]


@pytest.mark.parametrize(
    ("content", "start"),
    [
        ("", 0),
        ('{"step": 1', 0),
        ('{"step": 1}\n', 1),  # of a release that wrote none
        ('{"start": 0}\n{"start": 1}\n{"start": 2', 2),
        ('{"start": 4}\n{"start": 5, "keys": "%s"}\n' % ("k" * 100_000), 6),
    ],
)
def test_the_number_of_a_start_follows_that_of_the_last_whole_line(content: str, start: int, tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    assert JsonlSink.next_start(file) == 0
    file.write_text(content)
    assert JsonlSink.next_start(file) == start


@pytest.mark.parametrize("content", ["step,loss\n1,2\n", "[1]\n", '{"start": "a"}\n'])
def test_a_file_of_something_else_is_refused_before_anything_is_appended(content: str, tmp_path: Path) -> None:
    (tmp_path / "losses").write_text(content)
    with pytest.raises(ConfigError, match="losses: expected lines of JSON"):
        JsonlSink(tmp_path / "losses")


def test_a_place_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="that can be written to"):
        JsonlSink(str(tmp_path / "file/below/data"))
