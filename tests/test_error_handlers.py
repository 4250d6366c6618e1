"""Error handlers in the places where they are called: this process and worker processes."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    Batch,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    SampleError,
    SourceInfo,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    errors,
    get_savable_loader,
    get_val_dataset,
    log_exception,
    reraise_exception,
    stateless,
)
from bridge_data.run_options import StartMethod
from tests.prepared import CRUDE, write_dataset

NUM_SAMPLES = 24


def cook(sample: CrudeSample) -> TextSample:
    if sample["txt"] == "cook":
        raise ValueError("cannot cook")
    return TextSample(**basic_sample_keys(sample), text=sample["txt"])


class Failing(DefaultTaskEncoder):
    """Fails in each hook on the samples that say so."""

    cookers = (Cooker(cook),)

    @stateless
    def encode_sample(self, sample: TextSample) -> TextSample:
        if sample.text == "encode":
            raise ValueError("cannot encode")
        return sample

    def batch(self, samples: list[TextSample]) -> Any:
        if any(sample.text == "batch" for sample in samples):
            raise ValueError("cannot batch")
        return super().batch(samples)

    def encode_batch(self, batch: Batch) -> Batch:
        if "last" in batch.text:
            raise ValueError("cannot encode the batch")
        return batch


class WriteDown:
    """Notes each failure in a file, which all processes share."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, error: Exception, sample: Any, sources: list[SourceInfo] | None) -> None:
        places = ",".join(f"{source.shard_name}:{source.index}" for source in sources or ())
        (note,) = error.__notes__
        with open(self.file, "a") as file:
            file.write(f"{type(error).__name__}|{type(sample).__name__}|{places}|{note}\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six samples of each kind: fine, or of a failure in one of the hooks."""
    says = {1: "cook", 2: "encode", 3: "batch", 4: "last"}
    parts = ({"__key__": f"{n:04d}", "txt": b"\xff" if n == 5 else says.get(n, str(n))} for n in range(NUM_SAMPLES))
    return write_dataset(tmp_path / "set", parts, per_shard=8, ratio="0,1,0", definition=CRUDE)


def run(folder: Path, handler: Callable[..., None], num_workers: int) -> tuple[int, dict[str, int]]:
    """(samples that arrive, what is left out by hook) of one round with batches of 2."""
    config = WorkerConfig(0, 1, num_workers, num_lanes=2, global_error_handler=handler)
    dataset = get_val_dataset(folder, worker_config=config, batch_size=2, task_encoder=Failing())
    with get_savable_loader(dataset) as loader:
        return sum(len(batch.text) for batch in loader), dict(loader.skipped)


def test_log_exception_goes_on_and_names_each_sample(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bridge_data"):
        arrived, skipped = run(folder, log_exception, 0)
    assert arrived + sum(skipped.values()) == NUM_SAMPLES
    assert len(caplog.records) == 6
    assert caplog.messages[-1] == (
        "rank 0 skipped 7 samples in all (2 in batch, 1 in cook_crude_sample, 1 in decode, 2 in encode_batch, "
        "1 in encode_sample); of these, 7 failed: see the errors logged before"
    )
    for key in ("0001", "0002", "0003", "0005"):
        assert f"data-0000.tar/{key}" in caplog.text


class Tolerant(DefaultTaskEncoder):
    __default_failure_tolerance__ = 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_failures_to_decode_are_tolerated_for_as_long_as_they_are_not_in_a_row(
    tmp_path: Path, num_workers: int
) -> None:
    parts = ({"__key__": f"{n:04d}", "txt": b"\xff" if n % 3 else str(n)} for n in range(90))
    folder = write_dataset(tmp_path / "set", parts, ratio="0,1,0")
    told = WriteDown(tmp_path / "told")
    config = WorkerConfig(0, 1, num_workers, num_lanes=1, global_error_handler=told)
    dataset = get_val_dataset(folder, worker_config=config, batch_size=4, task_encoder=Tolerant())
    with get_savable_loader(dataset) as loader:
        assert sum(len(batch.text) for batch in loader) == 30
        assert loader.skipped == {"decode": 60}
    assert len((tmp_path / "told").read_text().splitlines()) == 60


@pytest.mark.processes
@pytest.mark.parametrize("start_method", ["server", "spawn"])
def test_what_all_workers_leave_out_is_logged_once_by_the_trainer_with_their_counts(
    start_method: StartMethod,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "log_throttle", errors.LogThrottle())
    parts = ({"__key__": f"{n:04d}", "txt": b"\xff" if n % 5 > 1 else str(n)} for n in range(90))
    folder = write_dataset(tmp_path / "set", parts, ratio="0,1,0")
    config = WorkerConfig(0, 1, 3, num_lanes=3)
    dataset = get_val_dataset(folder, worker_config=config, batch_size=1)
    with caplog.at_level(logging.WARNING, "bridge_data"), get_savable_loader(dataset, start_method=start_method) as one:
        assert sum(1 for _ in one) == 36
        assert one.skipped == {"decode": 54}
    told = [record for record in caplog.records if "skipped" not in record.getMessage()]
    assert [record.levelname for record in told] == ["ERROR", "WARNING"]
    assert told[0].getMessage().startswith("left out sample data-")
    # Three workers tell of their first failures, and of their tenth.
    assert re.search(r"for the same reason (1[0-2]|2\d) times so far", told[1].getMessage())
    assert "left out sample" not in capfd.readouterr().err, "workers log nothing"


def test_a_failure_that_cannot_be_sent_to_the_trainer_is_logged_where_it_happened(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "log_throttle", errors.LogThrottle())
    sent: list[errors.FailureReport] = []
    for can_send in (True, False):
        errors.report_failures_to(lambda report, can_send=can_send: not sent.append(report) and can_send)
        for _ in range(9 if can_send else 1):
            log_exception(SampleError("it is damaged"), {"__key__": "a"})
    errors.report_failures_to(None)
    assert [report.number for report in sent] == [1, 10]
    (text,) = caplog.messages
    assert "for the same reason 10 times so far" in text and "it is damaged" in text


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_own_handler_is_told_of_every_failure_once_with_its_sample_and_where_it_lies(
    folder: Path, tmp_path: Path, num_workers: int
) -> None:
    """It travels to workers by value, like the task encoder."""
    note_down = WriteDown(tmp_path / "told")
    arrived, skipped = run(folder, lambda *failure: note_down(*failure), num_workers)
    told = [line.split("|") for line in (tmp_path / "told").read_text().splitlines()]
    by_hook = {note.split()[1]: (error, sample, places, note) for error, sample, places, note in told}
    assert skipped == {"decode": 1, "cook_crude_sample": 1, "encode_sample": 1, "batch": 2, "encode_batch": 2}
    assert len(told) == len(by_hook) == len(skipped)
    assert arrived + sum(skipped.values()) == NUM_SAMPLES
    for hook, key in (("decode", "0005"), ("cook_crude_sample", "0001"), ("encode_sample", "0002")):
        assert f"data-0000.tar/{key}" in by_hook[hook][3]
        assert by_hook[hook][2] == f"data-0000.tar:{int(key)}"
    assert by_hook["decode"][0] == "SampleError"
    hooks = ("cook_crude_sample", "encode_sample", "batch")
    assert [by_hook[hook][1] for hook in hooks] == ["CrudeSample", "TextSample", "list"]
    assert "data-0000.tar/0003" in by_hook["batch"][3]
    assert [by_hook[hook][2].count(",") for hook in ("batch", "encode_batch")] == [1, 1], "two samples each"


def stop(error: Exception, sample: Any, sources: list[SourceInfo] | None) -> None:
    raise RuntimeError(f"{sources and sources[0].file_names} is not worth going on") from error


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("handler", "error", "told"),
    [(reraise_exception, (ValueError, SampleError), "data-0000.tar/000"), (stop, RuntimeError, "not worth going on")],
)
def test_a_handler_that_raises_stops_the_run_at_the_first_failure(
    folder: Path, handler: Callable[..., None], error: Any, told: str, num_workers: int
) -> None:
    with pytest.raises(error) as caught:
        run(folder, handler, num_workers)
    assert told in str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
