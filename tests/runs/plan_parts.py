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
    merge_states,
    stateless,
)
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.plan import load_plan
from bridge_data.plugins.planned.planned import StepAssignment
from bridge_data.plugins.planned.planned_sources import with_assignment
from bridge_data.task import Packing
from tests.costs import KEY, save_costs

CAPACITY = 64


class Words(DefaultTaskEncoder[Any, Any, Any, Any]):
    """A text of n words is n tokens; every eleventh sample is skipped, every seventh one is in two parts. Its batches
    are lists of what was in them."""

    def costs_key(self, source: Any = None) -> str:
        return KEY

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
    """Packs them; by default, those over 64 tokens are dropped."""

    def __init__(self, overlong: Any = "drop", **budgets: int) -> None:
        super().__init__()
        cut = (lambda sample, capacity: {**sample, "tokens": capacity}) if overlong == "truncate" else None
        self.select_samples_to_pack = Packing(  # type: ignore[method-assign]
            length=lambda sample: int(sample["tokens"]),
            capacity=CAPACITY,
            overlong=overlong,
            truncate=cut,
            budgets=budgets,
            costs=self.costs if budgets else None,
        )

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
        return [sample.__sources__[0].dataset_path.rpartition("/")[2] for sample in samples]


def words() -> PackedWords:
    return PackedWords()


def measure(path: Path) -> None:
    """Write what `bridge-data prepare --costs` writes for the data at `path`, for both encoders."""
    encoder = Words()
    for source in load_plan(path).sources:
        samples = []
        for index in range(source.num_samples):
            key = source.key_or_place(index)
            number = int(key.rpartition("/")[2])
            samples.append([] if number % 11 == 0 else [*map(encoder.costs, encoder.preencode_sample(_Named(key)))])
        save_costs(source.records, samples, ("tokens", "words"))


class _Named:
    def __init__(self, key: str) -> None:
        self.__key__ = key


def settings(**others: Any) -> dict[str, Any]:
    return {"batch_size": 1, "shuffle_buffer_size": 50, "max_samples_per_sequence": 20, **others}


def rank_dataset(
    path: Path,
    rank: int,
    world_size: int,
    schedule: BatchSchedule,
    *,
    encoder: Any,
    assignment: str | None,
    workers: tuple[int, int] = (0, 6),
    **others: Any,
) -> LaneDataset:
    """The data of one rank; `workers` are the number of workers, and of lanes of the job."""
    config = WorkerConfig(rank, world_size, workers[0], num_lanes=workers[1])
    given = settings(batch_size=schedule.micro_batch_size, **others)
    dataset = get_train_dataset(path, worker_config=config, task_encoder=encoder, **given)
    if assignment is not None:
        return with_assignment(dataset, StepAssignment(steps=schedule, num_ranks=world_size, by=assignment))
    return dataset


def run(
    datasets: list[LaneDataset],
    schedule: BatchSchedule,
    num_steps: int,
    saved: tuple[int, dict[str, Any]] | None = None,
) -> tuple[list[list[list[Any]]], dict[str, Any]]:
    """What each rank gets in each step, and the state then: [step][rank] is a list of sequences. It ends with the data,
    or after `num_steps`; `saved` are the steps before it and their state."""
    first, state = saved or (0, None)
    loaders = [get_savable_loader(dataset) for dataset in datasets]
    for loader in loaders:
        if state is not None:
            loader.restore_state_rank(state)
    streams = [iter(loader) for loader in loaders]
    found: list[list[list[Any]]] = []
    for step in range(first, first + num_steps):
        ranks: list[list[Any]] = [[] for _ in datasets]
        batches = [
            (number % len(streams), next(streams[number % len(streams)], None))
            for number in schedule.micro_batches(step)
        ]
        if any(batch is None for _, batch in batches):
            break
        for rank, batch in batches:
            ranks[rank] += batch
        found.append(ranks)
    merged = merge_states([loader.save_state_rank() for loader in loaders])
    for loader in loaders:
        loader.close()
    return found, merged
