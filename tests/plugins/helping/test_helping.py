"""Workers that help each other: stream, states and counts are the same, whoever makes a sample, and whoever dies."""

import contextlib
import hashlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from bridge_data import (
    DefaultTaskEncoder,
    SkipSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from bridge_data.errors import FatalSampleError, WorkerError
from bridge_data.loader import SavableDataLoader
from bridge_data.task import Packing
from tests.lanes import planned_packs
from tests.object_store import Bucket
from tests.prepared import write_texts

FAST_S, SLOW_S = 0.003, 0.12
SLOW = 30
"""One of so many samples is slow."""


def number_of(text: str) -> int:
    """A number that looks random, known by the text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


def work(text: str) -> None:
    """What takes long, but no processor."""
    time.sleep(SLOW_S if number_of(text) % SLOW == 0 else FAST_S)


class Slow(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Samples of some kilobytes and of some hundred; one in eight is skipped, and some fail. With `made_by`, batches
    say in which processes they were made."""

    def __init__(self, *, made_by: bool = False) -> None:
        super().__init__()
        self.made_by = made_by

    @stateless(failure_tolerance=100)
    def encode_sample(self, sample: Any) -> Any:
        work(sample.text)
        number = number_of(sample.text)
        if number % 8 == 1:
            raise SkipSample("it is one of eight")
        if number % 50 == 2:
            raise ValueError("it fails")
        pixels = torch.full((200_000 if number % 3 else 500,), number % 251, dtype=torch.uint8)
        return {"__key__": sample.__key__, "number": number, "pixels": pixels, "by": os.getpid()}

    def batch(self, samples: list[Any]) -> Any:
        made: dict[str, Any] = {name: [sample[name] for sample in samples] for name in ("__key__", "number")}
        made["pixels"] = [int(sample["pixels"].sum()) for sample in samples]
        if self.made_by:
            made["by"] = [(sample["by"], os.getpid()) for sample in samples]
        return made


class Drawing(Slow):
    """Samples with random numbers."""

    def encode_sample(self, sample: Any) -> Any:
        work(sample.text)
        return {"__key__": sample.__key__, "number": random.random(), "pixels": torch.rand(3), "by": 0}


class Several(Slow):
    """Some samples make several parts."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        work(sample.text)
        for part in range(number_of(sample.text) % 3):
            yield {"__key__": sample.__key__, "number": part, "pixels": torch.ones(3), "by": 0}


class Packed(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Packs of texts."""

    select_samples_to_pack = Packing(length=lambda sample: len(sample["text"]), capacity=40, overlong="drop")

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        work(sample.text)
        return {"text": sample.text}

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"text": "/".join(sample["text"] for sample in samples)}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts"), 3_000, lambda number: f"text {number}")


def loader_of(folder: str | Path, encoder: Any, num_workers: int, **options: Any) -> SavableDataLoader:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=8)
    packs = {"packing_buffer_size": 60} if isinstance(encoder, Packed) else {}
    dataset = get_train_dataset(
        folder,
        worker_config=config,
        batch_size=8,
        shuffle_buffer_size=100,
        max_samples_per_sequence=None,
        task_encoder=encoder,
        **packs,
    )
    return get_loader(dataset, **{"max_worker_restarts": 1_000} | options)


def workers_of(loader: SavableDataLoader) -> list[int]:
    return loader._pool.processes()


def taken(loader: SavableDataLoader, num: int) -> list[Any]:
    return [*itertools.islice(loader, num)]


