import itertools
import json
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    ConfigError,
    DefaultTaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from tests.prepared import write_blend, write_texts
from tests.properties.jobs import key_of, length_of


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 2, "world_size": 2, "num_workers": 0}, "rank < world_size"),
        ({"rank": -1, "world_size": 2, "num_workers": 0}, "rank=-1: expected an integer of at least 0"),
        ({"rank": 0, "world_size": 0, "num_workers": 0}, "world_size=0"),
        ({"rank": 0, "world_size": 1, "num_workers": -1}, "num_workers=-1"),
        ({"rank": 0, "world_size": 3, "num_workers": 0, "num_lanes": 4}, "multiple of world_size"),
        ({"rank": 0, "world_size": 3, "num_workers": 0, "num_lanes": -3}, "num_lanes=-3: expected an integer"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkerConfig(**arguments)


def test_the_ranks_share_the_lanes() -> None:
    configs = [WorkerConfig(rank=rank, world_size=3, num_workers=2) for rank in range(3)]
    assert [config.num_lanes for config in configs] == [24, 24, 24]
    assert sorted(lane for config in configs for lane in config.lanes) == list(range(24))


@pytest.mark.parametrize(("num_workers", "expected"), [(0, 8), (1, 8), (3, 8), (8, 8), (9, 9), (16, 16), (17, 17)])
def test_a_rank_has_eight_lanes_or_for_more_workers_one_for_each(num_workers: int, expected: int) -> None:
    assert WorkerConfig(rank=0, world_size=1, num_workers=num_workers).num_lanes == expected
    assert WorkerConfig(rank=1, world_size=3, num_workers=num_workers).num_lanes == 3 * expected


def test_more_lanes_for_more_workers_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        WorkerConfig(rank=0, world_size=1, num_workers=41)
        WorkerConfig(rank=0, world_size=1, num_workers=41, num_lanes=64)
        WorkerConfig(rank=0, world_size=1, num_workers=8)
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "num_workers=41: each rank has a lane for each"
    ]


