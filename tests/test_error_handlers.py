"""Error handlers in the places where they are called: this process and worker processes."""

import logging
from collections import Counter
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
    get_savable_loader,
    get_val_dataset,
    log_exception,
    reraise_exception,
    stateless,
)
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


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_own_handler_is_told_of_every_failure_once(folder: Path, tmp_path: Path, num_workers: int) -> None:
    arrived, skipped = run(folder, WriteDown(tmp_path / "told"), num_workers)
    told = [line.split("|") for line in (tmp_path / "told").read_text().splitlines()]
    hooks = Counter(note.split()[1] for _, _, _, note in told)
    assert hooks == {"decode": 1, "cook_crude_sample": 1, "encode_sample": 1, "batch": 1, "encode_batch": 1}
    assert skipped == {"decode": 1, "cook_crude_sample": 1, "encode_sample": 1, "batch": 2, "encode_batch": 2}
    assert arrived + sum(skipped.values()) == NUM_SAMPLES


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_failure_names_its_sample_and_where_it_lies(folder: Path, tmp_path: Path, num_workers: int) -> None:
    run(folder, WriteDown(tmp_path / "told"), num_workers)
    told = {}
    for line in (tmp_path / "told").read_text().splitlines():
        error, sample, places, note = line.split("|")
        told[note.split()[1]] = (error, sample, places, note)
    assert told["decode"][0] == "SampleError"
    assert told["decode"][2] == "data-0000.tar:5"
    for hook, key in (("decode", "0005"), ("cook_crude_sample", "0001"), ("encode_sample", "0002")):
        assert f"data-0000.tar/{key}" in told[hook][3]
        assert told[hook][2] == f"data-0000.tar:{int(key)}"
    assert told["cook_crude_sample"][1] == "CrudeSample"
    assert told["encode_sample"][1] == "TextSample"
    assert told["batch"][1] == "list"
    assert "data-0000.tar/0003" in told["batch"][3]
    assert len(told["batch"][2].split(",")) == len(told["encode_batch"][2].split(",")) == 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_reraise_stops_at_the_first_failure_and_names_it(folder: Path, num_workers: int) -> None:
    with pytest.raises((ValueError, SampleError)) as caught:
        run(folder, reraise_exception, num_workers)
    assert "data-0000.tar/000" in str(caught.value) + "".join(caught.value.__notes__)


def stop(error: Exception, sample: Any, sources: list[SourceInfo] | None) -> None:
    raise RuntimeError(f"{sources and sources[0].file_names} is not worth going on") from error


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_handler_that_raises_stops_the_run(folder: Path, num_workers: int) -> None:
    with pytest.raises(RuntimeError, match="is not worth going on"):
        run(folder, stop, num_workers)


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


def test_a_handler_may_be_defined_anywhere(folder: Path) -> None:
    """It travels to workers by value, like the task encoder."""
    seen = []
    arrived, _ = run(folder, lambda error, sample, sources: seen.append(error), 2)
    assert arrived == NUM_SAMPLES - 7


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
