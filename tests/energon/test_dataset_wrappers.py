"""`MapDataset`, `FilterDataset` and `BatchDataset` around data sets, through loaders, states and workers."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import (
    DefaultTaskEncoder,
    SkipSample,
    TextSample,
    WorkerConfig,
    generic_batch,
    get_savable_loader,
    stateless,
)
from bridge_data.energon import BatchDataset, FilterDataset, LimitDataset, MapDataset, SavableDataset, TextWebdataset
from bridge_data.errors import ConfigError, FatalSampleError
from bridge_data.order.state import LoaderState
from bridge_data.order.step_skips import SkippedRange, StepSkips
from tests.lanes.test_maker import CountingMaker
from tests.lanes.test_pack_source import grouped
from tests.order.test_extras import Odd, count_of
from tests.prepared import train_dataset, val_dataset, write_texts

SIZE = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("wrapped"), SIZE, per_shard=20)


class Doubled(DefaultTaskEncoder):
    """Hooks before the wrappers."""

    def encode_sample(self, sample: TextSample) -> TextSample:
        sample.text = f"{int(sample.text) * 2}"
        return sample

    def encode_batch(self, batch: Any) -> Any:
        batch.text = [f"{text}!" for text in batch.text]
        return batch


def train(folder: Path, batch_size: int | None, num_workers: int = 0, encoder: Any = None) -> Any:
    encoder = encoder or Doubled()
    return train_dataset(folder, num_workers=num_workers, num_lanes=4, batch_size=batch_size, task_encoder=encoder)


def val(folder: Path, batch_size: int | None = None, encoder: Any = None) -> Any:
    return val_dataset(folder, num_lanes=1, batch_size=batch_size, task_encoder=encoder or DefaultTaskEncoder())


def shuffled(sample: TextSample) -> TextSample:
    sample.text = f"{sample.text}/{int(torch.randint(1_000_000, ()))}"
    return sample


def chain(folder: Path, num_workers: int = 0) -> Any:
    """All three, one after the other: on samples, to batches, on batches."""
    config: dict[str, Any] = {"worker_config": None}
    kept = FilterDataset(train(folder, None, num_workers), filter_fn=lambda sample: int(sample.text) % 3 > 0, **config)
    mapped = MapDataset(kept, shuffled, **config)
    batched = BatchDataset(mapped, 4, generic_batch, **config)
    return MapDataset(batched, lambda batch: {"__restore_key__": (), "texts": batch.text}, **config)


@pytest.mark.processes
def test_a_chain_of_wrappers_saves_restores_and_works_with_workers_as_any_data_set(folder: Path) -> None:
    dataset = chain(folder)
    assert isinstance(dataset, MapDataset) and isinstance(dataset, SavableDataset)
    loader = get_savable_loader(dataset)
    texts = [batch["texts"] for batch in itertools.islice(loader, 30)]
    numbers = [int(text.partition("/")[0]) for batch in texts for text in batch]
    assert {len(batch) for batch in texts} == {4} and not any(number % 3 == 0 for number in numbers)
    assert set(numbers) == {2 * n for n in range(SIZE) if n % 3} and loader.skipped["encode_sample"] > 30

    for saved in (0, 1, 13):
        first = get_savable_loader(chain(folder))
        assert [batch["texts"] for batch in itertools.islice(first, saved)] == texts[:saved]
        with get_savable_loader(chain(folder, num_workers=2)) as again:
            again.restore_state_rank(first.save_state_rank())
            if saved == 13:
                assert again.wait_for_workers()
            rest = list(itertools.islice(again, 30 - saved))
        assert [batch["texts"] for batch in rest] == texts[saved:]
        assert loader.restore_sample(rest[0]["__restore_key__"]) == rest[0]


def test_batches_are_mapped_and_left_out_as_a_whole(folder: Path) -> None:
    mapped = MapDataset(val(folder, 7, Doubled()), lambda batch: batch.text)
    loader = get_savable_loader(FilterDataset(mapped, filter_fn=lambda texts: "28!" not in texts))
    expected = [[f"{2 * number}!" for number in range(start, min(start + 7, SIZE))] for start in range(0, SIZE, 7)]
    assert list(loader) == expected[:2] + expected[3:]
    assert loader.skipped == {"encode_batch": 7}
    assert len(list(get_savable_loader(LimitDataset(mapped, 2)))) == 2


def test_the_batcher_replaces_the_hooks_of_batches_and_the_last_batch_may_be_dropped(folder: Path) -> None:
    for drop_last in (False, True):
        samples = val(folder, None, Doubled())
        dataset = BatchDataset(samples, 16, lambda batch: [int(sample.text) for sample in batch], drop_last=drop_last)
        assert len(dataset) == 4 - drop_last
        starts = range(0, 48 if drop_last else SIZE, 16)
        assert list(get_savable_loader(dataset)) == [[2 * n for n in range(s, min(s + 16, SIZE))] for s in starts]


def test_a_map_may_make_several_of_one_and_of_each_of_several(folder: Path) -> None:
    def halves(sample: TextSample) -> Iterator[str]:
        yield f"{sample.text}a"
        yield f"{sample.text}b"

    def no_second_of_first_ten(text: str) -> str:
        if text[-1] == "b" and len(text) == 2:
            raise SkipSample("short")
        return text

    loader = get_savable_loader(MapDataset(MapDataset(val(folder), halves), no_second_of_first_ten))
    expected = [f"{n}{half}" for n in range(SIZE) for half in "ab" if half == "a" or n > 9]
    assert list(loader) == expected
    assert loader.skipped == {"encode_sample": 10}


def test_the_pack_is_what_is_mapped_of_packed_data(folder: Path) -> None:
    class Packs(DefaultTaskEncoder):
        def postencode_sample(self, sample: TextSample) -> TextSample:
            sample.text += "p"
            return sample

        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [samples[start : start + 3] for start in range(0, len(samples), 3)]

        @stateless
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return [sample.text for sample in samples]

    packed = val_dataset(folder, num_lanes=1, batch_size=None, packing_buffer_size=6, task_encoder=Packs())
    assert list(get_savable_loader(MapDataset(packed, "".join))) == [f"{n}p{n + 1}p{n + 2}p" for n in range(0, SIZE, 3)]


def test_failures_of_a_map_are_counted_and_bounded(folder: Path) -> None:
    def fails(sample: TextSample) -> TextSample:
        raise ValueError("no")

    with pytest.raises(FatalSampleError, match="encode_sample of AugmentTaskEncoder failed 4 times in a row"):
        list(get_savable_loader(MapDataset(val(folder), fails, failure_tolerance=3)))


def test_a_plan_of_a_factory_is_wrapped_too(folder: Path) -> None:
    plan = TextWebdataset(folder, field_map={"text": "txt"}, training=False).build()
    config = WorkerConfig(0, 1, 0, num_lanes=1)
    mapped = MapDataset(plan, lambda sample: int(sample.text), worker_config=config)
    assert list(get_savable_loader(mapped)) == list(range(SIZE))
    assert list(get_savable_loader(BatchDataset(mapped, 20, sum, worker_config=config))) == [190, 590, 990]


def joined(samples: list[Any]) -> list[Any]:
    return [pair for sample in samples for pair in sample]


WRAPPERS: list[Any] = [
    lambda inner: MapDataset(inner, lambda sample: sample),
    lambda inner: FilterDataset(inner, filter_fn=lambda sample: True),
    lambda inner: BatchDataset(inner, 1, joined),
]


@pytest.mark.parametrize("wrap", WRAPPERS, ids=["map", "filter", "batch"])
def test_what_is_added_to_a_data_set_goes_on_inside_a_wrapper(tmp_path: Path, wrap: Any) -> None:
    """An extra, a maker, a pack source, skipped steps."""
    texts = write_texts(tmp_path / "texts", 150, lambda number: "a" * (20 if number % 9 == 4 else 1 + number % 12))
    inner = grouped(texts, batch_size=None, num_lanes=2).changed(
        extras=(Odd(),), wrappers=(CountingMaker,), skips=StepSkips((SkippedRange(1, 3),))
    )
    found = []
    for dataset in (inner, wrap(inner)):
        with get_savable_loader(dataset) as loader:
            packs = [*itertools.islice(loader, 30)]
            state = loader.save_state_rank()
            counts = sum(loader.metrics().others.values())
            found.append((packs, loader.skipped, counts, count_of(LoaderState.from_dict(state))))
    assert found[1] == found[0]
    packs, skipped, *counts = found[0]
    assert len(packs) == 30 and skipped["odd"] and all(counts)
    assert {number % 2 for pack in packs for number, _ in pack} == {0}
    assert all(len({length > 12 for _, length in pack}) == 1 for pack in packs)


def test_what_cannot_be_wrapped_is_refused(folder: Path) -> None:
    for wrap, message in (
        (lambda: BatchDataset(val(folder, 4), 2, generic_batch), "has batches of 4 already"),
        (lambda: BatchDataset(LimitDataset(val(folder), 5), 2, generic_batch), "is limited or repeated"),
        (lambda: BatchDataset(val(folder), 0, generic_batch), "BatchDataset: batch_size"),
        (lambda: MapDataset([1], str), r"MapDataset\(\[1\]\): expected a data set"),
        (lambda: FilterDataset(val(folder), filter_fn=True), "FilterDataset: filter_fn=True: expected a function"),
    ):
        with pytest.raises(ConfigError, match=message):
            wrap()
