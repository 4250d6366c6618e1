"""Metrics equal what a count by hand gives, on any number of workers, through skips, packs, restarts and resumes."""

import io
import os
import pickle
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    Batch,
    DefaultTaskEncoder,
    Sample,
    SampleDecoder,
    SavableDataLoader,
    SkipSample,
    edataclass,
    get_savable_loader,
    stateless,
)
from bridge_data.counts import COUNTS
from bridge_data.lanes.maker import Maker
from bridge_data.lanes.maker_wrappers import LaneView
from bridge_data.later import torch
from bridge_data.loader.metrics import LoaderMetrics, SlowestSample, together_of
from bridge_data.order import SampleRef
from tests.prepared import train_dataset, val_dataset, write_blend, write_dataset, write_texts

SLOW = "000034"


@edataclass
class Tokens(Sample):
    """One token for each sample of a pack, and 1 more."""

    tokens: Any


@edataclass
class Rows(Batch):
    """Rows of packs, padded to 10."""

    tokens: Any
    cu_seqlens: Any


class Packs(DefaultTaskEncoder):
    """Skips every fifth sample when it is encoded and every seventh in its pack; a sample has as many tokens as its
    number has digits. Samples have a slow one among them, once."""

    has_slept = False

    @stateless
    def preencode_sample(self, sample: Any) -> Tokens:
        number = int(sample.text)
        if number % 5 == 0:
            raise SkipSample("a fifth")
        if number % 11 == 0:
            raise ValueError("broken")
        if sample.__key__.endswith(SLOW) and not self.has_slept:
            self.has_slept = True
            time.sleep(1.0)
        return Tokens.derive_from(sample, tokens=torch.full((len(sample.text),), number))

    @stateless
    def postencode_sample(self, sample: Tokens) -> Tokens:
        if int(sample.tokens[0]) % 7 == 0:
            raise SkipSample("a seventh")
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[start : start + 3] for start in range(0, len(samples), 3)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return Tokens.derive_from(samples[0], tokens=torch.cat([sample.tokens for sample in samples]))

    @stateless
    def batch(self, samples: list[Any]) -> Rows:
        rows = [torch.nn.functional.pad(sample.tokens, (0, 10 - len(sample.tokens)), value=-1) for sample in samples]
        bounds = torch.tensor([[0, len(sample.tokens)] for sample in samples])
        return Rows.derive_from(Batch.from_samples(samples), tokens=torch.stack(rows), cu_seqlens=bounds)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A blend of 100 and 60 samples, each its own number as text."""
    folder = tmp_path_factory.mktemp("metrics")
    write_texts(folder / "many", 100, ratio="1,0,0")
    write_texts(folder / "few", 60, per_shard=20)
    return write_blend(folder / "blend.yaml", {"many": 1, "few": 1})


def loader_of(path: Path, num_workers: int = 0, encoder: Any = None, **settings: Any) -> SavableDataLoader:
    settings = {"packing_buffer_size": 9} | settings if encoder is None else settings
    settings = {"num_workers": num_workers, "num_lanes": 2, "task_encoder": encoder or Packs()} | settings
    return get_savable_loader(train_dataset(path, **settings))


def numbers_in(batches: list[Rows]) -> list[int]:
    """The number of every sample in the batches: a token says the number, and a sample has one for each digit."""
    numbers = []
    for batch in batches:
        for row in batch.tokens.tolist():
            at = 0
            while at < len(row) and row[at] >= 0:
                numbers.append(row[at])
                at += len(str(row[at]))
    return numbers


def check(metrics: LoaderMetrics, batches: list[Rows]) -> None:
    """What metrics say of these batches is true."""
    numbers = numbers_in(batches)
    assert metrics.batches == len(batches)
    assert metrics.samples == len(numbers)
    assert metrics.tokens == sum(len(str(number)) for number in numbers)
    assert metrics.token_slots == sum(batch.tokens.numel() for batch in batches)
    assert metrics.pack_fill == metrics.tokens / metrics.token_slots


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_samples_tokens_and_skips_are_those_of_the_batches(path: Path, num_workers: int) -> None:
    with loader_of(path, num_workers) as loader:
        if num_workers:
            loader.wait_for_workers()
        batches = [batch for _, batch in zip(range(40), loader, strict=False)]
        metrics = loader.metrics()
    check(metrics, batches)
    assert metrics.skipped == loader.skipped
    assert set(metrics.skipped) == {"preencode_sample", "postencode_sample"}
    fifths = sum(1 for number in numbers_in(batches) if number % 5 == 0 or number % 7 == 0 or number % 11 == 0)
    assert fifths == 0 < metrics.failed < metrics.skipped["preencode_sample"]
    assert metrics.slowest is not None
    assert metrics.slowest.key.endswith(SLOW)
    assert metrics.slowest.seconds > 0.2
    assert (metrics.workers_bytes > 0) == bool(num_workers)
    assert metrics.trainer_bytes > 10_000_000


@pytest.mark.processes
def test_counts_are_the_same_through_a_worker_that_is_killed(path: Path) -> None:
    with loader_of(path, 2) as loader:
        loader.wait_for_workers()
        iterator = iter(loader)
        batches = [next(iterator) for _ in range(10)]
        pool = loader._pool
        assert pool is not None
        os.kill(pool.processes()[0], 9)
        batches += [next(iterator) for _ in range(30)]
        metrics = loader.metrics()
    assert metrics.worker_restarts == 1
    check(metrics, batches)


class Plain(DefaultTaskEncoder):
    """Leaves nothing out."""


@pytest.mark.parametrize("num_lanes", [2, 3])
def test_after_a_restore_counts_begin_again_and_epochs_go_on_also_after_a_reshard(path: Path, num_lanes: int) -> None:
    drawn: list[str] = []

    def take(loader: SavableDataLoader, count: int) -> None:
        origins = [batch.__subflavors__ for _, batch in zip(range(count), loader, strict=False)]
        drawn.extend(one["origin"] for batch in origins for one in batch)
        many = drawn.count("many")
        epochs = {"many/train": many / 100, "few/train": (len(drawn) - many) / 60}
        assert loader.metrics().epochs == pytest.approx(epochs, abs=0.05 if num_lanes == 3 else 1e-9)

    with loader_of(path, encoder=Plain()) as loader:
        take(loader, 95)
        state = pickle.loads(pickle.dumps(loader.save_state_rank()))
    with loader_of(path, encoder=Plain(), num_lanes=num_lanes) as resumed:
        resumed.restore_state_rank(state)
        take(resumed, 0)
        assert resumed.metrics().batches == 0
        take(resumed, 95)
        assert (resumed.metrics().batches, resumed.metrics().samples) == (95, 190)


def test_bytes_and_images_are_those_that_were_read_and_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    def sample(number: int) -> dict[str, Any]:
        jpeg = io.BytesIO()
        Image.new("RGB", (40, 30), (number, 0, 0)).save(jpeg, "JPEG" if number % 2 else "PNG")
        return {"__key__": f"{number:06d}", "jpg" if number % 2 else "png": jpeg.getvalue()}

    images = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "ImageSample"},
        "field_map": {"image": "jpg,png"},
    }
    folder = write_dataset(tmp_path / "images", map(sample, range(31)), definition=images, ratio="0,1,0")

    class Pixels(DefaultTaskEncoder):
        decoder = SampleDecoder(image_decode="torchrgb8")

    dataset = val_dataset(folder, split_part="val", task_encoder=Pixels())
    read, pread = [], os.pread

    def counted(descriptor: int, num_bytes: int, offset: int) -> bytes:
        data = pread(descriptor, num_bytes, offset)
        read.append(len(data))
        return data

    with get_savable_loader(dataset) as loader:
        monkeypatch.setattr(os, "pread", counted)
        COUNTS.take()
        COUNTS.images += 5  # what else this process has read or decoded
        assert sum(len(batch.image) for batch in loader) == 31
        num_bytes = sum(read)
        metrics = loader.metrics()
    assert metrics.images == 31
    assert metrics.bytes_read == num_bytes > 31 * 100
    assert (metrics.tokens, metrics.epochs) == (0, {})


def test_a_read_that_is_tried_again_is_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, failures = os.pread, [5, 5]

    def failing(descriptor: int, num_bytes: int, offset: int) -> bytes:
        if failures:
            raise OSError(failures.pop(), "a fault of the disk")
        return pread(descriptor, num_bytes, offset)

    with loader_of(path) as loader:
        iterator = iter(loader)
        next(iterator)
        monkeypatch.setattr(os, "pread", failing)
        while failures:
            next(iterator)
        next(iterator)
        assert loader.metrics().retries == 1  # the first of the two is that of the quick way, which is not a wait


def test_without_workers_nothing_is_made_ahead(path: Path) -> None:
    with loader_of(path) as loader:
        next(iter(loader))
        metrics = loader.metrics()
    assert metrics.ready_batches == metrics.ready_slots == 0


@pytest.mark.processes
def test_the_wait_is_that_of_the_slower_of_the_two(path: Path) -> None:
    class Slow(DefaultTaskEncoder):
        @stateless
        def encode_sample(self, sample: Any) -> Any:
            time.sleep(0.04)
            return sample

    with loader_of(path, 1, encoder=Slow()) as loader:
        loader.wait_for_workers()
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        slow_loader = loader.metrics()
        for _ in range(5):
            next(iterator)
            time.sleep(0.25)
        slow_trainer = loader.metrics().since(slow_loader)
    assert slow_loader.wait_share > 0.5 > slow_trainer.wait_share
    assert slow_trainer.batches == 5
    assert slow_trainer.prefetch_fill > 0.5 > slow_loader.prefetch_fill
    assert slow_trainer.samples_per_s == pytest.approx(10 / slow_trainer.elapsed_s)
    assert 0 < slow_trainer.samples_per_s <= 10


@pytest.mark.parametrize("multiplier", [1, 3, -1, None])
def test_epochs_are_counted_alike_however_many_are_shuffled_together(tmp_path: Path, multiplier: int | None) -> None:
    settings = {"batch_size": 2, "num_lanes": 1, "max_samples_per_sequence": 4}
    dataset = train_dataset(write_texts(tmp_path / "texts", 40), shuffle_over_epochs_multiplier=multiplier, **settings)
    with get_savable_loader(dataset) as loader:
        for number, _ in zip(range(1, 201), loader, strict=False):
            assert [*loader.metrics().epochs.values()] == [pytest.approx(number / 20)]


def test_an_interval_has_what_came_in_it() -> None:
    before = LoaderMetrics(elapsed_s=2, wait_s=1, samples=10, skipped={"encode_sample": 2}, others={"hits": 3})
    skipped, others = {"encode_sample": 2, "batch": 1}, {"hits": 5, "misses": 1}
    now = LoaderMetrics(elapsed_s=6, wait_s=2, samples=30, skipped=skipped, others=others, epochs={"a": 0.5})
    interval = now.since(before)
    assert (interval.samples, interval.samples_per_s, interval.wait_share) == (20, 5, 0.25)
    assert (interval.skipped, interval.epochs) == ({"batch": 1}, {"a": 0.5})
    assert interval.others == {"hits": 2, "misses": 1}


def test_ranks_add_up() -> None:
    slow = SlowestSample(key="b/1", source="b", seconds=2)
    one = LoaderMetrics(elapsed_s=4, wait_s=1, samples=10, skipped={"batch": 1}, epochs={"a": 0.5}, trainer_bytes=5)
    other = LoaderMetrics(elapsed_s=6, wait_s=2, samples=30, epochs={"a": 1.0, "b": 2.0}, slowest=slow)
    both = together_of([one, other])
    assert (both.num_ranks, both.samples, both.elapsed_s, both.wait_s) == (2, 40, 5, 1.5)
    assert (both.samples_per_s, both.skipped, both.epochs) == (8, {"batch": 1}, {"a": 0.75, "b": 2.0})
    assert (both.slowest, both.trainer_bytes) == (slow, 5)
    assert slow.shard == "b"
    assert (both.values()["slowest_sample_s"], "slowest_sample_s" in one.values()) == (2, False)


def test_a_profile_of_torch_has_the_stages_and_the_same_batches(path: Path) -> None:
    class Doubled(DefaultTaskEncoder):
        @stateless
        def encode_sample(self, sample: Any) -> Any:
            sample.text = sample.text * 2
            return sample

    for encoder in (Doubled(), DefaultTaskEncoder()):
        with loader_of(path, encoder=encoder) as loader, loader_of(path, encoder=encoder) as reference:
            iterator, expected = iter(loader), iter(reference)
            assert next(iterator).text == next(expected).text
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                traced = [next(iterator).text for _ in range(3)]
            assert [*traced, next(iterator).text] == [next(expected).text for _ in range(4)]
        calls = {event.key: event.count for event in profile.key_averages() if event.key.startswith("bridge_data.")}
        stages = {"bridge_data.read": 6, "bridge_data.decode": 6, "bridge_data.collate": 3, "bridge_data.wait": 3}
        assert calls == stages | ({"bridge_data.encode": 6} if isinstance(encoder, Doubled) else {})


class Counting:
    """A maker that counts its calls, and something under a name of ours."""

    def __init__(self, inner: Maker, lane: LaneView) -> None:
        self._inner = inner

    def make(self, refs: Sequence[SampleRef]) -> Iterable[Any]:
        COUNTS.others["calls"] += 1
        COUNTS.others["samples"] += 1_000
        return self._inner.make(refs)


def test_counts_of_a_plugin_have_its_names_and_hide_none_of_ours(tmp_path: Path) -> None:
    dataset = train_dataset(write_texts(tmp_path / "texts", 40), batch_size=4).changed(wrappers=(Counting,))
    with get_savable_loader(dataset) as loader:
        for _ in zip(range(5), loader, strict=False):
            pass
        metrics = loader.metrics()
    values = metrics.values()
    assert values["calls"] == metrics.others["calls"] == metrics.others["samples"] / 1_000 > 0
    assert (values["samples"], metrics.samples, metrics.others["never"]) == (20, 20, 0)