@pytest.mark.parametrize(
    ("num_workers", "told"),
    [
        (1, None),
        (3, None),
        (4, None),
        (6, "as 4 workers. .* such as 4; .*num_lanes=12"),
        (7, "as 4"),
        (8, None),
        (9, "as 8"),
    ],
)
def test_workers_that_would_wait_for_those_with_more_lanes_are_told(num_workers: int, told: str | None) -> None:
    config = WorkerConfig(rank=1, world_size=2, num_workers=num_workers, num_lanes=16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config.warn_of_idle_workers(16)
    assert [bool(re.search(told or "", str(warning.message))) for warning in caught] == [True] * (told is not None)


def test_outside_a_distributed_run_the_default_is_one_rank() -> None:
    config = WorkerConfig.default_worker_config()
    assert (config.rank, config.world_size, config.num_workers, config.num_lanes) == (0, 1, 4, 8)
    assert config.global_rank() == 0


def test_a_config_travels_without_its_process_group() -> None:
    config = WorkerConfig(rank=1, world_size=2, num_workers=0, data_parallel_group=object(), num_lanes=8)  # type: ignore[arg-type]
    copy = pickle.loads(pickle.dumps(config))
    assert copy.data_parallel_group is None
    assert (copy.rank, copy.world_size, copy.num_lanes) == (1, 2, 8)


@pytest.mark.parametrize("name", ["rank_worker_id", "global_worker_id", "worker_seed"])
def test_what_would_tie_samples_to_a_worker_is_not_there_and_says_why(name: str) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    assert not hasattr(config, name)
    with pytest.raises(AttributeError, match=f"WorkerConfig has no {name}: .*current_sample_index"):
        getattr(config, name)


def test_outside_hooks_no_configuration_is_active() -> None:
    assert WorkerConfig.active_worker_config is None
    with pytest.raises(ConfigError, match="only while a hook"):
        _ = WorkerConfig(rank=0, world_size=1, num_workers=0).active_worker_sample_index


@pytest.mark.processes
def test_the_sequence_of_batches_is_the_same_with_0_1_2_and_3_workers_by_default(tmp_path: Path) -> None:
    data = write_texts(tmp_path / "data", 200)

    def batches(num_workers: int) -> list[Any]:
        config = WorkerConfig.default_worker_config(num_workers=num_workers)
        dataset = get_train_dataset(
            data, worker_config=config, batch_size=3, shuffle_buffer_size=100, max_samples_per_sequence=100
        )
        with get_savable_loader(dataset) as loader:
            assert loader.wait_for_workers() == (num_workers > 0)
            return [(batch.__key__, batch.text) for batch in itertools.islice(loader, 150)]

    expected = batches(0)
    assert len(expected) == 150
    assert [batches(num_workers) == expected for num_workers in (1, 2, 3)] == [True, True, True]


def test_what_may_be_held_is_no_negative_number() -> None:
    with pytest.raises(ConfigError, match=r"max_open_bytes=-1: expected an integer of at least 0"):
        WorkerConfig(rank=0, world_size=1, num_workers=0, max_open_bytes=-1)


class Asking(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Batches of (key, number of the sample as each hook was told it), and the number of the batch."""

    def preencode_sample(self, sample: Any) -> Any:
        sample.text += f" {self.current_sample_index}"
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        assert self.current_sample_index >= 0
        return [samples[start : start + 3] for start in range(0, len(samples), 3)]

    def postencode_sample(self, sample: Any) -> Any:
        number, told = map(int, sample.text.split())
        assert told == self.current_sample_index
        sample.text = str(number)
        return key_of(sample), self.current_sample_index

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        assert self.current_sample_index == samples[0][1]
        return samples

    def batch(self, samples: list[Any]) -> Any:
        config: Any = WorkerConfig.active_worker_config
        assert config.active_worker_sample_index == self.current_sample_index
        assert config.active_worker_batch_index == self.current_batch_index
        return samples, self.current_batch_index

    def encode_batch(self, batch: Any) -> Iterator[Any]:
        assert batch[1] == self.current_batch_index
        yield *batch, "first"
        yield *batch, "second"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "a", 60)
    write_texts(folder / "b", 20)
    return write_blend(folder / "blend.yaml", {"a": 3, "b": 1})


def loader_of(data: Path, encoder: Any, rank: int = 0, world_size: int = 1, **settings: Any) -> Any:
    return get_savable_loader(
        get_train_dataset(
            data,
            worker_config=WorkerConfig(rank=rank, world_size=world_size, num_workers=0, num_lanes=4),
            shuffle_buffer_size=20,
            max_samples_per_sequence=10,
            task_encoder=encoder,
            **{"batch_size": 2, "packing_buffer_size": 12} | settings,
        )
    )


def test_numbers_are_the_same_under_any_topology_and_after_any_resume(data: Path) -> None:
    whole = list(itertools.islice(loader_of(data, Asking()), 40))
    ranks = [list(itertools.islice(loader_of(data, Asking(), rank, 2), 20)) for rank in range(2)]
    assert [batch for step in zip(*ranks, strict=True) for batch in step] == whole
    for step in range(1, 20, 3):
        loader = loader_of(data, Asking())
        list(itertools.islice(loader, step))
        again = loader_of(data, Asking())
        again.restore_state_rank(json.loads(json.dumps(loader.save_state_rank())))
        assert list(itertools.islice(again, 10)) == whole[step : step + 10]


def test_batches_are_numbered_in_the_order_of_the_job_each_made_of_samples_of_its_own(data: Path) -> None:
    loader = loader_of(data, Asking())
    whole = list(itertools.islice(loader, 40))
    assert [batch[1] for batch in whole] == [m - 4 * (m // 4 % 2) for m in range(40)], "two parts have one number"
    firsts = [batch for batch in whole if batch[2] == "first"]
    numbers = [number for units, _, _ in firsts for unit in units for _, number in unit]
    assert len(numbers) == len(set(numbers))
    by_key = {key: number for units, _, _ in firsts for unit in units for key, number in unit}
    first = dict(zip(loader.dataset.source_names, (0, 60), strict=True))
    for (source, epoch, index, _), number in by_key.items():
        assert number == 80 * epoch + first[source] + index


class Early(DefaultTaskEncoder[Any, Any, Any, Any]):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return self.current_batch_index

    def batch_group_criterion(self, sample: Any) -> tuple[Any, None]:
        return sample, None


def test_the_number_of_a_batch_is_not_known_before_samples_are_grouped(data: Path) -> None:
    with pytest.raises(ConfigError, match=r"known in batch and encode_batch.*Use current_sample_index"):
        next(iter(loader_of(data, Early(), packing_buffer_size=None)))


class Halved(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Samples know their batch, of which `batch` makes two."""

    def encode_sample(self, sample: Any) -> Any:
        return type(sample).derive_from(sample, text=f"{sample.text} in {self.current_batch_index}")

    def batch(self, samples: list[Any]) -> Iterator[Any]:
        yield [sample.text for sample in samples[:1]]
        yield [sample.text for sample in samples[1:]]

    def encode_batch(self, batch: list[str]) -> list[str]:
        assert all(text.endswith(f" in {self.current_batch_index}") for text in batch)
        return batch


def test_samples_know_the_same_batch_after_a_resume_between_two_batches_of_one(data: Path) -> None:
    loader = loader_of(data, Halved(), packing_buffer_size=None)
    states, whole = [], []
    for batch in itertools.islice(loader, 12):
        whole.append(batch)
        states.append(loader.save_state_rank())
    for step, state in enumerate(states[:8], 1):
        again = loader_of(data, Halved(), packing_buffer_size=None)
        again.restore_state_rank(state)
        assert list(itertools.islice(again, 4)) == whole[step : step + 4]


class Returning(DefaultTaskEncoder[Any, Any, Any, Any]):
    """A hook that is no generator, and returns one."""

    def parts(self, sample: Any) -> Iterator[Any]:
        for _ in range(3):
            with pytest.raises(ConfigError, match="known in batch and encode_batch"):
                _ = self.current_batch_index
            yield sample

    def encode_sample(self, sample: Any) -> Any:
        return self.parts(sample)


def test_the_batch_of_a_part_is_not_known_if_a_plain_function_returns_a_generator(data: Path) -> None:
    assert len(list(itertools.islice(loader_of(data, Returning(), packing_buffer_size=None), 9))) == 9


def test_outside_hooks_nothing_is_current() -> None:
    for name in ("current_sample_index", "current_batch_index"):
        with pytest.raises(ConfigError, match=f"{name} is known only while a hook"):
            getattr(DefaultTaskEncoder(), name)


class Halves(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Every hook that may be a generator is one, and drops something."""

    def cook_crude_sample(self, *sample: Any) -> Any:
        yield sample[0]

    def encode_sample(self, sample: Any) -> Iterator[Any]:
        for part in range(length_of(sample) % 3):
            yield type(sample).derive_from(sample, text=f"{sample.text}.{part}")

    def batch(self, samples: list[Any]) -> Iterator[Any]:
        yield samples[:1]
        yield samples[1:]

    def encode_batch(self, batch: Any) -> Iterator[Any]:
        for sample in batch:
            yield sample.text


def test_hooks_may_be_generators_one_after_the_other(data: Path) -> None:
    whole = list(itertools.islice(loader_of(data, Halves(), batch_size=3, packing_buffer_size=None), 60))
    assert all(text.endswith((".0", ".1")) for text in whole)
    loader = loader_of(data, Halves(), batch_size=3, packing_buffer_size=None)
    list(itertools.islice(loader, 31))
    again = loader_of(data, Halves(), batch_size=3, packing_buffer_size=None)
    again.restore_state_rank(loader.save_state_rank())
    assert list(itertools.islice(again, 29)) == whole[31:]


class Splitting(Asking):
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        yield samples[:1]
        yield samples[1:]


def test_a_pack_becomes_one_sample(data: Path) -> None:
    with pytest.raises(ConfigError, match="pack_selected_samples of Splitting made 2 samples of one pack"):
        next(iter(loader_of(data, Splitting())))


def test_without_batches_neither_batch_hook_is_called(data: Path) -> None:
    class Single(DefaultTaskEncoder[Any, Any, Any, Any]):
        def batch(self, samples: list[Any]) -> Any:
            raise AssertionError

        def encode_batch(self, batch: Any) -> Any:
            raise AssertionError

    sample = next(iter(loader_of(data, Single(), batch_size=None, packing_buffer_size=None)))
    assert sample.text.isdigit()


class Numbered(DefaultTaskEncoder):
    """Samples say which batch they are encoded for."""

    def encode_sample(self, sample: Any) -> Any:
        return sample.text, self.current_batch_index

    def batch(self, samples: Any) -> Any:
        return samples, self.current_batch_index


class Doubling(Numbered):
    def encode_sample(self, sample: Any) -> Any:
        yield sample.text, self.current_batch_index


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_sample_knows_its_batch_also_after_a_resume(tmp_path: Path, world_size: int) -> None:
    path = write_texts(tmp_path / "d", 40)

    def loader(rank: int) -> Any:
        config = WorkerConfig(rank, world_size, 0, num_lanes=4)
        settings: dict[str, Any] = {"shuffle_buffer_size": 10, "max_samples_per_sequence": 5}
        return get_savable_loader(
            get_train_dataset(path, worker_config=config, batch_size=3, task_encoder=Numbered(), **settings)
        )

    for rank in range(world_size):
        whole, found = loader(rank), []
        for step, (samples, number) in zip(range(12), whole, strict=False):
            assert number == step * world_size + rank
            assert {own for _, own in samples} == {number}
            found.append(samples)
        resumed = loader(rank)
        for _ in range(5):
            next(iter(resumed))
        again = loader(rank)
        again.restore_state_rank(resumed.save_state_rank())
        assert [samples for _, (samples, _) in zip(range(7), again, strict=False)] == found[5:]


def test_a_batch_that_is_made_again_has_samples_with_its_number(tmp_path: Path) -> None:
    class Whole(DefaultTaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            return type(sample).extend(sample, text=f"{sample.text} in {self.current_batch_index}")

    path = write_texts(tmp_path / "d", 20)
    dataset = get_val_dataset(
        path, split_part="train", worker_config=WorkerConfig(0, 1, 0), batch_size=3, task_encoder=Whole()
    )
    loader = get_savable_loader(dataset)
    for number, batch in enumerate(loader):
        assert all(text.endswith(f" in {number}") for text in batch.text)
        assert loader.restore_sample(batch.__restore_key__).text == batch.text


def test_samples_of_generators_do_not_know_their_batch(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "d", 20)
    dataset = get_val_dataset(
        path, split_part="train", worker_config=WorkerConfig(0, 1, 0), batch_size=3, task_encoder=Doubling()
    )
    with pytest.raises(ConfigError, match="only without packing, batch_group_criterion, and hooks that are generators"):
        next(iter(get_savable_loader(dataset)))
