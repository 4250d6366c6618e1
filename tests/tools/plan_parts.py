"""Runs that the tests of `bridge-data plan` compare with plans: data, their costs, and an encoder that packs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bridge_data import (
    DefaultTaskEncoder,
    LaneDataset,
    SkipSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.lanes.planned import StepDeal
from bridge_data.task import Packing
from tests.costs import save_costs

CAPACITY = 64


class Words(DefaultTaskEncoder[Any, Any, Any, Any]):
    """A text of n words is n tokens; every eleventh sample is skipped, every seventh one is in two parts. Its batches
    are lists of what was in them."""

    costs_version = "1"

    @stateless
    def preencode_sample(self, sample: Any) -> Iterator[Any]:
        number = int(sample.__key__.rpartition("/")[2])
        if number % 11 == 0:
            raise SkipSample
        for part in range(2 if number % 7 == 0 else 1):
            yield {"key": sample.__key__, "tokens": number % 40 + 50 * (number % 13 == 0) + part + 1, "words": number}

    @stateless
    def costs(self, sample: Any) -> Mapping[str, int]:
        return {"tokens": sample["tokens"], "words": sample["words"]}

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        return sample

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return samples


class PackedWords(Words):
    """Packs them; those over 64 tokens are dropped."""

    select_samples_to_pack = Packing(length=lambda sample: int(sample["tokens"]), capacity=CAPACITY, overlong="drop")

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return list(samples)

    @stateless
    def batch(self, packs: list[Any]) -> Any:
        return [sample for pack in packs for sample in pack]


class Plain(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Was not measured. Its batches are lists of the names of sources."""

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return [sample.__subflavors__["origin"] for sample in samples]


def words() -> PackedWords:
    return PackedWords()


def measure(path: Path, encoder: Words) -> None:
    """Write what `bridge-data measure` writes for the data at `path`."""
    dataset = get_train_dataset(
        path, worker_config=WorkerConfig(0, 1, 0), **settings(), task_encoder=DefaultTaskEncoder()
    )
    for source in dataset.plan.sources:
        samples = []
        for index in range(source.num_samples):
            key = source.key_or_place(index)
            number = int(key.rpartition("/")[2])
            samples.append([] if number % 11 == 0 else [*map(encoder.costs, encoder.preencode_sample(_Named(key)))])
        save_costs(source.records, samples, ("tokens", "words"), encoder.costs_key(source))


class _Named:
    def __init__(self, key: str) -> None:
        self.__key__ = key


def settings(**others: Any) -> dict[str, Any]:
    return {"batch_size": 1, "shuffle_buffer_size": 50, "max_samples_per_sequence": 20, **others}


def rank_dataset(
    path: Path, rank: int, world_size: int, schedule: BatchSchedule, *, encoder: Any, deal: str | None, **others: Any
) -> LaneDataset:
    """The data of one rank."""
    workers = WorkerConfig(rank, world_size, 0, num_lanes=6)
    given = settings(batch_size=schedule.micro_batch_size, **others)
    dataset = get_train_dataset(path, worker_config=workers, task_encoder=encoder, **given)
    if deal is not None:
        dataset.deal = StepDeal(steps=schedule, num_ranks=world_size, by=deal)
    return dataset


def run(datasets: list[LaneDataset], schedule: BatchSchedule, num_steps: int) -> list[list[list[Any]]]:
    """What each rank gets in each step: [step][rank] is a list of sequences. It ends with the data."""
    streams = [iter(get_savable_loader(dataset)) for dataset in datasets]
    found: list[list[list[Any]]] = []
    for step in range(num_steps):
        numbers = schedule.micro_batches(step)
        ranks: list[list[Any]] = [[] for _ in datasets]
        for number in numbers:
            batch = next(streams[number % len(streams)], None)
            if batch is None:
                return found
            ranks[number % len(streams)] += batch
        found.append(ranks)
    return found