@pytest.mark.parametrize(
    "encoder",
    [Slow(), Drawing(), Several(), pytest.param(Packed(), marks=pytest.mark.slow)],
    ids=lambda encoder: type(encoder).__name__,
)
def test_the_stream_its_states_and_counts_are_those_of_one_process(
    encoder: Any, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loader_of(texts, encoder, 4) as loader:
        assert loader.wait_for_workers()
        found = taken(loader, 40)
        state, skipped = loader.save_state_rank(), dict(loader.skipped)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with loader_of(texts, encoder, 0) as alone:
        assert taken(alone, 40) == found
        assert alone.save_state_rank() == state
        assert dict(alone.skipped) == skipped


def test_idle_workers_make_samples_of_others(texts: Path) -> None:
    with loader_of(texts, Slow(made_by=True), 4) as loader:
        assert loader.wait_for_workers()
        made = Counter(by == batched for batch in taken(loader, 120) for by, batched in batch["by"])
    assert made[False] > 40, made


def test_data_in_a_store_take_part(bucket: Bucket) -> None:
    write_texts(bucket.folder / "texts", 600, lambda number: f"text {number}")
    with (
        pytest.MonkeyPatch.context() as patch,
        loader_of(f"{bucket.url}/texts", Slow(made_by=True), 0) as alone,
    ):
        patch.setattr(time, "sleep", lambda seconds: None)
        expected = taken(alone, 60)
    with loader_of(f"{bucket.url}/texts", Slow(made_by=True), 4) as loader:
        assert loader.wait_for_workers()
        batches = taken(loader, 60)
    made = [pair for batch in batches for pair in batch.pop("by")]
    assert any(by != batched for by, batched in made)
    assert batches == [{name: batch[name] for name in batch if name != "by"} for batch in expected]


@pytest.mark.parametrize("kind", ["training", "validation"])
def test_data_that_end_come_whole(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(num_workers: int) -> list[Any]:
        config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=8)
        options: dict[str, Any] = {"worker_config": config, "batch_size": 8, "task_encoder": Slow()}
        if kind == "training":
            options |= {"shuffle_buffer_size": 100, "max_samples_per_sequence": None, "repeat": False}
            dataset = get_train_dataset(data, **options)
        else:
            dataset = get_val_dataset(data, split_part="train", **options)
        with get_loader(dataset) as loader:
            loader.wait_for_workers()
            return [*loader]

    data = write_texts(tmp_path, 600, lambda number: f"text {number}")
    found = read(4)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert found == read(0)


class SlowTexts(planned_packs.Encoder):
    """Texts that take long."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        work(str(sample.__restore_key__))
        return super().encode_sample(sample)


@pytest.mark.slow
def test_members_of_planned_packs_come_from_peers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned_packs.write_measured(tmp_path, 900, skipped=range(0, 900, 70))

    def read(num_workers: int) -> list[Any]:
        data = planned_packs.planned(
            tmp_path, SlowTexts(lost=range(5, 900, 90)), num_workers=num_workers, num_lanes=8, batch_size=6
        )
        with get_loader(data) as loader:
            loader.wait_for_workers()
            return [*itertools.islice(loader, 50), loader.save_state_rank(), dict(loader.skipped)]

    found = read(4)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert found == read(0)


class FailingBatches(Slow):
    """All batches fail."""

    @stateless(failure_tolerance=3)
    def batch(self, samples: list[Any]) -> Any:
        raise ValueError("it fails")


def test_failures_of_other_hooks_count_on(texts: Path) -> None:
    with loader_of(texts, FailingBatches(), 4) as loader:
        loader.wait_for_workers()
        with pytest.raises(FatalSampleError, match="batch of FailingBatches failed 4 times in a row"):
            taken(loader, 5)


class Hanging(Slow):
    """One sample never ends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if sample.text == self.text:
            time.sleep(1_000)
        return super().encode_sample(sample)


def test_a_sample_that_hangs_is_named_whoever_makes_it(texts: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, loader_of(texts, Slow(), 0) as alone:
        patch.setattr(time, "sleep", lambda seconds: None)
        key = taken(alone, 20)[-1]["__key__"][0]
    hanging = Hanging(f"text {int(key.rpartition('/')[2])}")
    with loader_of(texts, hanging, 4, sample_timeout_s=0.6, max_worker_restarts=3) as loader:
        loader.wait_for_workers()
        with pytest.raises(WorkerError, match=f"on sample {key}"):
            taken(loader, 1_000)


def killed_at_random(folder: Path, num_kills: int, seed: int) -> tuple[list[Any], dict[str, int]]:
    """The batches and skips of a run with workers that are killed all the time."""
    draw, found, num_killed = random.Random(seed), list[Any](), 0
    with loader_of(folder, Slow(), 4) as loader:
        assert loader.wait_for_workers()
        while num_killed < num_kills:
            found += taken(loader, draw.randrange(1, 6))
            time.sleep(draw.random() * 0.05)
            with contextlib.suppress(ProcessLookupError):  # it was killed before, and its successor has not started
                os.kill(draw.choice(workers_of(loader)), signal.SIGKILL)
                num_killed += 1
        found += taken(loader, 20)
        processes = workers_of(loader)
        skipped = dict(loader.skipped)
    assert not any(psutil.pid_exists(process) for process in processes)
    return found, skipped


@pytest.mark.parametrize("num_kills", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_whoever_dies_the_stream_is_the_same(texts: Path, num_kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found, skipped = killed_at_random(texts, num_kills, seed=num_kills)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with loader_of(texts, Slow(), 0) as alone:
        assert taken(alone, len(found)) == found
        assert dict(alone.skipped) == skipped


class Computing(Slow):
    """Samples that take a millisecond of a core each."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        return {"__key__": sample.__key__, "number": 0, "pixels": torch.zeros(1), "by": os.getpid()}


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="this kernel does not say who waits")
def test_nobody_helps_where_no_core_is_free(texts: Path) -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # for the workers too: each sample takes several times as long
    try:
        with loader_of(texts, Computing(made_by=True), 8) as loader:
            assert loader.wait_for_workers()
            made = Counter(by == batched for batch in taken(loader, 120) for by, batched in batch["by"])
    finally:
        os.sched_setaffinity(0, cores)
    assert not made[False], made
